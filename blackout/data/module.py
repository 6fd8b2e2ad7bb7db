"""The one DataModule: serves any `CountData` to Lightning, in an order that survives kills."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
import torch

from blackout.data.arrays import CountData
from blackout.data.stream import EvalShard, TrainStream, check_sharding


class DataModule(pl.LightningDataModule):
    """Training and held-out batches of a dataset that is in memory.

    Training is an endless stream (`TrainStream`): its length is set by the trainer's ``max_steps``, and
    validation is scheduled in batches with ``val_check_interval=<int>, check_val_every_n_epoch=None``.
    A resumed ``fit`` continues with the batch after the last finished one. With the trainer's
    ``overfit_batches=n`` the first ``n`` batches come again and again.

    Resuming is exact for checkpoints written between optimiser steps: with gradient accumulation, Lightning
    does not save the gradients of an unfinished step.

    Args:
        data: the dataset.
        batch_size: samples per batch over all processes together, before gradient accumulation.
        seed: decides the order of the data and the mirroring.
        flip: mirror half of the training images left-right.
        on_device: keep the training counts on the device that trains, as the integers they are.

    Raises:
        ValueError: a batch size below 1 or, once the trainer is known, not a multiple of the number of
            processes; ``flip`` for data that are not images.
    """

    def __init__(
        self, data: CountData, batch_size: int, seed: int = 0, flip: bool = False, on_device: bool = False
    ) -> None:
        super().__init__()
        self.data = data
        self.batch_size = batch_size
        self.seed = seed
        self.flip = flip
        self.on_device = on_device
        TrainStream(data, batch_size, seed, flip=flip)  # refuse bad values now rather than when training starts

    def setup(self, stage: str) -> None:
        """Checks the batch size against the number of processes, before anything long starts."""
        check_sharding(self.batch_size, *self._place())

    def train_dataloader(self) -> TrainStream:
        """This process's part of the endless training stream, from the first batch not yet trained on."""
        rank, world_size = self._place()
        start, device = 0, torch.device("cpu")
        if self.trainer is not None:
            trainer: Any = self.trainer  # Lightning's annotations lack both attributes
            # "processed" counts the batches whose step is done: neither those Lightning fetched ahead
            # nor the one at which an exception struck
            start = trainer.fit_loop.epoch_loop.batch_progress.total.processed
            device = trainer.strategy.root_device if self.on_device else device
        period = self.period
        return TrainStream(self.data, self.batch_size, self.seed, rank, world_size, self.flip, start, period, device)

    @property
    def period(self) -> int | None:
        """How many batches are served over and over (the trainer's ``overfit_batches``); None for the whole data."""
        overfit = getattr(self.trainer, "overfit_batches", 0)
        return overfit if isinstance(overfit, int) and overfit > 0 else None

    def val_dataloader(self) -> EvalShard:
        """This process's share of the held-out samples."""
        return EvalShard(self.data, self.batch_size, *self._place())

    def test_dataloader(self) -> EvalShard:
        """The held-out samples again: a dataset here has one held-out split."""
        return self.val_dataloader()

    def _place(self) -> tuple[int, int]:
        return (0, 1) if self.trainer is None else (self.trainer.global_rank, self.trainer.world_size)
