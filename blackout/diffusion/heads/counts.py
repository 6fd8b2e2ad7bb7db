"""Heads for counts: the expected missing count y = E[X_0 - X_t | X_t], and the pair of immigration and death."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from blackout.diffusion.predictions import BirthDeathPrediction, CountPrediction
from blackout.diffusion.processes.base import expand_time


def log_softplus(f: Tensor) -> Tensor:
    """log(log(1 + e^f)), stable: below -15 the series f - e^f / 2 replaces a logarithm of an underflowing number."""
    series = f - torch.exp(f.clamp(max=0.0)) / 2
    return torch.where(f < -15, series, torch.log(F.softplus(f.clamp(min=-15))))


def _check_mean(mean: float) -> None:
    if not mean > 0:
        raise ValueError(f"the head needs a positive mean count, not {mean}: is the data all zeros?")


@dataclass(frozen=True)
class SoftplusHead:
    """The paper's: y = softplus(f), directly in counts."""

    outputs: ClassVar[int] = 1

    def __call__(self, raw: Tensor, xt: Tensor, t: Tensor) -> CountPrediction:
        f = raw[:, 0].float()
        return CountPrediction(F.softplus(f), log_softplus(f))


@dataclass(frozen=True)
class ScaledHead:
    """y = (1 - q) C softplus(f): the missing count is O(1 - q), so f is O(1) at every t.

    Args:
        mean: C, the mean count of the data.

    Raises:
        ValueError: mean is not positive.
    """

    mean: float
    outputs: ClassVar[int] = 1

    def __post_init__(self) -> None:
        _check_mean(self.mean)

    def __call__(self, raw: Tensor, xt: Tensor, t: Tensor) -> CountPrediction:
        f = raw[:, 0].float()
        factor = -torch.expm1(-expand_time(t, f)) * self.mean
        return CountPrediction(factor.float() * F.softplus(f), torch.log(factor).float() + log_softplus(f))


@dataclass(frozen=True)
class BoundedHead:
    """y = (max_count - X_t) sigmoid(f): never more than can be missing.

    Args:
        max_count: largest count.
    """

    max_count: int
    outputs: ClassVar[int] = 1

    def __call__(self, raw: Tensor, xt: Tensor, t: Tensor) -> CountPrediction:
        f = raw[:, 0].float()
        headroom = (self.max_count - xt.to(torch.int64)).float()
        # without headroom y = 0, but log y must stay finite for the loss's 0 log y
        return CountPrediction(headroom * torch.sigmoid(f), torch.log(headroom.clamp(min=1.0)) + F.logsigmoid(f))


@dataclass(frozen=True)
class BirthDeathHead:
    """E[X_0 - S | X_t] and E[I | X_t] of `BirthDeath`: (1 - q) C softplus(f), one output each, [B, 2, ...].

    Args:
        mean: C, the mean count of the data and of the stationary distribution.

    Raises:
        ValueError: mean is not positive.
    """

    mean: float
    outputs: ClassVar[int] = 2

    def __post_init__(self) -> None:
        _check_mean(self.mean)

    def __call__(self, raw: Tensor, xt: Tensor, t: Tensor) -> BirthDeathPrediction:
        f = raw.float()
        t = expand_time(t, xt)
        factor = (-torch.expm1(-t) * self.mean)[:, None] if t.ndim else -torch.expm1(-t) * self.mean
        return BirthDeathPrediction(factor.float() * F.softplus(f), torch.log(factor).float() + log_softplus(f))
