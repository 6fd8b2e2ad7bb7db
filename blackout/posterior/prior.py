"""The prior of an inverse problem: a trained model as a law p(x | X_t = z), reversed from any state at any level."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor

from blackout.diffusion.kernels import BinomialBridge, Kernel, LevelBridge
from blackout.diffusion.predictions import Denoiser
from blackout.diffusion.processes import JumpProcess, Process, PureDeath
from blackout.diffusion.samplers import CountingDenoiser, begin, sample
from blackout.diffusion.schedules import logit_survival, logit_times, time_of_logit
from blackout.random import RandomSource, SampleStreams

Streams: TypeAlias = SampleStreams | torch.Generator | None
"""Where a whole loop takes its numbers from; streams make sample k a function of (seed, k)."""


@dataclass(frozen=True)
class Prior:
    """p(x), as a denoiser and the process it was trained for; its reverse runs are the prior step [Chu 2025, eq. 9].

    Args:
        denoiser: (xt [n, *shape], t) -> prediction.
        process: forward; one in continuous time.
        shape: of one sample.
        kernel: the reverse step; None takes the binomial bridge for pure death, else the level bridge.
        mean: E[X_0], broadcastable to [n, *shape], for priors that start from it.
        times: the grid of unconditional samples, float64 [T + 1]; its first positive time is where every run ends.
        steps_per_logit: steps of a reverse run per unit of the logit of survival.
        device: where states are.

    Raises:
        ValueError: a process in discrete time, which has no levels between its steps.
    """

    denoiser: Denoiser
    process: Process
    shape: tuple[int, ...]
    kernel: Kernel = None  # type: ignore[assignment]  # chosen below
    mean: Tensor | None = None
    times: Tensor = field(default_factory=lambda: logit_times(25, 6.0, -6.0))
    steps_per_logit: float = 1.0
    device: torch.device | str = "cpu"

    def __post_init__(self) -> None:
        if not isinstance(self.process, JumpProcess):
            raise ValueError(
                f"{type(self.process).__name__} runs in discrete time: posteriors need a process with levels in "
                "between, such as process=uniform"
            )
        if self.kernel is None:
            bridge = BinomialBridge() if isinstance(self.process, PureDeath) else LevelBridge()
            object.__setattr__(self, "kernel", bridge)
        object.__setattr__(self, "denoiser", CountingDenoiser(self.denoiser))

    @property
    def evaluations(self) -> int:
        """Network evaluations of batches so far."""
        assert isinstance(self.denoiser, CountingDenoiser)
        return self.denoiser.evaluations

    @property
    def final_time(self) -> float:
        """The largest level there is."""
        return float(self.times[-1])

    def walk(self, t: float, steps: int | None = None) -> Tensor:
        """Times from 0 to the level t, equal steps of the logit of survival above the grid's first time. Ours.

        Args:
            t: level, 0 < t.
            steps: above the first time; None for `steps_per_logit`.

        Returns:
            float64 [H + 1], the first 0 and the last t.
        """
        first, level = self.times[1], torch.tensor(t, dtype=torch.float64)
        if level <= first:
            return torch.stack([torch.zeros_like(level), level])
        ends = logit_survival(first), logit_survival(level)
        number = steps or max(1, math.ceil(float(ends[0] - ends[1]) * self.steps_per_logit - 1e-9))
        inner = time_of_logit(torch.linspace(float(ends[0]), float(ends[1]), number + 1, dtype=torch.float64))
        inner[0], inner[-1] = first, level
        return torch.cat([torch.zeros(1, dtype=torch.float64), inner])

    def reverse(self, z: Tensor, t: float, source: Streams = None, steps: int | None = None) -> Tensor:
        """X_0 given X_t = z, as far as denoiser and steps are exact [Chu 2025, eq. 9 and section 3.2].

        Args:
            z: integer states [n, *shape].
            t: level; at most the final time.
            source: of random numbers.
            steps: see `walk`.

        Returns:
            Counts [n, *shape].
        """
        times = self.walk(t, steps)
        return sample(
            self.denoiser, self.process, times, tuple(z.shape), source, kernel=self.kernel, start=z, device=z.device
        )

    def draw(self, number: int, source: Streams = None) -> Tensor:
        """Unconditional samples, counts [number, *shape]."""
        return sample(
            self.denoiser, self.process, self.times, (number, *self.shape), source, kernel=self.kernel,
            mean=self.mean, device=self.device,
        )  # fmt: skip

    def begin(self, number: int, source: Streams = None) -> Tensor:
        """Where an unconditional run over `times` begins, states [number, *shape]."""
        shape, device = (number, *self.shape), torch.device(self.device)
        return begin(self.process, self.times.to(device), shape, source, self.mean, None, device)

    def step(self, x: Tensor, s: Tensor, t: Tensor, source: RandomSource = None) -> Tensor:
        """X_s given X_t = x, states [n, *shape], as far as denoiser and kernel are exact."""
        return self.kernel(self.denoiser, self.process, x, s, t, source)

    def guess(self, x: Tensor, s: Tensor, source: RandomSource = None) -> Tensor:
        """Data that X_s = x may lead to, counts [n, *shape], from the last prediction of the step that led there: no
        further evaluation, and elements that are independent of one another.
        """
        assert isinstance(self.denoiser, CountingDenoiser)
        assert self.denoiser.last is not None
        (at, t), last = self.denoiser.asked, self.denoiser.last
        x0 = self.kernel(lambda xt, t: last, self.process, at, torch.zeros_like(t), t, source)
        return x0.clamp(max=self.process.max_count)
