"""What others train on the same puzzles: Gumbel-Sinkhorn, relaxed sorting networks, tours and jigsaws without learning.

They are single steps from a uniform order (`shuffle.schedule=[0,40]`), so that data, network, figures and reports are
those of shuffle diffusions: `baseline=...`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from blackout.component import component
from blackout.errors import UserError
from blackout.permutations.datasets import Puzzles
from blackout.permutations.datasets.tours import polar_tours, two_opt
from blackout.permutations.distributions import GeneralizedPlackettLuce, Matching, PlackettLuce
from blackout.permutations.group import compose, identity_like
from blackout.permutations.metrics import arranged
from blackout.permutations.seams import WIDTH, SeamNetwork, assembled, fit, fitted_weight, seams
from blackout.permutations.shuffle.decoding import Decoder, Look
from blackout.permutations.shuffle.losses import LossInputs, ShuffleLoss
from blackout.permutations.shuffle.reverse import Denoiser, moving, with_first
from blackout.random import SampleStreams

Layout: TypeAlias = Literal["odd_even", "bitonic"]
_FITTED = 200
"""Training puzzles to which the weight of borders is fitted."""


@component("loss")
@dataclass(frozen=True)
class SinkhornLoss(ShuffleLoss):
    """-log of the right entries of doubly stochastic matrices: Gumbel-Sinkhorn [Mena 2018] with labels.

    Args:
        draws: of Gumbel noise for each list.
        iterations: of Sinkhorn's normalisation in training.
        temperature: of the matrices.

    Raises:
        ValueError: numbers below 1, or a temperature that is not positive.
    """

    draws: int = 1
    iterations: int = 20
    temperature: float = 1.0
    labels: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.draws < 1 or self.iterations < 1 or not 0 < self.temperature < math.inf:
            raise ValueError(
                "draws and iterations must be at least 1 and temperature positive, not "
                f"{self.draws}, {self.iterations} and {self.temperature}"
            )

    def __call__(self, inputs: LossInputs) -> tuple[Tensor, Mapping[str, Tensor]]:
        law, states, back = inputs.steps(1)
        if not isinstance(law, Matching):
            raise ValueError("Gumbel-Sinkhorn matches items with places: reverse=assignment")
        noisy = law.noisy((self.draws,), inputs.streams) / self.temperature
        loss = self._loss(inputs, Matching(noisy, self.iterations), states, back)
        return loss, {"train/loss": loss.detach()}

    def _loss(self, inputs: LossInputs, law: Matching, states: Tensor, back: Tensor) -> Tensor:
        """From noisy laws [draws, b, r], states and steps back [b, r, m]."""
        return -law.log_prob(back).mean()


@component("loss")
@dataclass(frozen=True)
class SinkhornPixelLoss(SinkhornLoss):
    """Squared error of lists that the matrices put in order softly: Gumbel-Sinkhorn as published, without labels.

    [Mena 2018, section 5.2].
    """

    labels: ClassVar[bool] = False

    def _loss(self, inputs: LossInputs, law: Matching, states: Tensor, back: Tensor) -> Tensor:
        items, fixed = inputs.items.float().flatten(2).unsqueeze(1), inputs.denoiser.first_fixed
        after, before = (  # [b, r, m, d]
            arranged(items.expand(-1, orders.shape[1], -1, -1).flatten(0, 1), with_first(orders, fixed).flatten(0, 1))
            .unflatten(0, orders.shape[:2])[..., int(fixed) :, :]
            for orders in (states, states.gather(-1, back))
        )  # fmt: skip
        return (law.log_matrix.exp() @ after - before).square().sum((-1, -2)).mean()


@component("loss")
@dataclass(frozen=True)
class SortingNetworkLoss(ShuffleLoss):
    """Cross-entropy of the entries of a relaxed sorting network's matrix, for scores of items (`reverse=pl`).

    DiffSort [Petersen 2022], with the Cauchy distribution; `error_free`: the swaps of [Kim 2024], of whose two losses
    this is the one on the soft matrix.

    Args:
        steepness: of comparators; published 6 to 200 with the length of lists.
        layout: odd_even or bitonic.
        error_free: whether numbers are sorted exactly on their way.

    Raises:
        ValueError: a steepness that is not positive, or another layout.
    """

    steepness: float = 20.0
    layout: Layout = "odd_even"
    error_free: bool = False
    labels: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 < self.steepness < math.inf:
            raise ValueError(f"steepness must be positive, not {self.steepness}")
        comparators(2, self.layout)

    def __call__(self, inputs: LossInputs) -> tuple[Tensor, Mapping[str, Tensor]]:
        law, _, back = inputs.steps(1)
        if not isinstance(law, PlackettLuce):
            raise ValueError("a sorting network sorts scores of items: reverse=pl")
        # the highest score comes first
        matrix = relaxed_sort(-law.scores, self.steepness, self.layout, self.error_free)
        loss = F.binary_cross_entropy(matrix.clamp(0, 1), F.one_hot(back, matrix.shape[-1]).to(matrix))
        return loss, {"train/loss": loss.detach()}


@component("loss")
@dataclass(frozen=True)
class SeamLoss(ShuffleLoss):
    """-log softmax of right neighbours, each way, and of the right order by pieces themselves (`SeamNetwork`)."""

    labels: ClassVar[bool] = True

    def __call__(self, inputs: LossInputs) -> tuple[Tensor, Mapping[str, Tensor]]:
        network, n = inputs.denoiser.network, inputs.denoiser.free
        if not isinstance(network, SeamNetwork):
            raise ValueError("borders are learned by network=seam_network")
        law, _, back = inputs.steps(1)
        columns, found = square(n), network.seams(inputs.denoiser.features)
        right = fit(found, columns, identity_like(back[:, 0])).mean() / (4 * columns * (columns - 1))
        loss = -right - law.log_prob(back).mean() / n
        return loss, {"train/loss": loss.detach(), "train/seams": -right.detach()}


def relaxed_sort(values: Tensor, steepness: float, layout: Layout = "odd_even", error_free: bool = False) -> Tensor:
    """How much of which number is at every place after sorting upwards: doubly stochastic, [..., n, n], rows places.

    A comparator leaves its numbers a, b as they are with weight 1/2 + arctan(steepness (b - a)) / pi, and changes them
    with the rest [Petersen 2022, section 4].

    Args:
        values: [..., n].
        steepness: of comparators, above 0.
        layout: of the network.
        error_free: the numbers themselves are sorted exactly, with the gradient of the relaxed ones [Kim 2024]; else
            they are mixed, and differences shrink from layer to layer.
    """
    n = values.shape[-1]
    matrix = torch.eye(n, dtype=values.dtype, device=values.device).expand(*values.shape, n)
    for lower, upper in comparators(n, layout):
        a, b = values[..., lower], values[..., upper]
        stays = 0.5 + torch.atan(steepness * (b - a)) / math.pi
        low, high = stays * a + (1 - stays) * b, (1 - stays) * a + stays * b
        if error_free:
            low, high = low + (torch.minimum(a, b) - low).detach(), high + (torch.maximum(a, b) - high).detach()
        values = values.clone()
        values[..., lower], values[..., upper] = low, high
        weight, top, bottom = stays.unsqueeze(-1), matrix[..., lower, :], matrix[..., upper, :]
        matrix = matrix.clone()
        matrix[..., lower, :] = weight * top + (1 - weight) * bottom
        matrix[..., upper, :] = (1 - weight) * top + weight * bottom
    return matrix


def comparators(n: int, layout: Layout) -> list[tuple[list[int], list[int]]]:
    """The layers of a network that sorts n numbers, each (lower places, upper places) that are compared at once.

    Args:
        n: at least 1.
        layout: odd_even, n layers of neighbours, or bitonic, log n (log n + 1) / 2 layers [Batcher 1968].

    Raises:
        ValueError: another layout.
    """
    if layout == "odd_even":
        pairs = [[(i, i + 1) for i in range(layer % 2, n - 1, 2)] for layer in range(n)]
    elif layout == "bitonic":
        # for the next power of two; all comparators point up, so that those of numbers above all can be left out
        size, pairs = 1 << (n - 1).bit_length(), []
        for exponent in range(1, size.bit_length()):
            # a block's ends are compared inwards, then ever nearer neighbours
            for distance in (2**exponent - 1, *(2**e for e in reversed(range(exponent - 1)))):
                pairs.append([(i, i ^ distance) for i in range(size) if i < i ^ distance < n])
    else:
        raise ValueError(f"layout must be odd_even or bitonic, not {layout}")
    return [([i for i, _ in layer], [j for _, j in layer]) for layer in pairs if layer]


@component("sampler")
@dataclass(frozen=True)
class TwoOpt(Decoder):
    """Tours by polar angle, mended by exchanging two edges: no network is asked. log_prob is 0."""

    only: ClassVar[str | None] = "points"

    def __call__(
        self, denoiser: Denoiser, times: Sequence[int], streams: SampleStreams, look: Look | None = None
    ) -> tuple[Tensor, Tensor]:
        points = denoiser.items
        assert points is not None
        tours = two_opt(points.cpu(), polar_tours(points.cpu())).to(points.device)
        orders = moving(tours, denoiser.first_fixed).unsqueeze(1)
        if look is not None:
            look(len(times), orders[:, 0])
        return orders, torch.zeros(orders.shape[:2], device=points.device)

    def evaluations(self, steps: int, free: int) -> int:
        return 0


@component("sampler")
@dataclass(frozen=True)
class Seams(Decoder):
    """Pieces of a square picture by how their borders fit, or a `SeamNetwork` says, and where the network has each.

    A beam over arrangements, whose scores are `weight` times those of the borders plus, of a network with a row of
    scores for every place, its log-probabilities of the last step; steps before it are taken greedily. Without a
    network nothing is learned but the weight. log_prob is among the arrangements found. Ours.

    Args:
        weight: of borders; None is fitted to training puzzles (`blackout.permutations.seams.fitted_weight`).
        width: of the beam.
        network: whether it is asked.

    Raises:
        ValueError: a weight that is negative, or a width below 1.
    """

    weight: float | None = None
    width: int = WIDTH
    network: bool = True
    only: ClassVar[str | None] = "pieces"

    def __post_init__(self) -> None:
        if self.width < 1 or (self.weight is not None and not 0 <= self.weight < math.inf):
            raise ValueError(f"width must be at least 1 and weight not negative, not {self.width} and {self.weight}")

    def __call__(
        self, denoiser: Denoiser, times: Sequence[int], streams: SampleStreams, look: Look | None = None
    ) -> tuple[Tensor, Tensor]:
        items, show = denoiser.items, look or (lambda step, orders: None)
        assert items is not None
        columns = square(items.shape[1])
        state, places = identity_like(torch.empty(items.shape[:2], device=items.device)).contiguous(), None
        show(0, state)
        for step, t in enumerate(reversed(times), 1) if self.network else ():
            law = denoiser(state.unsqueeze(1), t)
            if t != times[0]:
                state = compose(state, law.mode.squeeze(1))
                show(step, state)
            elif isinstance(law, GeneralizedPlackettLuce):
                scores = law.scores.squeeze(1).log_softmax(-1)
                places = torch.empty_like(scores).scatter_(-1, state.unsqueeze(1).expand_as(scores), scores)
        network = denoiser.network
        own = network.seams(denoiser.features) if isinstance(network, SeamNetwork) else seams(items)
        found = (1.0 if self.weight is None else self.weight) * own
        orders, sums = assembled(found, columns, self.width, places)
        show(len(times), orders[:, 0])
        return orders, sums.log_softmax(-1)

    def evaluations(self, steps: int, free: int) -> int:
        return steps if self.network else 0

    def fitted(self, source: Puzzles) -> Seams:
        """The same with a weight."""
        if self.weight is not None or source.kind != "pieces":
            return self
        pieces = source.batch("train", torch.arange(_FITTED))["items"]
        return replace(self, weight=fitted_weight(pieces, square(source.num_items)))


def square(number: int) -> int:
    """Pieces per side.

    Raises:
        UserError: so many do not make a square.
    """
    side = math.isqrt(number)
    if side**2 != number:
        raise UserError(f"sampler: {number} pieces make no square, whose borders could be compared")
    return side
