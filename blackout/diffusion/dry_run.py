"""Every component tried once on an empty sample, before anything long starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from blackout.diffusion.data_stats import DataEnds
from blackout.diffusion.guidance import GuidedDenoiser
from blackout.diffusion.inpainting import KnownElements
from blackout.diffusion.interface import CountModel
from blackout.diffusion.particles import GuidanceWeight, sample_particles
from blackout.diffusion.predictions import Denoiser, Prediction
from blackout.diffusion.processes import PureDeath
from blackout.diffusion.sampling import Sampler, sample
from blackout.errors import UserError, error_context

_TIMES = 9
"""Times of a grid at which a sampler is tried."""


def rehearse(model: CountModel) -> None:
    """Observe, predict, score and draw one empty sample, so that components that do not fit show now.

    Raises:
        UserError: which component refuses, and why; or what it returns has the wrong shape.
    """
    x0 = torch.zeros(1, *model.shape, dtype=torch.uint8)
    with error_context("process"):
        model.process.check_final_time(model.schedule.times[-1])
    with error_context("schedule"):
        _check_end(model, model.schedule.times[-1], model.schedule.grid, "schedule")
        s, t = model.schedule.intervals(torch.full((1,), 0.5, dtype=torch.float64))
    with error_context("process"):
        xt, target = model.process.observe(x0, t, torch.Generator().manual_seed(0))
    training = model.network.training
    with error_context("network"), torch.no_grad():
        raw = model.network.eval()(xt, t)
        model.network.train(training)
    if raw.shape != (expected := (1, model.head.outputs, *model.shape)):
        raise UserError(f"network: its output is {list(raw.shape)}, where the head reads {list(expected)}")
    with error_context("head"):
        prediction = model.head(raw, xt, t)
    with error_context("loss"):
        _check_losses(model.loss(prediction, target, s, t), model)
    rehearse_sampler(model, model.sampler)


def rehearse_sampler(model: CountModel, sampler: Sampler) -> None:
    """Take a few steps of a sampler on an empty sample.

    Raises:
        UserError: kernel or correctors need what the head does not predict or belong to another process, or the grid is
            not one of the process.
    """
    with error_context("sampler"):
        times = (sampler.grid or model.schedule.grid)(sampler.num_steps)
        model.process.check_final_time(times[-1])
        _check_end(model, times[-1], sampler.grid or model.schedule.grid, "sampler" if sampler.grid else None)
    few = times[torch.linspace(0, len(times) - 1, min(len(times), _TIMES)).round().long()]
    raw = torch.zeros(1, model.head.outputs, *model.shape)

    def check(k: int, xt: Tensor, prediction: Prediction | None) -> None:
        if xt.shape != (1, *model.shape):  # at once: with every further step it would be larger
            raise ValueError(f"{_fit(sampler.kernel, model)}: it made {list(xt.shape)} of {[1, *model.shape]}")

    def blank(xt: Tensor, t: Tensor) -> Prediction:
        return model.head(raw.expand(len(xt), *raw.shape[1:]), xt, t)

    how: dict[str, Any] = {"kernel": sampler.kernel, "correction": sampler.correction}
    walk = model.process, few, (1, *model.shape), torch.Generator().manual_seed(0), check
    with error_context("sampler"):
        if not (sampler.guidance.particles > 1 or (sampler.inpainting_particles or 1) > 1):
            sample(_as_guided(blank, model, sampler), *walk, **how)
            return
        if (sampler.inpainting_particles or 1) > 1:
            how["known"] = KnownElements(*(torch.zeros(1, *model.shape, dtype=d) for d in (torch.uint8, torch.bool)))
        weights = [GuidanceWeight(model.process)]
        sample_particles(_as_guided(blank, model, sampler), *walk, number=2, potentials=weights, **how)


def _as_guided(blank: Denoiser, model: CountModel, sampler: Sampler) -> Denoiser:
    """As the sampler would guide a model that has classes, wherever it would."""
    scale = 1.0 if model.num_classes is None else sampler.guidance.scale
    return GuidedDenoiser(blank, blank, scale, model.process.max_count)


def _check_end(model: CountModel, t: Tensor, grid: Callable[[int], Tensor], where: str | None) -> None:
    """Raises ValueError for a grid of pure death that ends too early for the model's data, where these are known."""
    ends = DataEnds.of(model.config.get("data", {}))
    if ends is not None and isinstance(model.process, PureDeath):
        ends.check(grid, t, where)


def _check_losses(losses: Tensor, model: CountModel) -> None:
    if not isinstance(losses, Tensor) or losses.shape != (1, *model.shape):
        found = list(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise ValueError(f"{_fit(model.loss, model)}: it returned {found}, not one value per element")


def _fit(component: object, model: CountModel) -> str:
    return (
        f"{type(component).__name__} does not fit the process {type(model.process).__name__} with the head "
        f"{type(model.head).__name__}"
    )
