"""Batches of a DataLoader of the user's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from blackout.errors import UserError


def read_batch(batch: Any, shape: tuple[int, ...], max_count: int) -> dict[str, Any]:
    """Check a batch of a user's DataLoader, and return it as a mapping: `x0`, perhaps `label`.

    Args:
        batch: counts, (counts, labels), or a mapping with `x0` and perhaps `label`.
        shape: of one sample.
        max_count: the largest count that the model knows.

    Raises:
        UserError: something else, or not whole numbers in 0..max_count of this shape.
    """
    named = _name_parts(batch)
    x0 = named.get("x0")
    if not isinstance(x0, Tensor) or tuple(x0.shape[1:]) != shape or x0.is_floating_point():
        sizes = ", ".join(map(str, shape))
        raise UserError(
            f"a DataLoader must give counts, integers [b, {sizes}], or a mapping with them as x0"
        )
    if x0.min() < 0 or x0.max() > max_count:
        raise UserError(f"a DataLoader must give counts in 0..{max_count}")
    return named


def _name_parts(batch: Any) -> dict[str, Any]:
    """Return the parts of a batch by name; empty for an unknown form."""
    if isinstance(batch, Mapping):
        return dict(batch)
    if isinstance(batch, Tensor):
        return {"x0": batch}
    if isinstance(batch, Sequence):
        return dict(zip(("x0", "label"), batch, strict=False))
    return {}
