"""Counts of a file before they are split: elements, axes, tiles, units and missing entries."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from blackout.config.overrides import format_override
from blackout.data.count_statistics import is_underdispersed
from blackout.data.findings import Finding, Note
from blackout.data.formats import (
    COUNTS,
    FileContents,
    LazySparseMatrix,
    arrange_axes,
    describe_axes,
    is_number,
    iterate_blocks,
    refuse_local_number,
    sample_shape,
    to_counts,
)
from blackout.data.formats.contents import SHADOWED_COLUMN
from blackout.data.labels import TOTAL, format_names
from blackout.data.missing import FINITE, mask_missing
from blackout.data.on_disk import DiskCounts, FileArray, pack_rows, scan_rows, stays_on_disk
from blackout.data.tiles import IMAGE, cut_tiles, propose_tile
from blackout.errors import UserError, ensure
from blackout.representation import format_fields

Array = npt.NDArray[Any]
PLAIN_AXES = ("NE", "NYX", "NCYX", "NCZYX", "YX")  # that need no explanation
MAX_COLOURS = 4  # channels of one picture; more are often frames of a stack


@dataclass(frozen=True)
class FileLayout:
    """Where the counts are in a file; see `counts` for the meaning of each field."""

    layer: str | int | None
    columns: list[str | int]
    exclude: list[str | int]
    mask: str | None
    series: bool | None
    sequences: str | None
    letters: str
    in_memory: bool | None
    axes: str | None
    tile: int | None
    stride: int | None


@dataclass(frozen=True)
class Units:
    """What a stored number means: offset + gain x count; see `counts` for an offset of None."""

    offset: int | None
    gain: int


@dataclass(frozen=True)
class CountTable:
    """Counts of all samples, before they are split, and what the file says about them.

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


def encode_sequences(
    path: Path,
    contents: FileContents,
    column: str,
    letters: str,
) -> FileContents:
    """Return a table's words as counts [N, length], with its other columns."""
    words = np.asarray(contents.arrays.get(column)) if contents.is_table else np.zeros(0)
    has_unique_letters = 0 < len(letters) == len(set(letters))
    has_one_length = words.dtype.kind == "U" and len(set(map(len, words.tolist()))) == 1
    if not has_one_length or not has_unique_letters:
        allowed = "must be a column of words of one length, and letters must differ"
        raise UserError(f"{path}: sequences={column} {allowed}")
    code_points = words.view(np.uint32).reshape(len(words), -1)  # as wide as the longest word
    alphabet = np.array([ord(letter) for letter in letters])
    order = np.argsort(alphabet)
    position = np.searchsorted(alphabet, code_points, sorter=order).clip(max=len(alphabet) - 1)
    is_unknown = alphabet[order[position]] != code_points
    if is_unknown.any():
        row, place = np.argwhere(is_unknown)[0]
        location = f"{words[row][place]!r} at place {place} of row {row}"
        raise UserError(f"{path}: {location} is not one of letters={letters}")
    arrays = {name: values for name, values in contents.arrays.items() if name != column}
    unread = dict(contents.unread)
    if COUNTS in arrays:
        unread[COUNTS] = SHADOWED_COLUMN
    arrays[COUNTS] = order[position].astype(np.uint8)
    return replace(contents, arrays=arrays, unread=unread, is_table=False)


