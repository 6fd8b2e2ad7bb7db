"""Callbacks that act next to training: progress bar, preview grids, throughput and scores."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
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
from blackout.training.lightning_module import TrainingModule
from blackout.training.loggers import log_picture
from blackout.training.step_callbacks import StepCallback, check_finite

MAX_PREVIEW_SAMPLES = 2500  # samples of a picture, as in `sample.py shown=...`: 50 rows of 50
MAX_SCORED_SAMPLES = 10**8  # as in `sample.py num_samples=...`; their indices alone take 0.8 GB
MAX_STEPS = 10**6  # steps of a sampler


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


class Throughput(StepCallback):
    """Callback that logs `train/images_per_second` over all devices, with the training loss.

    The clock is read right after Lightning has fetched the loss from the device, so no step waits
    for it. The first step, validations, saves and previews are left out; list this callback before
    those that do these. Lightning's `ThroughputMonitor` counts saves and previews as training, and
    waits for the device.
    """

    NAME = "train/images_per_second"

    def __init__(self) -> None:
        self._start: tuple[int, float] | None = None  # step and time at which measuring began

    def on_train_start(self, trainer: Any, pl_module: pl.LightningModule) -> None:
        """Start without earlier measurements."""
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


# (numbers int64 [n], seed) -> (numbers [b], their samples), a batch at a time
Batches: TypeAlias = Callable[[Tensor, int], Drawn]


class Scores(StepCallback):
    """Callback that scores samples during training, and when the trainer tests the final model.

    During training, samples are compared with validation data, or with the reference of the scores
    if that is the training data. This happens at validations, as validation metrics, so that the
    best checkpoint can be chosen by a score, as in
    `callbacks.checkpoints.monitor=frechet_distance_digits`; without validation data it happens
    between steps. Samples of the final model are compared with test data. Sample k is drawn once,
    by process k mod W, and does not depend on W. Weights, modes and random state stay unchanged.

    Args:
        scorer: extractor, scores and reference.
        num_samples: samples to score each time.
        every_n_steps: score at steps that are a multiple of this; None for the final model only.
        seed: of the samples.
        num_samples_between: samples to score before the end; None for `num_samples`.
        num_steps_between: steps of the sampler before the end; None for as many as it has.
        required: whether weights that are missing stop the run; otherwise a line says where to put
            them, and there are no scores.

    Attributes:
        missing: why there are no scores, if something that they need is missing.
        provenance: how the last scores were computed.
        values: the last scores, in full precision.

    Raises:
        ValueError: a number that is not a whole number of at least 1, or more than 100 million
            samples.
    """

    def __init__(
        self,
        scorer: Scorer,
        num_samples: int = 1000,
        every_n_steps: int | None = None,
        seed: int = 0,
        num_samples_between: int | None = None,
        num_steps_between: int | None = None,
        required: bool = True,
    ) -> None:
        check_at_least_one(
            every_n_steps=every_n_steps,
            num_samples=num_samples,
            num_samples_between=num_samples_between,
            num_steps_between=num_steps_between,
        )
        check_at_most(MAX_STEPS, num_steps_between=num_steps_between)
        check_at_most(
            MAX_SCORED_SAMPLES, num_samples=num_samples, num_samples_between=num_samples_between
        )
        self.num_samples = num_samples
        self.num_samples_between = num_samples_between or num_samples
        self.num_steps_between = num_steps_between
        self.every_n_steps = every_n_steps
        self.seed = seed
        self.missing: str | None = None
        self.provenance: dict[str, Any] = {}
        self.values: dict[str, float] = {}
        self._scorer = scorer
        self._required = required
        self._scores: dict[Split, Accumulators] = {}

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Load extractor and reference, so that an impossible choice fails before training.

        Raises:
            UserError: scores are due at steps at which there is no validation, or the number of
                steps before the end cannot be chosen.
        """
        self._check_interval(trainer)
        if self._scores or self.missing:
            return
        assert isinstance(pl_module, TrainingModule)
        no_samples = torch.arange(0)  # checks the number of steps only
        pl_module.model.validation_batches(no_samples, self.seed, self.num_steps_between)
        source = trainer.datamodule.source  # type: ignore[attr-defined]
        device = trainer.strategy.root_device
        begin = self._scorer.begin
        try:
            if self.every_n_steps is not None:
                self._scores["val"] = begin(source, self.num_samples_between, device, "val")
            self._scores["test"] = begin(source, self.num_samples, device, "test")
        except Unobtainable as error:
            if self._required:
                raise
            self.missing = str(error)
            if trainer.is_global_zero:
                print(f"scores:  left out: {error}", flush=True)

    def _check_interval(self, trainer: pl.Trainer) -> None:
        interval = trainer.val_check_interval if trainer.check_val_every_n_epoch is None else 1
        if self.every_n_steps is None or type(interval) is not int or not _validates(trainer):
            return
        steps = max(1, interval // trainer.accumulate_grad_batches)
        refuse(
            self.every_n_steps % steps,
            f"callbacks.scores.every_n_steps={self.every_n_steps} must be a multiple of {steps}: "
            f"samples are scored at validations, every {steps} steps",
        )

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Score between steps if there are no validations."""
        super().on_train_start(trainer, pl_module)
        self.every = sys.maxsize
        if self.every_n_steps is not None and not _validates(trainer):
            self.every = self.every_n_steps

    def on_step_boundary(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Draw samples and score them, for the loggers."""
        check_finite(trainer)
        if self.missing:
            return
        self._score(pl_module, "val")
        for logger in trainer.loggers:
            logger.log_metrics(self.values, trainer.global_step - 1)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Draw samples and compare them with validation data, if it is due."""
        if self.every_n_steps is None or self.missing:
            return
        if trainer.state.fn == "fit" and trainer.global_step % self.every_n_steps:
            return
        self._score(pl_module, "val")
        pl_module.log_dict(self.values, batch_size=self.num_samples_between, sync_dist=True)

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
        batches: Batches = model.batches
        if split == "val":
            batches = partial(model.validation_batches, num_steps=self.num_steps_between)
        self.values = score_samples(scores, batches, self.seed)
        self.provenance = {"seed": self.seed, **scores.provenance()}

    @property
    def accumulated(self) -> Accumulators | None:
        """Accumulated scores of the final model's samples; None if there are none."""
        return self._scores.get("test")

    def reference_scores(self, source: Source, device: torch.device) -> dict[str, Any]:
        """Return the scores of held-out data and of a fitted model, see `reference_scores`."""
        return reference_scores(self._scorer, source, self.num_samples, device)


def _validates(trainer: pl.Trainer) -> bool:
    """Whether there are validations during training."""
    source = trainer.datamodule.source  # type: ignore[attr-defined]
    return bool(trainer.limit_val_batches and source.size("val"))


def reference_scores(
    scorer: Scorer, source: Source, num_samples: int, device: torch.device
) -> dict[str, Any]:
    """Return the scores of `held_out_data` and of a `baseline`, a fitted model.

    Args:
        scorer: of the samples.
        source: the data.
        num_samples: number of samples that were scored.
        device: of the computations.
    """
    return {
        "held_out_data": scorer.held_out(source, num_samples, device),
        "baseline": scorer.baseline(source, num_samples, device),
    }


def score_samples(scores: Accumulators, batches: Batches, seed: int) -> dict[str, float]:
    """Draw samples 0, ..., n - 1, each on one process, and score them.

    Args:
        scores: accumulators of n samples.
        batches: draws samples by number.
        seed: of the samples.

    Returns:
        Scores by name, the same on every process.
    """
    for indices, samples in batches(my_samples(scores.num_samples), seed):
        scores.update(samples, indices.to(samples["samples"].device))
    return scores.compute()
