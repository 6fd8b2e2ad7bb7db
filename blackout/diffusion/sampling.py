"""The engine: samples of a model, a batch at a time, by one walk for every sample or a group of particles."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from blackout.diffusion.calibration import CalibratedDenoiser, TotalDenoiser, tied
from blackout.diffusion.data_stats import DataEnds
from blackout.diffusion.guidance import GuidedDenoiser, start_mean
from blackout.diffusion.heads import Head
from blackout.diffusion.inpainting import KnownElements
from blackout.diffusion.kernels import MultistepLeap, StatefulKernel
from blackout.diffusion.particles import SPREAD, GuidanceWeight, sample_particles, weighs
from blackout.diffusion.predictions import Denoiser, Prediction
from blackout.diffusion.processes import Process, PureDeath
from blackout.diffusion.samplers import Callback, Sampler, sample
from blackout.diffusion.schedules import Schedule, logit_survival, widest
from blackout.errors import UserError, error_context
from blackout.family import Samples
from blackout.random import SampleStreams

INPAINTING_PARTICLES = 16
"""Of every sample with known elements, unless the sampler says otherwise."""
_NO_CLAIM = (
    "guidance: the weights of particles spread over more than 5 nats: such samples are no draws of p(x) p(c | x)^g, "
    "and their log_normaliser is NaN; take more steps or more particles, or a smaller guidance"
)
_TIMES = 9
"""Times of a grid at which a sampler is tried."""


class Predictor(Protocol):
    """What samples are drawn from: a network with everything that gives its output a meaning."""

    head: Head
    process: Process
    schedule: Schedule
    mean: Tensor
    class_mean: Tensor | None
    config: dict[str, Any]

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def num_classes(self) -> int | None: ...
    @property
    def device(self) -> torch.device: ...
    def denoiser(self, classes: Tensor | None = None) -> Denoiser: ...
    def times(self, sampler: Sampler) -> Tensor: ...


def number_of_particles(sampler: Sampler, process: Process, guided: bool, inpainted: bool) -> int:
    """How many particles a sample is drawn from: the larger of what its guidance and its known elements need."""
    guidance, number = sampler.guidance, 1
    if guided and guidance.scale not in (0, 1):
        number = guidance.particles
    if not inpainted:
        return number
    possible = weighs(process) and not isinstance(taken_apart(sampler).kernel, StatefulKernel)
    return max(number, sampler.inpainting_particles or (INPAINTING_PARTICLES if possible else 1))


def taken_apart(sampler: Sampler) -> Sampler:
    """The sampler for walks whose states are exchanged or given: by single steps, between ends that suit these."""
    if not isinstance(sampler.kernel, MultistepLeap):
        return sampler
    return replace(sampler, kernel=sampler.kernel.single, grid=widest(sampler.grid))


def draw_batch(
    model: Predictor,
    sampler: Sampler,
    streams: SampleStreams,
    shape: tuple[int, ...],
    callback: Callback | None,
    classes: Tensor | None,
    known: KnownElements | None,
    number: int,
    total: float | None,
    pairs: list[list[Any]],
) -> Samples:
    """One batch of `shape`; see `BlackoutDiffusion.batches`.

    Args:
        number: of particles that every sample is drawn from.
        pairs: of elements that are `tied`.

    Returns:
        "samples", counts of `shape`; from particles also "log_normaliser", float64 [B], see `particles.Weighed`.
    """
    times = model.times(sampler)
    mean = None
    if sampler.poisson_start:
        scale = sampler.guidance.at(float(times[-1]))
        mean = start_mean(model.mean, model.class_mean, classes, scale, model.process.max_count)
    found = model.config.get("calibration") if sampler.calibrated else None
    if found and not np.isin(logit_survival(times[1:]).numpy().round(6), np.round(found["logits"], 6)).all():
        found = None  # of another walk: what comes about on the way is another number in one of fewer steps

    def denoiser_of(labels: Tensor | None) -> Denoiser:
        return CalibratedDenoiser(model.denoiser(labels), **found) if found else model.denoiser(labels)

    denoiser = denoiser_of(None)
    if classes is not None:
        guidance, given = sampler.guidance, denoiser_of(classes.repeat_interleave(number))
        denoiser = GuidedDenoiser(given, denoiser, guidance.scale, model.process.max_count, guidance.between)
    denoiser = denoiser if total is None else TotalDenoiser(denoiser, total)
    walk = denoiser, model.process, times, shape, streams, callback
    how: dict[str, Any] = {
        "kernel": sampler.kernel,
        "correction": sampler.correction,
        "known": known,
        "device": model.device,
        "mean": mean,
    }
    if number == 1:
        drawn = sample(*walk, **how)
        return {"samples": tied(drawn, pairs) if pairs and known is None else drawn}
    weights = [GuidanceWeight(model.process)] if sampler.guidance.particles > 1 else []
    weighed = sample_particles(*walk, number=number, potentials=weights, **how)
    unknown = (weighed.spread > SPREAD) if weights else torch.zeros_like(weighed.spread, dtype=torch.bool)
    if bool(unknown.any()):
        warnings.warn(_NO_CLAIM, stacklevel=2)
    return {"samples": weighed.samples, "log_normaliser": weighed.log_normaliser.masked_fill(unknown, math.nan)}


def try_sampler(model: Predictor, sampler: Sampler) -> None:
    """Look at the grid of a sampler, and take a few of its steps on an empty sample, with predictions of nothing.

    Raises:
        UserError: kernel or correctors need what the head does not predict or belong to another process, or the grid is
            not one of the process, or ends too early for the data.
    """
    if getattr(sampler.kernel, "planes", 0) != getattr(getattr(model, "network", None), "noise", 0):
        raise UserError("sampler: students are drawn by joint_bridge, and nothing else is: see experiment=distill")
    with error_context("sampler"):
        if sampler.calibrated and not isinstance(model.process, PureDeath):
            raise ValueError("predictions are calibrated for pure death alone: sampler.calibrated=false")
        times = model.times(sampler)
        model.process.check_final_time(times[-1])
        lent = isinstance(sampler.kernel, MultistepLeap) and sampler.poisson_start
        check_end(model, times[-1], sampler.grid or model.schedule.grid, "sampler" if sampler.grid else None, lent)
    few = times[torch.linspace(0, len(times) - 1, min(len(times), _TIMES)).round().long()]
    raw = torch.zeros(1, model.head.outputs, *model.shape)

    def check(k: int, xt: Tensor, prediction: Prediction | None) -> None:
        if xt.shape != (1, *model.shape):  # at once: with every further step it would be larger
            made = f"it made {list(xt.shape)} of {[1, *model.shape]}"
            raise ValueError(f"{misfit(sampler.kernel, model.process, model.head)}: {made}")

    def blank(xt: Tensor, t: Tensor) -> Prediction:
        return model.head(raw.expand(len(xt), *raw.shape[1:]), xt, t)

    # guided as the sampler would guide a model that has classes, wherever it would
    scale = 1.0 if model.num_classes is None else sampler.guidance.scale
    denoiser = GuidedDenoiser(blank, blank, scale, model.process.max_count)
    how: dict[str, Any] = {"kernel": sampler.kernel, "correction": sampler.correction}
    walk = denoiser, model.process, few, (1, *model.shape), torch.Generator().manual_seed(0), check
    with error_context("sampler"):
        inpaints = (sampler.inpainting_particles or 1) > 1
        if not (sampler.guidance.particles > 1 or inpaints):
            sample(*walk, **how)
            return
        if inpaints:
            how["known"] = KnownElements(*(torch.zeros(1, *model.shape, dtype=d) for d in (torch.uint8, torch.bool)))
        how["kernel"] = taken_apart(sampler).kernel
        weights = [GuidanceWeight(model.process)] if sampler.guidance.particles > 1 else []
        sample_particles(*walk, number=2, potentials=weights, **how)


def check_end(
    model: Predictor, t: Tensor, grid: Callable[[int], Tensor], where: str | None, lent: bool = False
) -> None:
    """Refuse a grid of pure death that ends, at t, too early for the model's data, where these are known.

    Raises:
        ValueError: see `DataEnds.check`.
    """
    ends = DataEnds.of(model.config.get("data", {}))
    if ends is not None and isinstance(model.process, PureDeath):
        ends.check(grid, t, where, lent)


def misfit(component: object, process: Process, head: Head) -> str:
    """Words for a component that does not go with a process and a head."""
    kinds = [type(one).__name__ for one in (component, process, head)]
    return f"{kinds[0]} does not fit the process {kinds[1]} with the head {kinds[2]}"
