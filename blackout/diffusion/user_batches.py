"""Batches of a DataLoader of the user's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from blackout.errors import UserError


def read_batch(
    batch: Any, shape: tuple[int, ...], max_count: int, num_classes: int | None = None
) -> dict[str, Any]:
    """Check a batch of a user's DataLoader, and return it as a mapping: `x0`, perhaps `label`.

    Args:
        batch: counts, (counts, labels), or a mapping with `x0` and perhaps `label`.
        shape: of one sample.
        max_count: the largest count that the model knows.
        num_classes: of a conditional model; None for others, which ignore labels.

    Raises:
        UserError: something else, not whole numbers in 0..max_count of this shape, or labels that
            are not classes of the model.
    """
    named = _name_parts(batch)
    x0 = named.get("x0")
    if not isinstance(x0, Tensor) or tuple(x0.shape[1:]) != shape or x0.is_floating_point():
        sizes = ", ".join(map(str, shape))
        raise UserError(
            f"a DataLoader must give counts, integers [b, {sizes}], or a mapping with them as x0"
        )
    if x0.min() < 0 or x0.max() > max_count:
        raise UserError(
            f"a DataLoader must give counts in 0..{max_count}, not {int(x0.min())}..{int(x0.max())}"
        )
    if num_classes is not None and named.get("label") is not None:
        _check_label(named["label"], len(x0), num_classes)
    return named


def _check_label(label: Any, batch_size: int, num_classes: int) -> None:
    """Raise UserError unless labels are classes 0..num_classes - 1, integers [batch_size]."""
    allowed = f"a DataLoader must give labels as {batch_size} integers in 0..{num_classes - 1}"
    is_integer = isinstance(label, Tensor) and label.dtype in (torch.int32, torch.int64)
    if not is_integer or tuple(label.shape) != (batch_size,):
        actual = type(label).__name__
        if isinstance(label, Tensor):
            actual = f"{label.dtype} {list(label.shape)}"
        raise UserError(f"{allowed}, one per sample, not {actual}")
    if label.min() < 0 or label.max() >= num_classes:
        raise UserError(f"{allowed}, not {int(label.min())}..{int(label.max())}")


def _name_parts(batch: Any) -> dict[str, Any]:
    """Return the parts of a batch by name; empty for an unknown form."""
    if isinstance(batch, Mapping):
        return dict(batch)
    if isinstance(batch, Tensor):
        return {"x0": batch}
    if isinstance(batch, Sequence):
        return dict(zip(("x0", "label"), batch, strict=False))
    return {}