def read_table(
    file: Path,
    contents: FileContents,
    layout: FileLayout,
    units: Units,
    metadata: set[str],
) -> CountTable:
    """Read the counts of all samples, in memory or on disk."""
    # 1. Find counts and columns of observations.
    names = contents.arrays.keys()
    dropped = (names - (set(map(str, layout.columns)) or names)) | set(map(str, layout.exclude))
    used = set(metadata)
    if layout.mask not in (None, FINITE):
        used.add(layout.mask)
    if contents.is_table:
        name, matrix, columns, features = _find_table_counts(contents, used, dropped)
    else:
        name, matrix, columns = _find_array_counts(contents, used)
        features = contents.features

    # 2. Bring the axes into their order, cut tiles, and select elements.
    arrangement = Arrangement(layout, contents.axes.get(name))
    is_array = not contents.is_table and not hasattr(matrix, "tocsr")
    is_array &= not isinstance(matrix, LazySparseMatrix)
    has_axes = layout.axes is not None or layout.tile is not None
    ensure(is_array or not has_axes, "axes and tile are for arrays, not for a table or matrix")
    check_stored_numbers(name, contents, units)
    matrix = _mask_no_data(name, matrix, contents, layout)
    columns = arrangement.arrange_mask(layout.mask, tuple(matrix.shape), columns)
    matrix, series = arrangement.arrange(matrix)
    _name_axes(name, contents, layout)
    if layout.tile is not None:
        matrix, image_numbers = cut_tiles(matrix, layout.tile, layout.stride)
        columns = {IMAGE: image_numbers, **columns}
    stays = stays_on_disk(tuple(matrix.shape), matrix.dtype.itemsize, layout.in_memory)
    if isinstance(matrix, LazySparseMatrix) and not stays:
        matrix = matrix[:]
    # columns that are no elements need not be excluded
    others = {*columns, *contents.unread} if contents.is_table else set()
    exclude = [column for column in layout.exclude if str(column) not in others]
    matrix, features = select_columns(matrix, features, layout.columns, exclude, stays)

    # 3. Convert the counts, or check them on disk.
    layout = replace(layout, series=series)
    counts: Tensor | DiskCounts
    try:
        if stays:
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


class Arrangement:
    """How the axes of an array become those of counts.

    Args:
        layout: of the file, with `axes`, `series` and `tile`.
        file_axes: letters that the file gives, see `formats.AXES`; None without names.

    Raises:
        ValueError: settings that exclude each other.
    """

    def __init__(self, layout: FileLayout, file_axes: str | None) -> None:
        is_free = layout.axes is None or layout.series is None
        ensure(is_free, "series is for three axes without names: axes says which they are")
        message = "stride is the distance of tiles: dataset.tile is needed, too"
        ensure(layout.stride is None or layout.tile is not None, message)
        self._tile = layout.tile
        self._series = layout.series
        self._axes = layout.axes
        if layout.axes is None and layout.series is None:
            self._axes = file_axes

    def arrange(self, matrix: Any) -> tuple[Any, bool | None]:
        """Return an array in the order of counts, and whether three axes are a series.

        Raises:
            ValueError: axes that do not describe it, a single image that is not cut into tiles, or
                `series` for another number of axes.
        """
        num_axes = len(matrix.shape)
        message = "series is for three axes [N, C, L] or [N, H, W]"
        ensure(self._series is None or num_axes == 3, f"{message}, not {list(matrix.shape)}")
        axes = self._axes
        if axes is None and self._tile is not None:  # images without names of axes
            axes = {2: "YX", 3: "NYX", 4: "NCYX", 5: "NCZYX"}.get(num_axes)
            ensure(axes is not None, f"tile cuts images, not an array {list(matrix.shape)}")
        if axes is None:
            return matrix, self._series
        arranged = arrange_axes(matrix, axes)
        is_image = "Y" in axes
        if self._tile is not None:
            ensure(is_image, f"tile cuts images, and axes={axes} has no rows and columns")
        elif is_image and "N" not in axes:
            raise ValueError(self._describe_image(axes, tuple(arranged.shape)))
        return arranged, "L" in axes

    def arrange_mask(
        self, mask: str | None, shape: tuple[int, ...], columns: dict[str, Array]
    ) -> dict[str, Array]:
        """Return columns whose mask has its axes, and tiles, in the order of counts.

        Raises:
            ValueError: tiles are cut, or the mask lies in another file, where its axes have no
                names.
        """
        if mask in (None, FINITE) or (self._axes is None and self._tile is None):
            return columns
        is_changed = self._tile is not None or self._axes not in (None, "NYX", "NCYX", "NE", "NCL")
        message = f"mask={mask} must be in the same file as counts with axes or tiles"
        ensure(mask in columns or not is_changed, message)
        if mask not in columns or self._tile is not None or np.shape(columns[mask]) != shape:
            ensure(self._tile is None, "mask and tile cannot be combined; mask=finite can")
            return columns
        arranged = arrange_axes(np.asarray(columns[mask]), str(self._axes))
        return {**columns, str(mask): arranged}

    def _describe_image(self, axes: str, shape: tuple[int, ...]) -> str:
        """Return what to do with a file of one image."""
        height, width = shape[-2:]
        tile = propose_tile(height, width)
        message = f"it holds one image of {height} x {width} pixels: dataset.tile={tile} cuts tiles"
        planes = "Z" if "Z" in axes else None
        if "C" in axes and planes is None and shape[1] > MAX_COLOURS:
            planes = "C"
        if planes is None and "C" in axes:
            return f"{message} from it"
        if planes is None:
            return f"{message} from it, dataset.axes=NE reads its rows as samples"
        setting = format_override("dataset.axes", axes.replace(planes, "N", 1))
        return f"{message} from it, {setting} reads each of its planes as a sample"


