"""Classes and covariates of samples from the columns of a file: text, numbers, total counts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from blackout.data.formats import MISSING_WORDS, load_array
from blackout.errors import ensure
from blackout.safe_reading import read_text

Array = npt.NDArray[Any]
Level = float | str  # value of a covariate
TOTAL = "total"  # name of the total count of a sample, which can be used like a column
MAX_LEVELS = 64  # levels of a covariate
MAX_NAMES = 10  # names that a message lists
DEFAULT_BINS = 10  # classes of a column of numbers


class Classes(NamedTuple):
    """Classes of samples.

    Attributes:
        labels: class of every sample, int64 [N], or None.
        names: one for every class, such as "B cell, 0.1..0.5".
        values: value of every class in each column that it was made of, by column.
    """

    labels: Tensor | None
    names: tuple[str, ...] = ()
    values: Mapping[str, tuple[str, ...]] = {}


def make_classes(names: Sequence[str], columns: Mapping[str, Array], bins: int) -> Classes:
    """Make a class of every combination of values that occurs in some columns.

    Text and whole numbers are values as they are. Numbers with fractions, and totals, are divided
    into bins with equally many samples.

    Args:
        names: of the columns.
        columns: [N] each, by name.
        bins: of a column of numbers, at least 1.

    Raises:
        ValueError: a column is missing, is not [N], or has missing entries.

    Example:
        >>> columns = {"type": np.array(["B", "T", "B"]), "total": np.array([9, 3, 1])}
        >>> make_classes(["type"], columns, bins=10).names
        ('B', 'T')
    """
    is_binned = [_needs_bins(name, get_column(name, columns)) for name in names]
    message = f"bins={bins} is not used: no label is a total or a number with fractions"
    ensure(bins == DEFAULT_BINS or any(is_binned), f"{message}; leave out dataset.bins")
    column_codes = []
    column_values = []
    for name in names:
        codes, values = _encode_column(name, columns, bins)
        column_codes.append(codes)
        column_values.append(values)
    codes = np.stack(column_codes, axis=1)
    combinations, labels = np.unique(codes, axis=0, return_inverse=True)

    class_values = [
        tuple(values[code] for code in class_codes)
        for values, class_codes in zip(column_values, combinations.T, strict=True)
    ]
    class_names = tuple(map(", ".join, zip(*class_values, strict=True)))
    values_by_column = dict(zip(names, class_values, strict=True))
    return Classes(torch.from_numpy(labels.reshape(-1)), class_names, values_by_column)


def make_levels(name: str, columns: Mapping[str, Array]) -> tuple[Tensor, tuple[Level, ...]]:
    """Divide a column into at most 64 levels of a covariate.

    Levels are its different texts or numbers. More than 64 different numbers are divided into bins
    with equally many samples, whose means are the levels.

    Args:
        name: of the column.
        columns: [N] each, by name.

    Returns:
        The level of every sample, int64 [N]; and the text of each level, in alphabetical order, or
        its number, increasing.

    Raises:
        ValueError: the column is missing, is not [N], or has missing entries or more than 64 texts.
    """
    column = get_column(name, columns)
    values, codes = np.unique(column, return_inverse=True)
    if column.dtype.kind == "U":
        message = f"covariate {name!r} has {len(values)} words; at most {MAX_LEVELS} are allowed"
        ensure(len(values) <= MAX_LEVELS, f"{message}: merge rare ones, or use another column")
        return torch.from_numpy(codes), tuple(values.tolist())
    numbers = column.astype(float)
    if len(values) > MAX_LEVELS:
        codes, _ = _encode_bins(name, numbers, MAX_LEVELS)
    means = np.bincount(codes, numbers) / np.bincount(codes)
    return torch.from_numpy(codes), tuple(means.tolist())


def decode_labels(labels: Any, sizes: Sequence[int]) -> list[Any]:
    """Return the class and the level of every covariate that labels stand for.

    A label is a number whose digits are class and levels; the last covariate is the last digit. See
    `CountData.covariates`.

    Args:
        labels: a tensor or array of whole numbers, [N].
        sizes: number of levels of each covariate.

    Returns:
        The class, and the level of each covariate, [N] each.

    Example:
        >>> decode_labels(np.array([0, 4, 5]), [2, 2])
        [array([0, 1, 1]), array([0, 0, 0]), array([0, 0, 1])]
    """
    levels: list[Any] = []
    for size in reversed(sizes):
        levels.insert(0, labels % size)
        labels = labels // size
    return [labels, *levels]


def get_column(name: str, columns: Mapping[str, Array]) -> Array:
    """Return a column, [N].

    Raises:
        ValueError: the column is missing, is not [N], or has missing entries.
    """
    column_names = ", ".join(map(repr, columns)) or "none"
    ensure(name in columns, f"there is no column {name!r}, found {column_names}")
    column = drop_unit_axes(np.asarray(columns[name]))
    num_samples = len(columns[TOTAL])
    message = f"column {name!r} must have one value per sample, [{num_samples}]"
    ensure(column.shape == (num_samples,), f"{message}, not {list(column.shape)}")
    is_supported = column.dtype.kind in "iufbU"
    message = f"column {name!r} must hold text or numbers, not {column.dtype}"
    ensure(is_supported, f"{message}: save it with .astype(str)")
    if column.dtype.kind == "U":
        is_missing = np.isin(column, sorted(MISSING_WORDS))
    else:
        is_missing = ~np.isfinite(column)
    if is_missing.any():
        message = f"column {name!r} has missing entries: {int(is_missing.sum())} of {num_samples}"
        advice = "fill in a word such as unknown, or leave these samples out"
        raise ValueError(f"{message}, the first in sample {int(is_missing.argmax())}; {advice}")
    return column


def drop_unit_axes(labels: Array) -> Array:
    """Return labels [N, 1, ...] as [N]; labels of other shapes as they are."""
    if labels.ndim > 1 and labels.size == len(labels):
        return labels.reshape(-1)
    return labels


def format_names(names: Sequence[str]) -> str:
    """Format the first ten names for a message."""
    text = ", ".join(map(repr, names[:MAX_NAMES]))
    return text + ", ..." if len(names) > MAX_NAMES else text


def read_label_file(path: Path) -> Array:
    """Read labels, [N], from an .npy, or from text with one label a line: words or whole numbers.

    Raises:
        UserError: the file cannot be read.
    """
    if path.suffix == ".npy":
        return load_array(path)
    lines = [line.strip() for line in read_text(path).splitlines()]
    if lines and all(re.fullmatch(r"-?[0-9]{1,18}", line) for line in lines):
        return np.array(lines).astype(np.int64)
    return np.array(lines)


def _encode_column(
    name: str,
    columns: Mapping[str, Array],
    bins: int,
) -> tuple[Array, tuple[str, ...]]:
    """Return the code of every sample, int64 [N], and the value of each code as text."""
    column = get_column(name, columns)
    if _needs_bins(name, column):
        return _encode_bins(name, column.astype(float), bins)
    values, codes = np.unique(column, return_inverse=True)
    if column.dtype.kind == "f":
        return codes, tuple(f"{value:g}" for value in values)
    if column.dtype.kind == "U" and all(value.isdecimal() for value in values):
        order = np.argsort([int(value) for value in values], kind="stable")  # 2 before 10
        return np.argsort(order)[codes], tuple(values[order].tolist())
    return codes, tuple(str(value) for value in values)


def _needs_bins(name: str, column: Array) -> bool:
    """Return whether a column is a total, or has numbers with fractions."""
    has_fractions = column.dtype.kind == "f" and not bool((column == np.floor(column)).all())
    return name == TOTAL or has_fractions


def _encode_bins(name: str, column: Array, bins: int) -> tuple[Array, tuple[str, ...]]:
    """Divide a column, float64 [N], into bins with equally many samples.

    Returns:
        The bin of every sample, int64 [N], and the range of each bin as text; there are fewer bins
        where many values are equal.
    """
    ensure(bins >= 1, f"bins must be at least 1, not {bins}")
    edges = np.unique(np.quantile(column, np.linspace(0, 1, bins + 1)[1:-1]))
    bin_numbers = np.searchsorted(edges, column, side="right")
    occupied, codes = np.unique(bin_numbers, return_inverse=True)
    ranges = []
    for code in range(len(occupied)):
        members = column[codes == code]
        ranges.append(f"{name} {members.min():g}..{members.max():g}")
    return codes, tuple(ranges)
