"""Before training: components are evaluated once, and every draw that the run will make takes its first step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from blackout.component import Plain
from blackout.errors import error_context, refuse
from blackout.protocols import Draw
from blackout.training.family import ComponentFamily


class _FirstStepTaken(Exception):
    """A draw has taken its first step."""


def dry_run(config: Plain, model: Any, family: ComponentFamily) -> None:
    """Evaluate every component once, and take the first step of each draw of the run with one sample.

    This costs a few evaluations of the network for one sample, whatever the numbers of steps and samples.

    Args:
        config: the settings.
        model: to be trained, in the mode of a new model.
        family: of the model.

    Raises:
        UserError: components do not fit together, or samples cannot be drawn as the settings say.
    """
    family.dry_run(model)
    for name, draw in draws(config, model, family):
        with error_context(name):
            take_first_step(draw)


def draws(config: Plain, model: Any, family: ComponentFamily) -> Iterator[tuple[str, Draw]]:
    """The draws of a run with the settings that they are made by: those that are scored, previews, closing samples.

    Raises:
        UserError: previews cannot be drawn in as many steps as `callbacks.samples.num_steps` says.
    """
    yield "sampler", family.draw(model, {})
    number = 1
    yield "sampler", family.preview(model, number)
    previews = (config["callbacks"] or {}).get("samples")
    num_steps = previews.get("num_steps") if isinstance(previews, Mapping) else None
    if num_steps is not None:
        with error_context("callbacks.samples"):
            draw = family.preview(model, number, num_steps)
        told = f"callbacks.samples.num_steps={num_steps}: these samples are always drawn in {draw.steps} steps"
        refuse(draw.steps != num_steps, f"{told}: leave it out")
        yield "callbacks.samples", draw


def take_first_step(draw: Draw) -> None:
    """Draw one sample, and stop after its first step."""

    def stop(step: int, steps: int, state: Tensor) -> None:
        if step > 0:
            raise _FirstStepTaken

    try:
        with torch.no_grad():
            for _ in draw.batches(torch.arange(1), seed=0, batch_size=1, watch=stop):
                pass
    except _FirstStepTaken:  # raised by `stop` alone; every error of the model goes through
        return
