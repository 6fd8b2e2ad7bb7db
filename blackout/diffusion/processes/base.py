"""What every forward process offers. A process knows only probability: no network, no configuration.

A reverse jump has one of R types. Its rate given X_0 is linear in a statistic of X_0 and X_t: so the rate of the
time-reversed process, which averages over X_0 given X_t, is `rates(E[statistic | X_t], X_t, t)`, and a network that
predicts E[statistic | X_t] is all that training and sampling need (`blackout.diffusion.predictions`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from blackout.counts import LARGEST_COUNT, time_on
from blackout.diffusion.predictions import Denoiser, Prediction
from blackout.diffusion.schedules import half_width
from blackout.random import RandomSource

LIMIT = half_width(15.0)
"""Logit of survival at the earliest time of a likelihood bound: the paper's grid spans as much."""
Target = TypeVar("Target", covariant=True)


class Process(Protocol[Target]):
    """A Markov process on counts, independently in every element; data are counts 0..max_count.

    Counts are integer tensors of any shape [B, ...]. Times are float64: a scalar, or one per sample [B]. Types of
    jumps are an axis after the first, [B, R, ...]; distributions over X_0 likewise, [B, max_count + 1, ...].
    """

    @property
    def max_count(self) -> int:
        """The largest data level."""
        ...

    @property
    def num_states(self) -> int:
        """States are 0..num_states - 1, which may be more than there are data levels."""
        ...

    @property
    def prediction(self) -> type[Prediction]:
        """The kind of prediction its bound, its loss and its rates, if it has any, are made of."""
        ...

    def sample(self, x0: Tensor, t: Tensor, generator: RandomSource = None) -> Tensor:
        """X_t given X_0, of x0's shape."""
        ...

    def observe(self, x0: Tensor, t: Tensor, generator: RandomSource = None) -> tuple[Tensor, Target]:
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
        """States of `shape` for a final time t, where sampling starts; `mean` is E[X_0], if it is given."""
        ...

    def prior_divergence(self, x0: Tensor, t: Tensor) -> Tensor:
        """KL of X_t's distribution given X_0 from the prior's at the final time t, float64 of x0's shape."""
        ...

    def bound(
        self, denoiser: Denoiser, x0: Tensor, v: Tensor, generator: RandomSource = None, limit: float = LIMIT,
        final_time: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """One estimate per sample of a bound on -log p(X_0), see `likelihood.likelihood_bound`. float64 [B], nats."""
        ...

    def check_final_time(self, t: Tensor) -> None:
        """Raise ValueError where sampling from the prior at the final time t cannot work."""
        ...


@runtime_checkable
class JumpProcess(Process[Target], Protocol[Target]):
    """A process in continuous time."""

    @property
    def ordered(self) -> bool:
        """Whether several jumps within one step add up (counts), or exclude each other (names)."""
        ...

    def elapsed(self, t: Tensor) -> Tensor:
        """The process's own time: its generator at t is `elapsed`'s derivative times a constant one."""
        ...

    def rates(self, expected: Tensor, xt: Tensor, t: Tensor) -> Tensor:
        """Rates of the reverse jumps per unit of t given E[statistic | X_t], float64 [B, R, ...]."""
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
        process: what it was drawn from.
        x0, xt: counts [B, ...].
        choice: float64 uniforms [B, ...], which pick one type of jump where a loss samples them.
        statistic: further targets, integers [B, R, ...], where the process has them.
    """

    process: Any
    x0: Tensor
    xt: Tensor
    choice: Tensor
    statistic: Tensor | None = None


def jump_axis(values: list[int], x: Tensor) -> Tensor:
    """Constants of R types as int64 [R, 1, ...], to broadcast against [B, R, ...] for x of shape [B, ...]."""
    return torch.cat([torch.full((1,), value, device=x.device) for value in values]).view(-1, *[1] * (x.ndim - 1))


def widening(max_count: int) -> float:
    """By how much the ends of time move out for counts beyond 255: log(max_count / 255), or 0."""
    return max(0.0, math.log(max_count / 255))


def plateau(max_count: int) -> float:
    """Half-width in logits of where counts beyond 255 have something to tell, log(max_count); 0 for smaller ones."""
    return math.log(max_count) if max_count > 255 else 0.0


def check_max_count(max_count: int) -> None:
    """Raises ValueError unless counts up to max_count fit the package's integer types."""
    if not 1 <= max_count <= LARGEST_COUNT:
        raise ValueError(f"max_count must be in 1..{LARGEST_COUNT}, not {max_count}")


def expand_time(t: Tensor | float, x: Tensor) -> Tensor:
    """t as float64 on x's device, with one per sample [B] shaped to broadcast over [B, ...].

    Raises:
        ValueError: t is neither a scalar, nor [B], nor broadcastable to x.
    """
    t = time_on(t, x.device)
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
    t = time_on(t, x.device).reshape(-1)
    if len(t) not in (1, len(x)):
        raise ValueError(f"this process needs one time or one per sample ({len(x)}), not {len(t)}")
    return t
