"""What an operator is: m = G(x), with what is known about who touches what."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeAlias

import torch
from torch import Tensor

from blackout.posterior.noise import Exact, Noise

# --- What a draw has found, for those who judge it: the law it was drawn from, or an operator with a judge of its own.


@dataclass(frozen=True)
class Findings:
    """Samples and what they are samples of.

    Args:
        samples: counts [n, *shape].
        of: row of each one's measurement, int64 [n].
        problem: all measurements, a `Measured`, which stands above this file.
        truths: counts [M, *shape], where they are known.
        seed: of the samples.
    """

    samples: Tensor
    of: Tensor
    problem: Any
    truths: Tensor | None
    seed: int


Shape: TypeAlias = tuple[int, ...]


class Operator(Protocol):
    """G, for data [n, *shape], whole or not. A new one derives from `Separable`, `Local` or `BlackBox`."""

    binary: ClassVar[bool]
    """Whether data must be 0 and 1."""

    @property
    def noise(self) -> Noise:
        """How it is seen unless the user says otherwise."""
        ...

    def __call__(self, x: Tensor) -> Tensor:
        """G(x), float64 [n, *measured(shape)]."""
        ...

    def measured(self, shape: Shape) -> Shape:
        """Shape of a measurement of data of this shape; raises ValueError where there is none."""
        ...

    @property
    def counting(self) -> bool:
        """Whether every element of y is a sum of elements of x: units of m then vanish with those of x."""
        ...

    def incidence(self, shape: Shape) -> Tensor | None:
        """Which element of x each element of y depends on: pairs (number in y, number in x), int64 [2, P].

        None where that is not known, or anything depends on everything.
        """
        ...

    def seen(self, shape: Shape) -> Tensor | None:
        """Which elements of y there are, bool [*measured]; None for all."""
        ...

    def back_project(self, m: Tensor, shape: Shape) -> Tensor | None:
        """Data [n, *shape] near such an m, to start from; None where no such data are known."""
        ...

    def prepare(self, model: Any) -> None:
        """Take what it needs of the model or its data, before anything is measured."""
        ...

    def judge(self, findings: Findings, directory: Path) -> dict[str, Any]:
        """Figures of its own about samples, `values` among them, for metrics.json; may write pictures."""
        ...


class BlackBox:
    """G of which nothing is known but its values; log L itself by default, with no measurement to be had."""

    binary: ClassVar[bool] = False

    @property
    def noise(self) -> Noise:
        """None of its own: y = G(x)."""
        return Exact()

    @property
    def counting(self) -> bool:
        """Not known."""
        return False

    def measured(self, shape: Shape) -> Shape:
        """One number."""
        return (1,)

    def incidence(self, shape: Shape) -> Tensor | None:
        """Not known."""
        return None

    def seen(self, shape: Shape) -> Tensor | None:
        """All."""
        return None

    def back_project(self, m: Tensor, shape: Shape) -> Tensor | None:
        """Not known."""
        return None

    def prepare(self, model: Any) -> None:
        """Needs nothing."""

    def judge(self, findings: Findings, directory: Path) -> dict[str, Any]:
        """Has none."""
        return {}


class Separable(BlackBox):
    """m = x, or x where it is seen."""

    def __call__(self, x: Tensor) -> Tensor:
        """x."""
        return x.double()

    @property
    def counting(self) -> bool:
        """Of one element each."""
        return True

    def measured(self, shape: Shape) -> Shape:
        """x's own."""
        return shape

    def incidence(self, shape: Shape) -> Tensor | None:
        """Each element on itself, where it is seen."""
        seen = self.seen(shape)
        number = torch.arange(math.prod(shape))
        chosen = number if seen is None else number[seen.flatten()]
        return torch.stack([chosen, chosen])

    def back_project(self, m: Tensor, shape: Shape) -> Tensor | None:
        """m where it is seen, else 0."""
        seen = self.seen(shape)
        return m if seen is None else torch.where(seen.to(m.device), m, 0.0)


class Identity(Separable):
    """All of x."""


def mask_of(shape: Shape, mask: Tensor) -> Tensor:
    """A mask for data of this shape.

    Raises:
        ValueError: it has another shape, or hides nothing or everything.
    """
    if tuple(mask.shape) != shape or mask.dtype != torch.bool:
        raise ValueError(f"mask must be booleans of shape {shape}, not {mask.dtype} of {tuple(mask.shape)}")
    if not bool(mask.any()):
        raise ValueError("mask: no element is observed")
    return mask
