"""First and final time of a time grid, chosen from statistics of the data.

Sampling of pure death starts from Poisson counts, which have the mean of X_T and no correlations.
How late a grid has to end therefore depends on the correlations of the data. With
M = diag E[X_0] and the eigenvalues c of the excess M^-1/2 (Cov X_0 - M) M^-1/2, the error of this
start is, for Gaussian counts and to second order for all,

    KL(X_T || Poisson(q_T E[X_0])) = 1/2 sum [q_T c - log(1 + q_T c)] = q_T^2 ||c||^2 / 4 - ...

The final time follows from two statistics (`blackout.data.count_statistics`): the dispersion of the
total count, D = Var(sum X) / E(sum X), and the norm ||c||. The first time after 0 follows from the
largest count, because the last reverse step makes all remaining births at once.

References: this project; checked in tests/verification/test_time_grid_ends.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from blackout.component import Stats
from blackout.diffusion.survival import logit_survival

TARGET_DISPERSION = 0.05  # q_T D at a chosen final time; totals are then right to 0.25 %
TARGET_START_DIVERGENCE = 0.01  # nats; error of a Poisson start at a chosen final time
MAX_DISPERSION = 0.25  # of q_T D; beyond, totals of samples lose more than 4 % of their variance
MAX_START_DIVERGENCE = 0.05  # nats; largest error of a Poisson start that no step corrects
FIRST_LOGIT = 5.0  # of survival at the first time after 0, for counts up to 255
FINAL_TIME = 15.0  # the paper's final time, for counts up to 255 whatever the data


def extra_logits(max_count: int) -> float:
    """Return by how many logits each end of a grid moves outwards for counts above 255.

    It is log(max_count / 255), and 0 for counts up to 255.

    References: this project; checked in tests/verification/test_time_grid_ends.py.
    """
    return max(0.0, math.log(max_count / 255))


@dataclass(frozen=True)
class GridEnds:
    """First and final time of a grid, chosen from statistics of the data.

    References: this project; checked in tests/verification/test_time_grid_ends.py.

    Args:
        total_dispersion: D, the Fano factor of the total count.
        covariance_excess: ||c||, see the module.
        max_count: the largest count.
    """

    total_dispersion: float
    covariance_excess: float
    max_count: int

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> GridEnds | None:
        """Return the ends for the statistics in a model's description; None if one is missing."""
        names = ("total_dispersion", "covariance_excess", "max_count")
        if any(name not in facts for name in names):
            return None
        return cls(*(facts[name] for name in names))

    @property
    def first(self) -> float:
        """Logit of survival at the first time after 0: 5 for counts up to 255, larger beyond.

        At this time as few units of the largest count are missing as at logit 5 of 255.
        """
        return FIRST_LOGIT + extra_logits(self.max_count)

    @property
    def last(self) -> float:
        """Logit of survival at the final time: q_T D <= 0.05, and a start error <= 0.01 nats."""
        survival = min(
            TARGET_DISPERSION / max(self.total_dispersion, 1e-30),
            2 * math.sqrt(TARGET_START_DIVERGENCE) / max(self.covariance_excess, 1e-30),
            0.5,
        )
        return math.log(survival) - math.log1p(-survival)

    @property
    def final_time(self) -> float:
        """Time of the logit `last`; at least 15, and at least the logit `first`.

        A grid that is symmetric in the logit can then start at `first`.
        """
        return max(FINAL_TIME, math.log1p(math.exp(-self.last)), self.first)

    def start_divergence(self, t: Tensor | float) -> float:
        """Return an upper bound on the KL divergence of a Poisson start, q^2 ||c||^2 / 4 nats."""
        return (math.exp(-float(t)) * self.covariance_excess) ** 2 / 4

    def earliest_time(self, max_divergence: float = MAX_START_DIVERGENCE) -> float:
        """Return the earliest final time at which a Poisson start is accurate enough.

        There q_T D is at most 0.25, and the error of the start at most `max_divergence` nats.
        """
        largest_survival = min(
            MAX_DISPERSION / max(self.total_dispersion, 1e-30),
            2 * math.sqrt(max_divergence) / max(self.covariance_excess, 1e-30),
            1.0,
        )
        return -math.log(largest_survival)

    def check(self, t: Tensor, earliest: float | None = None) -> None:
        """Refuse a final time that is too early for the data.

        Args:
            t: final time of a grid.
            earliest: the earliest time that is accurate enough; None for `earliest_time()`.

        Raises:
            ValueError: samples that start there would lack correlations within a sample.
        """
        earliest = self.earliest_time() if earliest is None else earliest
        if float(t) >= earliest:
            return
        divergence = self.start_divergence(t)
        dispersion = math.exp(-float(t)) * self.total_dispersion
        end = float(logit_survival(torch.as_tensor(t, dtype=torch.float64)))
        raise ValueError(
            f"the grid ends at logit {end:.4g}, too early for these data: the total count there "
            f"has {1 + dispersion:.3g} times the variance of the Poisson counts that samples start "
            f"from (a divergence of up to {divergence:.2g} nats): use "
            f"last={math.floor(self.last * 10) / 10} of the grid, "
            f"final_time={math.ceil(self.final_time * 10) / 10}, or sampler/grid=logit_data"
        )


def add_grid_ends(facts: Stats) -> dict[str, Any]:
    """Return the facts, with `grid_ends` added if they have the statistics that these need."""
    ends = GridEnds.from_facts(facts)
    if ends is None:
        return {**facts}
    grid_ends = {"first": ends.first, "last": ends.last, "final_time": ends.final_time}
    return {**facts, "grid_ends": grid_ends}
