"""Serves any source to Lightning: training as a stream, shuffled and mirrored, that a continued run reproduces;
validation and test samples once each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from blackout.errors import ensure
from blackout.protocols import SPLIT_NAMES, Source, Split
from blackout.random import fold_seed

_PREDICTED = 64
"""Samples that `Trainer.predict` draws unless it is given numbers of others."""


@dataclass(eq=False, repr=False)
class TrainLoader:
    """Endless training batches, each a pure function of (source, seed, batch number).

    The stream is the concatenation of one permutation of the training set per epoch; global batch `n` is its positions
    `n * batch_size .. (n + 1) * batch_size - 1`, across epoch borders, so that nothing is dropped or padded. Process
    `rank` takes every `world_size`-th position of each batch: the global batch does not depend on the number of
    processes. Each position comes with a uniform for augmentation, drawn, like the permutation, from (seed, epoch).
    In a source without end the sample at position `p` has index `p`, and no uniform.

    Iterating again goes on where the last iterator stopped. A batch holds what the source gives, `index` and `position`
    (of each sample, in the source and within the global batch, int64 [b]), `batch` (the number of the global batch
    since the start of training) and `batch_size` (of the global batch).

    Args:
        source: where the samples come from.
        batch_size: global number of samples per batch, a multiple of `world_size`.
        seed: decides the order and the uniforms.
        rank: this process.
        world_size: number of processes.
        start_batch: number of the first batch to serve.
        period: repeat batches 0 .. period - 1, to overfit them; None for the whole source.
        length: batches of one pass, for trainers that count epochs; None for no end.

    Raises:
        ValueError: sizes or ranks out of range.
    """

    source: Source
    batch_size: int
    seed: int = 0
    rank: int = 0
    world_size: int = 1
    start_batch: int = 0
    period: int | None = None
    length: int | None = None

    def __post_init__(self) -> None:
        check_sharding(self.batch_size, self.rank, self.world_size)
        self._next = self.start_batch
        self._size = self.source.size("train")
        # two, because a batch may straddle an epoch border
        self._epoch = lru_cache(maxsize=2)(self._draw_epoch)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        end = None if self.length is None else (self._next // self.length + 1) * self.length
        while self._next != end:
            self._next += 1
            yield self.batch(self._next - 1)

    def __len__(self) -> int:
        if self.length is None:
            raise TypeError("the stream has no end")
        return self.length

    def batch(self, number: int) -> dict[str, Any]:
        """This process's part of global batch `number`."""
        position = torch.arange(self.rank, self.batch_size, self.world_size)
        first = (number if self.period is None else number % self.period) * self.batch_size
        index, augment = self._look_up(first + position)
        about = {"index": index, "position": position, "batch": number, "batch_size": self.batch_size}
        return {**self.source.batch("train", index, augment), **about}

    def state_dict(self) -> dict[str, Any]:
        """What determines the order of the data; kept in checkpoints and compared on resume.

        The position in the stream is not part of it: Lightning fetches one batch ahead, so `SourceDataModule` starts
        from the trainer's own count of finished batches in the same checkpoint.
        """
        return {"data": self.source.fingerprint("train"), "batch_size": self.batch_size, "seed": self.seed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Check that the run to be resumed saw the same stream.

        Raises:
            ValueError: it did not; the message names what differs.
        """
        for name, mine in self.state_dict().items():
            if (theirs := state.get(name)) != mine:
                what = f"the checkpoint was trained with {name}={theirs}, this run has {name}={mine}"
                raise ValueError(f"cannot resume: {what}; resume with the same {name}, or start a new run")

    def _look_up(self, positions: Tensor) -> tuple[Tensor, Tensor | None]:
        """Sample numbers and uniforms at positions [b] of the endless stream: int64 [b], float32 [b]."""
        if self._size is None:
            return positions, None
        epochs, entries = positions // self._size, positions % self._size
        index, augment = torch.empty_like(entries), torch.empty(len(entries))
        for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
            here = epochs == epoch
            order, uniforms = self._epoch(epoch)
            index[here], augment[here] = order[entries[here]], uniforms[entries[here]]
        return index, augment

    def _draw_epoch(self, epoch: int) -> tuple[Tensor, Tensor]:
        assert self._size is not None
        generator = torch.Generator().manual_seed(fold_seed(self.seed, epoch))
        return torch.randperm(self._size, generator=generator), torch.rand(self._size, generator=generator)


@dataclass(eq=False, repr=False)
class EvalLoader:
    """One process's share of a split: samples `rank, rank + world_size, ...`, each exactly once.

    Nothing is padded or repeated, so that sums over processes are exact. All processes have the same number of batches,
    of nearly equal sizes, because code that communicates once per batch would otherwise hang. A batch holds what the
    source gives, and `index`, int64 [b]. A split of size None has no batches.

    Args:
        source: where the samples come from.
        batch_size: global number of samples per batch, a multiple of `world_size`.
        rank: this process.
        world_size: number of processes.
        split: which split to serve.

    Raises:
        ValueError: sizes or ranks out of range, or fewer samples than processes.
    """

    source: Source
    batch_size: int
    rank: int = 0
    world_size: int = 1
    split: Split = "test"

    def __post_init__(self) -> None:
        check_sharding(self.batch_size, self.rank, self.world_size)
        size = self.source.size(self.split) or 0
        if 0 < size < self.world_size:
            need = f"fewer than the {self.world_size} processes"
            raise ValueError(f"{self.source.name} has {size} {SPLIT_NAMES[self.split]} samples, {need}")
        self._index = torch.arange(size)[self.rank :: self.world_size]
        # at most size // world_size batches, so that the smallest share still fills every one
        self._batches = min(-(-size // self.batch_size), size // self.world_size)

    def __len__(self) -> int:
        return self._batches

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for index in self._index.tensor_split(self._batches) if self._batches else ():
            yield {**self.source.batch(self.split, index), "index": index}


class SourceDataModule(pl.LightningDataModule):
    """Training, validation and test batches of a source.

    Training is an endless stream (`TrainLoader`): its length is set by the trainer's `max_steps`, and validation is
    scheduled in batches with `val_check_interval=<int>, check_val_every_n_epoch=None`. A resumed `fit` continues with
    the batch after the last finished one; this is exact for checkpoints written between optimiser steps. With the
    trainer's `overfit_batches=n` the first `n` batches are repeated. Without validation data there is no validation.

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

    def train_dataloader(self) -> TrainLoader:
        """This process's part of the endless training stream, from the first batch not yet trained on."""
        start, source = 0, self.source
        if self.trainer is not None:
            trainer: Any = self.trainer  # Lightning's annotations lack both attributes
            # "processed" counts the batches whose step is done: neither those Lightning fetched ahead
            # nor the one at which an exception struck
            start = trainer.fit_loop.epoch_loop.batch_progress.total.processed
            source = source.to(trainer.strategy.root_device) if self.on_device else source
        return TrainLoader(
            source, self.batch_size, self.seed, *self._rank_and_world_size(), start, self.period, self.length
        )

    @property
    def period(self) -> int | None:
        """Number of batches that are repeated (the trainer's `overfit_batches`); None for the whole source."""
        overfit = getattr(self.trainer, "overfit_batches", 0)
        return overfit if isinstance(overfit, int) and overfit > 0 else None

    def val_dataloader(self) -> EvalLoader:
        """This process's share of the validation data."""
        return EvalLoader(self.source, self.batch_size, *self._rank_and_world_size(), split="val")

    def test_dataloader(self) -> EvalLoader:
        """This process's share of the test data."""
        return EvalLoader(self.source, self.batch_size, *self._rank_and_world_size(), split="test")

    def predict_dataloader(self) -> DataLoader[int]:
        """The numbers of the first samples, for `Trainer.predict`, which draws them."""
        return DataLoader(range(_PREDICTED), batch_size=_PREDICTED)  # type: ignore[arg-type]

    def _rank_and_world_size(self) -> tuple[int, int]:
        return (0, 1) if self.trainer is None else (self.trainer.global_rank, self.trainer.world_size)


def check_sharding(batch_size: int, rank: int, world_size: int) -> None:
    """Check that a batch divides evenly among the processes.

    Raises:
        ValueError: it does not, or there is no such rank.
    """
    ensure(0 <= rank < world_size, f"rank must be between 0 and world_size - 1 = {world_size - 1}, got {rank}")
    if batch_size < 1 or batch_size % world_size:
        need = f"a positive multiple of their number, {world_size}"
        raise ValueError(f"batch_size counts the samples of all processes together: must be {need}, got {batch_size}")
