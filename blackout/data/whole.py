"""Arrays of whole numbers, and nothing else, as counts."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from blackout.counts import LARGEST_COUNT, count_dtype
from blackout.data.stores import blocks

Array = npt.NDArray[Any]


_AT_ONCE = 1 << 24
"""Numbers that are checked at once."""
_SLENDER = 4
"""An image [H, W] is not as much wider than high; a series [C, L] is."""


def to_counts(name: str, array: Any, series: bool | None = None) -> Tensor:
    """An array or sparse matrix as integer counts, refused where that would change a value.

    Args:
        name: for messages.
        array: [N, D], [N, C, L], [N, H, W], [N, C, H, W] or [N, C, D, H, W].
        series: whether three axes are [N, C, L]; None where L is at least four times as long, else [N, H, W].

    Returns:
        The same; images of one channel as [N, 1, H, W].
    """
    if len(array.shape) not in (2, 3, 4, 5):
        allowed = "[N, D], [N, C, L], [N, H, W], [N, C, H, W] or [N, C, D, H, W]"
        raise ValueError(f"{name} must be {allowed}, got {list(array.shape)}")
    whole = _dense(name, array)
    if whole.ndim == 4 and whole.shape[-1] in (1, 3, 4) and whole.shape[1] == whole.shape[2] > 4:
        advice = "read as [N, C, H, W]: if its last axis is colour, save numpy.moveaxis(array, -1, 1) instead"
        warnings.warn(f"{name} has the shape {list(whole.shape)}, {advice}", stacklevel=2)
    if whole.ndim == 3 and not (whole.shape[2] >= _SLENDER * whole.shape[1] if series is None else series):
        return whole[:, None]
    return whole


def _dense(name: str, array: Any) -> Tensor:
    """The counts of an array or sparse matrix in the smallest type that holds them, by blocks of rows."""
    if hasattr(array, "tocsr"):
        _check_whole(name, array.data)  # of which it has fewer; what follows then finds nothing
    parts, largest = [], 1
    for first, rows in blocks(array, max(1, _AT_ONCE // max(1, math.prod(array.shape[1:])))):
        _check_whole(name, rows, first)
        largest = max(largest, int(rows.max(initial=0)))
        parts.append(torch.from_numpy(rows.astype(np.uint8 if rows.max(initial=0) <= 255 else np.int32)))
    whole = torch.empty(tuple(array.shape), dtype=count_dtype(largest))
    first = 0
    while parts:  # each is forgotten once it is in its place
        part = parts.pop(0)
        whole[first : first + len(part)] = part
        first += len(part)
    return whole


def _check_whole(name: str, array: Array, first: int = 0) -> None:
    """Refuse what is no count.

    Args:
        name: for the message.
        array: rows of the counts.
        first: number of the first row.
    """
    if array.dtype.kind == "f":
        array = array.astype(np.float64)  # half precision cannot even be compared with the bounds below
        fractional = ~np.isfinite(array) | (array != np.floor(array))
        _refuse_first(name, array, fractional, "counts must be whole numbers", first, _looks(array))
    elif array.dtype.kind not in "iub":
        raise ValueError(f"{name} must hold whole numbers, got {array.dtype}")
    if array.dtype.kind in "if":
        _refuse_first(name, array, array < 0, "counts must not be negative", first)
    _refuse_first(name, array, array > LARGEST_COUNT, f"counts must be at most {LARGEST_COUNT}", first)


def _looks(array: Array) -> str:
    """What numbers that are not whole look like."""
    finite = array[np.isfinite(array)]
    if len(finite) < array.size:
        return "dataset.mask=finite takes these entries for missing" if np.isnan(array).any() else ""
    if finite.min() < 0:
        return "these look standardised or centred: give the raw counts"
    if finite.max() <= 1:
        return "these look like shares: give the raw counts"
    return "these look log-transformed or normalised: give the raw counts" if finite.max() < 20 else ""


def _refuse_first(name: str, array: Array, bad: npt.NDArray[np.bool_], rule: str, first: int, advice: str = "") -> None:
    if bad.any():
        index = np.unravel_index(int(bad.argmax()), array.shape)
        where = [int(index[0]) + first, *map(int, index[1:])]
        hint = f"; {advice}" if advice else ""
        raise ValueError(f"{name}: {rule}, got {array[index]} at index {where}{hint}")
