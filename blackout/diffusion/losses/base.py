"""What every loss offers, and the checks of their arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias, TypeVar

from torch import Tensor

Predicted = TypeVar("Predicted", contravariant=True)
Target = TypeVar("Target", contravariant=True)
Weight: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""(s, t) float64 [B] -> the weight of the interval, float64 [B]."""


class Loss(Protocol[Predicted, Target]):
    """One value per element, before any reduction."""

    def __call__(self, prediction: Predicted, target: Target, s: Tensor, t: Tensor) -> Tensor:
        """The loss of a batch observed at times t.

        Args:
            prediction: what the head made of the network's output.
            target: what the process's `observe` returned beside X_t.
            s: float64 [B], one step of the grid before t.
            t: float64 [B].

        Returns:
            float32 [B, ...], the data's shape.
        """
        ...


def by_name(table: Mapping[str, Weight], name: str, what: str) -> Weight:
    """The function of that name.

    Raises:
        ValueError: there is none.
    """
    if name not in table:
        raise ValueError(f"unknown {what} '{name}': one of {', '.join(table)}")
    return table[name]


def check_scale(scale: float) -> None:
    """Raises ValueError unless the scale is positive."""
    if not scale > 0:
        raise ValueError(f"the loss's scale must be positive, not {scale}")


def per_element(weight: Tensor, x: Tensor) -> Tensor:
    """Weights [B] shaped to broadcast over x [B, ...]."""
    return weight.view(-1, *[1] * (x.ndim - 1))
