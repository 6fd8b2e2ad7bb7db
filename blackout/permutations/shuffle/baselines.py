"""What others train on the same puzzles: Gumbel-Sinkhorn, relaxed sorting networks, and tours without learning.

They are single steps from a uniform order (`shuffle.schedule=[0,40]`), so that data, network, figures and reports are
those of shuffle diffusions: `baseline=...`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Size, Tensor

from blackout.component import component
from blackout.permutations.distributions import Matching, OrderDistribution, PlackettLuce
from blackout.permutations.metrics import arranged
from blackout.permutations.shuffle.decoding import Decoder, Look
from blackout.permutations.shuffle.losses import Lesson, ShuffleLoss
from blackout.permutations.shuffle.reverse import Denoiser, moving, whole
from blackout.permutations.sorting_networks import Layout, comparators, relaxed_sort
from blackout.permutations.datasets.tours import polar_tours, two_opt
from blackout.random import SampleStreams


@component("loss")
@dataclass(frozen=True)
class SinkhornLoss(ShuffleLoss):
    """-log of the right entries of doubly stochastic matrices: Gumbel-Sinkhorn (Mena et al., ICLR 2018) with labels.

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

    def __call__(self, lesson: Lesson) -> tuple[Tensor, Mapping[str, Tensor]]:
        states, back, times = lesson.walks(1)
        law = _matching(lesson.denoiser(states.flatten(1, 2), times.flatten()))
        noisy = law.noisy(Size((self.draws,)), lesson.streams) / self.temperature
        loss = self._loss(lesson, Matching(noisy, self.iterations), states.flatten(1, 2), back.flatten(1, 2))
        return loss, {"train/loss": loss.detach()}

    def _loss(self, lesson: Lesson, law: Matching, states: Tensor, back: Tensor) -> Tensor:
        """From noisy laws [draws, b, r], states and steps back [b, r, m]."""
        return -law.log_prob(back).mean()


@component("loss")
@dataclass(frozen=True)
class SinkhornPixelLoss(SinkhornLoss):
    """Squared error of lists that the matrices put in order softly: Gumbel-Sinkhorn as published, without labels."""

    labels: ClassVar[bool] = False

    def _loss(self, lesson: Lesson, law: Matching, states: Tensor, back: Tensor) -> Tensor:
        items = lesson.items.float().flatten(2)
        fixed = lesson.denoiser.first_fixed
        lists, before = (_lists(items, orders, fixed) for orders in (states, states.gather(-1, back)))
        return (law.log_matrix.exp() @ lists - before).square().sum((-1, -2)).mean()


@component("loss")
@dataclass(frozen=True)
class SortingNetworkLoss(ShuffleLoss):
    """Cross-entropy of the entries of a relaxed sorting network's matrix, for scores of items (`reverse=pl`).

    DiffSort (Petersen et al., ICLR 2022, with the Cauchy distribution); `error_free`: the swaps of Kim, Yoon and Cho
    (ICLR 2024), of whose two losses this is the one on the soft matrix.

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

    def __call__(self, lesson: Lesson) -> tuple[Tensor, Mapping[str, Tensor]]:
        states, back, times = lesson.walks(1)
        law = lesson.denoiser(states.flatten(1, 2), times.flatten())
        if not isinstance(law, PlackettLuce):
            raise ValueError("a sorting network sorts scores of items: reverse=pl")
        # the highest score comes first
        matrix = relaxed_sort(-law.scores, self.steepness, self.layout, self.error_free)
        target = F.one_hot(back.flatten(1, 2), matrix.shape[-1]).to(matrix)
        loss = F.binary_cross_entropy(matrix.clamp(0, 1), target)
        return loss, {"train/loss": loss.detach()}


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

    def evaluations(self, steps: int) -> int:
        return 0


def _matching(law: OrderDistribution) -> Matching:
    if not isinstance(law, Matching):
        raise ValueError("Gumbel-Sinkhorn matches items with places: reverse=assignment")
    return law


def _lists(items: Tensor, orders: Tensor, fixed: bool) -> Tensor:
    """Items [b, n, d] that may move in the orders [b, r, m]: [b, r, m, d]."""
    full = whole(orders, fixed)
    lists = arranged(items.repeat_interleave(full.shape[1], 0), full.flatten(0, 1)).unflatten(0, full.shape[:2])
    return lists[..., 1:, :] if fixed else lists
