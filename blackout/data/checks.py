"""What counts, masks and labels must be, in tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from blackout.data.moments import parts


def _check_integers(what: str, values: Tensor) -> None:
    if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
        raise ValueError(f"{what} must be integers, got {values.dtype}")


def check_counts(what: str, counts: Tensor, max_count: int) -> None:
    """Refuse what are no counts in 0..max_count of a known shape, with the first bad value; raises ValueError."""
    _check_integers(f"{what}: counts", counts)
    if counts.ndim not in (2, 3, 4, 5) or 0 in counts.shape[1:]:
        allowed = "[N, D], [N, C, L], [N, C, H, W] or [N, C, D, H, W]"
        raise ValueError(f"{what}: the shape must be {allowed}, got {list(counts.shape)}")
    if len(counts) == 0:
        raise ValueError(f"{what}: at least one sample is needed, got none")
    info = torch.iinfo(counts.dtype)
    if info.min >= 0 and info.max <= max_count:
        return  # guaranteed by the dtype
    for start, chunk in parts(counts):
        wide = chunk.long()
        bad = (wide < 0) | (wide > max_count)
        if bad.any():
            first = torch.nonzero(bad)[0]
            value = int(wide[tuple(first)])
            index = [start + int(first[0]), *first[1:].tolist()]
            allowed = "must not be negative" if value < 0 else f"must be at most max_count={max_count}"
            raise ValueError(f"{what}: counts {allowed}, got {value} at index {index}")


def check_seen(what: str, counts: Tensor, seen: Tensor | None) -> None:
    """Refuse a mask of another dtype or shape than bool like the counts; raises ValueError."""
    if seen is not None and (seen.dtype != torch.bool or seen.shape != counts.shape):
        raise ValueError(f"{what} must be booleans {list(counts.shape)}")


def check_labels(what: str, labels: Tensor, count: int) -> None:
    """Refuse what are not `count` numbers of classes; raises ValueError."""
    _check_integers(f"{what}: labels", labels)
    if labels.shape != (count,):
        raise ValueError(f"{what}: one label per sample is needed, [{count}], got {list(labels.shape)}")
    if labels.min() < 0:
        raise ValueError(f"{what}: labels must not be negative, got {int(labels.min())}")
