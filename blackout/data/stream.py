"""In what order data are served: training as an endless stateless stream, evaluation as exact shards."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NotRequired, TypedDict

import torch
from torch import Tensor

from blackout.data.arrays import CountData, Split
from blackout.random import fold_seed


class TrainBatch(TypedDict):
    """One process's part of a global training batch."""

    x0: Tensor  # counts [b, *shape]
    index: Tensor  # which training samples they are, int64 [b]
    position: Tensor  # places within the global batch, 0 .. batch_size - 1, int64 [b]
    batch: int  # number of the global batch since the start of training
    batch_size: int  # size of the global batch
    label: NotRequired[Tensor]  # int64 [b]


class EvalBatch(TypedDict):
    """Held-out samples."""

    x0: Tensor  # counts [b, *shape]
    index: Tensor  # which held-out samples they are, int64 [b]
    label: NotRequired[Tensor]  # int64 [b]


class TrainStream:
    """Endless training batches, each a pure function of (data, seed, batch number).

    The stream is the concatenation of one permutation of the training set per epoch; global batch ``n``
    is its positions ``n * batch_size .. (n + 1) * batch_size - 1``, across epoch borders, so that nothing
    is dropped or padded. Process ``rank`` takes every ``world_size``-th position of each batch: the global
    batch does not depend on how many processes share it. Position ``p`` is mirrored left-right or not by a
    coin that is tossed, like the permutation, from (seed, epoch) alone.

    Iterating again goes on where the last iterator stopped.

    Args:
        data: where the training split is.
        batch_size: global number of samples per batch, a multiple of ``world_size``.
        seed: decides the order and the mirroring.
        rank: this process.
        world_size: number of processes.
        flip: mirror half of the images left-right; images [C, H, W] only.
        start_batch: number of the first batch to serve.
        period: serve batches 0 .. period - 1 over and over, to overfit them; None for the whole data.
        device: keep the training counts there, and index and mirror them there.

    Raises:
        ValueError: sizes or ranks out of range, or ``flip`` for data that are not images.
    """

    def __init__(
        self,
        data: CountData,
        batch_size: int,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        flip: bool = False,
        start_batch: int = 0,
        period: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        check_sharding(batch_size, rank, world_size)
        if flip and len(data.shape) != 3:
            raise ValueError(f"flip mirrors images [C, H, W], but {data.name} has samples of shape {data.shape}")
        self.data = data
        self.batch_size = batch_size
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.flip = flip
        self.next_batch = start_batch
        self.period = period
        self._counts = data.train.to(device)
        # two, because a batch may straddle an epoch border
        self._epoch = lru_cache(maxsize=2)(self._draw_epoch)

    def __iter__(self) -> Iterator[TrainBatch]:
        while True:
            number = self.next_batch
            self.next_batch += 1
            yield self.batch(number)

    def batch(self, number: int) -> TrainBatch:
        """This process's part of global batch ``number``."""
        within = torch.arange(self.rank, self.batch_size, self.world_size)
        first = (number if self.period is None else number % self.period) * self.batch_size
        index, mirrored = self._look_up(first + within)
        device = self._counts.device
        x0 = self._counts.index_select(0, index.to(device, non_blocking=True))
        if self.flip and device.type == "cpu":
            x0[mirrored] = x0[mirrored].flip(-1)
        elif self.flip:  # a selection by a mask would wait for the device
            x0 = torch.where(mirrored.to(device, non_blocking=True)[:, None, None, None], x0.flip(-1), x0)
        batch = TrainBatch(x0=x0, index=index, position=within, batch=number, batch_size=self.batch_size)
        if self.data.train_labels is not None:
            batch["label"] = self.data.train_labels[index]
        return batch

    def state_dict(self) -> dict[str, Any]:
        """What decides the order of the data; kept in checkpoints and compared on resume.

        How far training has come is not in it. A loader only knows what it has served, and Lightning fetches
        one batch ahead; the trainer's own count of finished batches, in the same checkpoint, is the truth,
        and `DataModule` starts the stream from it.
        """
        return {
            "data": self.data.fingerprint("train"),
            "batch_size": self.batch_size,
            "seed": self.seed,
            "flip": self.flip,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Checks that the run to be resumed saw the same stream.

        Raises:
            ValueError: it did not; the message names what differs.
        """
        for name, mine in self.state_dict().items():
            theirs = state.get(name)
            if theirs != mine:
                raise ValueError(
                    f"cannot resume: the checkpoint was trained with {name}={theirs}, "
                    f"this run has {name}={mine}; "
                    "resume with the same data, batch size, seed and flip, or start a new run"
                )

    def _look_up(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Sample index and coin at positions [b] of the endless stream: int64 [b], bool [b]."""
        size = len(self.data.train)
        epochs, entries = positions // size, positions % size
        index, mirrored = torch.empty_like(entries), torch.empty_like(entries, dtype=torch.bool)
        for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
            here = epochs == epoch
            order, coins = self._epoch(epoch)
            index[here], mirrored[here] = order[entries[here]], coins[entries[here]]
        return index, mirrored

    def _draw_epoch(self, epoch: int) -> tuple[Tensor, Tensor]:
        size = len(self.data.train)
        generator = torch.Generator().manual_seed(fold_seed(self.seed, epoch))
        order = torch.randperm(size, generator=generator)
        return order, torch.rand(size, generator=generator) < 0.5


class EvalShard:
    """One process's share of a split: samples ``rank, rank + world_size, ...``, each exactly once.

    Nothing is padded or repeated, so sums over processes are exact. All processes have the same number of
    batches (of nearly equal sizes), because code that communicates once per batch would otherwise hang.

    Args:
        data: where the split is.
        batch_size: global number of samples per batch, a multiple of ``world_size``.
        rank: this process.
        world_size: number of processes.
        split: which split to serve.

    Raises:
        ValueError: sizes or ranks out of range, or fewer samples than processes.
    """

    def __init__(
        self, data: CountData, batch_size: int, rank: int = 0, world_size: int = 1, split: Split = "test"
    ) -> None:
        check_sharding(batch_size, rank, world_size)
        self.counts, self.labels = (
            (data.train, data.train_labels) if split == "train" else (data.test, data.test_labels)
        )
        size = len(self.counts)
        if size < world_size:
            raise ValueError(f"{data.name} has {size} {split} samples, fewer than the {world_size} processes")
        self._index = torch.arange(rank, size, world_size)
        # at most size // world_size batches, so that the smallest share still fills every one
        self._batches = min(-(-size // batch_size), size // world_size)

    def __len__(self) -> int:
        return self._batches

    def __iter__(self) -> Iterator[EvalBatch]:
        for index in self._index.tensor_split(self._batches):
            batch = EvalBatch(x0=self.counts.index_select(0, index), index=index)
            if self.labels is not None:
                batch["label"] = self.labels[index]
            yield batch


def check_sharding(batch_size: int, rank: int, world_size: int) -> None:
    """Raises ValueError unless a batch of ``batch_size`` divides evenly among ``world_size`` processes."""
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must be between 0 and world_size - 1 = {world_size - 1}, got {rank}")
    if batch_size < 1 or batch_size % world_size:
        raise ValueError(
            f"batch_size counts the samples of all processes together: with {world_size} of them it must be "
            f"a positive multiple of {world_size}, got {batch_size}"
        )
