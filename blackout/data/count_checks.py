"""Checks of counts and labels in memory or on disk."""

from __future__ import annotations

import torch
from torch import Tensor

from blackout.data.count_statistics import iterate_chunks
from blackout.data.formats import check_range
from blackout.data.on_disk import DiskCounts
from blackout.errors import ensure

ALLOWED_SHAPES = "[N, D], [N, C, L], [N, C, H, W] or [N, C, D, H, W]"


def check_counts(name: str, counts: Tensor | DiskCounts, max_count: int) -> None:
    """Refuse values that are not counts in 0, ..., max_count, and shapes without a meaning.

    Raises:
        ValueError: names the first such value, or the shape.
    """
    if isinstance(counts, Tensor):
        _check_integers(f"{name}: counts", counts)
    if counts.ndim not in (2, 3, 4, 5) or 0 in counts.shape[1:]:
        raise ValueError(f"{name}: the shape must be {ALLOWED_SHAPES}, not {list(counts.shape)}")
    ensure(len(counts) != 0, f"{name}: at least one sample is needed")
    limits = torch.iinfo(counts.dtype)
    if limits.min >= 0 and limits.max <= max_count:
        return
    if isinstance(counts, DiskCounts) and counts.max() <= max_count:
        return
    for first, chunk in iterate_chunks(counts):
        limit = f"max_count={max_count}"
        check_range(f"{name}: counts", chunk.cpu().numpy(), max_count, limit, first)


def check_labels(name: str, labels: Tensor, num_samples: int) -> None:
    """Refuse labels that are not whole numbers of at least 0, one per sample.

    Raises:
        ValueError: another dtype or shape, or a negative label.
    """
    _check_integers(name, labels)
    needed = f"one per sample, [{num_samples}]"
    ensure(labels.shape == (num_samples,), f"{name} must be {needed}, not {list(labels.shape)}")
    ensure(labels.min() >= 0, f"{name} must be at least 0, not {int(labels.min())}")


def _check_integers(name: str, values: Tensor) -> None:
    if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
        raise ValueError(
            f"{name} must be integers, not {values.dtype}: convert with .to(torch.int)"
        )
