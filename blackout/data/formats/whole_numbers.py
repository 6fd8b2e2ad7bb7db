"""Arrays of a file as integer counts, which are refused where a value would change."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blackout.counts import LARGEST_COUNT, count_dtype
from blackout.data.findings import Finding
from blackout.data.formats.contents import Array
from blackout.errors import ensure
from blackout.safe_reading import check_size

BLOCK_VALUES = 1 << 24  # values that are checked at once
SERIES_ASPECT = 4  # [N, C, L] is a series if L is this many times C; else an image [N, H, W]
SHAPES = "[N, D], [N, C, L], [N, H, W], [N, C, H, W] or [N, C, D, H, W]"
MIN_RAW_MAXIMUM = 20  # log-transformed counts stay below this
MAX_RAW_FRACTIONS = 0.1  # of the values that are not 0; more fractions look like a transformation


def to_counts(name: str, array: Any, series: bool | None = None) -> Tensor:
    """Convert an array or sparse matrix to integer counts.

    Args:
        name: for messages.
        array: [N, D], [N, C, L], [N, H, W], [N, C, H, W] or [N, C, D, H, W].
        series: whether three axes are [N, C, L]; None decides by the shape, see `sample_shape`.

    Returns:
        uint8 or int32 of the same shape; images of one channel as [N, 1, H, W].

    Raises:
        ValueError: another shape, or values that are not counts.
    """
    shape = sample_shape(name, tuple(array.shape), series)
    check_size(Path(name), math.prod(array.shape))
    converted = []
    max_count = 1
    for _, block in iterate_blocks(name, array):
        rows = block.toarray() if hasattr(block, "toarray") else block
        block_max = int(rows.max(initial=0))
        max_count = max(max_count, block_max)
        dtype = np.uint8 if block_max <= 255 else np.int32
        converted.append(torch.from_numpy(rows.astype(dtype)))

    counts = torch.empty(tuple(array.shape), dtype=count_dtype(max_count))
    block_rows = len(converted[0]) if converted else 1
    for destination in counts.split(block_rows)[: len(converted)]:
        destination.copy_(converted.pop(0))  # frees every block as soon as it is copied
    return counts.view(array.shape[0], *shape)


def sample_shape(name: str, shape: tuple[int, ...], series: bool | None = None) -> tuple[int, ...]:
    """Return the shape of one sample of counts of `shape`.

    Args:
        name: for messages.
        shape: of the array.
        series: whether three axes are [N, C, L]; None where L is at least four times C, else [N, H,
            W].

    Raises:
        ValueError: another number of axes.
    """
    ensure(len(shape) in (2, 3, 4, 5), f"{name} must be {SHAPES}, not {list(shape)}")
    if len(shape) == 4 and shape[-1] in (1, 3, 4) and shape[1] == shape[2] > 4:
        advice = "if its last axis is colour, save numpy.moveaxis(array, -1, 1) instead"
        message = f"{name} has the shape {list(shape)}, read as [N, C, H, W]: {advice}"
        warnings.warn(Finding(message, axes="NYXC"), stacklevel=2)
    if len(shape) == 3:
        is_series = shape[2] >= SERIES_ASPECT * shape[1] if series is None else series
        if not is_series:
            return (1, *shape[1:])
    return shape[1:]


def iterate_blocks(name: str, array: Any) -> Iterator[tuple[int, Any]]:
    """Yield (first row, rows) of an array or sparse matrix, each block checked to hold counts.

    Raises:
        ValueError: a value is not a count.
    """
    block_rows = max(1, BLOCK_VALUES // max(1, math.prod(array.shape[1:])))
    for first in range(0, array.shape[0], block_rows):
        block = array[first : first + block_rows]
        if hasattr(block, "toarray"):
            try:
                _check_block(name, block.data)  # the values that are stored
            except ValueError:
                _check_block(name, block.toarray(), first)  # names the index of the value
                raise
        else:
            block = np.asarray(block)
            _check_block(name, block, first)
        yield first, block


def check_range(name: str, array: Array, max_count: int, limit: str, first_row: int = 0) -> None:
    """Refuse values outside 0, ..., max_count.

    Args:
        name: of the values, for the message.
        array: rows of integers.
        max_count: largest value.
        limit: its name in the message.
        first_row: number of the first row.

    Raises:
        ValueError: names the first such value and its index.
    """
    is_negative = array < 0
    if is_negative.any():
        location = _first_value(array, is_negative, first_row)
        raise ValueError(f"{name} must be at least 0, {location}")
    is_large = array > max_count
    if is_large.any():
        location = _first_value(array, is_large, first_row)
        raise ValueError(f"{name} must be at most {limit}, {location}")


def _check_block(name: str, array: Array, first_row: int = 0) -> None:
    """Refuse values that are not counts; `first_row` is the number of the first row."""
    ensure(array.dtype.kind in "iubf", f"{name} must hold whole numbers, not {array.dtype}")
    if array.dtype.kind == "f":
        array = array.astype(np.float64)  # float16 cannot be compared with the largest count
        is_fraction = ~np.isfinite(array) | (array != np.floor(array))
        if is_fraction.any():
            location = _first_value(array, is_fraction, first_row)
            hint = _transformation_hint(array)
            raise ValueError(f"{name}: counts must be whole numbers, {location}{hint}")
    check_range(f"{name}: counts", array, LARGEST_COUNT, str(LARGEST_COUNT), first_row)


def _first_value(array: Array, mask: Array, first_row: int) -> str:
    """Format the first value where `mask`, and its index."""
    index = np.unravel_index(int(mask.argmax()), array.shape)
    position = [int(index[0]) + first_row, *map(int, index[1:])]
    return f"not {array[index]} at index {position}"


def _transformation_hint(array: Array) -> str:
    """Return the end of a message: what may have made the values fractions, and what to give."""
    finite = array[np.isfinite(array)]
    if len(finite) < array.size:
        if np.isnan(array).any():
            return "; dataset.mask=finite treats these entries as missing"
        return "; replace infinite values by NaN, and use dataset.mask=finite"
    if finite.min() < 0:
        return "; these look standardised or centred: give the raw counts"
    if finite.max() <= 1:
        return "; these look like fractions of a total: give the raw counts"
    num_fractions = np.count_nonzero(finite % 1)
    if finite.max() < MIN_RAW_MAXIMUM:
        return "; these look log-transformed or normalised: give the raw counts"
    if num_fractions < MAX_RAW_FRACTIONS * np.count_nonzero(finite):
        return ""
    return "; these look normalised: give the raw counts"
