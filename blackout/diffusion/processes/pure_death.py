"""Pure death: every unit decays at rate 1, independently, until all is black.

References: Santos et al. 2023, section 2.5.
"""

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
from blackout.diffusion.survival import missing_fraction, step_fraction
from blackout.random import RandomSource, binomial


@component("process")
@dataclass(frozen=True)
class PureDeath(CountProcess):
    """Linear death process on 0..max_count; a unit survives to time t with probability q = e^-t.

    Its statistic is the missing count X_0 - X_t.

    References: Santos et al. 2023, eq. 7.

    Args:
        max_count: largest count.

    Raises:
        ValueError: max_count is not a positive integer below 2^31.

    Example:
        >>> process = PureDeath(255)
        >>> x0 = torch.full((1, 4), 200, dtype=torch.uint8)
        >>> process.sample(x0, torch.tensor(30.0)).tolist()
        [[0, 0, 0, 0]]
    """

    max_count: int = 255
    prediction: ClassVar[type[CountPrediction]] = CountPrediction
    jumps: ClassVar[tuple[int, ...]] = (1,)

    def __post_init__(self) -> None:
        check_max_count(self.max_count)

    @property
    def num_states(self) -> int:  # type: ignore[override]
        """Number of counts."""
        return self.max_count + 1

    def sample(self, x0: Tensor, t: Time, generator: RandomSource = None) -> Tensor:
        """Draw X_t | X_0 ~ Binomial(X_0, e^-t), integers of x0's shape and dtype.

        References: Santos et al. 2023, eq. 8.
        """
        t = expand_time(t, x0)
        return binomial(x0, torch.exp(-t), generator, complement=-torch.expm1(-t))

    def observe(self, x0: Tensor, t: Time, generator: RandomSource = None) -> tuple[Tensor, Tensor]:
        """Draw X_t, and return it with the target, the missing count X_0 - X_t, int32.

        References: Santos et al. 2023, Algorithm 1.
        """
        xt = self.sample(x0, t, generator)
        return xt, x0.int() - xt.int()

    def _log_pmf(self, x0: Tensor, xt: Tensor, t: Tensor) -> Tensor:
        """Return log P(Binomial(x0, e^-t) = xt), elementwise; -inf where xt > x0.

        References: Santos et al. 2023, eq. 8.
        """
        n = x0.double()
        k = xt.double()
        missing = (n - k).clamp(min=0)
        log_ways = torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(missing + 1)
        log_pmf = log_ways - k * t + torch.special.xlogy(missing, -torch.expm1(-t))
        return torch.where(k <= n, log_pmf, -math.inf)

    def bridge(
        self, x0: Tensor, xt: Tensor, s: Time, t: Time, generator: RandomSource = None
    ) -> Tensor:
        """Draw X_s | X_0, X_t = X_t + Binomial(X_0 - X_t, r), of x0's shape.

        r = (e^-s - e^-t) / (1 - e^-t): the factor s printed in eq. 13 is an error, which appendix D
        does not have.

        References: Santos et al. 2023, eq. 12.
        """
        s = expand_time(s, x0)
        t = expand_time(t, x0)
        births = binomial(
            x0 - xt, step_fraction(s, t), generator, complement=missing_fraction(s, t)
        )
        return xt + births

    def rates(self, expected: Tensor, xt: Tensor, t: Time) -> Tensor:
        """Return the birth rate y e^-t / (1 - e^-t), float64 [B, 1, ...].

        References: Santos et al. 2023, eq. 68.

        Args:
            expected: y = E[X_0 - X_t | X_t], [B, ...].
            xt: states [B, ...].
            t: times.
        """
        return (expected.double() / torch.expm1(expand_time(t, xt)))[:, None]

    def reverse_rates(self, x0: Tensor, xt: Tensor, t: Time) -> Tensor:
        """Return the birth rate given X_0, (X_0 - X_t) e^-t / (1 - e^-t), float64 [B, 1, ...].

        References: Santos et al. 2023, eq. 9.
        """
        return self.rates(x0.long() - xt.long(), xt, t)

    def forward_rates(self, xt: Tensor, t: Time) -> Tensor:
        """Return the death rate X_t, float64 [B, 1, ...].

        References: Santos et al. 2023, eq. 7.
        """
        return xt.double()[:, None]

    def prior_divergence(self, x0: Tensor, t: Time) -> Tensor:
        """Return 0: the Poisson start depends on the data's mean; see `start_bound`."""
        return torch.zeros(x0.shape, dtype=torch.float64, device=x0.device)
