"""Input scaling: from counts at a time to what a network likes to read."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

Inputs: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Scales counts [B, *shape] at float64 times [B] to the float32 input of a network, [B, *shape]."""

_MASK = -2.0
"""Input of a state that is no data level: well apart from the levels, which fill [-1, 1]."""
_VARIANCE_FLOOR = 1e-12
"""Far below the variance of any count that still occurs; it only keeps 0 / 0 from arising."""


@dataclass(frozen=True)
class PaperInputs:
    """The paper's input: X_t minus half of the largest possible mean, in counts and not scaled.

    Args:
        max_count: largest possible count, at least 1.

    Raises:
        ValueError: `max_count` is below 1.
    """

    max_count: int

    def __post_init__(self) -> None:
        _check_max_count(self.max_count)

    def __call__(self, xt: Tensor, t: Tensor) -> Tensor:
        return xt.float() - _per_example(torch.exp(-t) * (self.max_count / 2), xt)


@dataclass(frozen=True)
class StandardisedInputs:
    """X_t minus its mean, over its standard deviation, for one `mean` and `std` of X_0 throughout.

    With q = e^-t, thinning gives E[X_t] = q mean and Var[X_t] = q^2 std^2 + q (1 - q) mean.

    Args:
        mean: of X_0 over data and elements, in counts.
        std: of X_0 over data and elements, in counts.

    Raises:
        ValueError: `mean` or `std` is negative or not finite.
    """

    mean: float
    std: float

    def __post_init__(self) -> None:
        if not (0 <= self.mean < math.inf and 0 <= self.std < math.inf):
            raise ValueError(f"mean and std of the inputs must be finite and >= 0, got {self.mean}, {self.std}")

    def __call__(self, xt: Tensor, t: Tensor) -> Tensor:
        survival, decay = torch.exp(-t), -torch.expm1(-t)
        variance = survival**2 * self.std**2 + survival * decay * self.mean
        deviation = xt.float() - _per_example(survival * self.mean, xt)
        return deviation * _per_example(variance.clamp_min(_VARIANCE_FLOOR).rsqrt(), xt)


@dataclass(frozen=True)
class LevelInputs:
    """Levels 0..max_count to [-1, 1] at every time; states above (a mask) to -2.

    Args:
        max_count: largest data level.

    Raises:
        ValueError: `max_count` is below 1.
    """

    max_count: int

    def __post_init__(self) -> None:
        _check_max_count(self.max_count)

    def __call__(self, xt: Tensor, t: Tensor) -> Tensor:
        scaled = xt.float() * (2 / self.max_count) - 1
        return torch.where(xt > self.max_count, _MASK, scaled)


@dataclass(frozen=True)
class BirthDeathInputs:
    """X_t of immigration and death about the data's mean: (X_t - mean) / sqrt(q^2 std^2 + (1 - q^2) mean).

    Args:
        mean: of X_0 over data and elements and of the stationary distribution, in counts.
        std: of X_0 over data and elements, in counts.

    Raises:
        ValueError: `mean` is not positive or `std` negative, or one is not finite.
    """

    mean: float
    std: float

    def __post_init__(self) -> None:
        if not (0 < self.mean < math.inf and 0 <= self.std < math.inf):
            raise ValueError(f"mean and std of the inputs must be finite, > 0 and >= 0, got {self.mean}, {self.std}")

    def __call__(self, xt: Tensor, t: Tensor) -> Tensor:
        square = torch.exp(-2 * t)
        deviation = torch.sqrt(square * self.std**2 - torch.expm1(-2 * t) * self.mean).float()
        return (xt.float() - self.mean) / _per_example(deviation, xt)


def _per_example(values: Tensor, x: Tensor) -> Tensor:
    """Values [B] as float32, shaped to broadcast against `x` [B, ...]."""
    return values.float().reshape(-1, *[1] * (x.dim() - 1))


def _check_max_count(max_count: int) -> None:
    if max_count < 1:
        raise ValueError(f"max_count of the network's inputs must be at least 1, got {max_count}")