def _name_axes(name: str, contents: FileContents, layout: FileLayout) -> None:
    """Warn how the axes of an array were read, and about elements with the same name.

    Warns:
        Note: axes in another order than that of counts, or with unknown names; elements with the
            same name.
    """
    names = contents.axis_names.get(name, ())
    axes = contents.axes.get(name)
    if names and layout.axes is None and layout.series is None:
        if axes is None:
            listed = ", ".join(map(repr, names))
            message = f"axes are called {listed}, and the first is read as samples"
            warnings.warn(Note(f"{message}: dataset.axes says otherwise"), stacklevel=4)
        elif axes not in PLAIN_AXES:
            warnings.warn(Note(f"axes of the file: {describe_axes(names, axes)}"), stacklevel=4)
    repeated = len(contents.features) - len(set(contents.features))
    if repeated:
        message = f"{repeated} elements have the name of another: columns cannot name them"
        warnings.warn(Note(message), stacklevel=4)


def check_stored_numbers(name: str, contents: FileContents, units: Units) -> None:
    """Refuse numbers that other programs multiply or shift, unless offset or gain say how.

    Raises:
        ValueError: names the factors.
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


def _find_array_counts(
    contents: FileContents,
    used: set[str],
) -> tuple[str, Any, dict[str, Array]]:
    """Return name and array of the counts, and all other arrays."""
    arrays = contents.arrays
    name = COUNTS
    if COUNTS not in arrays:
        candidates = sorted(arrays.keys() - {"labels", *used, *contents.index})
        needed = "an array named 'counts' or 'train' and 'test' is needed"
        found = format_array_names(arrays)
        advice = f": dataset.layer={candidates[0]} reads that one" if candidates else ""
        ensure(len(candidates) == 1, f"{needed}, found {found}{advice}")
        name = candidates[0]
    columns = {other: array for other, array in arrays.items() if other != name}
    return name, arrays[name], columns


def _find_table_counts(
    contents: FileContents, used: set[str], dropped: set[str]
) -> tuple[str, Any, dict[str, Array], tuple[str, ...]]:
    """Return name, matrix [N, D] and features of the counts of a table, and its other columns."""
    # 1. Columns of numbers that are not used otherwise are elements.
    arrays = contents.arrays
    index = set(contents.index)
    if "" in arrays and "" not in used:
        index.add("")
        num_rows = len(arrays[""])
        message = "the column without a name repeats values, so that it is no index: name it"
        ensure(len(np.unique(arrays[""])) == num_rows, message)
        message = "the column without a name is left out, as an index that pandas or R saved"
        warnings.warn(Note(message), stacklevel=4)
    elements = []
    for name, column in arrays.items():
        if name not in used | index and column.dtype.kind in "iufb":
            elements.append(name)
    found = format_array_names(arrays)
    if not elements:
        for name in arrays.keys() - used - index:
            refuse_local_number(name, str(arrays[name][0]))
    ensure(elements, f"no column of numbers is left for the counts, found {found}")
    for name in contents.index:
        if name not in used | dropped:
            message = f"column {name!r} is the index that pandas saved, and is no element"
            warnings.warn(Note(message), stacklevel=4)

    # 2. A few columns with fractions are not counts; if most are, the error names a value.
    fractional = []
    for name in elements:
        is_float = arrays[name].dtype.kind == "f"
        finite = arrays[name][np.isfinite(arrays[name])] if is_float else arrays[name]
        if is_float and name not in dropped and np.any(np.mod(finite, 1) > 0):
            fractional.append(name)
    if fractional and len(fractional) < len(elements) / 2:
        name = fractional[0]
        condition = f"{format_override('dataset.covariates', name)} conditions the model on it"
        drop = f"{format_override('dataset.exclude', [name])} leaves it out"
        raise ValueError(f"column {name!r} holds numbers that are not whole: {condition}, {drop}")

    # 3. Other columns: a number with a typing error makes a column text.
    columns = {name: column for name, column in arrays.items() if name not in set(elements)}
    for name in sorted(columns.keys() - used - dropped - index):
        fields = [field for field in columns[name].tolist() if field]
        texts = [str(field) for field in fields if not is_number(str(field))]
        for field in texts:
            refuse_local_number(name, field)
        if 0 < len(texts) < len(fields) / 2:
            example = f"text such as {texts[0]!r}"
            raise ValueError(f"column {name!r} mixes numbers with {example}")
        hint = f"{format_override('dataset.labels', name)} makes classes of it"
        message = f"column {name!r} is text and is left out ({hint})"
        warnings.warn(Finding(message, exclude=[name]), stacklevel=4)
    matrix = np.stack([arrays[name] for name in elements], axis=1)
    return COUNTS, matrix, columns, tuple(elements)


def select_columns(
    matrix: Any,
    features: tuple[str, ...],
    columns: Sequence[str | int],
    exclude: Sequence[str | int],
    stays: bool = False,
) -> tuple[Any, tuple[str, ...]]:
    """Select columns of a matrix [N, D], by name or number, and their names, where they have names.

    Where the matrix `stays` on disk, they are selected when rows are read.
    """
    if not columns and not exclude:
        return matrix, features
    message = f"columns and exclude are for vectors [N, D], not {list(matrix.shape)}"
    ensure(len(matrix.shape) == 2, message)
    names = features or tuple(map(str, range(matrix.shape[1])))
    numbers_by_name: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        numbers_by_name.setdefault(name, []).append(number)
    for name in map(str, [*columns, *exclude]):
        if name not in numbers_by_name:
            found = format_names(list(numbers_by_name))
            raise ValueError(f"there is no column {name!r}, only {found}")
    for name in map(str, columns):
        numbers = numbers_by_name[name]
        message = f"{len(numbers)} columns have the name {name!r}, numbers {numbers[:5]}"
        ensure(len(numbers) == 1, f"{message}: give them different names")

    excluded = set(map(str, exclude))
    numbers = list(range(len(names)))  # in the order of the file, or of `columns`
    if columns:
        numbers = [numbers_by_name[str(name)][0] for name in columns]
    numbers = [number for number in numbers if names[number] not in excluded]
    ensure(numbers, "columns and exclude leave no column")
    selected_features = tuple(names[number] for number in numbers) if features else ()
    if stays:
        return _ColumnSelection(matrix, numbers), selected_features
    if not hasattr(matrix, "tocsr"):
        matrix = np.asarray(matrix)
    return matrix[:, numbers], selected_features


class _ColumnSelection:
    """Columns of a matrix on disk, selected when rows are read."""

    def __init__(self, matrix: Any, numbers: list[int]) -> None:
        self._matrix = matrix
        self._numbers = numbers
        self.dtype = matrix.dtype
        self.shape = (matrix.shape[0], len(numbers))

    def __getitem__(self, rows: slice) -> Any:
        return self._matrix[rows][:, self._numbers]


def load_counts(
    name: str, array: Any, arrays: Mapping[str, Any], layout: FileLayout, units: Units
) -> tuple[Tensor, Tensor | None, int]:
    """Return counts, 0 where entries are missing; the observed entries; and the offset."""
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
    counts = _from_units(values.numpy(), observed, offset, units.gain)
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
            yield _from_units(rows, None, offset, gain)

    return pack_rows(file, matrix.shape[0], shape, request, blocks)


def _from_units(values: Any, observed: Tensor | None, offset: int, gain: int) -> Any:
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
        raise ValueError(f"{message}: dataset.offset or dataset.gain is wrong")
    return (difference // gain).astype(values.dtype)


def format_array_names(arrays: Mapping[str, Any]) -> str:
    """Format the names of arrays for a message."""
    return ", ".join(map(repr, arrays)) or "nothing"
