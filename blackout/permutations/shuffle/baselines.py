"""What others train on the same puzzles: Gumbel-Sinkhorn, learned borders; tours and jigsaws without learning.

They are single steps from a uniform order (`shuffle.schedule=[0,40]`), so that data, network, figures and reports are
those of shuffle diffusions: `baseline=...`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from blackout.component import component
from blackout.errors import refuse
from blackout.permutations.datasets import Puzzles
from blackout.permutations.distributions import GeneralizedPlackettLuce, Matching
from blackout.permutations.group import compose, identity_like
from blackout.permutations.seams import WIDTH, SeamNetwork, assembled, fit, fitted_weight, seams
from blackout.permutations.shuffle.decoding import Decoder, Lists, Look, Times, unseen
from blackout.permutations.shuffle.losses import LossInputs, ShuffleLoss
from blackout.permutations.shuffle.reverse import Denoiser, moving
from blackout.permutations.tours import polar_tours, two_opt
from blackout.random import SampleStreams

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
        ValueError: numbers below 1, or a temperature that is not positive; another law of the steps back.
    """

    draws: int = 1
    iterations: int = 20
    temperature: float = 1.0
    labels: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.draws < 1 or self.iterations < 1 or not 0 < self.temperature < math.inf:
            raise ValueError(f"draws and iterations must be at least 1 and temperature positive, not {self}")

    def __call__(self, inputs: LossInputs) -> tuple[Tensor, Mapping[str, Tensor]]:
        """A scalar, and figures by name: see `ShuffleLoss`."""
        law, _, back = inputs.steps(1)
        if not isinstance(law, Matching):
            raise ValueError("Gumbel-Sinkhorn matches items with places: reverse=assignment")
        noisy = law.noisy((self.draws,), inputs.streams) / self.temperature  # [draws, b, r, m, m]
        return -Matching(noisy, self.iterations).log_prob(back).mean(), {}


@component("loss")
@dataclass(frozen=True)
class SeamLoss(ShuffleLoss):
    """-log softmax of right neighbours, each way, and of the right order by pieces themselves (`SeamNetwork`)."""

    labels: ClassVar[bool] = True

    def __call__(self, inputs: LossInputs) -> tuple[Tensor, Mapping[str, Tensor]]:
        """A scalar, and figures by name: see `ShuffleLoss`."""
        network, n = inputs.denoiser.network, inputs.denoiser.free
        if not isinstance(network, SeamNetwork):
            raise ValueError("borders are learned by network=seam_network")
        law, _, back = inputs.steps(1)
        columns, found = square(n), network.seams(inputs.denoiser.features)
        right = fit(found, columns, identity_like(back[:, 0])).mean() / (4 * columns * (columns - 1))
        return -right - law.log_prob(back).mean() / n, {"train/seams": -right.detach()}


@component("sampler")
class TwoOpt(Decoder):
    """Tours by polar angle, mended by exchanging two edges: no network is asked. log_prob is 0."""

    only: ClassVar[str | None] = "points"

    def __call__(self, denoiser: Denoiser, times: Times, streams: SampleStreams, look: Look = unseen) -> Lists:
        """Orders int64 [b, K, m], the best first, and log-probabilities [b, K]: see `Decoder`."""
        points = denoiser.items
        tours = two_opt(points.cpu(), polar_tours(points.cpu())).to(points.device)
        orders = moving(tours, denoiser.first_fixed).unsqueeze(1)
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
    network nothing is learned but the weight. log_prob is among the arrangements found. Ours
    (tests/permutations/test_seams.py).

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

    def __call__(self, denoiser: Denoiser, times: Times, streams: SampleStreams, look: Look = unseen) -> Lists:
        """Orders int64 [b, K, m], the best first, and log-probabilities [b, K]: see `Decoder`."""
        items = denoiser.items
        columns = square(items.shape[1])
        state, places = identity_like(torch.empty(items.shape[:2], device=items.device)).contiguous(), None
        look(0, state)
        for step, t in enumerate(reversed(times), 1) if self.network else ():
            law = denoiser(state.unsqueeze(1), t)
            if t != times[0]:
                state = compose(state, law.mode.squeeze(1))
                look(step, state)
            elif isinstance(law, GeneralizedPlackettLuce):
                scores = law.scores.squeeze(1).log_softmax(-1)
                places = torch.empty_like(scores).scatter_(-1, state.unsqueeze(1).expand_as(scores), scores)
        network = denoiser.network
        own = network.seams(denoiser.features) if isinstance(network, SeamNetwork) else seams(items)
        found = (1.0 if self.weight is None else self.weight) * own
        orders, sums = assembled(found, columns, self.width, places)
        look(len(times), orders[:, 0])
        return orders, sums.log_softmax(-1)

    def evaluations(self, steps: int, free: int) -> int:
        return steps if self.network else 0

    def fitted(self, source: Puzzles) -> Seams:
        """The same with the weight of borders that fits a source of pieces."""
        pieces = source.batch("train", torch.arange(_FITTED))["items"]
        return replace(self, weight=fitted_weight(pieces, square(source.num_items)))


def square(number: int) -> int:
    """Pieces per side.

    Raises:
        UserError: so many do not make a square.
    """
    side = math.isqrt(number)
    refuse(side**2 != number, f"sampler: {number} pieces make no square, whose borders could be compared")
    return side
