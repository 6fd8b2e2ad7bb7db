"""Heads for the expected missing count of pure death, y = E[X_0 - X_t | X_t]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from blackout.component import component
from blackout.counts import expand_time
from blackout.diffusion.predictions import NEVER, CountPrediction
from blackout.errors import ensure

SERIES_BELOW = -15.0  # where log_softplus uses its series, since log(1 + e^f) underflows
SMALL_SHARE = 1e-3  # below it, 1 - e^-r is r (1 - r / 2) in float32


def log_softplus(f: Tensor) -> Tensor:
    """Return log(log(1 + e^f)), of f's shape.

    Below -15 the series f - e^f / 2 replaces a logarithm that would underflow.

    References: this project; checked in tests/diffusion/test_losses.py.
    """
    series = f - torch.exp(f.clamp(max=0.0)) / 2
    logarithm = torch.log(F.softplus(f.clamp(min=SERIES_BELOW)))
    return torch.where(f < SERIES_BELOW, series, logarithm)


@component("head", "base")
@dataclass(frozen=True)
class SoftplusHead:
    """Head of the paper: y = softplus(f), in counts.

    References: Santos et al. 2023, section 3.
    """

    outputs: ClassVar[int] = 1

    def __call__(self, raw: Tensor, xt: Tensor, t: Tensor) -> CountPrediction:
        """Return y, [B, ...]; arguments as for `Head`."""
        f = raw[:, 0].float()
        return CountPrediction(F.softplus(f), log_softplus(f))


@component("head", "base")
@dataclass(frozen=True)
class ScaledHead:
    """Head y = (1 - q) C softplus(f), q = e^-t, whose input f is of order 1 at every time.

    References: this project; checked in tests/diffusion/test_losses.py.

    Args:
        mean: C, the mean count of the data.

    Raises:
        ValueError: mean is not positive.
    """

    mean: float
    outputs: ClassVar[int] = 1

    def __post_init__(self) -> None:
        ensure(
            self.mean > 0,
            f"the head needs a positive mean count, not {self.mean}: is the data all zeros?",
        )

    def __call__(self, raw: Tensor, xt: Tensor, t: Tensor) -> CountPrediction:
        """Return y, [B, ...]; arguments as for `Head`."""
        return CountPrediction(*self._mean_and_log(raw[:, 0].float(), t))

    def _mean_and_log(self, f: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return (1 - q) C softplus(f) and its logarithm, float32 of f's shape."""
        factor = -torch.expm1(-expand_time(t, f)) * self.mean
        mean = factor.float() * F.softplus(f)
        log_mean = torch.log(factor).float() + log_softplus(f)
        return mean, log_mean


@component("head", "base")
@dataclass(frozen=True)
class BoundedHead(ScaledHead):
    """Head bounded by the headroom h = max_count - X_t: y = h (1 - e^(-s / h)), s of `ScaledHead`.

    No more than h units can be missing. Far below h, y is that of `ScaledHead`. Near max_count it
    falls with every unit of X_t, even if the network's input is scaled to the whole range of the
    data and cannot resolve single units. Elements that are nearly full then do not overshoot.

    References: this project; checked in tests/diffusion/test_losses.py.

    Args:
        mean: C, the mean count of the data.
        max_count: the largest count.

    Raises:
        ValueError: mean is not positive.
    """

    max_count: int

    def __call__(self, raw: Tensor, xt: Tensor, t: Tensor) -> CountPrediction:
        """Return y, [B, ...]; arguments as for `Head`."""
        unbounded, log_unbounded = self._mean_and_log(raw[:, 0].float(), t)
        headroom = (self.max_count - xt.float()).clamp(min=0)
        log_headroom = torch.log(headroom.clamp(min=1))
        ratio = unbounded / headroom.clamp(min=1)
        share = -torch.expm1(-ratio)
        log_share = torch.where(
            ratio > SMALL_SHARE,
            torch.log(share.clamp(min=SMALL_SHARE / 2)),
            log_unbounded - log_headroom - ratio / 2,
        )
        log_mean = torch.where(headroom > 0, log_headroom + log_share, NEVER)
        return CountPrediction(headroom * share, log_mean)
