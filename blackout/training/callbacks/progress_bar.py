"""A progress bar over all steps of a run."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback, RichProgressBar
from rich import get_console

from blackout.training.step_callbacks import StepCallback


class StepProgressBar(StepCallback, RichProgressBar):
    """Progress bar over all steps of the run.

    Lightning cannot tell the length from the endless data stream. Where the output is no terminal,
    its `RichProgressBar` prints nothing; this one prints plain lines.

    Args:
        refresh_rate: steps between two updates of the bar, at which the metrics are read; 0 for no
            bar.
        seconds: between two plain lines, where the output is no terminal, as in a cluster's log.
    """

    def __init__(self, refresh_rate: int = 1, seconds: float = 30.0) -> None:
        super().__init__(refresh_rate)
        console = get_console()
        self._is_interactive = console.is_terminal or console.is_jupyter
        if self._is_interactive:
            self.every = refresh_rate or sys.maxsize
        self.seconds = 1.0 if self._is_interactive else seconds
        self._start_step = 0
        self._start_time = 0.0

    on_train_batch_end = Callback.on_train_batch_end  # the bar is updated between steps instead

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock of the plain lines."""
        super().on_train_start(trainer, pl_module)
        self._start_step = self.boundary
        self._start_time = self.last_time

    def on_step_boundary(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Update the bar, or print a line."""
        self._update_bar(trainer, pl_module)
        if self._is_interactive or not trainer.is_global_zero:
            return
        step = trainer.global_step
        rate = (step - self._start_step) / (self.last_time - self._start_time)
        line = f"step {step:,} of {trainer.max_steps:,}, {rate:.3g} steps/s"
        if rate > 0:
            remaining = timedelta(seconds=round((trainer.max_steps - step) / rate))
            line += f", about {remaining} left"
        metrics = sorted(trainer.callback_metrics.items())
        values = ", ".join(f"{name} {float(value):.4g}" for name, value in metrics)
        print(f"{line}; {values}" if values else line, flush=True)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Update the bar before training waits for the validation."""
        super().on_validation_start(trainer, pl_module)
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._update_bar(trainer, pl_module)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Update the bar to its end."""
        self._update_bar(trainer, pl_module)

    def _update_bar(self, trainer: Any, pl_module: pl.LightningModule) -> None:
        """Set the bar to the number of batches since the start of the run."""
        num_batches = trainer.fit_loop.epoch_loop.batch_progress.total.processed
        super().on_train_batch_end(trainer, pl_module, None, None, num_batches - 1)

    @property
    def total_train_batches(self) -> int | float:
        """Number of batches of the whole run."""
        steps = self.trainer.max_steps
        if steps > 0:
            return steps * self.trainer.accumulate_grad_batches
        return super().total_train_batches

    def configure_columns(self, trainer: pl.Trainer) -> list[Any]:
        """Return Lightning's columns without the first, the epoch, which the data stream lacks."""
        return list(super().configure_columns(trainer))[1:]
