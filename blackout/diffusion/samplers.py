"""Reverse steps and the one sampling loop (Algorithm 2).

A kernel takes X_t to X_s given the network's expected missing count y; the loop walks a grid of times from black to
image.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from blackout.diffusion.counts import bernoulli, poisson
from blackout.diffusion.heads import Prediction
from blackout.diffusion.processes import Process, count_dtype
from blackout.diffusion.processes.base import expand_time
from blackout.diffusion.schedules import step_fraction
from blackout.diffusion.streams import RandomSource, SampleStreams

Denoiser: TypeAlias = Callable[[Tensor, Tensor], Prediction]
"""(xt [B, ...], t float64 scalar) -> prediction of X_0 - X_t."""
Callback: TypeAlias = Callable[[int, Tensor], None]
"""Called with (k, X_{t_k}) for the start, k = T, and after every step, down to k = 0."""
Rounding: TypeAlias = Callable[[Tensor, RandomSource], Tensor]


class Kernel(Protocol):
    """One reverse step: X_s from X_t and y."""

    def __call__(
        self, process: Process, y: Tensor, xt: Tensor, s: Tensor, t: Tensor, generator: RandomSource
    ) -> Tensor: ...


def nearest_rounding(y: Tensor, generator: RandomSource) -> Tensor:
    """The paper's. Biased: while y < 1/2 nothing is born, however many steps are taken."""
    return torch.round(y)


def stochastic_rounding(y: Tensor, generator: RandomSource) -> Tensor:
    """floor(y) + Bernoulli(y - floor(y)): unbiased, so the mean number of births is y r."""
    floor = torch.floor(y)
    return floor + bernoulli((y - floor).double(), generator).to(y.dtype)


@dataclass(frozen=True)
class BinomialBridge:
    """Round y to a whole number n of missing units, then take the exact bridge from X_0 = X_t + n.

    Never leaves 0..max_count.
    """

    rounding: Rounding = stochastic_rounding

    def __call__(
        self, process: Process, y: Tensor, xt: Tensor, s: Tensor, t: Tensor, generator: RandomSource
    ) -> Tensor:
        room = process.max_count - xt.to(torch.int64)
        missing = torch.minimum(self.rounding(y, generator).to(torch.int64), room)
        return process.bridge((xt + missing).to(xt.dtype), xt, s, t, generator)


@dataclass(frozen=True)
class PoissonLeap:
    """X_s = X_t + Poisson(y r), clipped to max_count; r is the step fraction.

    Algorithm 2 prints the rate y e^-t / (1 - e^-t), which lacks the time increment; y r integrates the reverse rate
    over the step.
    """

    def __call__(
        self, process: Process, y: Tensor, xt: Tensor, s: Tensor, t: Tensor, generator: RandomSource
    ) -> Tensor:
        births = poisson(y.double() * step_fraction(expand_time(s, y), expand_time(t, y)), generator)
        return (xt + births).clamp_(max=process.max_count).to(xt.dtype)


@torch.no_grad()
def sample(
    denoiser: Denoiser,
    process: Process,
    times: Tensor,
    shape: tuple[int, ...],
    generator: torch.Generator | SampleStreams | None = None,
    callback: Callback | None = None,
    *,
    kernel: Kernel = BinomialBridge(),
    mean: Tensor | None = None,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Grow a batch of counts out of black.

    Args:
        denoiser: (xt, t) -> Prediction; its network must be in eval mode.
        process: the forward law to be reversed.
        times: float64 [T + 1], increasing from 0: the grid, walked backwards.
        shape: [B, ...] of the batch.
        generator: streams make sample k a function of (seed, k, step) alone.
        callback: receives (k, X_{t_k}) for every level, k = T first.
        kernel: the reverse step.
        mean: E[X_0], broadcastable to shape, for a Poisson start; None starts all black.

    Returns:
        X_0, integer counts of `shape`.
    """
    steps = len(times) - 1
    source = _source(generator, steps + 1)
    xt = process.prior(shape, times[-1], source, mean=mean, device=torch.device(device))
    if callback is not None:
        callback(steps, xt)
    for k in range(steps, 0, -1):
        y = denoiser(xt, times[k]).mean
        xt = kernel(process, y, xt, times[k - 1], times[k], _source(generator, k))
        if callback is not None:
            callback(k - 1, xt)
    return xt.clamp(max=process.max_count).to(count_dtype(process.max_count))


def _source(generator: torch.Generator | SampleStreams | None, step: int) -> RandomSource:
    return generator.at(step) if isinstance(generator, SampleStreams) else generator


@dataclass(frozen=True)
class Sampler:
    """How a model is sampled: a kernel, a grid, a start.

    Args:
        kernel: the reverse step.
        num_steps: network evaluations per sample.
        grid: num_steps -> times; None follows the family of the training schedule.
        poisson_start: start from Poisson(q_T E[X_0]) rather than from black.
        batch_size: samples per network evaluation.
        keep_dropout: leave the network in train mode while sampling, as the reference code did.

    Raises:
        ValueError: num_steps or batch_size below 1.
    """

    kernel: Kernel = BinomialBridge()
    num_steps: int = 1000
    grid: Callable[[int], Tensor] | None = None
    poisson_start: bool = True
    batch_size: int = 256
    keep_dropout: bool = False

    def __post_init__(self) -> None:
        for name in ("num_steps", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
