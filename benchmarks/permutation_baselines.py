"""Losses of the papers' baselines, for the tables only: Gumbel-Sinkhorn and relaxed sorting
networks.

Settings name them, `loss._target_=benchmarks.permutation_baselines.SortingNetworkLoss`, and
`sample.py` needs `trusted=[benchmarks]`. [Petersen 2022] is DiffSort, [Kim 2024] its error-free
variant, and [Mena 2018] Gumbel-Sinkhorn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from blackout.component import component
from blackout.permutations.distributions import Matching, PlackettLuce
from blackout.permutations.metrics import rearrange
from blackout.permutations.relaxations import Layout, comparators, relaxed_sort, sinkhorn
from blackout.permutations.shuffle import SinkhornLoss
from blackout.permutations.shuffle.decoding import prepend_first
from blackout.permutations.shuffle.losses import LossInputs, ShuffleLoss


@component("loss")
@dataclass(frozen=True)
class SinkhornPixelLoss(SinkhornLoss):
    """Squared error of lists that the matrices put in order softly: Gumbel-Sinkhorn as published,
    without labels.

    [Mena 2018, section 5.2].
    """

    labels: ClassVar[bool] = False

    def __call__(self, inputs: LossInputs) -> tuple[Tensor, Mapping[str, Tensor]]:
        distribution, states, back = inputs.reverse_steps(1)
        assert isinstance(distribution, Matching)
        noisy = distribution.perturbed_scores((self.draws,), inputs.streams) / self.temperature
        matrices = sinkhorn(noisy, self.iterations).exp()
        items = inputs.items.float().flatten(2).unsqueeze(1)
        fixed = inputs.denoiser.first_fixed
        items_after, items_before = (  # [b, r, m, d]
            rearrange(
                items.expand(-1, orders.shape[1], -1, -1).flatten(0, 1),
                prepend_first(orders, fixed).flatten(0, 1),
            ).unflatten(0, orders.shape[:2])[..., int(fixed) :, :]
            for orders in (states, states.gather(-1, back))
        )
        loss = (matrices @ items_after - items_before).square().sum((-1, -2)).mean()
        return loss, {}


@component("loss")
@dataclass(frozen=True)
class SortingNetworkLoss(ShuffleLoss):
    """Cross-entropy of the entries of a relaxed sorting network's matrix, for scores of items
    (`reverse=pl`).

    DiffSort [Petersen 2022], with the Cauchy distribution; `error_free`: the swaps of [Kim 2024],
    of whose two losses this is the one on the soft matrix.

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
        distribution, _, back = inputs.reverse_steps(1)
        if not isinstance(distribution, PlackettLuce):
            raise ValueError("a sorting network sorts scores of items: reverse=pl")
        # the highest score comes first
        matrix = relaxed_sort(
            -distribution.scores, self.steepness, self.layout, error_free=self.error_free
        )
        loss = F.binary_cross_entropy(
            matrix.clamp(0, 1), F.one_hot(back, matrix.shape[-1]).to(matrix)
        )
        return loss, {}
