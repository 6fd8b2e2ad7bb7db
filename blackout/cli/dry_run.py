"""Before training: evaluate every component once, and take the first step of every draw."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from blackout.component import Plain
from blackout.distributed import is_first
from blackout.errors import error_context, refuse
from blackout.protocols import Draw
from blackout.training.family import ComponentFamily

SECONDS_WITHOUT_LINE = 3.0  # before a line says what is done


class _FirstStepTaken(Exception):
    """Raised when a draw has taken its first step."""


def dry_run(config: Plain, model: Any, family: ComponentFamily) -> None:
    """Evaluate every component once, and take the first step of every draw with one sample.

    This costs a few evaluations of the network for one sample, whatever the numbers of steps and
    samples are.

    Args:
        config: the settings.
        model: to be trained, in the mode of a new model.
        family: of the model.

    Raises:
        UserError: components do not fit together, or samples cannot be drawn as the settings say.
    """
    with _announced_if_slow():
        family.dry_run(model)
        for setting, draw in trial_draws(config, model, family):
            with error_context(setting):
                take_first_step(draw)


@contextmanager
def _announced_if_slow() -> Iterator[None]:
    """Say what is done inside if it takes more than a few seconds."""
    line = "checks:  one loss and the first step of every sampler are tried before training"
    timer = threading.Timer(SECONDS_WITHOUT_LINE, print, [line], {"flush": True})
    timer.daemon = True
    if is_first():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def trial_draws(config: Plain, model: Any, family: ComponentFamily) -> Iterator[tuple[str, Draw]]:
    """Yield the draws of scored and of shown samples, each with the setting that determines it.

    Raises:
        UserError: previews cannot be drawn in as many steps as `callbacks.samples.num_steps` says.
    """
    yield "sampler", family.draw(model, {})
    yield "sampler", family.preview(model, num_samples=1)
    callback = (config["callbacks"] or {}).get("samples")
    num_steps = callback.get("num_steps") if isinstance(callback, Mapping) else None
    if num_steps is not None:
        with error_context("callbacks.samples"):
            draw = family.preview(model, num_samples=1, num_steps=num_steps)
        problem = f"this sampler always takes {draw.steps} steps"
        refuse(
            draw.steps != num_steps,
            f"callbacks.samples.num_steps={num_steps}: {problem}; omit it",
        )
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
    except _FirstStepTaken:  # raised by `stop` alone; every error of the model passes
        return
