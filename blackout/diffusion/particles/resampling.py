"""The particle loop: several runs of every sample, weighted as they go, resampled, and one drawn.

A sequential Monte Carlo sampler on top of the one sampling loop
(`blackout.diffusion.sampling.run_sampler`), for any distribution whose paths differ from the
kernel's by weights. As the number P of particles grows, the distribution of a sample tends to the
weighted one, with an error of O(1 / P); P times as many network evaluations are made.

The particles of a sample are weighted against each other alone. The random numbers that resample
them are a function of (seed, k) for sample k, whatever else is in the batch.

References: Doucet et al. 2001.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from blackout.counts import time_on
from blackout.diffusion.inpainting import KnownPath
from blackout.diffusion.kernels import Kernel, ReverseStep, StatefulKernel
from blackout.diffusion.particles.known_elements import (
    LOOK_AHEAD_POWER,
    KnownWeight,
    has_step_probability,
)
from blackout.diffusion.particles.potentials import Potential, Step
from blackout.diffusion.predictions import Prediction
from blackout.diffusion.processes import Process
from blackout.diffusion.sampler import Sampler
from blackout.diffusion.sampling import Callback, SamplingPlan, run_sampler, source_at
from blackout.random import SampleStreams, systematic_resampling, uniform

INPAINTING_PARTICLES = 16  # of a sample with known elements, unless the sampler says otherwise
THRESHOLD = 0.5  # effective share of the particles below which they are resampled


@dataclass(frozen=True)
class Particles:
    """Settings of a particle sampler: number of particles, and when they are resampled.

    Args:
        number: P, particles of every sample.
        threshold: effective share of the particles below which they are resampled; 0 never
            resamples before the end, 1 after every step.
        retain_first: the x0 of the known elements is a whole sample, which decays to the last time,
            where all particles begin; the first particle then follows its path back. Without
            resampling this is a move of iterated importance sampling on paths, which leaves the
            distribution given the known elements as it is, for any number of particles.
        look_ahead: power of the predicted probability of known elements; see `KnownWeight`.

    References: Andrieu et al. 2010, section 4.2 (the retained path).
    """

    number: int
    threshold: float = THRESHOLD
    retain_first: bool = False
    look_ahead: float = LOOK_AHEAD_POWER


class WeightedSamples(NamedTuple):
    """Samples drawn by their weights.

    Attributes:
        samples: one of the particles of every sample, [B, ...].
        log_normaliser: float64 [B]: exp of it is an unbiased estimate of the mean weight of the
            kernel's paths. Of known elements that is p(known), up to the error of the steps and as
            far as the final time has forgotten the data.
    """

    samples: Tensor
    log_normaliser: Tensor


def particles_per_sample(sampler: Sampler, process: Process, has_known_elements: bool) -> int:
    """Return the number of particles per sample; 1 unless elements are known."""
    if not has_known_elements:
        return 1
    if sampler.inpainting_particles is not None:
        return sampler.inpainting_particles
    return INPAINTING_PARTICLES if has_step_probability(process) else 1


@torch.no_grad()
def run_particles(
    plan: SamplingPlan,
    shape: tuple[int, ...],
    generator: torch.Generator | SampleStreams | None,
    particles: Particles,
    potentials: Sequence[Potential] = (),
    callback: Callback | None = None,
) -> WeightedSamples:
    """Walk the particles of every sample of a batch back from times[-1] to times[0].

    Args:
        plan: as for `run_sampler`. Its denoiser predicts for rows [B * number, ...], the particles
            of the first sample first. Known elements bring their own weights, and all particles of
            a sample share their path. Corrector steps must leave the weighted distribution as it
            is.
        shape: [B, ...] of the samples.
        generator: as for `run_sampler`.
        particles: number of particles, and resampling.
        potentials: what is added up to the log weights.
        callback: receives (k, X_{t_k}, None), one particle of every sample, k = T first; at k = 0
            the samples.

    Raises:
        ValueError: as for `run_sampler`; a stateful kernel, whose steps resampling would mix up;
            known elements of a process whose steps have no probability; a retained path among
            particles that are resampled.
    """
    process = plan.process
    known_elements = plan.known_elements
    number = particles.number
    if particles.retain_first and (known_elements is None or particles.threshold > 0):
        raise ValueError(
            "retain_first needs known elements and no resampling: pass known_elements and "
            "threshold=0"
        )
    if known_elements is not None and not has_step_probability(process):
        raise ValueError(
            f"inpainting_particles: the steps of {type(process).__name__} have no likelihood that "
            "particles could be weighed by: 1 overwrites the known elements"
        )

    # 1. All particles start from the prior.
    times = plan.times.cpu()
    device = torch.device(plan.device)
    num_steps = len(times) - 1
    streams = generator.particles(number) if isinstance(generator, SampleStreams) else generator
    data_mean = plan.data_mean
    if data_mean is not None and data_mean.ndim == len(shape) and len(data_mean) > 1:
        data_mean = data_mean.repeat_interleave(number, 0)
    final_time = time_on(times[-1], device)
    source = source_at(streams, num_steps + 1)
    start = process.prior((shape[0] * number, *shape[1:]), final_time, source, data_mean=data_mean)

    # 2. Known elements follow one path, and weight the particles.
    path = None
    potentials = list(potentials)
    if known_elements is not None:
        path = KnownPath(known_elements.expand_to(shape, device), process, generator, number)
        start = path.advance(num_steps, times[-1], start)
        potentials.append(KnownWeight(process, path.x0, path.mask, particles.look_ahead))
    if path is not None and particles.retain_first:
        start = path.retain_first()

    # 3. The loop, with a kernel that weights and resamples; corrector steps do neither.
    swarm = Swarm(plan, potentials, particles, shape[0], generator, path)

    def correct(_: Kernel, step: ReverseStep) -> Tensor:
        x = plan.correction.corrector(plan.kernel, step)
        return x if path is None else path.overwrite(x)

    def show_first(k: int, x: Tensor, prediction: Prediction | None) -> None:
        if callback is not None and k > 0:
            callback(k, x[::number], None)

    correction = replace(plan.correction, corrector=correct)
    swarm_plan = replace(
        plan, kernel=swarm, correction=correction, data_mean=None, known_elements=None
    )
    x0 = run_sampler(swarm_plan, tuple(start.shape), streams, start=start, callback=show_first)

    # 4. One particle of every sample, by weight.
    weighted = swarm.draw(x0)
    if callback is not None:
        callback(0, weighted.samples, None)
    return weighted


class Swarm:
    """Kernel that steps all particles with another kernel, then weights and resamples them.

    References: Doucet et al. 2001.

    Args:
        plan: of the sampling loop; its kernel makes the steps.
        potentials: weight the steps.
        particles: number of particles, and resampling.
        num_samples: B.
        generator: of the samples' random numbers, for resampling.
        path: of known elements, if any.
    """

    def __init__(
        self,
        plan: SamplingPlan,
        potentials: Sequence[Potential],
        particles: Particles,
        num_samples: int,
        generator: torch.Generator | SampleStreams | None,
        path: KnownPath | None,
    ) -> None:
        if isinstance(plan.kernel, StatefulKernel):
            raise ValueError(
                f"{type(plan.kernel).__name__} uses earlier steps, which resampling mixes up: use "
                "another kernel, such as Trapezoidal()"
            )
        self._kernel = plan.kernel
        self._potentials = potentials
        self._particles = particles
        self._generator = generator
        self._path = path
        self._k = len(plan.times) - 1
        device = torch.device(plan.device)
        weights_shape = (num_samples, particles.number)
        self._log_weight = torch.zeros(weights_shape, dtype=torch.float64, device=device)
        self._log_normaliser = torch.zeros(num_samples, dtype=torch.float64, device=device)

    def __call__(self, step: ReverseStep) -> Tensor:
        """Return X_s of the shape [rows, ...] and dtype of `step.x`, weighted and resampled."""
        self._k -= 1
        record = Step(self._k, step.s, step.t, step.x)

        def denoiser(x: Tensor, time: Tensor) -> Prediction:
            """Predict, with known elements on their path, and record the evaluation."""
            begins_stage = bool(record.evaluations) and bool(time < record.evaluations[-1][1])
            if self._path is not None and begins_stage:
                x = self._path.advance(self._k, time, x)
            prediction = step.denoiser(x, time)
            record.evaluations.append((x, time, prediction))
            return prediction

        xs = self._kernel(replace(step, denoiser=denoiser))
        record.after = xs if self._path is None else self._path.advance(self._k, step.s, xs)
        for potential in self._potentials:
            self._log_weight += potential(record).view_as(self._log_weight)
        return record.after if self._k == 0 else self._resample(record.after)

    def _resample(self, xs: Tensor) -> Tensor:
        """Replace particles [rows, ...] whose effective number 1 / sum w^2 is too small by copies.

        Their mean weight goes into the normaliser; copies are drawn by `systematic`.
        """
        number = self._particles.number
        weight = normalise_weights(self._log_weight)
        resampled = 1 / (weight**2).sum(1) < self._particles.threshold * number
        u = uniform((len(weight), 1), source_at(self._generator, self._k + 1), weight.device)
        self._log_normaliser += torch.where(resampled, self._log_mean_weight(), 0.0)
        self._log_weight = torch.where(resampled[:, None], 0.0, self._log_weight)
        unchanged = torch.arange(number, device=weight.device)
        ancestors = torch.where(resampled[:, None], systematic_resampling(weight, u), unchanged)
        first = number * torch.arange(len(weight), device=weight.device)
        rows = (first[:, None] + ancestors).flatten()
        for potential in self._potentials:
            select = getattr(potential, "select", None)
            if select is not None:
                select(rows)
        return xs[rows]

    def draw(self, x0: Tensor) -> WeightedSamples:
        """Draw one particle of every sample of x0 [rows, ...] by weight, [B, ...]."""
        weight = normalise_weights(self._log_weight)
        number = self._particles.number
        u = uniform((len(weight), 1), source_at(self._generator, 0), weight.device)
        is_below = weight.cumsum(1) <= u * weight.sum(1, keepdim=True)
        particle = is_below.sum(1).clamp(max=number - 1)
        rows = number * torch.arange(len(weight), device=weight.device) + particle
        return WeightedSamples(x0[rows], self._log_normaliser + self._log_mean_weight())

    def _log_mean_weight(self) -> Tensor:
        """Return the log of the mean weight of every sample's particles, float64 [B]."""
        return torch.logsumexp(self._log_weight, 1) - math.log(self._particles.number)


def normalise_weights(log_weight: Tensor) -> Tensor:
    """Return weights [B, P] that sum to 1 over the particles, from their logarithms.

    Weights that are all 0 become equal ones.
    """
    impossible = torch.isneginf(log_weight).all(1, keepdim=True)
    return torch.softmax(torch.where(impossible, 0.0, log_weight), 1)
