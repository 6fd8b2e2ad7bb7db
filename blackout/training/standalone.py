"""A model with its data, for Lightning's Trainer in a script or a notebook, without Hydra."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader

from blackout.training.feed import Feed
from blackout.training.model import Model
from blackout.training.module import TrainingModule
from blackout.training.optimization import Optimization
from blackout.training.stream import EvalShard, TrainStream


class Standalone(TrainingModule):
    """What `trainer.fit(module)` needs, and what answers as its model does: `module.sample(16)`, `save_pretrained`, ...

    An epoch is as many batches as the data have; the order of the data is the same however often training is
    interrupted. `trainer.fit(module, loader)` takes a DataLoader of your own in place of the data, `trainer.test`
    bounds the held-out samples, `trainer.predict` draws samples.

    Args:
        model: to be trained.
        optimization: optimiser and learning rate.
        feed: the data.
    """

    def __init__(self, model: Model, optimization: Optimization, feed: Feed) -> None:
        super().__init__(model, optimization)
        self._feed = feed
        shown = {"lr": optimization.lr, "batch_size": feed.batch_size, "seed": model.seed}
        self.save_hyperparameters({**shown, **model.config.get("model", {})})  # for Lightning's loggers
        self._validated = 0  # samples of a DataLoader of the user's own, in this validation

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Number a batch of a DataLoader of the user's own, as a `Feed` numbers its batches."""
        if self.trainer.predicting or (isinstance(batch, Mapping) and "index" in batch):
            return batch
        named, world = self.model.batch_of(batch), self.trainer.world_size
        size = len(next(iter(named.values())))
        position = self.global_rank + world * torch.arange(size)
        if not self.trainer.training:
            index, self._validated = self._validated + position, self._validated + world * size
            return {**named, "index": index}
        number = self.trainer.fit_loop.epoch_loop.batch_progress.total.processed  # type: ignore[attr-defined]
        index = number * world * size + position
        return {**named, "index": index, "position": position, "batch": number, "batch_size": world * size}

    def on_validation_epoch_start(self) -> None:
        """Count the samples of a DataLoader of the user's own from the first."""
        self._validated = 0

    on_test_epoch_start = on_validation_epoch_start

    def train_dataloader(self) -> TrainStream:
        """Batches of the training data."""
        self._feed.trainer = self._trainer
        return self._feed.train_dataloader()

    def val_dataloader(self) -> EvalShard:
        """The held-out data."""
        self._feed.trainer = self._trainer
        return self._feed.val_dataloader()

    test_dataloader = val_dataloader

    def predict_dataloader(self) -> DataLoader[int]:
        """Numbers of samples to be drawn."""
        return self._feed.predict_dataloader()

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "model":  # not made yet
                raise
            return getattr(self.model, name)
