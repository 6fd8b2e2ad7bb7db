"""Time changes: a generator that is fast at some times and slow at others."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor


class Clock(Protocol):
    """A process's own time as a function of t, and how fast it runs."""

    def elapsed(self, t: Tensor) -> Tensor:
        """The process's own time at t, float64 of t's shape, 0 at t = 0."""
        ...

    def speed(self, t: Tensor) -> Tensor:
        """The derivative of `elapsed`, float64 of t's shape."""
        ...


@dataclass(frozen=True)
class PowerClock:
    """elapsed = rate t^exponent; exponent 1 is the time-homogeneous process.

    Args:
        rate: own time at t = 1.
        exponent: above 1 the process accelerates.

    Raises:
        ValueError: rate or exponent is not positive.
    """

    rate: float = 1.0
    exponent: float = 1.0

    def __post_init__(self) -> None:
        if not (self.rate > 0 and self.exponent > 0):
            raise ValueError(f"a clock's rate and exponent must be positive, not {self.rate} and {self.exponent}")

    def elapsed(self, t: Tensor) -> Tensor:
        """The process's own time at t, float64 of t's shape."""
        return self.rate * t**self.exponent

    def speed(self, t: Tensor) -> Tensor:
        """The derivative of `elapsed`, float64 of t's shape."""
        return self.rate * self.exponent * t ** (self.exponent - 1)


@dataclass(frozen=True)
class PiecewiseClock:
    """Speed speeds[i] between changes[i - 1] and changes[i] (from 0, to infinity).

    Args:
        changes: times at which the speed changes.
        speeds: one more than changes.

    Raises:
        ValueError: the changes do not increase from above 0, or a speed is negative, or their numbers do not match.
    """

    changes: tuple[float, ...]
    speeds: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "changes", tuple(self.changes))
        object.__setattr__(self, "speeds", tuple(self.speeds))
        edges = (0.0, *self.changes)
        if any(b <= a for a, b in pairwise(edges)) or len(self.speeds) != len(edges):
            raise ValueError("a clock needs increasing changes above 0 and one speed more than changes")
        if min(self.speeds) < 0:
            raise ValueError(f"a clock's speeds must not be negative: {min(self.speeds)}")

    def elapsed(self, t: Tensor) -> Tensor:
        """The process's own time at t, float64 of t's shape."""
        total = self.speeds[0] * t
        for change, before, after in zip(self.changes, self.speeds, self.speeds[1:], strict=False):
            total = total + (after - before) * (t - change).clamp(min=0)
        return total

    def speed(self, t: Tensor) -> Tensor:
        """The derivative of `elapsed`, float64 of t's shape."""
        changes = torch.tensor(self.changes, dtype=t.dtype, device=t.device)
        return torch.tensor(self.speeds, dtype=t.dtype, device=t.device)[torch.searchsorted(changes, t, right=True)]
