"""Samples of a model, a batch at a time: one walk for every sample, or a group of particles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from blackout.diffusion.conditions import TotalDenoiser
from blackout.diffusion.correctors import Churned
from blackout.diffusion.guidance import GuidedDenoiser, check_classes, start_mean
from blackout.diffusion.inpainting import KnownElements
from blackout.diffusion.interface import CountModel
from blackout.diffusion.kernels import StatefulKernel
from blackout.diffusion.particles import GuidanceWeight, sample_particles, weighs
from blackout.diffusion.predictions import Denoiser
from blackout.diffusion.processes import Process
from blackout.diffusion.sampling import Callback, Sampler, sample
from blackout.family import Samples
from blackout.random import SampleStreams

INPAINTING_PARTICLES = 16
"""Of every sample with known elements, unless the sampler says otherwise."""


@torch.no_grad()
def draw_batches(
    model: CountModel,
    indices: Tensor,
    seed: int,
    sampler: Sampler,
    callback: Callback | None = None,
    classes: Tensor | None = None,
    known: KnownElements | None = None,
    batch_size: int | None = None,
    total: float | None = None,
) -> Iterator[tuple[Tensor, Samples]]:
    """Draw the samples named by `indices`; see `BlackoutDiffusion.sample_batches`; `total` is every sample's count.

    Yields:
        (indices [b], {"samples": counts [b, *shape]}); from particles also "log_normaliser", float64 [b], see
        `particles.Weighed`. Both on the model's device.

    Raises:
        ValueError: classes that the model does not know, or guidance without classes.
    """
    if classes is not None:
        check_classes(classes, len(indices), model.num_classes)
    elif sampler.guidance.scale != 1:
        raise ValueError("guidance needs classes to guide towards")
    number = number_of_particles(sampler, model.process, classes is not None, known is not None)
    size = batch_size or min(max(1, sampler.evaluation.batch_size // number), len(indices))
    for rows in torch.arange(len(indices)).split(size) if len(indices) else ():
        padded = torch.cat([rows, rows[-1:].expand(size - len(rows))])
        of_batch = None if classes is None else classes[padded].to(model.device)
        observed = None if known is None else known.select(padded)
        streams = SampleStreams(seed, indices[padded].to(model.device))
        with sampler.evaluation.of(model.averaged):
            drawn = _draw(model, sampler, streams, (size, *model.shape), callback, of_batch, observed, number, total)
        yield indices[rows], {name: values[: len(rows)] for name, values in drawn.items()}


def number_of_particles(sampler: Sampler, process: Process, guided: bool, inpainted: bool) -> int:
    """How many particles a sample is drawn from: the larger of what its guidance and its known elements need."""
    guidance, number = sampler.guidance, 1
    if guided and guidance.scale not in (0, 1):
        number = guidance.particles
    if not inpainted:
        return number
    possible = weighs(process) and not isinstance(sampler.kernel, StatefulKernel | Churned)
    return max(number, sampler.inpainting_particles or (INPAINTING_PARTICLES if possible else 1))


def _draw(
    model: CountModel, sampler: Sampler, streams: SampleStreams, shape: tuple[int, ...], callback: Callback | None,
    classes: Tensor | None, known: KnownElements | None, number: int, total: float | None,
) -> Samples:  # fmt: skip
    """One batch of `shape`."""
    times = model.times(sampler)
    mean = None
    if sampler.poisson_start:
        scale = sampler.guidance.at(float(times[-1]))
        mean = start_mean(model.mean, model.class_mean, classes, scale, model.process.max_count)
    denoiser = guided_denoiser(model, sampler, None if classes is None else classes.repeat_interleave(number))
    denoiser = denoiser if total is None else TotalDenoiser(denoiser, total)
    how: dict[str, Any] = {
        "kernel": sampler.kernel, "correction": sampler.correction, "known": known, "device": model.device,
        "mean": mean,
    }  # fmt: skip
    if number == 1:
        return {"samples": sample(denoiser, model.process, times, shape, streams, callback, **how)}
    weights = [GuidanceWeight(model.process)] if sampler.guidance.particles > 1 else []
    drawn = sample_particles(
        denoiser, model.process, times, shape, streams, callback, number=number, potentials=weights, **how
    )
    return {"samples": drawn.samples, "log_normaliser": drawn.log_normaliser}


def guided_denoiser(model: CountModel, sampler: Sampler, classes: Tensor | None) -> Denoiser:
    """(xt, t) -> prediction given classes [rows], guided as the sampler asks; None for samples of all classes."""
    if classes is None:
        return model.denoiser()
    guidance, largest = sampler.guidance, model.process.max_count
    return GuidedDenoiser(model.denoiser(classes), model.denoiser(), guidance.scale, largest, guidance.between)
