"""What every forward process offers. A process knows only laws: no network, no configuration.

A reverse jump has one of R types. Its rate given X_0 is linear in a statistic of X_0 (the target): so the rate of the
time-reversed process, which averages over X_0 given X_t, is `rates(E[target | X_t], X_t, t)`, and a network that
predicts E[target | X_t] is all that training and sampling need.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from blackout.diffusion.streams import RandomSource


class Process(Protocol):
    """A Markov process on counts, independently in every element; data are counts 0..max_count.

    Counts are integer tensors of any shape [B, ...]. Times are float64: a scalar, or one per sample [B]. Types of
    jumps are an axis after the first, [B, R, ...]; distributions over X_0 likewise, [B, max_count + 1, ...].
    """

    @property
    def max_count(self) -> int: ...

    @property
    def num_states(self) -> int:
        """States are 0..num_states - 1, which may be more than there are data levels."""
        ...

    def sample(self, x0: Tensor, t: Tensor, generator: RandomSource = None) -> Tensor:
        """X_t given X_0."""
        ...

    def observe(self, x0: Tensor, t: Tensor, generator: RandomSource = None) -> tuple[Tensor, Any]:
        """X_t, and the target a loss compares the prediction with."""
        ...

    def pmf(self, x0: Tensor, t: Tensor) -> Tensor:
        """P(X_t = . | X_0), float64 [B, ..., num_states]."""
        ...

    def log_likelihood(self, xt: Tensor, t: Tensor) -> Tensor:
        """log P(X_t | X_0 = o) for every data level o, float64 [B, max_count + 1, ...], finite."""
        ...

    def bridge(self, x0: Tensor, xt: Tensor, s: Tensor, t: Tensor, generator: RandomSource = None) -> Tensor:
        """X_s given X_0 and X_t, for s < t."""
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

    def prior_divergence(self, x0: Tensor, t: Tensor) -> Tensor:
        """KL of X_t's law given X_0 from the prior's at the final time t, float64, elementwise."""
        ...

    def check_final_time(self, t: Tensor) -> None:
        """Raise ValueError where sampling from the prior at the final time t cannot work."""
        ...


class JumpProcess(Process, Protocol):
    """A process in continuous time."""

    ordered: bool
    """Whether several jumps within one step add up (counts), or exclude each other (names)."""

    def elapsed(self, t: Tensor) -> Tensor:
        """The process's own time: its generator at t is `elapsed`'s derivative times a constant one."""
        ...

    def rates(self, expected: Tensor, xt: Tensor, t: Tensor) -> Tensor:
        """Rates of the reverse jumps per unit of t given E[target | X_t], float64 [B, R, ...]."""
        ...

    def reverse_rates(self, x0: Tensor, xt: Tensor, t: Tensor) -> Tensor:
        """The same given X_0, float64 [B, R, ...]  (App. B: nu_r(m') p_t(m' | o) / p_t(m | o))."""
        ...

    def reverse_jumps(self, xt: Tensor) -> Tensor:
        """What every reverse type adds to X_t, int64, broadcastable to [B, R, ...]."""
        ...

    def forward_rates(self, xt: Tensor, t: Tensor) -> Tensor:
        """Rates of the forward jumps per unit of t, float64 [B, R, ...]."""
        ...

    def forward_jumps(self, xt: Tensor) -> Tensor:
        """What every forward type adds to X_t, int64, broadcastable to [B, R, ...]."""
        ...


@dataclass(frozen=True)
class Observation:
    """A target for losses that need more than one tensor.

    Args:
        process: the law it was drawn from.
        x0, xt: counts [B, ...].
        choice: float64 uniforms [B, ...], which pick one type of jump where a loss samples them.
        statistic: further targets, integers [B, R, ...], where the process has them.
    """

    process: Any
    x0: Tensor
    xt: Tensor
    choice: Tensor
    statistic: Tensor | None = None


def count_dtype(max_count: int) -> torch.dtype:
    """The smallest integer type in use for counts up to max_count: uint8 to 255, int32 beyond."""
    return torch.uint8 if max_count <= 255 else torch.int32


def jump_axis(values: list[int], x: Tensor) -> Tensor:
    """Constants of R types as int64 [R, 1, ...], to broadcast against [B, R, ...] for x of shape [B, ...]."""
    return torch.tensor(values, device=x.device).view(-1, *[1] * (x.ndim - 1))


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


def per_sample_time(t: Tensor | float, x: Tensor) -> Tensor:
    """t as float64 [1] or [B] on x's device.

    Raises:
        ValueError: t is not one time, nor one per sample.
    """
    t = torch.as_tensor(t, dtype=torch.float64, device=x.device).reshape(-1)
    if len(t) not in (1, len(x)):
        raise ValueError(f"this process needs one time or one per sample ({len(x)}), not {len(t)}")
    return t
