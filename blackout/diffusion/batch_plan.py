"""The plan of a batch: what a model, a sampler and conditions amount to for the sampling loop."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from blackout.diffusion.conditions import Conditions
from blackout.diffusion.guidance import GuidedDenoiser, start_mean
from blackout.diffusion.predictions import Denoiser
from blackout.diffusion.processes import Process
from blackout.diffusion.sampler import Sampler
from blackout.diffusion.sampling import SamplingPlan
from blackout.diffusion.schedule import Schedule
from blackout.diffusion.totals import TotalDenoiser


class SampledModel(Protocol):
    """The parts of a model that determine its samples, as `BlackoutDiffusion` has them."""

    process: Process
    schedule: Schedule
    data_mean: Tensor
    class_mean: Tensor | None

    @property
    def device(self) -> torch.device:
        """Device of the weights."""

    def denoiser(self, classes: Tensor | None = None) -> Denoiser:
        """Return (xt, t) -> prediction, given classes [B] or None."""


def plan_batch(
    model: SampledModel, sampler: Sampler, conditions: Conditions, num_particles: int = 1
) -> SamplingPlan:
    """Return the `SamplingPlan` of a batch: its denoiser, grid, kernel and start.

    Args:
        model: predicts, and knows the means of its data.
        sampler: its kernel, grid, correction and guidance.
        conditions: of the samples of the batch.
        num_particles: of every sample; the denoiser predicts for all of them.
    """
    # 1. Grid: the sampler's, or the training schedule's.
    times = sampler.times(model.schedule)

    # 2. Denoiser: conditional on the labels, guided, with a fixed total.
    labels = conditions.labels
    guidance = sampler.guidance
    max_count = model.process.max_count
    denoiser = model.denoiser()
    if labels is not None:
        conditional = model.denoiser(labels.repeat_interleave(num_particles))
        denoiser = GuidedDenoiser(conditional, denoiser, guidance, max_count)
    if conditions.total is not None:
        denoiser = TotalDenoiser(denoiser, conditions.total)

    # 3. Mean of the Poisson start, guided as the predictions at the last time are.
    data_mean = None
    if sampler.poisson_start:
        scale = guidance.scale_at(float(times[-1]))
        data_mean = start_mean(model.data_mean, model.class_mean, labels, scale, max_count)

    return SamplingPlan(
        denoiser=denoiser,
        process=model.process,
        times=times,
        kernel=sampler.kernel,
        correction=sampler.correction,
        data_mean=data_mean,
        known_elements=conditions.known_elements,
        device=model.device,
    )
