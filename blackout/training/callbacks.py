"""What happens beside the training step: pictures, checkpoints, the progress bar's length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback, ModelCheckpoint, RichProgressBar
from pytorch_lightning.loggers import Logger, TensorBoardLogger, WandbLogger

from blackout.diffusion.module import BlackoutDiffusion
from blackout.training.images import grid


class StepProgressBar(RichProgressBar):
    """A bar over all steps of the run: the data is an endless stream, so Lightning alone would know no end."""

    @property
    def total_train_batches(self) -> int | float:
        steps = self.trainer.max_steps
        return steps * self.trainer.accumulate_grad_batches if steps > 0 else super().total_train_batches

    def _get_train_description(self, current_epoch: int) -> str:
        return "training"


class Checkpoints(ModelCheckpoint):
    """`last.ckpt` every so many steps and at the end, `best.ckpt` by a validation metric.

    Args:
        directory: where they go.
        every_n_steps: optimiser steps between two saves of the last.
        monitor: what the best is chosen by.
        mode: whether less or more of it is better.
    """

    def __init__(
        self, directory: str | Path, every_n_steps: int = 500, monitor: str = "val/bits_per_dim", mode: str = "min"
    ) -> None:
        if every_n_steps < 1:
            raise ValueError(f"every_n_steps must be at least 1, not {every_n_steps}")
        super().__init__(
            dirpath=str(directory),
            filename="best",
            monitor=monitor,
            mode=mode,
            save_top_k=1,
            auto_insert_metric_name=False,
            enable_version_counter=False,
        )
        self._last = Path(directory) / "last.ckpt"
        self._every = every_n_steps
        self._saved_at = -1

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any, **kwargs: Any) -> None:
        if trainer.global_step % self._every == 0:
            self._save_last(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._save_last(trainer)

    def _save_last(self, trainer: pl.Trainer) -> None:
        if trainer.global_step == self._saved_at:  # micro-batches of an accumulated step
            return
        self._saved_at = trainer.global_step
        trainer.save_checkpoint(self._last)


class SampleGrid(Callback):
    """Draws the same few samples every so many steps and shows them: `samples/step_0000500.png` and the loggers.

    Args:
        directory: where the pictures go.
        every_n_steps: optimiser steps between two grids.
        num_samples: samples in a grid.
        num_steps: network evaluations per sample; null for the sampler's own.
        seed: of the samples.
    """

    def __init__(
        self,
        directory: str | Path,
        every_n_steps: int = 500,
        num_samples: int = 64,
        num_steps: int | None = None,
        seed: int = 0,
    ) -> None:
        if every_n_steps < 1 or num_samples < 1:
            raise ValueError("every_n_steps and num_samples must be at least 1")
        self._directory, self._every, self._num_samples = Path(directory), every_n_steps, num_samples
        self._num_steps, self._seed = num_steps, seed
        self.drawn = 0
        """How many grids this process has drawn."""
        self._drawn_at = 0

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any, **kwargs: Any) -> None:
        step = trainer.global_step
        if step % self._every or step == self._drawn_at or not trainer.is_global_zero:
            return
        self._drawn_at = step
        assert isinstance(pl_module, BlackoutDiffusion)
        self._draw(pl_module, step, trainer.loggers)

    def _draw(self, module: BlackoutDiffusion, step: int, loggers: list[Logger]) -> None:
        from dataclasses import replace

        sampler = module.sampler if self._num_steps is None else replace(module.sampler, num_steps=self._num_steps)
        counts = module.sample(self._num_samples, self._seed, sampler)
        self.drawn += 1
        picture = grid(counts, module.process.max_count)
        self._directory.mkdir(parents=True, exist_ok=True)
        picture.save(self._directory / f"step_{step:07d}.png")
        for logger in loggers:
            log_picture(logger, picture, step)


def log_picture(logger: Logger, picture: Any, step: int) -> None:
    """Show a grid in the logger's dashboard, if it shows pictures."""
    if isinstance(logger, WandbLogger):
        logger.log_image("samples", [picture], step=step)
    elif isinstance(logger, TensorBoardLogger):
        import numpy as np

        logger.experiment.add_image("samples", np.asarray(picture), step, dataformats="HWC")
