"""Pictures of the same samples during training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor

from blackout.errors import check_at_least_one, check_at_most
from blackout.pictures import save_picture
from blackout.preemption import signals
from blackout.protocols import Draw, Samples, Watch
from blackout.training.callbacks.throughput import Throughput
from blackout.training.lightning_module import TrainingModule
from blackout.training.loggers import log_picture
from blackout.training.step_callbacks import StepCallback, check_finite

MAX_PREVIEW_SAMPLES = 2500  # samples of a picture, as in `sample.py shown=...`: 50 rows of 50
MAX_STEPS = 10**6  # steps of a sampler


class _Interrupted(Exception):
    """A signal asked the run to stop while it was drawing samples."""


def _stop_on_signal(step: int, steps: int, state: Tensor) -> None:
    if signals.received:
        raise _Interrupted


class SampleGrid(StepCallback):
    """Callback that draws the same samples every `every_n_steps` steps.

    The pictures go to `samples/step_0000500.png` and the loggers.

    Args:
        directory: of the pictures.
        preview: maps (model, number of samples, number of steps or None) to their `Draw`.
        every_n_steps: optimiser steps between two pictures.
        num_samples: samples in a picture.
        num_steps: steps of the sampler; None for its default.
        seed: of the samples.

    Raises:
        ValueError: a number that is not a whole number of at least 1, or too large.
    """

    stops_on_signals = True

    def __init__(
        self,
        directory: str | Path,
        preview: Callable[[Any, int, int | None], Draw],
        every_n_steps: int = 500,
        num_samples: int = 64,
        num_steps: int | None = None,
        seed: int = 0,
    ) -> None:
        check_at_least_one(
            every_n_steps=every_n_steps, num_samples=num_samples, num_steps=num_steps
        )
        check_at_most(MAX_PREVIEW_SAMPLES, num_samples=num_samples)
        check_at_most(MAX_STEPS, num_steps=num_steps)
        self.every = every_n_steps
        self._directory = Path(directory)
        self._preview = preview
        self._num_samples = num_samples
        self._num_steps = num_steps
        self._seed = seed

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """In a continued run, draw the picture of the step where it stopped, if it is missing."""
        super().on_train_start(trainer, pl_module)
        if self.boundary and not self._path(self.boundary).exists():
            self.boundary = -1

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Draw the last picture despite signals: a finished run does not continue later."""
        if trainer.global_step != self.boundary and trainer.global_step % self.every == 0:
            self.on_step_boundary(trainer, pl_module, None)

    def on_step_boundary(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        watch: Watch | None = _stop_on_signal,
    ) -> None:
        """Draw the picture that is due, unless a signal asks the run to stop."""
        check_finite(trainer)
        if not trainer.is_global_zero:
            return
        assert isinstance(pl_module, TrainingModule)
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, Throughput):
                callback.pause()
        draw = self._preview(pl_module.model, self._num_samples, self._num_steps)
        try:
            samples = draw_first(draw, self._num_samples, self._seed, watch)
        except _Interrupted:  # from `watch` only; the run draws this picture when it continues
            return
        picture = draw.picture(samples)
        save_picture(picture, self._path(trainer.global_step))
        if picture is not None:
            for logger in trainer.loggers:
                log_picture(logger, picture, trainer.global_step)

    def _path(self, step: int) -> Path:
        return self._directory / f"step_{step:07d}.png"


def draw_first(draw: Draw, num_samples: int, seed: int, watch: Watch | None = None) -> Samples:
    """Draw samples 0, ..., num_samples - 1 of a seed.

    Returns:
        Arrays by name, [num_samples, ...] on the CPU.
    """
    indices = torch.arange(num_samples)
    batches = [samples for _, samples in draw.batches(indices, seed, watch=watch)]
    return {name: torch.cat([batch[name].cpu() for batch in batches]) for name in batches[0]}
