"""Checks of a sampler and of the final times, before anything long starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from blackout.diffusion.grid_ends import GridEnds
from blackout.diffusion.guidance import Guidance, GuidedDenoiser
from blackout.diffusion.heads import Head
from blackout.diffusion.inpainting import KnownElements
from blackout.diffusion.particles import Particles, run_particles
from blackout.diffusion.predictions import Prediction, mismatch_error
from blackout.diffusion.processes import Process, PureDeath
from blackout.diffusion.sampler import Sampler
from blackout.diffusion.sampling import SamplingPlan, run_sampler
from blackout.diffusion.schedule import Schedule
from blackout.errors import error_context, refuse

NUM_TRIAL_TIMES = 9  # points of a grid in a trial run


class CheckedModel(Protocol):
    """The parts of a model that a sampler must fit, as `BlackoutDiffusion` has them."""

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

    def apply_head(self, raw: Tensor, xt: Tensor, t: Tensor) -> Prediction:
        """Return the prediction that follows from raw outputs of the network."""


def try_sampler(model: CheckedModel, sampler: Sampler) -> None:
    """Check that a sampler fits a model, by its grid and a short run with a network of zeros.

    Raises:
        UserError: kernel or correctors need what the head does not predict, or belong to another
            process or model; or the grid does not suit the process, or ends too early for the data.
    """
    refuse(
        type(sampler) is not model.sampler_class,
        f"sampler: {type(sampler).__name__} draws from {sampler.models} only; "
        f"this model needs {model.sampler_class.choices}",
    )

    # 1. Final time of the grid.
    with error_context("sampler"):
        times = sampler.times(model.schedule)
        model.process.check_final_time(times[-1])
        check_final_time(model, times[-1], sampler)

    # 2. A few of its times, and zeros in place of the network; guided if the model has classes.
    num_times = min(len(times), NUM_TRIAL_TIMES)
    trial_times = times[torch.linspace(0, len(times) - 1, num_times).round().long()]
    output = torch.zeros(1, model.head.outputs, *model.shape)
    shape = (1, *model.shape)

    def predict_from_zeros(xt: Tensor, t: Tensor) -> Prediction:
        return model.apply_head(output.expand(len(xt), *output.shape[1:]), xt, t)

    def check_shape(k: int, xt: Tensor, prediction: Prediction | None) -> None:
        if xt.shape != shape:  # stop here: a kernel that broadcasts enlarges it with every step
            requirement = f"states of {list(shape)}, and made {list(xt.shape)}"
            raise mismatch_error(sampler.kernel, model.process, requirement)

    scale = 1.0 if model.num_classes is None else sampler.guidance.scale
    denoiser = GuidedDenoiser(
        predict_from_zeros, predict_from_zeros, Guidance(scale), model.process.max_count
    )
    plan = SamplingPlan(denoiser, model.process, trial_times, sampler.kernel, sampler.correction)

    # 3. One run, or two particles where the sampler has particles.
    generator = torch.Generator().manual_seed(0)
    with error_context("sampler"):
        if (sampler.inpainting_particles or 1) == 1:
            run_sampler(plan, shape, generator, callback=check_shape)
            return
        no_known_elements = KnownElements(
            torch.zeros(shape, dtype=torch.uint8), torch.zeros(shape, dtype=torch.bool)
        )
        plan = replace(plan, kernel=sampler.memoryless.kernel, known_elements=no_known_elements)
        run_particles(plan, shape, generator, Particles(2), callback=check_shape)


def check_final_time(model: CheckedModel, t: Tensor, sampler: Sampler | None = None) -> None:
    """Refuse a grid of pure death that ends too early for the model's data.

    Models whose description lacks the facts of their data pass.

    Args:
        model: of any process.
        t: the final time of the grid.
        sampler: starts there; None for any sampler.

    Raises:
        ValueError: see `GridEnds.check`.
    """
    ends = GridEnds.from_facts(model.config.get("data", {}))
    if ends is not None and isinstance(model.process, PureDeath):
        ends.check(t, None if sampler is None else sampler.earliest_time(ends))


def check_training_times(model: CheckedModel) -> None:
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
        UserError: the sampler guides, and samples have no classes.
    """
    refuse(
        sampler.guidance.scale != 1 and not with_classes,
        "sampler.guidance.scale: guidance needs classes to guide towards, such as classes=[0]",
    )
