"""Serves any source to Lightning, in an order that a continued run reproduces."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
from torch.utils.data import DataLoader

from blackout.family import Source
from blackout.training.stream import EvalShard, TrainStream, check_sharding

_PREDICTED = 64
"""Samples that `Trainer.predict` draws unless it is given numbers of others."""


class Feed(pl.LightningDataModule):
    """Training and held-out batches of a source.

    Training is an endless stream (`TrainStream`): its length is set by the trainer's `max_steps`, and validation is
    scheduled in batches with `val_check_interval=<int>, check_val_every_n_epoch=None`. A resumed `fit` continues with
    the batch after the last finished one; this is exact for checkpoints written between optimiser steps. With the
    trainer's `overfit_batches=n` the first `n` batches are repeated. Without held-out samples there is no validation.

    Args:
        source: of the samples.
        batch_size: samples per batch over all processes together, before gradient accumulation.
        seed: decides the order of the data and the numbers for random mirroring and the like.
        on_device: keep the training data on the device that trains.
        epochs: end an epoch after as many batches as the source has, for trainers that count epochs.

    Raises:
        ValueError: a batch size below 1 or, once the trainer is known, not a multiple of the number of processes.
    """

    def __init__(
        self, source: Source, batch_size: int, seed: int = 0, on_device: bool = False, epochs: bool = False
    ) -> None:
        super().__init__()
        check_sharding(batch_size, 0, 1)  # refuse bad values now rather than when training starts
        self.source, self.batch_size, self.seed, self.on_device = source, batch_size, seed, on_device
        size = source.size("train")
        self.length = max(1, round(size / batch_size)) if epochs and size else None

    def setup(self, stage: str) -> None:
        """Check the batch size against the number of processes, before anything long starts."""
        check_sharding(self.batch_size, *self._rank_and_world_size())

    def train_dataloader(self) -> TrainStream:
        """This process's part of the endless training stream, from the first batch not yet trained on."""
        start, source = 0, self.source
        if self.trainer is not None:
            trainer: Any = self.trainer  # Lightning's annotations lack both attributes
            # "processed" counts the batches whose step is done: neither those Lightning fetched ahead
            # nor the one at which an exception struck
            start = trainer.fit_loop.epoch_loop.batch_progress.total.processed
            source = source.to(trainer.strategy.root_device) if self.on_device else source
        return TrainStream(
            source, self.batch_size, self.seed, *self._rank_and_world_size(), start, self.period, self.length
        )

    @property
    def period(self) -> int | None:
        """Number of batches that are repeated (the trainer's `overfit_batches`); None for the whole source."""
        overfit = getattr(self.trainer, "overfit_batches", 0)
        return overfit if isinstance(overfit, int) and overfit > 0 else None

    def val_dataloader(self) -> EvalShard:
        """This process's share of the held-out samples."""
        return EvalShard(self.source, self.batch_size, *self._rank_and_world_size())

    def test_dataloader(self) -> EvalShard:
        """The held-out samples again: a source has one held-out split."""
        return self.val_dataloader()

    def predict_dataloader(self) -> DataLoader[int]:
        """The numbers of the first samples, for `Trainer.predict`, which draws them."""
        return DataLoader(range(_PREDICTED), batch_size=_PREDICTED)  # type: ignore[arg-type]

    def _rank_and_world_size(self) -> tuple[int, int]:
        return (0, 1) if self.trainer is None else (self.trainer.global_rank, self.trainer.world_size)
