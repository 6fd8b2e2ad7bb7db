"""Samples per second during training."""

from __future__ import annotations

import sys
import time
from typing import Any

import pytorch_lightning as pl

from blackout.training.step_callbacks import StepCallback


class Throughput(StepCallback):
    """Callback that logs `train/samples_per_second` over all devices, with the training loss.

    The clock is read right after Lightning has fetched the loss from the device, so no step waits
    for it. The first step, validations, saves and previews are left out; list this callback before
    those that do these. Lightning's `ThroughputMonitor` counts saves and previews as training, and
    waits for the device.
    """

    NAME = "train/samples_per_second"

    def __init__(self) -> None:
        self._start: tuple[int, float] | None = None  # step and time at which measuring began

    def on_train_start(self, trainer: Any, pl_module: pl.LightningModule) -> None:
        """Reset the clock; a continued run measures from its first step on."""
        super().on_train_start(trainer, pl_module)
        self.every = trainer.log_every_n_steps or sys.maxsize
        self.pause()

    def on_step_boundary(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log if it is due, and start measuring if it was paused."""
        self._log_when_due(trainer)
        if self._start is None:
            self._start = (trainer.global_step, time.perf_counter())

    def pause(self) -> None:
        """Stop measuring until the next step begins."""
        self._start = None
        self.acts_next = True

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log, and leave the validation out."""
        if trainer.state.fn == "fit":
            self._log_when_due(trainer)
            self.pause()

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: Any
    ) -> None:
        """Leave the save out."""
        self.pause()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log the last steps."""
        self._log_when_due(trainer)

    def _log_when_due(self, trainer: Any) -> None:  # Lightning's annotations lack `datamodule`
        if self._start is None or trainer.global_step % self.every:
            return
        start_step, start_time = self._start
        now = time.perf_counter()
        self._start = (trainer.global_step, now)
        num_batches = (trainer.global_step - start_step) * trainer.accumulate_grad_batches
        num_images = num_batches * trainer.datamodule.batch_size
        if num_images:
            metrics = {self.NAME: num_images / (now - start_time)}
            for logger in trainer.loggers:
                logger.log_metrics(metrics, trainer.global_step - 1)
