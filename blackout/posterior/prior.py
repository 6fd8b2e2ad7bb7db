"""Priors of posterior sampling: a trained denoiser and its forward process."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import torch
from torch import Tensor

from blackout.counts import time_on
from blackout.diffusion.kernels import BinomialBridge, Kernel, LevelBridge, ReverseStep
from blackout.diffusion.predictions import CategoricalPrediction, CountPrediction, Denoiser
from blackout.diffusion.processes import JumpProcess, Process, PureDeath
from blackout.diffusion.sampling import CountingDenoiser, SamplingPlan, run_sampler, source_at
from blackout.diffusion.survival import logit_survival, time_of_logit
from blackout.diffusion.time_grids import logit_times
from blackout.random import RandomSource, SampleStreams
from blackout.representation import format_fields

PERTURBATION_TIME = 1.0  # t of `perturb`: a share 1 - e^-1 of all units or levels is lost

# random numbers of a reverse run; with streams, those of sample k are a function of (seed, k)
Streams: TypeAlias = SampleStreams | torch.Generator | None


@dataclass(frozen=True)
class Prior:
    """A prior p(x): a denoiser and the forward process it was trained for.

    Args:
        denoiser: (xt [n, *shape], t) -> prediction.
        process: forward process in continuous time.
        shape: of one sample.
        kernel: reverse step; None takes the binomial bridge for pure death, else the level bridge.
        data_mean: E[X_0], broadcastable to [n, *shape], for processes that start from it.
        times: time grid of unconditional samples, float64 [T + 1]; its first positive time is also
            the last one above 0 of every reverse run.
        steps_per_logit: steps of a reverse run per unit of the logit of survival.
        device: of the states.

    Raises:
        ValueError: a process in discrete time, which has no levels between its steps.

    References: Chu et al. 2025, eq. 9 (the prior step of split Gibbs sampling).
    """

    denoiser: Denoiser
    process: Process
    shape: tuple[int, ...]
    kernel: Kernel = None  # type: ignore[assignment]  # chosen in __post_init__
    data_mean: Tensor | None = None
    times: Tensor = field(default_factory=lambda: logit_times(25, 6.0, -6.0))
    steps_per_logit: float = 1.0
    device: torch.device | str = "cpu"

    __repr__ = format_fields

    def __post_init__(self) -> None:
        if not isinstance(self.process, JumpProcess):
            name = type(self.process).__name__
            raise ValueError(
                f"{name} runs in discrete time, but posteriors need continuous time: "
                "use a model of process=uniform, absorbing or pure_death"
            )
        if self.kernel is None:
            bridge = BinomialBridge() if isinstance(self.process, PureDeath) else LevelBridge()
            object.__setattr__(self, "kernel", bridge)
        object.__setattr__(self, "denoiser", CountingDenoiser(self.denoiser))

    def with_kernel(self, kernel: Kernel) -> Prior:
        """Return a prior with another kernel, whose network evaluations this prior counts, too."""
        return replace(self, kernel=kernel)

    @property
    def evaluations(self) -> int:
        """The number of network evaluations so far, each of a batch."""
        assert isinstance(self.denoiser, CountingDenoiser)
        return self.denoiser.evaluations

    @property
    def final_time(self) -> float:
        """The largest time of the grid."""
        return float(self.times[-1])

    def reverse_times(self, t: float, num_steps: int | None = None) -> Tensor:
        """Return times from 0 to t, evenly spaced in the logit of survival above the first.

        Args:
            t: positive.
            num_steps: steps above the first positive time; None for `steps_per_logit`.

        Returns:
            float64 [H + 1], the first 0 and the last t.

        References: this project; checked in tests/posterior/test_prior.py.
        """
        first = self.times[1]
        last = torch.tensor(t, dtype=torch.float64)
        if last <= first:
            return torch.stack([torch.zeros_like(last), last])
        first_logit = logit_survival(first)
        last_logit = logit_survival(last)
        if not num_steps:
            distance = float(first_logit - last_logit)
            num_steps = max(1, math.ceil(distance * self.steps_per_logit - 1e-9))
        logits = torch.linspace(
            float(first_logit), float(last_logit), num_steps + 1, dtype=torch.float64
        )
        times = time_of_logit(logits)
        times[0] = first  # exactly, without rounding
        times[-1] = last
        return torch.cat([torch.zeros(1, dtype=torch.float64), times])

    def reverse(
        self, z: Tensor, t: float, source: Streams = None, num_steps: int | None = None
    ) -> Tensor:
        """Draw X_0 given X_t = z, as exactly as the denoiser and the number of steps allow.

        Args:
            z: integer states [n, *shape].
            t: time, at most the final time.
            source: random numbers.
            num_steps: see `reverse_times`.

        Returns:
            Counts [n, *shape].

        References: Chu et al. 2025, eq. 9 and section 3.2.
        """
        times = self.reverse_times(t, num_steps)
        plan = SamplingPlan(self.denoiser, self.process, times, self.kernel, device=z.device)
        return run_sampler(plan, tuple(z.shape), source, start=z)

    def draw(self, num_samples: int, source: Streams = None) -> Tensor:
        """Draw unconditional samples, counts [num_samples, *shape]."""
        plan = SamplingPlan(
            self.denoiser,
            self.process,
            self.times,
            self.kernel,
            data_mean=self.data_mean,
            device=self.device,
        )
        return run_sampler(plan, (num_samples, *self.shape), source)

    def initial_states(self, num_samples: int, source: Streams = None) -> Tensor:
        """Draw states at the final time, [num_samples, *shape]."""
        final_time = time_on(self.times[-1], torch.device(self.device))
        numbers = source_at(source, len(self.times))
        return self.process.prior(
            (num_samples, *self.shape), final_time, numbers, data_mean=self.data_mean
        )

    @torch.no_grad()
    def step(self, x: Tensor, s: Tensor, t: Tensor, source: RandomSource = None) -> Tensor:
        """Draw X_s given X_t = x by one step of the kernel, states [n, *shape]."""
        return self.kernel(ReverseStep(self.denoiser, self.process, x, s, t, source))

    @torch.no_grad()
    def expected_data(self, x: Tensor, s: Tensor) -> Tensor:
        """Return E[X_0 | X_s = x], float64 [n, *shape]; of categories the most likely level.

        References: Chu et al. 2025, eq. 50; categories: this project.
        """
        prediction = self.denoiser(x, s)
        if isinstance(prediction, CategoricalPrediction):
            return prediction.log_probs.argmax(1).double()
        if isinstance(prediction, CountPrediction):
            missing = prediction.expected
        else:  # births and deaths
            missing = torch.sub(*prediction.expected.unbind(1))
        return (x.double() + missing).clamp(0, self.process.max_count)

    @torch.no_grad()
    def one_step_samples(
        self, x: Tensor, s: Tensor, streams: SampleStreams, num_samples: int
    ) -> list[Tensor]:
        """Draw X_0 given X_s = x several times by a single step, from one evaluation.

        Given the prediction, the elements are independent; see `Kernel`.

        Returns:
            Counts [n, *shape], `num_samples` of them.
        """
        prediction = self.denoiser(x, s)
        zero = torch.zeros_like(s)
        samples = []
        for k in range(num_samples):
            source = streams.fold_in(k).step(0)
            step = ReverseStep(lambda xt, t: prediction, self.process, x, zero, s, source)
            samples.append(self.kernel(step).clamp(max=self.process.max_count))
        return samples

    def perturb(self, x: Tensor, streams: SampleStreams, num_samples: int) -> Tensor:
        """Noise data and denoise them in one step, several times: similar data.

        Args:
            x: data [n, *shape].
            streams: random numbers.
            num_samples: for every row of x.

        Returns:
            Counts [n, num_samples, *shape].
        """
        t = torch.tensor(min(PERTURBATION_TIME, self.final_time), dtype=torch.float64)
        z = self.process.sample(x, t, streams.step(0))
        return torch.stack(self.one_step_samples(z, t, streams.fold_in(0), num_samples), 1)
