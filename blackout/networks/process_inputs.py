"""Input scaling for processes other than pure death."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_MASK = -2.0
"""Input of a state that is no data level: well apart from the levels, which fill [-1, 1]."""


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
        if self.max_count < 1:
            raise ValueError(f"max_count of the network's inputs must be at least 1, got {self.max_count}")

    def __call__(self, xt: Tensor, t: Tensor) -> Tensor:
        scaled = xt.float() * (2 / self.max_count) - 1
        return torch.where(xt > self.max_count, _MASK, scaled)


@dataclass(frozen=True)
class BirthDeathInputs:
    """X_t of immigration and death about the data's mean: (X_t - mean) / sqrt(q^2 std^2 + (1 - q^2) mean).

    Args:
        mean: of X_0 over data and elements and of the stationary law, in counts.
        std: of X_0 over data and elements, in counts.

    Raises:
        ValueError: `mean` is not positive or `std` negative, or one is not finite.
    """

    mean: float
    std: float

    def __post_init__(self) -> None:
        if not (0 < self.mean < math.inf and 0 <= self.std < math.inf):
            raise ValueError(
                f"mean and std of the network's inputs must be finite, positive and >= 0, got {self.mean}, {self.std}"
            )

    def __call__(self, xt: Tensor, t: Tensor) -> Tensor:
        square = torch.exp(-2 * t)
        deviation = torch.sqrt(square * self.std**2 - torch.expm1(-2 * t) * self.mean).float()
        return (xt.float() - self.mean) / deviation.view(-1, *[1] * (xt.ndim - 1))
