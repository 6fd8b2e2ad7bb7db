"""What the network's raw output means: the expected number of missing units y = E[X_0 - X_t | X_t], and beyond it
their variance or their whole law (`dispersed_heads`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from blackout.diffusion.losses import poisson_loss
from blackout.diffusion.processes.base import expand_time
from blackout.diffusion.streams import RandomSource


class MissingCount(Protocol):
    """A law of N = X_0 - X_t for every element, independent of one another."""

    def log_prob(self, missing: Tensor) -> Tensor:
        """log P(N = missing): float32, shape of the integers `missing`."""
        ...

    def sample(self, generator: RandomSource = None) -> Tensor:
        """A draw of N, int64, within the room there is."""
        ...


@dataclass(frozen=True)
class Prediction:
    """What is predicted of N = X_0 - X_t, all float32 and of the data's shape [B, ...].

    Attributes:
        mean: y = E[N | X_t] >= 0.
        log_mean: log y, finite where y underflows.
        variance: Var[N | X_t], from heads that know it.
        distribution: the law of N, from heads that know it.
    """

    mean: Tensor
    log_mean: Tensor
    variance: Tensor | None = None
    distribution: MissingCount | None = None

    def loss(self, target: Tensor) -> Tensor:
        """The proper score of this prediction at N = target, unreduced and not yet weighted by time."""
        return poisson_loss(self, target)


class Head(Protocol):
    """Raw network output [B, outputs, ...] -> Prediction."""

    @property
    def outputs(self) -> int: ...

    def __call__(self, raw: Tensor, xt: Tensor, t: Tensor) -> Prediction: ...


def log_softplus(f: Tensor) -> Tensor:
    """log(log(1 + e^f)), stable: below -15 the series f - e^f / 2 replaces a logarithm of an underflowing number."""
    series = f - torch.exp(f.clamp(max=0.0)) / 2
    return torch.where(f < -15, series, torch.log(F.softplus(f.clamp(min=-15))))


@dataclass(frozen=True)
class SoftplusHead:
    """The paper's: y = softplus(f), directly in counts."""

    outputs: ClassVar[int] = 1

    def __call__(self, raw: Tensor, xt: Tensor, t: Tensor) -> Prediction:
        f = raw[:, 0].float()
        return Prediction(F.softplus(f), log_softplus(f))


@dataclass(frozen=True)
class ScaledHead:
    """y = (1 - q) C softplus(f): the missing count is O(1 - q), so f is O(1) at every t.

    Args:
        mean: C, the mean count of the data.
    """

    mean: float
    outputs: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if not self.mean > 0:
            raise ValueError(f"the head needs a positive mean count, not {self.mean}: is the data all zeros?")

    def __call__(self, raw: Tensor, xt: Tensor, t: Tensor) -> Prediction:
        f = raw[:, 0].float()
        factor = -torch.expm1(-expand_time(t, f)) * self.mean
        return Prediction(factor.float() * F.softplus(f), torch.log(factor).float() + log_softplus(f))


@dataclass(frozen=True)
class BoundedHead:
    """y = (max_count - X_t) sigmoid(f): never more births than there is room for."""

    max_count: int
    outputs: ClassVar[int] = 1

    def __call__(self, raw: Tensor, xt: Tensor, t: Tensor) -> Prediction:
        f = raw[:, 0].float()
        room = (self.max_count - xt.to(torch.int64)).float()
        # a full pixel has no room and y = 0: log y must stay finite for the loss's 0 log y
        return Prediction(room * torch.sigmoid(f), torch.log(room.clamp(min=1.0)) + F.logsigmoid(f))
