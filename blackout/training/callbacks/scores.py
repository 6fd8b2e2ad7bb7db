"""Scores of samples during training, and of the final model."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import pytorch_lightning as pl
import torch
from torch import Tensor

from blackout.distributed import my_samples
from blackout.errors import Unobtainable, check_at_least_one, check_at_most, refuse
from blackout.protocols import Drawn, Scorer, Source, Split
from blackout.protocols import Scores as Accumulators
from blackout.training.callbacks.sample_grid import MAX_STEPS
from blackout.training.lightning_module import TrainingModule
from blackout.training.step_callbacks import StepCallback, check_finite

MAX_SCORED_SAMPLES = 10**8  # as in `sample.py num_samples=...`; their indices alone take 0.8 GB

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
        """Return the scores of `held_out_data` and of a fitted model, the `baseline`."""
        return reference_scores(self._scorer, source, self.num_samples, device)


def _validates(trainer: pl.Trainer) -> bool:
    """Return whether there are validations during training."""
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
