"""Data loaders of any source for Lightning.

Training data are an endless shuffled stream that a continued run reproduces. Validation and test
samples are served once each.
"""

from __future__ import annotations

import math
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

NUM_PREDICTED = 64  # samples that `Trainer.predict` draws by default


@dataclass(eq=False, repr=False)
class TrainLoader:
    """Endless training batches, each a function of (source, seed, batch number).

    The stream is one permutation of the training set per epoch after the other. Global batch n has
    positions n * batch_size .. (n + 1) * batch_size - 1 of the stream, across epochs, so that
    nothing is dropped or padded. Process `rank` serves every `world_size`-th position of each
    batch, so the global batch does not depend on the number of processes. Each position comes with
    a uniform random number for augmentation, drawn, like the permutation, from (seed, epoch). In a
    source without end, the sample at position p has index p, and there is no random number.

    Iterating again continues where the last iterator stopped. A batch has what the source returns
    and

    - `index`: numbers of the samples in the source, int64 [b],
    - `position`: their positions in the global batch, int64 [b],
    - `batch_number`: number of the global batch since the start of training,
    - `batch_size`: of the global batch.

    Args:
        source: of the samples.
        batch_size: global number of samples per batch, a multiple of `world_size`.
        seed: of the order and the random numbers.
        rank: number of this process.
        world_size: number of processes.
        start_batch: number of the first batch.
        period: repeat batches 0 .. period - 1, to overfit them; None for the whole source.
        length: number of batches per epoch, for trainers that count epochs; None for no end.

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
        # Two, because a batch may contain samples of two epochs
        self._epoch = lru_cache(maxsize=2)(self._draw_epoch)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        end = None
        if self.length is not None:
            end = (self._next // self.length + 1) * self.length
        while self._next != end:
            self._next += 1
            yield self.batch(self._next - 1)

    def __len__(self) -> int:
        if self.length is None:
            raise TypeError("the stream has no end")
        return self.length

    def batch(self, number: int) -> dict[str, Any]:
        """Return this process's part of global batch `number`."""
        position = torch.arange(self.rank, self.batch_size, self.world_size)
        stream_batch = number if self.period is None else number % self.period
        index, augment = self._look_up(stream_batch * self.batch_size + position)
        return {
            **self.source.batch("train", index, augment),
            "index": index,
            "position": position,
            "batch_number": number,
            "batch_size": self.batch_size,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return what determines the order of the data; checkpoints have it, for `load_state_dict`.

        The position in the stream is not part of it. Lightning fetches one batch ahead, so
        `SourceDataModule` starts from the trainer's count of finished batches instead.
        """
        return {
            "data": self.source.fingerprint("train"),
            "batch_size": self.batch_size,
            "seed": self.seed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Check that the checkpoint's run had the same stream.

        Raises:
            ValueError: it had not; the message names the difference.
        """
        for name, value in self.state_dict().items():
            saved_value = state.get(name)
            if saved_value != value:
                raise ValueError(
                    f"cannot resume: the checkpoint was trained with {name}={saved_value}, "
                    f"this run has {name}={value}; resume with the same {name}, or start a new run"
                )

    def _look_up(self, positions: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return sample numbers, int64 [b], and uniforms, float32 [b], at stream positions."""
        if self._size is None:
            return positions, None
        epochs = positions // self._size
        offsets = positions % self._size
        index = torch.empty_like(offsets)
        augment = torch.empty(len(offsets))
        for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
            order, uniforms = self._epoch(epoch)
            is_in_epoch = epochs == epoch
            index[is_in_epoch] = order[offsets[is_in_epoch]]
            augment[is_in_epoch] = uniforms[offsets[is_in_epoch]]
        return index, augment

    def _draw_epoch(self, epoch: int) -> tuple[Tensor, Tensor]:
        """Draw the order of an epoch, int64 [N], and its uniforms, float32 [N]."""
        assert self._size is not None
        generator = torch.Generator().manual_seed(fold_seed(self.seed, epoch))
        order = torch.randperm(self._size, generator=generator)
        uniforms = torch.rand(self._size, generator=generator)
        return order, uniforms


@dataclass(eq=False, repr=False)
class EvalLoader:
    """One process's share of a split: samples `rank, rank + world_size, ...`, each exactly once.

    Nothing is padded or repeated, so that sums over processes are exact. All processes have the
    same number of batches, of nearly equal sizes: code that communicates once per batch would hang
    otherwise. A batch has what the source returns, and `index`, int64 [b]. A split of size None has
    no batches.

    Args:
        source: of the samples.
        batch_size: global number of samples per batch, a multiple of `world_size`.
        rank: number of this process.
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
            raise ValueError(
                f"{self.source.name} has {size} {SPLIT_NAMES[self.split]} samples, "
                f"fewer than the {self.world_size} processes"
            )
        self._index = torch.arange(size)[self.rank :: self.world_size]
        # At most size // world_size, so that the smallest share has a sample for every batch
        self._num_batches = min(math.ceil(size / self.batch_size), size // self.world_size)

    def __len__(self) -> int:
        return self._num_batches

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if not self._num_batches:
            return
        for index in self._index.tensor_split(self._num_batches):
            yield {**self.source.batch(self.split, index), "index": index}


class SourceDataModule(pl.LightningDataModule):
    """Training, validation and test batches of a source.

    Training data are an endless stream (`TrainLoader`). The trainer's `max_steps` sets the length
    of training, and `val_check_interval=<int>, check_val_every_n_epoch=None` schedules validation
    in batches. A resumed `fit` continues with the batch after the last finished one, which is exact
    for checkpoints written between optimiser steps. With the trainer's `overfit_batches=n` the
    first n batches are repeated. Without validation data there is no validation.

    Args:
        source: of the samples.
        batch_size: samples per batch of all processes together, before gradient accumulation.
        seed: of the order of the data and of random augmentation.
        on_device: whether to keep the training data on the training device.
        epochs: whether an epoch ends after one pass, for trainers that count epochs.

    Raises:
        ValueError: a batch size below 1 or, once the trainer is known, not a multiple of the number
            of processes.
    """

    def __init__(
        self,
        source: Source,
        batch_size: int,
        seed: int = 0,
        on_device: bool = False,
        epochs: bool = False,
    ) -> None:
        super().__init__()
        check_sharding(batch_size, 0, 1)  # before training starts
        self.source = source
        self.batch_size = batch_size
        self.seed = seed
        self.on_device = on_device
        size = source.size("train")
        self.length = max(1, round(size / batch_size)) if epochs and size else None

    def setup(self, stage: str) -> None:
        """Check that the batch size is a multiple of the number of processes."""
        check_sharding(self.batch_size, *self._rank_and_world_size())

    def train_dataloader(self) -> TrainLoader:
        """Return this process's part of the stream, from the first batch not yet trained on."""
        start_batch = 0
        source = self.source
        if self.trainer is not None:
            trainer: Any = self.trainer  # Lightning's annotations lack both attributes
            # `processed` counts the batches whose step is finished, neither those that Lightning
            # fetched ahead nor one that raised an exception.
            start_batch = trainer.fit_loop.epoch_loop.batch_progress.total.processed
            if self.on_device:
                source = source.to(trainer.strategy.root_device)
        rank, world_size = self._rank_and_world_size()
        return TrainLoader(
            source,
            self.batch_size,
            self.seed,
            rank=rank,
            world_size=world_size,
            start_batch=start_batch,
            period=self.period,
            length=self.length,
        )

    @property
    def period(self) -> int | None:
        """Number of batches to repeat (the trainer's `overfit_batches`); None for all data."""
        overfit = getattr(self.trainer, "overfit_batches", 0)
        return overfit if isinstance(overfit, int) and overfit > 0 else None

    def val_dataloader(self) -> EvalLoader:
        """Return this process's share of the validation data."""
        return EvalLoader(self.source, self.batch_size, *self._rank_and_world_size(), split="val")

    def test_dataloader(self) -> EvalLoader:
        """Return this process's share of the test data."""
        return EvalLoader(self.source, self.batch_size, *self._rank_and_world_size(), split="test")

    def predict_dataloader(self) -> DataLoader[int]:
        """Return the numbers of the samples that `Trainer.predict` draws."""
        return DataLoader(range(NUM_PREDICTED), batch_size=NUM_PREDICTED)  # type: ignore[arg-type]

    def _rank_and_world_size(self) -> tuple[int, int]:
        return (
            (0, 1) if self.trainer is None else (self.trainer.global_rank, self.trainer.world_size)
        )


def check_sharding(batch_size: int, rank: int, world_size: int) -> None:
    """Check that a batch divides evenly among the processes.

    Raises:
        ValueError: it does not, or there is no such rank.
    """
    message = f"rank must be between 0 and world_size - 1 = {world_size - 1}, not {rank}"
    ensure(0 <= rank < world_size, message)
    if batch_size < 1 or batch_size % world_size:
        smaller = max(batch_size, 0) // world_size * world_size
        nearest = [size for size in (smaller, smaller + world_size) if size > 0]
        raise ValueError(
            "batch_size, the samples of all processes together, must be a positive multiple of "
            f"the number of processes, {world_size}, not {batch_size}; "
            f"nearest: {' or '.join(map(str, nearest))}"
        )
