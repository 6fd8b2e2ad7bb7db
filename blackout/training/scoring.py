"""Scores during and after training, of samples drawn with the averaged weights on all devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from torch import Tensor

from blackout.distributed import my_samples
from blackout.errors import Unobtainable, UserError, check_at_least_one
from blackout.family import Drawn, Scorer, Source
from blackout.family import Scores as Accumulators
from blackout.training.lightning_module import TrainingModule

Batches: TypeAlias = Callable[[Tensor, int], Drawn]
"""(numbers int64 [n], seed) -> (numbers [b], their samples), a batch at a time."""


class Scores(Callback):
    """Scores fresh samples at validations and at the end of the run.

    The scores are logged like any validation metric, so that the best checkpoint can be chosen by one of them, for
    instance `callbacks.checkpoints.monitor=fd_digits`. Sample k is drawn once, by process k mod W, and does not depend
    on W. Weights, modes and random state are left unchanged.

    Args:
        scorer: extractor, scores and reference.
        num_samples: samples to be scored each time.
        every_n_steps: score at validations whose step is a multiple of this; None for the end of the run only.
        seed: of the samples.
        num_samples_between: samples to be scored before the end; None for `num_samples`.
        required: weights that cannot be had end the run; else a line says where to put them, and it goes on without.

    Raises:
        ValueError: num_samples, num_samples_between or every_n_steps below 1.
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
        self.num_samples, self.seed = num_samples, seed
        self.every, self.between = every_n_steps, num_samples_between or num_samples
        self.missing: str | None = None
        """Why there are no scores, where something that they need cannot be had."""
        self.provenance: dict[str, Any] = {}
        """How the last scores were made."""
        self.values: dict[str, float] = {}
        """The last scores, in full precision."""
        self._scorer, self._required = scorer, required
        self._scores: dict[int, Accumulators] = {}

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Load extractor and reference, so that a choice that cannot work fails before anything long starts.

        Raises:
            UserError: scores are due at steps at which there is no validation.
        """
        between = trainer.val_check_interval if trainer.check_val_every_n_epoch is None else 1
        if self.every is not None and type(between) is int:
            steps = max(1, between // trainer.accumulate_grad_batches)
            if self.every % steps:
                told = f"callbacks.scores.every_n_steps={self.every} must be a multiple of {steps}"
                raise UserError(f"{told}: samples are scored at validations, every {steps} steps")
        if self._scores or self.missing:
            return
        source = trainer.datamodule.source  # type: ignore[attr-defined]
        try:
            for number in {self.num_samples, self.between if self.every else self.num_samples}:
                self._scores[number] = self._scorer.begin(source, number, pl_module.device)
        except Unobtainable as error:
            if self._required:
                raise
            self.missing = str(error)
            if trainer.is_global_zero:
                print(f"scores:  left out: {error}", flush=True)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Draw and score, where it is time to."""
        during_training = trainer.state.fn == "fit"
        if self.missing or (during_training and (self.every is None or trainer.global_step % self.every)):
            return
        assert isinstance(pl_module, TrainingModule)
        number = self.between if during_training else self.num_samples
        scores = self._scores[number]
        scores.reset()
        self.values = score_samples(scores, pl_module.model.batches, self.seed)
        self.provenance = {"seed": self.seed, **scores.provenance()}
        pl_module.log_dict(self.values, batch_size=number, sync_dist=True)

    @property
    def accumulated(self) -> Accumulators | None:
        """The samples of the end, as they were scored; None where they could not be."""
        return self._scores.get(self.num_samples)

    def beside(self, source: Source, device: torch.device) -> dict[str, Any]:
        """What the last scores are to be compared with."""
        return compared(self._scorer, source, self.num_samples, device)


def compared(scorer: Scorer, source: Source, num_samples: int, device: torch.device) -> dict[str, Any]:
    """What the scores of right samples are, and those of a fitted model: `held_out_data` and `baseline`."""
    of = source, num_samples, device
    return {"held_out_data": scorer.held_out(*of), "baseline": scorer.baseline(*of)}


def score_samples(scores: Accumulators, batches: Batches, seed: int) -> dict[str, float]:
    """Draw samples 0..n - 1 by `batches`, each on one process, and score them; the same values on every process."""
    for indices, samples in batches(my_samples(scores.num_samples), seed):
        scores.update(samples, indices.to(samples["samples"].device))
    return scores.compute()
