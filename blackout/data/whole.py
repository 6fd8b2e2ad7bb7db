"""Arrays of whole numbers, and nothing else, as counts."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from blackout.counts import LARGEST_COUNT, count_dtype
from blackout.data.stores import blocks

Array = npt.NDArray[Any]


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
    whole = _dense(name, array) if hasattr(array, "tocsr") else _to_integers(name, array)
    if whole.ndim not in (2, 3, 4, 5):
        allowed = "[N, D], [N, C, L], [N, H, W], [N, C, H, W] or [N, C, D, H, W]"
        raise ValueError(f"{name} must be {allowed}, got {list(whole.shape)}")
    if whole.ndim == 4 and whole.shape[-1] in (1, 3, 4) and whole.shape[1] == whole.shape[2] > 4:
        advice = "read as [N, C, H, W]: if its last axis is colour, save numpy.moveaxis(array, -1, 1) instead"
        warnings.warn(f"{name} has the shape {list(whole.shape)}, {advice}", stacklevel=2)
    if whole.ndim == 3 and not (whole.shape[2] >= _SLENDER * whole.shape[1] if series is None else series):
        return whole[:, None]
    return whole


def _dense(name: str, matrix: Any) -> Tensor:
    """A sparse matrix by blocks of rows, in the smallest type that holds it."""
    largest = matrix.data.max(initial=0)
    _to_integers(name, matrix.data)  # whole, not negative and not too large
    dense = torch.empty(matrix.shape, dtype=count_dtype(max(1, int(largest))))
    for first, rows in blocks(matrix):
        dense[first : first + len(rows)] = torch.from_numpy(rows.astype(np.int32, copy=False))
    return dense


def _to_integers(name: str, array: Array) -> Tensor:
    if array.dtype.kind == "f":
        array = array.astype(np.float64)  # half precision cannot even be compared with the bounds below
        fractional = ~np.isfinite(array) | (array != np.floor(array))
        _refuse_first(name, array, fractional, "counts must be whole numbers", _looks(array))
    elif array.dtype.kind not in "iub":
        raise ValueError(f"{name} must hold whole numbers, got {array.dtype}")
    if array.dtype.kind in "if":
        _refuse_first(name, array, array < 0, "counts must not be negative")
    _refuse_first(name, array, array > LARGEST_COUNT, f"counts must be at most {LARGEST_COUNT}")
    # torch has neither NumPy's wider unsigned types nor other byte orders
    return torch.from_numpy(array.astype(np.uint8 if array.dtype.itemsize == 1 else np.int64))


def _looks(array: Array) -> str:
    """What numbers that are not whole look like."""
    finite = array[np.isfinite(array)]
    if len(finite) < array.size:
        return ""
    if finite.min() < 0:
        return "these look standardised or centred: give the raw counts"
    if finite.max() <= 1:
        return "these look like shares: give the raw counts"
    return "these look log-transformed or normalised: give the raw counts" if finite.max() < 20 else ""


def _refuse_first(name: str, array: Array, bad: npt.NDArray[np.bool_], rule: str, advice: str = "") -> None:
    if bad.any():
        index = np.unravel_index(int(bad.argmax()), array.shape)
        hint = f"; {advice}" if advice else ""
        raise ValueError(f"{name}: {rule}, got {array[index]} at index {[int(i) for i in index]}{hint}")
