"""Callbacks beside the training step: the progress bar, preview grids, scores and training speed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback, RichProgressBar
from rich import get_console
from torch import Tensor

from blackout.distributed import my_samples
from blackout.errors import Unobtainable, check_at_least_one, check_at_most, refuse
from blackout.files import save_picture
from blackout.preemption import signals
from blackout.protocols import Draw, Drawn, Samples, Scorer, Source, Split, Watch
from blackout.protocols import Scores as Accumulators
from blackout.training.lightning_module import AtBoundary, TrainingModule, check_finite
from blackout.training.loggers import log_picture

MAX_PREVIEW_SAMPLES = 2500  # samples of a picture, as in `sample.py shown=...`: 50 rows of 50
MAX_SCORED_SAMPLES = 10**8  # as in `sample.py num_samples=...`: their numbers alone need 0.8 GB
MAX_STEPS = 10**6  # steps of a sampler


class StepProgressBar(AtBoundary, RichProgressBar):
    """A bar over all steps of the run, whose length Lightning cannot tell from the endless data stream.

    Lightning's `RichProgressBar` shows nothing where the output is no terminal; this one prints plain lines there.

    Args:
        refresh_rate: steps between two moves of the bar, at which the metrics are read; 0 for no bar.
        seconds: between two plain lines where the output is no terminal, such as a cluster's log.
    """

    def __init__(self, refresh_rate: int = 1, seconds: float = 30.0) -> None:
        super().__init__(refresh_rate)
        console = get_console()
        self._watched = console.is_terminal or console.is_jupyter
        if self._watched:
            self.every = refresh_rate or sys.maxsize
        self.seconds = 1.0 if self._watched else seconds
        self._began = 0, 0.0

    on_train_batch_end = Callback.on_train_batch_end  # for the bar moves at boundaries

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock of the plain lines."""
        super().on_train_start(trainer, pl_module)
        self._began = self.boundary, self.acted

    def at_boundary(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Move the bar, or print a line."""
        self._move(trainer, pl_module)
        if self._watched or not trainer.is_global_zero:
            return
        (first, began), step = self._began, trainer.global_step
        rate = (step - first) / (self.acted - began)
        line = f"step {step:,} of {trainer.max_steps:,}, {rate:.3g} steps/s"
        if rate > 0:
            line += f", about {timedelta(seconds=round((trainer.max_steps - step) / rate))} left"
        values = ", ".join(f"{name} {float(value):.4g}" for name, value in sorted(trainer.callback_metrics.items()))
        print(f"{line}; {values}" if values else line, flush=True)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Move the bar to where training waits."""
        super().on_validation_start(trainer, pl_module)
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._move(trainer, pl_module)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Move the bar to its end."""
        self._move(trainer, pl_module)

    def _move(self, trainer: Any, pl_module: pl.LightningModule) -> None:
        """To the batches of the whole run, whatever an epoch is."""
        done = trainer.fit_loop.epoch_loop.batch_progress.total.processed
        super().on_train_batch_end(trainer, pl_module, None, None, done - 1)

    @property
    def total_train_batches(self) -> int | float:
        """Batches of the whole run."""
        steps = self.trainer.max_steps
        return steps * self.trainer.accumulate_grad_batches if steps > 0 else super().total_train_batches

    def configure_columns(self, trainer: pl.Trainer) -> list[Any]:
        """Return Lightning's columns without the first, which numbers epochs: the data stream has none."""
        return list(super().configure_columns(trainer))[1:]


class _Interrupted(Exception):
    """A signal asked the run to leave while it was drawing."""


def _leave_when_asked(step: int, steps: int, state: Tensor) -> None:
    if signals.received:
        raise _Interrupted


class SampleGrid(AtBoundary):
    """Draws the same samples every `every_n_steps` steps, for `samples/step_0000500.png` and the loggers.

    Args:
        directory: where the pictures go.
        preview: (model, number of samples, number of steps or None) -> their `Draw`.
        every_n_steps: optimiser steps between two grids.
        num_samples: samples in a grid.
        num_steps: steps per sample; None for as many as the sampler has.
        seed: of the samples.

    Raises:
        ValueError: a number that is no whole number of at least 1, or too large.
    """

    def __init__(
        self,
        directory: str | Path,
        preview: Callable[[Any, int, int | None], Draw],
        every_n_steps: int = 500,
        num_samples: int = 64,
        num_steps: int | None = None,
        seed: int = 0,
    ) -> None:
        check_at_least_one(every_n_steps=every_n_steps, num_samples=num_samples, num_steps=num_steps)
        check_at_most(MAX_PREVIEW_SAMPLES, num_samples=num_samples)
        check_at_most(MAX_STEPS, num_steps=num_steps)
        self._directory, self.every, self._num_samples = Path(directory), every_n_steps, num_samples
        self._num_steps, self._seed, self._preview = num_steps, seed, preview

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """In a continued run, draw the grid that was due where it stopped, if it is missing."""
        super().on_train_start(trainer, pl_module)
        if self.boundary and not self._path(self.boundary).exists():
            self.boundary = -1

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Draw the last grid whatever signals say: a run that has ended does not come back to draw."""
        if trainer.global_step != self.boundary and trainer.global_step % self.every == 0:
            self.at_boundary(trainer, pl_module, None)

    def at_boundary(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, watch: Watch | None = _leave_when_asked
    ) -> None:
        """Draw the grid that is due, unless a signal asks the run to leave."""
        check_finite(trainer)
        if trainer.is_global_zero:
            assert isinstance(pl_module, TrainingModule)
            for callback in trainer.callbacks:  # type: ignore[attr-defined]
                if isinstance(callback, Throughput):
                    callback.pause()
            draw = self._preview(pl_module.model, self._num_samples, self._num_steps)
            try:
                samples = draw_first(draw, self._num_samples, self._seed, watch)
            except _Interrupted:  # raised by `watch` alone; the run draws this grid when it continues
                return
            picture = draw.picture(samples)
            save_picture(picture, self._path(trainer.global_step))
            for logger in trainer.loggers if picture is not None else ():
                log_picture(logger, picture, trainer.global_step)

    def _path(self, step: int) -> Path:
        return self._directory / f"step_{step:07d}.png"


def draw_first(draw: Draw, num_samples: int, seed: int, watch: Watch | None = None) -> Samples:
    """Samples 0..num_samples - 1 of a seed, named arrays [num_samples, ...] on the CPU."""
    batches = [samples for _, samples in draw.batches(torch.arange(num_samples), seed, watch=watch)]
    return {name: torch.cat([batch[name].cpu() for batch in batches]) for name in batches[0]}


class Throughput(AtBoundary):
    """Logs `train/images_per_second`, over all devices, whenever the training loss is logged.

    The clock is read where Lightning has just fetched the loss from the device, so that no step waits for it. Warm-up
    (the first step), validations, saves and previews are left out; list it before the callbacks that do these.
    Lightning's `ThroughputMonitor` counts saves and previews as training, and waits for the device.
    """

    NAME = "train/images_per_second"

    def __init__(self) -> None:
        self._began: tuple[int, float] | None = None  # step and time at which the measured stretch began

    def on_train_start(self, trainer: Any, pl_module: pl.LightningModule) -> None:
        """Forget what a run before has measured."""
        super().on_train_start(trainer, pl_module)
        self.every = trainer.log_every_n_steps or sys.maxsize
        self.pause()

    def at_boundary(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log when it is due, and start the next stretch."""
        self._log_when_due(trainer)
        self._began = self._began or (trainer.global_step, time.perf_counter())

    def pause(self) -> None:
        """Leave out what is done until the next step begins."""
        self._began, self.soon = None, True

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log, and leave the validation out."""
        if trainer.state.fn == "fit":
            self._log_when_due(trainer)
            self.pause()

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: Any) -> None:
        """Leave the save out."""
        self.pause()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log the last stretch."""
        self._log_when_due(trainer)

    def _log_when_due(self, trainer: Any) -> None:  # Lightning's annotations lack what is asked here
        if self._began is None or trainer.global_step % self.every:
            return
        (step, began), now = self._began, time.perf_counter()
        self._began = trainer.global_step, now
        images = (trainer.global_step - step) * trainer.accumulate_grad_batches * trainer.datamodule.batch_size
        for logger in trainer.loggers if images else ():
            logger.log_metrics({self.NAME: images / (now - began)}, trainer.global_step - 1)


Batches: TypeAlias = Callable[[Tensor, int], Drawn]
"""(numbers int64 [n], seed) -> (numbers [b], their samples), a batch at a time."""


class Scores(AtBoundary):
    """Scores fresh samples during training and when the trainer tests the final model.

    During training samples are compared with validation data (or with the reference of the scores, if that is the
    training data): at validations, as validation metrics, so that the best checkpoint can be chosen by a score, for
    instance `callbacks.checkpoints.monitor=frechet_distance_digits`; without validation data between steps. The final
    ones are compared with test data. Sample k is drawn once, by process k mod W, and does not depend on W. Weights,
    modes and
    random state are left unchanged.

    Args:
        scorer: extractor, scores and reference.
        num_samples: samples to be scored each time.
        every_n_steps: score at steps that are a multiple of this; None for the final model only.
        seed: of the samples.
        num_samples_between: samples to be scored before the end; None for `num_samples`.
        required: weights that cannot be had end the run; else a line says where to put them, and it goes on without.

    Raises:
        ValueError: a number that is no whole number of at least 1, or more than 100 million samples.
    """

    def __init__(
        self,
        scorer: Scorer,
        num_samples: int = 1000,
        every_n_steps: int | None = None,
        seed: int = 0,
        num_samples_between: int | None = None,
        required: bool = True,
    ) -> None:
        check_at_least_one(
            every_n_steps=every_n_steps, num_samples=num_samples, num_samples_between=num_samples_between
        )
        check_at_most(MAX_SCORED_SAMPLES, num_samples=num_samples, num_samples_between=num_samples_between)
        self.num_samples, self.seed = num_samples, seed
        self.every_n_steps, self.between = every_n_steps, num_samples_between or num_samples
        self.missing: str | None = None
        """Why there are no scores, where something that they need cannot be had."""
        self.provenance: dict[str, Any] = {}
        """How the last scores were made."""
        self.values: dict[str, float] = {}
        """The last scores, in full precision."""
        self._scorer, self._required = scorer, required
        self._scores: dict[Split, Accumulators] = {}

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Load extractor and reference, so that a choice that cannot work fails before anything long starts.

        Raises:
            UserError: scores are due at steps at which there is no validation.
        """
        between = trainer.val_check_interval if trainer.check_val_every_n_epoch is None else 1
        if self.every_n_steps is not None and type(between) is int and _validates(trainer):
            steps = max(1, between // trainer.accumulate_grad_batches)
            told = f"callbacks.scores.every_n_steps={self.every_n_steps} must be a multiple of {steps}"
            refuse(self.every_n_steps % steps, f"{told}: samples are scored at validations, every {steps} steps")
        if self._scores or self.missing:
            return
        source = trainer.datamodule.source  # type: ignore[attr-defined]
        try:
            if self.every_n_steps is not None:
                self._scores["val"] = self._scorer.begin(source, self.between, trainer.strategy.root_device, "val")
            self._scores["test"] = self._scorer.begin(source, self.num_samples, trainer.strategy.root_device, "test")
        except Unobtainable as error:
            if self._required:
                raise
            self.missing = str(error)
            if trainer.is_global_zero:
                print(f"scores:  left out: {error}", flush=True)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Score between steps where there is no validation at which to score."""
        super().on_train_start(trainer, pl_module)
        self.every = sys.maxsize
        if self.every_n_steps is not None and not _validates(trainer):
            self.every = self.every_n_steps

    def at_boundary(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Draw samples and score them, for the loggers."""
        check_finite(trainer)
        if self.missing:
            return
        self._score(pl_module, "val")
        for logger in trainer.loggers:
            logger.log_metrics(self.values, trainer.global_step - 1)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Draw samples and compare them with validation data, where it is time to."""
        during_training = trainer.state.fn == "fit"
        due = self.every_n_steps is not None and not (during_training and trainer.global_step % self.every_n_steps)
        if due and not self.missing:
            self._score(pl_module, "val")
            pl_module.log_dict(self.values, batch_size=self.between, sync_dist=True)

    def on_test_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Draw samples of the final model and compare them with test data."""
        if not self.missing:
            self._score(pl_module, "test")
            pl_module.log_dict(self.values, batch_size=self.num_samples, sync_dist=True)

    def _score(self, pl_module: pl.LightningModule, split: Split) -> None:
        assert isinstance(pl_module, TrainingModule)
        scores = self._scores[split]
        scores.reset()
        model = pl_module.model
        batches = model.batches if split == "test" else model.validation_batches
        self.values = score_samples(scores, batches, self.seed)
        self.provenance = {"seed": self.seed, **scores.provenance()}

    @property
    def accumulated(self) -> Accumulators | None:
        """The samples of the final model, as they were scored; None where they could not be."""
        return self._scores.get("test")

    def reference_scores(self, source: Source, device: torch.device) -> dict[str, Any]:
        """Return the scores of held-out data and of a fitted model, see `compared`."""
        return compared(self._scorer, source, self.num_samples, device)


def _validates(trainer: pl.Trainer) -> bool:
    """Whether there are validations during training."""
    source = trainer.datamodule.source  # type: ignore[attr-defined]
    return bool(trainer.limit_val_batches and source.size("val"))


def compared(scorer: Scorer, source: Source, num_samples: int, device: torch.device) -> dict[str, Any]:
    """What the scores of right samples are, and those of a fitted model: `held_out_data` and `baseline`."""
    of = source, num_samples, device
    return {"held_out_data": scorer.held_out(*of), "baseline": scorer.baseline(*of)}


def score_samples(scores: Accumulators, batches: Batches, seed: int) -> dict[str, float]:
    """Draw samples 0..n - 1 by `batches`, each on one process, and score them; the same values on every process."""
    for indices, samples in batches(my_samples(scores.num_samples), seed):
        scores.update(samples, indices.to(samples["samples"].device))
    return scores.compute()
