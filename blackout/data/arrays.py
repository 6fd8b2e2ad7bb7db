"""What every dataset becomes: two tensors of counts, and what is known about them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from blackout.counts import LARGEST_COUNT, count_dtype

Split = Literal["train", "test"]
CHUNK = 4096  # samples widened to int64 or float64 at a time, so that a pass over CIFAR-10 needs no gigabyte


@dataclass(frozen=True, eq=False)
class CountData:
    """A dataset of counts with a held-out split, in memory.

    Attributes:
        name: short name for logs and file names.
        train: counts [N, C, H, W] or [N, D], any integer dtype on entry; kept as uint8 when
            ``max_count <= 255``, else as int32.
        test: held-out counts [M, C, H, W] or [M, D].
        max_count: the largest value a count may have, 1 .. 2^31 - 1.
        train_labels: class of each training sample, int64 [N], or None.
        test_labels: class of each held-out sample, int64 [M], or None.

    Raises:
        ValueError: counts that are not integers, negative, or above ``max_count``; an empty split;
            shapes that differ between the splits or are neither images nor vectors; labels that do
            not match.
    """

    name: str
    train: Tensor
    test: Tensor
    max_count: int
    train_labels: Tensor | None = None
    test_labels: Tensor | None = None
    _fingerprints: dict[str, str] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if type(self.max_count) is not int or not 1 <= self.max_count <= LARGEST_COUNT:
            raise ValueError(
                f"{self.name}: max_count must be a whole number between 1 and {LARGEST_COUNT}, got {self.max_count!r}"
            )
        for split, counts in (("train", self.train), ("test", self.test)):
            _check_counts(f"{self.name} {split} data", counts, self.max_count)
            # the one place that writes to the frozen object: everyone downstream may rely on the dtype
            object.__setattr__(self, split, counts.to(count_dtype(self.max_count)).contiguous())
        if self.train.shape[1:] != self.test.shape[1:]:
            raise ValueError(
                f"{self.name}: train and test samples must have the same shape, "
                f"got {tuple(self.train.shape[1:])} and {tuple(self.test.shape[1:])}"
            )
        if (self.train_labels is None) != (self.test_labels is None):
            raise ValueError(f"{self.name}: labels must be given for both splits or for neither")
        for split, counts, labels in (
            ("train", self.train, self.train_labels),
            ("test", self.test, self.test_labels),
        ):
            if labels is not None:
                _check_labels(f"{self.name} {split} labels", labels, len(counts))
                object.__setattr__(self, f"{split}_labels", labels.to(torch.int64))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample: (C, H, W) or (D,)."""
        return tuple(self.train.shape[1:])

    @property
    def num_classes(self) -> int | None:
        """Number of classes in the labels, or None without labels."""
        if self.train_labels is None or self.test_labels is None:
            return None
        return int(max(self.train_labels.max(), self.test_labels.max())) + 1

    @property
    def mean(self) -> float:
        """Mean count over all elements of the training split."""
        return self._moments[0]

    @property
    def std(self) -> float:
        """Standard deviation of the counts over all elements of the training split."""
        return self._moments[1]

    @cached_property
    def _moments(self) -> tuple[float, float]:
        total = square = 0.0
        for chunk in self.train.split(CHUNK):
            wide = chunk.double()
            total += wide.sum().item()
            square += wide.square().sum().item()
        mean = total / self.train.numel()
        return mean, max(square / self.train.numel() - mean**2, 0.0) ** 0.5

    def fingerprint(self, split: Split = "train") -> str:
        """SHA-256 (hex) of a split's shape, dtype and bytes, in the order of its samples.

        Names what was trained on or compared with, so that two datasets are never taken for each other.
        """
        if split not in self._fingerprints:
            counts = {"train": self.train, "test": self.test}[split]
            digest = hashlib.sha256(f"{counts.dtype} {tuple(counts.shape)}\n".encode())
            for chunk in counts.split(CHUNK):
                digest.update(chunk.numpy().data)
            self._fingerprints[split] = digest.hexdigest()
        return self._fingerprints[split]


def _check_counts(what: str, counts: Tensor, max_count: int) -> None:
    if counts.is_floating_point() or counts.is_complex() or counts.dtype == torch.bool:
        raise ValueError(f"{what}: counts must be integers, got {counts.dtype}")
    if counts.ndim not in (2, 4) or 0 in counts.shape[1:]:
        raise ValueError(f"{what}: the shape must be [N, C, H, W] or [N, D], got {list(counts.shape)}")
    if len(counts) == 0:
        raise ValueError(f"{what}: at least one sample is needed, got none")
    info = torch.iinfo(counts.dtype)
    if info.min >= 0 and info.max <= max_count:
        return  # the dtype itself keeps the promise
    for start in range(0, len(counts), CHUNK):
        chunk = counts[start : start + CHUNK].long()
        bad = (chunk < 0) | (chunk > max_count)
        if bad.any():
            first = torch.nonzero(bad)[0]
            value = int(chunk[tuple(first)])
            place = [start + int(first[0]), *first[1:].tolist()]
            allowed = "must not be negative" if value < 0 else f"must be at most max_count={max_count}"
            raise ValueError(f"{what}: counts {allowed}, got {value} at index {place}")


def _check_labels(what: str, labels: Tensor, count: int) -> None:
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(f"{what}: labels must be integers, got {labels.dtype}")
    if labels.shape != (count,):
        raise ValueError(f"{what}: one label per sample is needed, [{count}], got {list(labels.shape)}")
    if labels.min() < 0:
        raise ValueError(f"{what}: labels must not be negative, got {int(labels.min())}")
