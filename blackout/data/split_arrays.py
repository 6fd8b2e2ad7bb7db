"""Dividing arrays of counts, labels and masks among splits, row by row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from blackout.data.on_disk import DiskCounts
from blackout.data.splits import SplitRows


def split_arrays(rows: SplitRows, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Divide arrays of all samples among splits, and return arguments of `CountData`.

    Args:
        rows: numbers of the samples of each split.
        arrays: by suffix: "" for counts, "_labels", "_observed"; each may be None.

    Returns:
        Arrays by name, such as `train` and `train_labels`, and `val_rows`.
    """
    parts: dict[str, Any] = {}
    for split, split_rows in rows._asdict().items():
        for suffix, values in arrays.items():
            parts[split + suffix] = take_rows(values, split_rows)
    if len(rows.val) and not torch.isin(rows.val, rows.train).any():
        parts["val_rows"] = torch.searchsorted(rows.train, rows.val) + torch.arange(len(rows.val))
    return parts


def take_rows(values: Any, rows: Tensor) -> Any:
    """Return some rows of a tensor, or of `DiskCounts`, which stay on disk; None of None.

    Args:
        values: [N, ...].
        rows: int64 [n], or bool [N].
    """
    if values is None:
        return None
    return values.take(rows) if isinstance(values, DiskCounts) else values[rows]


def complement(rows: Tensor, size: int) -> Tensor:
    """Return the `size` smallest whole numbers that are not in `rows`, int64, increasing."""
    is_free = torch.ones(size + len(rows), dtype=torch.bool)
    is_free[rows] = False
    return torch.nonzero(is_free).flatten()
