"""Classes of samples from what a file says of them: names, numbers (each one or in levels), total counts, and several
of these together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from blackout.data.file_formats import load_array
from blackout.errors import ensure
from blackout.files import read_text

Array = npt.NDArray[Any]
TOTAL = "total"
"""The name by which the total count of a sample can be asked for as if it were a column."""
Level = float | str
"""What a level of a covariate is."""
Classes = tuple[Tensor | None, tuple[str, ...], dict[str, tuple[str, ...]]]
"""The class of every sample, int64 [N], the classes' names, and what each column is in every class; see `classes`."""
_MOST_LEVELS = 64
"""Of a covariate."""


def classes(names: Sequence[str], columns: Mapping[str, Array], bins: int) -> Classes:
    """The class of every sample, the classes' names, and what each column is in every class.

    Text and whole numbers are classes as they are; numbers with fractions, and totals, are divided into `bins` parts of
    equally many samples. Of several columns, the combinations that occur are the classes.

    Args:
        names: of columns.
        columns: [N] each, by name.
        bins: parts of a column of numbers, at least 1.

    Returns:
        int64 [N]; one name per class, such as "B cell" or "total 120..340" or "B cell, 0.1..0.5"; of the latter's two
        columns "B cell" and "0.1..0.5" by the columns' names.

    Raises:
        ValueError: no such column, one that is not [N], or with missing entries.
    """
    parts = [_of_column(name, columns, bins) for name in names]
    combinations, codes = np.unique(np.stack([codes for codes, _ in parts], axis=1), axis=0, return_inverse=True)
    values = [tuple(words[k] for k in column) for (_, words), column in zip(parts, combinations.T, strict=True)]
    words = tuple(map(", ".join, zip(*values, strict=True)))
    return torch.from_numpy(codes.reshape(-1)), words, dict(zip(names, values, strict=True))


def _of_column(name: str, columns: Mapping[str, Array], bins: int) -> tuple[Array, tuple[str, ...]]:
    column = named_column(name, columns)
    fractional = column.dtype.kind == "f" and not bool((column == np.floor(column)).all())
    if name == TOTAL or fractional:
        return _binned(name, column.astype(float), bins)
    values, codes = np.unique(column, return_inverse=True)
    return codes, tuple(f"{value:g}" if column.dtype.kind == "f" else str(value) for value in values)


def levels(name: str, columns: Mapping[str, Array]) -> tuple[Tensor, tuple[Level, ...]]:
    """A column on at most 64 levels: its words, or its numbers, in parts of equally many samples where they are more.

    Ours (tests/data/test_missing.py).

    Args:
        name: of the column.
        columns: [N] each, by name.

    Returns:
        The level of every sample, int64 [N], and each one's word, in alphabetical order, or mean value, increasing.

    Raises:
        ValueError: no such column, one that is not [N], of more words, or with missing entries.
    """
    column = named_column(name, columns)
    different, codes = np.unique(column, return_inverse=True)
    if column.dtype.kind == "U":
        ensure(len(different) <= _MOST_LEVELS, f"covariate {name!r} has {len(different)} words, of at most 64")
        return torch.from_numpy(codes), tuple(different.tolist())
    values = column.astype(float)
    if len(different) > _MOST_LEVELS:
        codes, _ = _binned(name, values, _MOST_LEVELS)
    return torch.from_numpy(codes), tuple((np.bincount(codes, values) / np.bincount(codes)).tolist())


def divided(labels: Any, sizes: Sequence[int]) -> list[Any]:
    """The class and the levels of covariates of which labels are the numbers: see `CountData.covariates`.

    Args:
        labels: a tensor or array of whole numbers.
        sizes: number of levels of each covariate.

    Returns:
        The class and every level, [N] each, as digits of the number: the last covariate counts fastest. Ours
        (tests/data/test_conditions.py).
    """
    parts: list[Any] = []
    for size in reversed(sizes):
        parts.insert(0, labels % size)
        labels = labels // size
    return [labels, *parts]


def _binned(name: str, column: Array, bins: int) -> tuple[Array, tuple[str, ...]]:
    """Parts of a column [N], of equally many samples; fewer where many are equal: its part, [N], and words of them.

    Between quantiles; ours (tests/data/test_conditions.py).
    """
    ensure(bins >= 1, f"bins must be at least 1, got {bins}")
    edges = np.unique(np.quantile(column, np.linspace(0, 1, bins + 1)[1:-1]))
    occupied, codes = np.unique(np.searchsorted(edges, column, side="right"), return_inverse=True)
    parts = [column[codes == k] for k in range(len(occupied))]
    return codes, tuple(f"{name} {part.min():g}..{part.max():g}" for part in parts)


def named_column(name: str, columns: Mapping[str, Array]) -> Array:
    """One value for each sample, [N].

    Raises:
        ValueError: there is no such column, or it is none, or it has missing entries.
    """
    ensure(name in columns, f"there is no column {name!r}, found {', '.join(map(repr, columns)) or 'none'}")
    column, number = np.asarray(columns[name]), len(columns[TOTAL])
    ensure(column.shape == (number,), f"one label per sample is needed, [{number}], got {list(column.shape)}")
    ensure(column.dtype.kind in "iufbU", f"column {name!r} must hold text or numbers, got {column.dtype}")
    ensure(column.dtype.kind != "f" or np.isfinite(column).all(), f"column {name!r} has missing entries")
    return column


def few(names: Sequence[str]) -> str:
    """The first ten names, for messages."""
    return ", ".join(map(repr, names[:10])) + (", ..." if len(names) > 10 else "")


def label_file(path: Path) -> Array:
    """Labels from a file of their own, [N]: an .npy, or text with one label a line.

    Raises:
        UserError: it cannot be read.
    """
    return load_array(path) if path.suffix == ".npy" else np.array(read_text(path).splitlines())
