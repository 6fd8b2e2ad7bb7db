"""Which arrays or columns of a file are counts, and which describe samples."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from blackout.config.overrides import format_override
from blackout.data.findings import Finding, Note
from blackout.data.formats import COUNTS, FileContents, is_number, refuse_local_number
from blackout.data.formats.contents import SHADOWED_COLUMN, quote_names
from blackout.data.labels import format_names
from blackout.errors import UserError, ensure, refuse

Array = npt.NDArray[Any]


def encode_sequences(
    path: Path,
    contents: FileContents,
    column: str,
    letters: str,
) -> FileContents:
    """Return the words in a column of a table as counts [N, length], with its other columns.

    Raises:
        UserError: there is no such column of text, its words differ in length, a letter is not
            among `letters`, or these are not different from each other.
    """
    setting = f"dataset.sequences={column}"
    are_letters = isinstance(letters, str) and 0 < len(letters) == len(set(letters))
    refuse(not are_letters, f"dataset.letters must be different letters, such as ACGT: {letters}")
    columns = contents.arrays if contents.is_table else {}
    words = np.asarray(columns.get(column))
    if words.dtype.kind != "U":
        texts = [name for name, values in columns.items() if values.dtype.kind == "U"]
        actual = f"found {quote_names(texts)}"
        raise UserError(f"{path}: {setting} must be a column of text of a table, {actual}")
    lengths = sorted(set(map(len, words.tolist()))) or [0]
    if len(lengths) > 1 or lengths == [0]:
        actual = f"not {lengths[0]} to {lengths[-1]} letters: pad or cut them"
        raise UserError(f"{path}: {setting} must have words of one length, {actual}")
    code_points = words.view(np.uint32).reshape(len(words), -1)  # as wide as the longest word
    alphabet = np.array([ord(letter) for letter in letters])
    order = np.argsort(alphabet)
    position = np.searchsorted(alphabet, code_points, sorter=order).clip(max=len(alphabet) - 1)
    is_unknown = alphabet[order[position]] != code_points
    if is_unknown.any():
        row, place = np.argwhere(is_unknown)[0]
        location = f"{words[row][place]!r} at place {place} of row {row}"
        advice = "add it, or leave this row out"
        raise UserError(f"{path}: {location} is not one of dataset.letters={letters}: {advice}")
    arrays = {name: values for name, values in contents.arrays.items() if name != column}
    unread = dict(contents.unread)
    if COUNTS in arrays:
        unread[COUNTS] = SHADOWED_COLUMN
    arrays[COUNTS] = order[position].astype(np.uint8)
    return replace(contents, arrays=arrays, unread=unread, is_table=False)


def find_array_counts(
    contents: FileContents, metadata: set[str]
) -> tuple[str, Any, dict[str, Array]]:
    """Return name and array of the counts, and all other arrays.

    Args:
        contents: of the file.
        metadata: names of arrays that are labels, covariates, groups or a mask.

    Raises:
        ValueError: no array is called "counts", and several may be them.
    """
    arrays = contents.arrays
    name = COUNTS
    if COUNTS not in arrays:
        candidates = sorted(arrays.keys() - {"labels", *metadata, *contents.index})
        needed = "an array named 'counts' or 'train' and 'test' is needed"
        array_names = quote_names(arrays)
        advice = f": dataset.layer={candidates[0]} reads that one" if candidates else ""
        ensure(len(candidates) == 1, f"{needed}, found {array_names}{advice}")
        name = candidates[0]
    columns = {column: array for column, array in arrays.items() if column != name}
    return name, arrays[name], columns


def find_table_counts(
    contents: FileContents, metadata: set[str], unselected: set[str]
) -> tuple[str, Any, dict[str, Array], tuple[str, ...]]:
    """Find the columns of a table that are counts: all numbers that are not metadata or an index.

    Args:
        contents: of the file.
        metadata: names of columns that are labels, covariates, groups or a mask.
        unselected: names of columns that the user leaves out, about which nothing is said.

    Returns:
        Name, matrix [N, D], other columns by name, and names of the D elements.

    Raises:
        ValueError: no column of numbers, a few columns with fractions, or numbers mixed with text.

    Warns:
        Note: an index is left out.
        Finding: a column of text is left out.
    """
    # 1. Columns of numbers that are not used otherwise are elements.
    arrays = contents.arrays
    index = set(contents.index)
    if "" in arrays and "" not in metadata:
        index.add("")
        num_rows = len(arrays[""])
        message = "the column without a name repeats values, so that it is no index: name it"
        ensure(len(np.unique(arrays[""])) == num_rows, message)
        message = "the column without a name is left out, as an index that pandas or R saved"
        warnings.warn(Note(message), stacklevel=4)
    elements = []
    for name, column in arrays.items():
        if name not in metadata | index and column.dtype.kind in "iufb":
            elements.append(name)
    if not elements:
        for name in arrays.keys() - metadata - index:
            refuse_local_number(name, str(arrays[name][0]))
    actual = f"found {quote_names(arrays)}; dataset.sequences=<column> reads words"
    ensure(elements, f"no column of numbers is left for the counts, {actual}")
    for name in contents.index:
        if name not in metadata | unselected:
            message = f"column {name!r} is the index that pandas saved, and is no element"
            warnings.warn(Note(message), stacklevel=4)

    # 2. A few columns with fractions are not counts; if most are, the error names a value.
    fractional = []
    for name in elements:
        is_float = arrays[name].dtype.kind == "f"
        finite = arrays[name][np.isfinite(arrays[name])] if is_float else arrays[name]
        if is_float and name not in unselected and np.any(np.mod(finite, 1) > 0):
            fractional.append(name)
    if fractional and len(fractional) < len(elements) / 2:
        name = fractional[0]
        condition = f"{format_override('dataset.covariates', name)} conditions the model on it"
        drop = f"{format_override('dataset.exclude', [name])} leaves it out"
        raise ValueError(f"column {name!r} holds numbers that are not whole: {condition}, {drop}")

    # 3. Other columns: a number with a typing error makes a column text.
    columns = {name: column for name, column in arrays.items() if name not in set(elements)}
    for name in sorted(columns.keys() - metadata - unselected - index):
        fields = [field for field in columns[name].tolist() if field]
        texts = [str(field) for field in fields if not is_number(str(field))]
        for field in texts:
            refuse_local_number(name, field)
        if 0 < len(texts) < len(fields) / 2:
            advice = f"correct it, or {format_override('dataset.exclude', [name])} leaves it out"
            raise ValueError(
                f"column {name!r} mixes numbers with text such as {texts[0]!r}: {advice}"
            )
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
    on_disk: bool = False,
) -> tuple[Any, tuple[str, ...]]:
    """Select columns of a matrix [N, D] by name or number.

    Args:
        matrix: dense or sparse, [N, D].
        features: names of the columns; empty without names.
        columns: to keep, in this order; empty for all.
        exclude: to drop.
        on_disk: whether the matrix stays on disk, where columns are selected when rows are read.

    Returns:
        The matrix [N, d], and the names of its columns.

    Raises:
        ValueError: an unknown or ambiguous name, another number of axes, or no column is left.
    """
    if not columns and not exclude:
        return matrix, features
    message = f"columns and exclude are for vectors [N, D], not {list(matrix.shape)}"
    ensure(len(matrix.shape) == 2, f"{message}: leave them out")
    names = features or tuple(map(str, range(matrix.shape[1])))
    numbers_by_name: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        numbers_by_name.setdefault(name, []).append(number)
    for name in map(str, [*columns, *exclude]):
        if name not in numbers_by_name:
            column_names = format_names(list(numbers_by_name))
            raise ValueError(f"there is no column {name!r}, only {column_names}")
    for name in map(str, columns):
        numbers = numbers_by_name[name]
        message = f"{len(numbers)} columns have the name {name!r}, numbers {numbers[:5]}"
        ensure(len(numbers) == 1, f"{message}: give them different names")

    excluded = set(map(str, exclude))
    numbers = list(range(len(names)))  # in the order of the file, or of `columns`
    if columns:
        numbers = [numbers_by_name[str(name)][0] for name in columns]
    numbers = [number for number in numbers if names[number] not in excluded]
    ensure(numbers, "dataset.columns and dataset.exclude leave no column: exclude fewer")
    selected_features = tuple(names[number] for number in numbers) if features else ()
    if on_disk:
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


def note_repeated_names(features: tuple[str, ...]) -> None:
    """Warn about elements of the same name, which `columns` and `exclude` cannot tell apart.

    Warns:
        Note: how many there are.
    """
    num_repeated = len(features) - len(set(features))
    if num_repeated:
        message = f"{num_repeated} elements have the name of another: columns cannot name them"
        warnings.warn(Note(message), stacklevel=4)
