"""Counts of a file before they are split: in memory or on disk, with units and missing entries."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from blackout.data.count_statistics import is_underdispersed
from blackout.data.file_columns import (
    find_array_counts,
    find_table_counts,
    note_repeated_names,
    select_columns,
)
from blackout.data.file_layout import Arrangement, FileLayout, Units, note_axes
from blackout.data.findings import Finding
from blackout.data.formats import (
    FileContents,
    LazySparseMatrix,
    iterate_blocks,
    sample_shape,
    to_counts,
)
from blackout.data.labels import TOTAL
from blackout.data.missing import FINITE, mask_missing
from blackout.data.on_disk import DiskCounts, FileArray, pack_rows, scan_rows, stays_on_disk
from blackout.data.tiles import IMAGE, cut_tiles
from blackout.errors import ensure
from blackout.representation import format_fields

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class CountTable:
    """Counts of all samples before they are split, with their columns, names and units.

    Attributes:
        name: of the array in the file.
        counts: [N, *shape].
        observed: bool [N, *shape]; None if no entry is missing.
        columns: of observations, by name, [N] each, and the total counts.
        features: names of the elements, where the file has them.
        sample_shape: of a sample in the file.
        offset: value of count 0 in the file.
    """

    name: str
    counts: Tensor | DiskCounts
    observed: Tensor | None
    columns: dict[str, Array]
    features: tuple[str, ...]
    sample_shape: tuple[int, ...]
    offset: int

    __repr__ = format_fields


def read_table(
    file: Path,
    contents: FileContents,
    layout: FileLayout,
    units: Units,
    metadata: set[str],
) -> CountTable:
    """Read the counts of all samples, in memory or on disk.

    Args:
        file: whose counts they are, for those that stay on disk.
        contents: of the file.
        layout: where the counts are.
        units: of the stored numbers.
        metadata: names of columns that are labels, covariates or groups.

    Raises:
        ValueError: numbers that are not counts, or settings that do not fit the file.
    """
    # 1. Find counts and columns of observations.
    metadata = set(metadata)
    if layout.mask not in (None, FINITE):
        metadata.add(layout.mask)
    if contents.is_table:
        names = contents.arrays.keys()
        selected = set(map(str, layout.columns)) or names
        unselected = (names - selected) | set(map(str, layout.exclude))
        name, matrix, columns, features = find_table_counts(contents, metadata, unselected)
    else:
        name, matrix, columns = find_array_counts(contents, metadata)
        features = contents.features

    # 2. Bring the axes into their order, cut tiles, and select elements.
    arrangement = Arrangement(layout, contents.axes.get(name))
    is_array = not contents.is_table and not hasattr(matrix, "tocsr")
    is_array &= not isinstance(matrix, LazySparseMatrix)
    has_axes = layout.axes is not None or layout.tile is not None
    message = "dataset.axes and dataset.tile are for arrays, not for a table or sparse matrix"
    ensure(is_array or not has_axes, f"{message}: leave them out")
    check_stored_numbers(name, contents, units)
    matrix = _mask_no_data(name, matrix, contents, layout)
    columns = arrangement.arrange_mask(layout.mask, tuple(matrix.shape), columns)
    matrix, series = arrangement.arrange(matrix)
    note_axes(name, contents, layout)
    note_repeated_names(contents.features)
    if layout.tile is not None:
        matrix, image_numbers = cut_tiles(matrix, layout.tile, layout.stride)
        columns = {IMAGE: image_numbers, **columns}
    on_disk = stays_on_disk(tuple(matrix.shape), matrix.dtype.itemsize, layout.in_memory)
    if isinstance(matrix, LazySparseMatrix) and not on_disk:
        matrix = matrix[:]
    # columns that are no elements need not be excluded
    other_columns = {*columns, *contents.unread} if contents.is_table else set()
    exclude = [column for column in layout.exclude if str(column) not in other_columns]
    matrix, features = select_columns(matrix, features, layout.columns, exclude, on_disk)

    # 3. Convert the counts, or check them on disk.
    layout = replace(layout, series=series)
    counts: Tensor | DiskCounts
    try:
        if on_disk:
            units = Units(units.offset or 0, units.gain)
            counts = _open_on_disk(file, name, matrix, layout, units)
            observed = None
            offset = units.offset or 0
        else:
            counts, observed, offset = load_counts(name, matrix, columns, layout, units)
    except ValueError as error:
        hints = [f"dataset.layer={layer}" for layer in contents.layers]
        raise ValueError(", or ".join([str(error), *hints])) from None

    # 4. Total counts can be used like a column.
    if isinstance(counts, DiskCounts):
        totals = counts.totals.numpy()
    else:
        totals = counts.flatten(1).numpy().sum(1, dtype=np.int64)
    columns = {TOTAL: totals, **columns}
    return CountTable(name, counts, observed, columns, features, tuple(matrix.shape[1:]), offset)


def check_stored_numbers(name: str, contents: FileContents, units: Units) -> None:
    """Refuse numbers with a scale factor or offset in the file, unless the user sets the units.

    Raises:
        ValueError: names the factor, which other programs apply when they read the numbers.
    """
    if name not in contents.units or units.offset is not None or units.gain != 1:
        return
    message = f"stored numbers of {name} are converted by {contents.units[name]}"
    raise ValueError(f"{message}: dataset.offset=0 reads them as they are stored")


def _mask_no_data(name: str, matrix: Any, contents: FileContents, layout: FileLayout) -> Any:
    """Replace the number by which the file marks missing entries by NaN.

    Raises:
        ValueError: there are such entries, and the mask is not "finite".
    """
    if name not in contents.no_data:
        return matrix
    no_data = contents.no_data[name]
    values = np.asarray(matrix)
    is_missing = values == no_data
    num_missing = int(is_missing.sum())
    if num_missing == 0:
        return matrix
    message = f"{num_missing:,} entries are {no_data:g}, which stands for no data in this file"
    advice = f"dataset.mask={FINITE} treats them as missing"
    ensure(layout.mask == FINITE, f"{message}: {advice}")
    return np.where(is_missing, np.nan, values)


def load_counts(
    name: str, array: Any, arrays: Mapping[str, Any], layout: FileLayout, units: Units
) -> tuple[Tensor, Tensor | None, int]:
    """Convert an array of a file to counts.

    Args:
        name: of the array, for messages.
        array: [N, ...], dense or sparse.
        arrays: all arrays of the file, one of which may be the mask.
        layout: with `mask` and `series`.
        units: of the stored numbers; an offset of None is found here.

    Returns:
        Counts [N, *shape], 0 where entries are missing; bool [N, *shape] of the observed entries,
        or None; and the offset.

    Raises:
        ValueError: values that are not counts in these units.

    Warns:
        Finding: samples without an observed entry.
    """
    array, mask = mask_missing(array, layout.mask, arrays)
    values = to_counts(name, array, layout.series)
    observed = None if mask is None else torch.from_numpy(mask).view(values.shape)
    if observed is not None:
        is_empty = ~observed.flatten(1).any(1)
        if bool(is_empty.any()):
            first = int(is_empty.int().argmax())
            message = f"{int(is_empty.sum())} samples have no observed entry, the first is {first}"
            warnings.warn(Finding(f"{message}: leave them out"), stacklevel=4)
    offset = units.offset or 0
    if units.offset is None and units.gain == 1 and is_underdispersed(values):
        offset = int(values.min())
    counts = _to_counts(values.numpy(), observed, offset, units.gain)
    return torch.from_numpy(counts), observed, offset


def _open_on_disk(
    file: Path,
    name: str,
    matrix: Any,
    layout: FileLayout,
    units: Units,
) -> DiskCounts:
    """Return counts [N, ...] that stay on disk."""
    message = f"mask={layout.mask}: missing entries need dataset.in_memory=true"
    ensure(layout.mask is None, message)
    shape = sample_shape(name, tuple(matrix.shape), layout.series)
    offset = units.offset or 0
    gain = units.gain

    # 1. Rows that lie one after the other in the file are read from it.
    is_mapped = isinstance(matrix, np.memmap) and matrix.flags.c_contiguous
    if is_mapped and matrix.dtype.kind in "iu" and (offset, gain) == (0, 1):
        stored = FileArray(file, matrix.dtype, matrix.shape, matrix.offset)
        return scan_rows(stored, shape, lambda: (rows for _, rows in iterate_blocks(name, stored)))

    # 2. Others are written to a folder in which they do.
    request = [
        layout.layer,
        name,
        layout.columns,
        layout.exclude,
        layout.series,
        offset,
        gain,
        layout.sequences,
        layout.letters,
        layout.axes,
        layout.tile,
        layout.stride,
    ]

    def blocks() -> Iterator[Any]:
        for _, rows in iterate_blocks(name, matrix):
            yield _to_counts(rows, None, offset, gain)

    return pack_rows(file, matrix.shape[0], shape, request, blocks)


def _to_counts(values: Any, observed: Tensor | None, offset: int, gain: int) -> Any:
    """Return (values - offset) / gain, and 0 where entries are missing.

    Raises:
        ValueError: a value is not offset + gain x a count.
    """
    if (offset, gain) == (0, 1):
        return values
    values = values.toarray() if hasattr(values, "toarray") else values
    difference = values.astype(np.int64) - offset
    if observed is not None:
        difference *= observed.numpy()
    is_wrong = (difference < 0) | (difference % gain != 0)
    if is_wrong.any():
        value = int(values[is_wrong][0])
        message = f"{value} is not {offset} plus a multiple of {gain}"
        advice = "set dataset.offset to the value of count 0, dataset.gain to that of one count"
        raise ValueError(f"{message}: {advice}")
    return (difference // gain).astype(values.dtype)
