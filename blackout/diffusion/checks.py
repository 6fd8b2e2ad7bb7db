"""Checks of a sampler and of the ends of time, before anything long starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from blackout.diffusion.guidance import Guidance, GuidedDenoiser
from blackout.diffusion.heads import Head
from blackout.diffusion.inpainting import KnownElements
from blackout.diffusion.particles import Particles, run_particles
from blackout.diffusion.predictions import Prediction, misfit
from blackout.diffusion.processes import Process, PureDeath
from blackout.diffusion.sampler import Sampler
from blackout.diffusion.sampling import SamplingPlan, run_sampler
from blackout.diffusion.schedules import DataEnds, Schedule
from blackout.errors import error_context, refuse

NUM_TRIAL_TIMES = 9  # of a grid, at which a sampler is tried


class Checked(Protocol):
    """What the checks ask of a model, `blackout.diffusion.BlackoutDiffusion`."""

    sampler_class: ClassVar[type[Sampler]]
    process: Process
    head: Head
    schedule: Schedule

    @property
    def config(self) -> Mapping[str, Any]:
        """The description of the model."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""

    @property
    def num_classes(self) -> int | None:
        """Number of classes; None for an unconditional model."""

    def times(self, sampler: Sampler) -> Tensor:
        """Return the grid of a sampler, float64 [T + 1]."""


def try_sampler(model: Checked, sampler: Sampler) -> None:
    """Check the grid of a sampler, and take a few of its steps on an empty sample, without a network.

    Raises:
        UserError: kernel or correctors need what the head does not predict or belong to another process
            or model, or the grid is not one of the process, or ends too early for the data.
    """
    refuse(
        type(sampler) is not model.sampler_class,
        f"sampler: {type(sampler).__name__} draws from {sampler.models} only; "
        f"this model needs {model.sampler_class.choices}",
    )
    with error_context("sampler"):
        times = model.times(sampler)
        model.process.check_final_time(times[-1])
        check_final_time(model, times[-1], sampler)
    num_times = min(len(times), NUM_TRIAL_TIMES)
    trial_times = times[torch.linspace(0, len(times) - 1, num_times).round().long()]
    output = torch.zeros(1, model.head.outputs, *model.shape)
    shape = (1, *model.shape)

    def check_shape(k: int, xt: Tensor, prediction: Prediction | None) -> None:
        if xt.shape != shape:  # at once: with every further step it would be larger
            needed = f"states of {list(shape)}, and made {list(xt.shape)}"
            raise misfit(sampler.kernel, model.process, needed)

    def blank(xt: Tensor, t: Tensor) -> Prediction:
        return model.head(output.expand(len(xt), *output.shape[1:]), xt, t)

    # guided at all times, if the model has classes
    scale = 1.0 if model.num_classes is None else sampler.guidance.scale
    denoiser = GuidedDenoiser(blank, blank, Guidance(scale), model.process.max_count)
    generator = torch.Generator().manual_seed(0)
    plan = SamplingPlan(denoiser, model.process, trial_times, sampler.kernel, sampler.correction)
    with error_context("sampler"):
        if (sampler.inpainting_particles or 1) == 1:
            run_sampler(plan, shape, generator, callback=check_shape)
            return
        nothing = KnownElements(
            torch.zeros(shape, dtype=torch.uint8), torch.zeros(shape, dtype=torch.bool)
        )
        plan = SamplingPlan(
            denoiser,
            model.process,
            trial_times,
            sampler.memoryless.kernel,
            sampler.correction,
            known=nothing,
        )
        run_particles(plan, shape, generator, Particles(2), callback=check_shape)


def check_final_time(model: Checked, t: Tensor, sampler: Sampler | None = None) -> None:
    """Refuse a grid of pure death that ends, at t, too early for the model's data, if known.

    Args:
        model: of any process.
        t: the final time.
        sampler: that starts there; None for any.

    Raises:
        ValueError: see `DataEnds.check`.
    """
    ends = DataEnds.of(model.config.get("data", {}))
    if ends is not None and isinstance(model.process, PureDeath):
        ends.check(t, None if sampler is None else sampler.earliest_time(ends))


def check_training_times(model: Checked) -> None:
    """Check that the process has forgotten the data at the last training time.

    Raises:
        UserError: the schedule ends too early for the process or the data.
    """
    final_time = model.schedule.times[-1]
    with error_context("process"):
        model.process.check_final_time(final_time)
    with error_context("schedule"):
        check_final_time(model, final_time)


def check_guidance(sampler: Sampler, *, with_classes: bool) -> None:
    """Refuse to guide samples that have no class.

    Raises:
        UserError: the sampler would.
    """
    unguided = sampler.guidance.scale == 1 or with_classes
    refuse(not unguided, "sampler.guidance.scale: guidance needs classes to guide towards")
