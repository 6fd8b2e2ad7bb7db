"""The one sampling loop (Algorithm 2): walk a grid of times from black to image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import torch
from torch import Tensor

from blackout.diffusion.correctors import Corrector, ThinAndBridge
from blackout.diffusion.inpainting import KnownElements
from blackout.diffusion.kernels import BinomialBridge, Denoiser, Kernel
from blackout.diffusion.processes import Process, count_dtype
from blackout.diffusion.schedules import logit_survival
from blackout.diffusion.streams import RandomSource, SampleStreams

Callback: TypeAlias = Callable[[int, Tensor], None]
"""Called with (k, X_{t_k}) for the start, k = T, and after every step, down to k = 0."""

BINOMIAL_BRIDGE, THIN_AND_BRIDGE = BinomialBridge(), ThinAndBridge()


@dataclass(frozen=True)
class Correction:
    """How often, how and where to correct.

    Args:
        steps: corrector steps per level; 0 for none.
        corrector: one such step.
        between: (lowest, highest) logit of survival of the levels to correct at; None for all.

    Raises:
        ValueError: a negative number of steps, or an empty range.
    """

    steps: int = 0
    corrector: Corrector = THIN_AND_BRIDGE
    between: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ValueError(f"corrector_steps must not be negative, not {self.steps}")
        check_range(self.between, "corrector_between")

    def at(self, s: float) -> int:
        """The number of corrector steps at time s; never any at s = 0, where all is done."""
        return self.steps if s > 0 and in_range(self.between, s) else 0


def check_range(between: Sequence[float] | None, name: str) -> None:
    """Raises ValueError unless `between` is None or two numbers in order."""
    if between is not None and not (len(between) == 2 and between[0] < between[1]):
        raise ValueError(f"{name} must be two logits of survival, the lower one first, not {list(between)}")


def in_range(between: Sequence[float] | None, t: float) -> bool:
    """Whether the logit of survival at time t lies in the range; None is everything."""
    return between is None or between[0] <= float(logit_survival(torch.tensor(t, dtype=torch.float64))) <= between[1]


@torch.no_grad()  # in inference_mode autocast would cast all weights anew at every evaluation
def sample(
    denoiser: Denoiser,
    process: Process,
    times: Tensor,
    shape: tuple[int, ...],
    generator: torch.Generator | SampleStreams | None = None,
    callback: Callback | None = None,
    *,
    kernel: Kernel = BINOMIAL_BRIDGE,
    correction: Correction = Correction(),
    mean: Tensor | None = None,
    known: KnownElements | None = None,
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
        correction: corrector steps after the kernel's.
        mean: E[X_0], broadcastable to shape, for a Poisson start; None starts all black.
        known: elements of X_0 that are given, for inpainting.

    Returns:
        X_0, integer counts of `shape`.
    """
    steps = len(times) - 1
    source = _source(generator, steps + 1)
    xt = process.prior(shape, times[-1], source, mean=mean, device=torch.device(device))
    path = None if known is None else known.path(process, times, shape, generator)
    for k in range(steps, -1, -1):
        if k < steps:
            s, t, source = times[k], times[k + 1], _source(generator, k + 1)
            xt = kernel(denoiser, process, xt, s, t, source)
            for _ in range(correction.at(float(s))):
                xt = correction.corrector(kernel, denoiser, process, xt, s, t, source)
        if path is not None:
            xt = path.overwrite(k, xt)
        if callback is not None:
            callback(k, xt)
    return xt.clamp(max=process.max_count).to(count_dtype(process.max_count))


def count_evaluations(
    times: Tensor, kernel: Kernel, correction: Correction = Correction(), twice: Sequence[float] | None = ()
) -> int:
    """How often sampling on a grid evaluates the network.

    Args:
        times, kernel, correction: as for `sample`.
        twice: range of logits of survival in which the denoiser evaluates it twice, to guide; None is everywhere, an
            empty one nowhere. A step counts as being where it starts.
    """
    total = 0
    for s, t in pairwise(times.tolist()):
        steps = correction.at(s)
        calls = kernel.evaluations(s) + (steps and steps * correction.corrector.evaluations(kernel, s))
        doubled = twice is None or (len(twice) == 2 and in_range(twice, t))
        total += calls * (2 if doubled else 1)
    return total


def _source(generator: torch.Generator | SampleStreams | None, step: int) -> RandomSource:
    return generator.at(step) if isinstance(generator, SampleStreams) else generator


@dataclass(frozen=True)
class Sampler:
    """How a model is sampled.

    Args:
        kernel: the reverse step.
        num_steps: steps along the grid; each costs as many network evaluations as kernel and correctors need.
        grid: num_steps -> times; None follows the family of the training schedule.
        poisson_start: start from Poisson(q_T E[X_0]) rather than from black.
        corrector_steps, corrector, corrector_between: see `Correction`.
        guidance: scale of classifier-free guidance; 1 is the plain conditional model.
        guidance_between: (lowest, highest) logit of survival where guidance acts; None for everywhere.
        batch_size: samples per network evaluation.
        keep_dropout: leave the network in train mode while sampling, as the reference code did.
        bfloat16: evaluate the network in bfloat16 autocast; counts and draws stay exact.

    Raises:
        ValueError: a number is out of range.
    """

    kernel: Kernel = BINOMIAL_BRIDGE
    num_steps: int = 1000
    grid: Callable[[int], Tensor] | None = None
    poisson_start: bool = True
    corrector_steps: int = 0
    corrector: Corrector = THIN_AND_BRIDGE
    corrector_between: Sequence[float] | None = None
    guidance: float = 1.0
    guidance_between: Sequence[float] | None = None
    batch_size: int = 256
    keep_dropout: bool = False
    bfloat16: bool = False

    def __post_init__(self) -> None:
        for name in ("num_steps", "batch_size"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}")
        if not self.guidance >= 0:
            raise ValueError(f"guidance must not be negative, not {self.guidance}")
        check_range(self.guidance_between, "guidance_between")
        _ = self.correction

    @property
    def correction(self) -> Correction:
        return Correction(self.corrector_steps, self.corrector, self.corrector_between)
