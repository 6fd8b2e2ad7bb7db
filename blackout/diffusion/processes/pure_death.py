"""Pure death: every unit decays at rate 1, independently, until all is black [Santos 2023, section 2.5]."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from blackout.component import component
from blackout.counts import Time, expand_time
from blackout.diffusion.predictions import CountPrediction
from blackout.diffusion.processes.base import CountProcess, check_max_count
from blackout.diffusion.schedules import missing_fraction, step_fraction
from blackout.random import RandomSource, binomial


@component("process")
@dataclass(frozen=True)
class PureDeath(CountProcess):
    """The linear death process on 0..max_count [Santos 2023, eq. 7]; a unit survives to t with probability q = e^-t.

    Its statistic is the missing count X_0 - X_t.

    Args:
        max_count: largest count.

    Raises:
        ValueError: max_count is not a positive integer below 2^31.
    """

    max_count: int = 255
    prediction: ClassVar[type[CountPrediction]] = CountPrediction
    jumps: ClassVar[tuple[int, ...]] = (1,)

    def __post_init__(self) -> None:
        check_max_count(self.max_count)

    @property
    def num_states(self) -> int:  # type: ignore[override]
        """The counts themselves."""
        return self.max_count + 1

    def sample(self, x0: Tensor, t: Time, generator: RandomSource = None) -> Tensor:
        """X_t | X_0 ~ Binomial(X_0, e^-t) [Santos 2023, eq. 8]: integers of x0's shape and dtype."""
        t = expand_time(t, x0)
        return binomial(x0, torch.exp(-t), generator, complement=-torch.expm1(-t))

    def observe(self, x0: Tensor, t: Time, generator: RandomSource = None) -> tuple[Tensor, Tensor]:
        """X_t, and the number of missing units X_0 - X_t, int32 of x0's shape, as the target
        [Santos 2023, Algorithm 1].
        """
        xt = self.sample(x0, t, generator)
        return xt, x0.int() - xt.int()

    def _log_pmf(self, x0: Tensor, xt: Tensor, t: Tensor) -> Tensor:
        """log P(Binomial(x0, e^-t) = xt), elementwise, -inf where xt > x0 [Santos 2023, eq. 8]."""
        n, k = x0.double(), xt.double()
        rest = (n - k).clamp(min=0)
        ways = torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(rest + 1)
        return torch.where(k <= n, ways - k * t + torch.special.xlogy(rest, -torch.expm1(-t)), -math.inf)

    def bridge(self, x0: Tensor, xt: Tensor, s: Time, t: Time, generator: RandomSource = None) -> Tensor:
        """X_s | X_0, X_t = X_t + Binomial(X_0 - X_t, r), of x0's shape [Santos 2023, eq. 12].

        r = (e^-s - e^-t) / (1 - e^-t): the factor s printed in eq. 13 is an error, which appendix D does not have.
        """
        s, t = expand_time(s, x0), expand_time(t, x0)
        return xt + binomial(x0 - xt, step_fraction(s, t), generator, complement=missing_fraction(s, t))

    def rates(self, expected: Tensor, xt: Tensor, t: Time) -> Tensor:
        """Birth rate y e^-t / (1 - e^-t) given y = E[X_0 - X_t | X_t] [B, ...], float64 [B, 1, ...]
        [Santos 2023, eq. 68].
        """
        return (expected.double() / torch.expm1(expand_time(t, xt)))[:, None]

    def reverse_rates(self, x0: Tensor, xt: Tensor, t: Time) -> Tensor:
        """Birth rate given X_0: (X_0 - X_t) e^-t / (1 - e^-t), float64 [B, 1, ...] [Santos 2023, eq. 9]."""
        return self.rates(x0.long() - xt.long(), xt, t)

    def forward_rates(self, xt: Tensor, t: Time) -> Tensor:
        """Death rate X_t, float64 [B, 1, ...] [Santos 2023, eq. 7]."""
        return xt.double()[:, None]

    def prior_divergence(self, x0: Tensor, t: Time) -> Tensor:
        """0: the Poisson start depends on the data's mean, see `likelihood.start_bound`."""
        return torch.zeros(x0.shape, dtype=torch.float64, device=x0.device)
