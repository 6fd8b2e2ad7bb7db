"""First-order kernels of pure death: bridges and Poisson leaps.

With y = E[N | X_t] the expected missing count, N = X_0 - X_t, and r the step fraction: of the units
missing at t, each is back at s with probability r.

    BinomialBridge     y rounded to a whole number, then the exact bridge
    PoissonLeap        Poisson(y r) births
    PosteriorBridge    X_0 from the predicted distribution, then the exact bridge

Each takes one network evaluation per step.

References: Santos et al. 2023, section 2.7.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blackout.component import component
from blackout.diffusion.kernels.base import ReverseStep
from blackout.diffusion.kernels.rounding import Rounding, stochastic_rounding


@component("kernel")
@dataclass(frozen=True)
class BinomialBridge:
    """Round y to a whole number n of missing units, then take the exact bridge from X_0 = X_t + n.

    Never leaves 0..max_count. The paper rounds to the nearest whole number (section 3); stochastic
    rounding, the default here, keeps the expected number of births y r.

    References: Santos et al. 2023, eqs. 12, 13 and Algorithm 2.

    Args:
        rounding: of y.
    """

    rounding: Rounding = stochastic_rounding

    def __call__(self, step: ReverseStep) -> Tensor:
        """Return X_s, of the shape [B, ...] and dtype of `step.x`."""
        y = step.predict_count(self).expected
        missing = self.rounding(y, step.generator).to(torch.int64)
        headroom = step.process.max_count - step.x.to(torch.int64)
        return step.bridge(torch.minimum(missing, headroom))


@component("kernel")
@dataclass(frozen=True)
class PoissonLeap:
    """Tau-leaping: X_s = X_t + Poisson(y r), clipped to max_count.

    Two things differ from Algorithm 2, as in the authors' code. The printed rate
    y e^-t / (1 - e^-t) lacks the time increment; y r integrates the reverse rate over the step. And
    y is not clipped to max_count - X_t before the draw, only X_s afterwards.

    References: Santos et al. 2023, Algorithm 2; Gillespie 2001.
    """

    def __call__(self, step: ReverseStep) -> Tensor:
        """Return X_s, of the shape [B, ...] and dtype of `step.x`."""
        return step.poisson_leap(step.predict_count(self).expected)


@component("kernel")
@dataclass(frozen=True)
class PosteriorBridge:
    """Draw X_0 from the predicted distribution of the missing count, then take the exact bridge.

    With the exact distribution it makes no error for one element, whatever the step. Elements are
    drawn independently, so that their correlations given X_t still cost O(1 / T).

    References: this project; checked in tests/verification/test_pure_death_kernels.py.

    Raises:
        ValueError: when called, the head predicts no distribution, or the count is guided.
    """

    def __call__(self, step: ReverseStep) -> Tensor:
        """Return X_s, of the shape [B, ...] and dtype of `step.x`."""
        return step.bridge(step.predict_distribution(self, "bridge").sample(step.generator))
