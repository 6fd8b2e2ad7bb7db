"""A model with its data, for Lightning's Trainer in a script or a notebook, without Hydra."""

from __future__ import annotations

from typing import Any

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
