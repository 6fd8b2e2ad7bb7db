"""Training speed."""

from __future__ import annotations

import time
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback

from blackout.training.callbacks import SampleGrid


class Throughput(Callback):
    """Logs `train/images_per_second`, over all devices, whenever the training loss is logged.

    The clock is read where Lightning has just fetched the loss from the device, so that no step waits for it. Warm-up
    (the first step), validations, saves and previews are left out; list it before the callbacks that do these.
    """

    NAME = "train/images_per_second"

    def __init__(self) -> None:
        self._boundary = 0  # step of the last boundary between optimiser steps
        self._began: tuple[int, float] | None = None  # step and time at which the measured stretch began
        self._previews = 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Forget what a run before has measured."""
        self._boundary, self._began = trainer.global_step, None

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any) -> None:
        """Log at a boundary between steps, and start the next stretch."""
        if trainer.global_step == self._boundary:  # a later micro-batch of an accumulated step
            return
        self._boundary = trainer.global_step
        self._log_when_due(trainer)
        if self._began is None:
            self._began = trainer.global_step, time.perf_counter()

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log, and leave the validation out."""
        if trainer.state.fn == "fit":
            self._log_when_due(trainer)
            self._began = None

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: Any) -> None:
        """Leave the save out."""
        self._began = None

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log the last stretch."""
        self._log_when_due(trainer)

    def _log_when_due(self, trainer: Any) -> None:  # Lightning's annotations lack what is asked here
        previews = sum(callback.drawn for callback in trainer.callbacks if isinstance(callback, SampleGrid))
        if previews != self._previews:
            self._previews, self._began = previews, None
        every = trainer.log_every_n_steps
        if self._began is None or not every or trainer.global_step % every:
            return
        (step, began), now = self._began, time.perf_counter()
        self._began = trainer.global_step, now
        images = (trainer.global_step - step) * trainer.accumulate_grad_batches * trainer.datamodule.batch_size
        if images:
            for logger in trainer.loggers:
                logger.log_metrics({self.NAME: images / (now - began)}, trainer.global_step - 1)
