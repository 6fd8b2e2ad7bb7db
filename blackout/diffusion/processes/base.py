"""What every forward process offers. A process knows only laws: no network, no configuration."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from blackout.diffusion.streams import RandomSource


class Process(Protocol):
    """A Markov jump process on counts 0..max_count, independently in every element.

    Counts are integer tensors of any shape. Times are float64: a scalar, one per sample [B], or broadcastable to the
    counts.
    """

    @property
    def max_count(self) -> int: ...

    def sample(self, x0: Tensor, t: Tensor, generator: RandomSource = None) -> Tensor:
        """X_t given X_0."""
        ...

    def bridge(self, x0: Tensor, xt: Tensor, s: Tensor, t: Tensor, generator: RandomSource = None) -> Tensor:
        """X_s given X_0 and X_t, for s < t."""
        ...

    def reverse_rate(self, x0: Tensor, xt: Tensor, t: Tensor) -> Tensor:
        """Rate, per unit of t, of the reverse jumps given X_0."""
        ...

    def prior(
        self,
        shape: tuple[int, ...],
        t: Tensor,
        generator: RandomSource = None,
        mean: Tensor | None = None,
        device: torch.device | None = None,
    ) -> Tensor:
        """X_t for a final time t, where sampling starts; `mean` is E[X_0], if known."""
        ...


def expand_time(t: Tensor | float, x: Tensor) -> Tensor:
    """t as float64 on x's device, with one per sample [B] shaped to broadcast over [B, ...].

    Raises:
        ValueError: t is neither a scalar, nor [B], nor broadcastable to x.
    """
    t = torch.as_tensor(t, dtype=torch.float64, device=x.device)
    if t.ndim == 1 and x.ndim > 1 and len(t) == len(x):
        return t.view(-1, *[1] * (x.ndim - 1))
    try:
        torch.broadcast_shapes(t.shape, x.shape)
    except RuntimeError:
        raise ValueError(
            f"times of shape {tuple(t.shape)} do not broadcast to counts of shape {tuple(x.shape)}"
        ) from None
    return t
