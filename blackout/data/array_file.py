"""A user's own counts, from a file."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from blackout.data.arrays import CountData
from blackout.data.labels import TOTAL, classes, group_split, label_file
from blackout.data.splits import held_out_split
from blackout.data.stores import COUNTS, Store, read_store
from blackout.data.whole import to_counts
from blackout.errors import UserError

Array = npt.NDArray[Any]
_MOST_COMPARED = 20_000
"""Columns among which duplicates are looked for."""


def counts(
    path: str | os.PathLike[str],
    max_count: int | None = None,
    holdout: float = 0.1,
    seed: int = 0,
    layer: str | None = None,
    labels: str | Sequence[str] | None = None,
    bins: int = 10,
    group: str | None = None,
    series: bool | None = None,
) -> CountData:
    """Counts from a file: [N, D], [N, C, L], [N, H, W] (one channel), [N, C, H, W] or [N, C, D, H, W].

    See `stores.read_store` for its formats.

    A file holds either `train` and `test`, optionally with `train_labels` and `test_labels`; or `counts`, or a single
    array of any name, optionally with `labels`, which is split here (by class, if there are labels). In a table (.csv,
    .parquet) every column of numbers that is not asked for by name is an element. Counts may be integers of any type,
    booleans, or floating-point whole numbers. Pickled objects are never loaded.

    Args:
        path: the file.
        max_count: largest count there can be; None takes the largest there is.
        holdout: share of the samples to hold out, where the file has no split.
        seed: seed of the split.
        layer: which array of an .h5ad, .zarr or HDF5 file holds the counts.
        labels: column(s) or a file with the class of every sample, "total" for the total count; see `labels.classes`.
        bins: parts into which a column of numbers is divided to make classes.
        group: column of what must not be divided between the splits: a donor, an animal.
        series: whether an array of three axes is [N, C, L]; None where L is at least four times as long, else [N, H, W].

    Raises:
        UserError: a file that is missing, damaged or not of this form; counts that are negative, not whole, or above
            `max_count`; labels of another number. The message names the file, the value and its index.
    """
    file = Path(path).expanduser()
    store = read_store(file, layer)
    wanted = [labels] if isinstance(labels, str) else list(labels or ())
    try:
        if not store.tabular and ("train" in store.arrays or "test" in store.arrays):
            if wanted or group:
                raise ValueError("'train' and 'test' are given: labels and group would be for one array to be split")
            return _made(file.stem, _given_split(store.arrays, series), max_count, ((), store.features))
        return _split_here(file, store, wanted, group, (holdout, seed, bins, series), max_count)
    except ValueError as error:
        raise UserError(f"{file}: {error}") from error


def _made(
    name: str,
    parts: tuple[Tensor, Tensor, Tensor | None, Tensor | None],
    max_count: int | None,
    named: tuple[tuple[str, ...], tuple[str, ...]],
) -> CountData:
    """The dataset of the four parts, with the names of classes and features."""
    train, test = parts[:2]
    if max_count is None:
        max_count = int(max(train.max(), test.max())) if train.numel() and test.numel() else 1
        if max_count == 0:
            raise ValueError("all counts are zero: there is nothing to learn")
    data = CountData(name, train, test, max_count, *parts[2:], class_names=named[0], features=named[1])
    _warn_of_features(data)
    return data


def _given_split(arrays: dict[str, Any], series: bool | None) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    if "train" not in arrays or "test" not in arrays:
        raise ValueError(f"'train' and 'test' must come together, found {_names(arrays)}")
    return (
        to_counts("train", arrays["train"], series),
        to_counts("test", arrays["test"], series),
        _to_labels("train_labels", arrays.get("train_labels")),
        _to_labels("test_labels", arrays.get("test_labels")),
    )


def _split_here(
    file: Path, store: Store, wanted: list[str], group: str | None, how: tuple[float, int, int, bool | None], max_count: int | None
) -> CountData:
    name, matrix, columns, features = _divided(store, {*wanted, *([group] if group else ())})
    data = to_counts(name, matrix, how[3])
    columns = {TOTAL: data.flatten(1).sum(1, dtype=torch.int64).numpy(), **columns}
    codes, words = _classes(file, wanted, columns, how[2])
    if codes is not None and codes.shape != data.shape[:1]:
        raise ValueError(f"one label per sample is needed, [{len(data)}], got {list(codes.shape)}")
    if group is None:
        train, test = held_out_split(len(data), how[0], how[1], codes)
    elif group in columns:
        train, test = map(torch.from_numpy, group_split(columns[group], *how[:2]))
    else:
        raise ValueError(f"there is no column {group!r}, found {', '.join(map(repr, columns))}")
    of_split = (None, None) if codes is None else (codes[train], codes[test])
    return _made(file.stem, (data[train], data[test], *of_split), max_count, (words, features))


def _divided(store: Store, asked: set[str]) -> tuple[str, Any, dict[str, Array], tuple[str, ...]]:
    """(name, counts, columns of observations, names of features) of a store."""
    if store.tabular:
        return _of_table(store.arrays, asked)
    arrays = store.arrays
    candidates = [COUNTS] if COUNTS in arrays else sorted(arrays.keys() - {"labels", *asked})
    if len(candidates) != 1:
        raise ValueError(f"an array named 'counts', or 'train' and 'test', is needed, found {_names(arrays)}")
    columns = {name: array for name, array in arrays.items() if name != candidates[0]}
    return candidates[0], arrays[candidates[0]], columns, store.features


def _of_table(arrays: dict[str, Array], asked: set[str]) -> tuple[str, Array, dict[str, Array], tuple[str, ...]]:
    head = [name for name, column in arrays.items() if name not in asked and column.dtype.kind in "iufb"]
    if not head:
        raise ValueError(f"no column of numbers is left for the counts, found {_names(arrays)}")
    columns = {name: column for name, column in arrays.items() if name not in head}
    return COUNTS, np.stack([arrays[name] for name in head], axis=1), columns, tuple(head)


def _classes(
    file: Path, wanted: list[str], columns: dict[str, Array], bins: int
) -> tuple[Tensor | None, tuple[str, ...]]:
    """The class of every sample and the names of classes: what was asked for, else `labels`, else none."""
    if not wanted:
        given = columns.get("labels")
        if given is not None and given.dtype.kind in "US":
            codes, words = classes(["labels"], columns, bins)
            return torch.from_numpy(codes), words
        return _to_labels("labels", given), ()
    for name in wanted:
        if name not in columns and Path(name).expanduser().is_file():
            columns[name] = label_file(Path(name).expanduser())
    codes, words = classes(wanted, columns, bins)
    return torch.from_numpy(codes), words


def _names(arrays: dict[str, Any]) -> str:
    return ", ".join(map(repr, arrays)) or "nothing"


def _to_labels(name: str, array: Array | None) -> Tensor | None:
    if array is None:
        return None
    if array.dtype.kind not in "iu":
        raise ValueError(f"{name} must hold whole numbers, got {array.dtype}")
    return torch.from_numpy(array.astype(np.int64))


def _warn_of_features(data: CountData) -> None:
    """Warn of elements that are constant, or equal to another one, in vectors."""
    if len(data.shape) != 1 or data.shape[0] > _MOST_COMPARED or len(data.train) < 2:
        return
    constant = (data.train == data.train[:1]).all(0)
    seen: set[bytes] = set()
    equal = torch.zeros_like(constant)
    for k in torch.nonzero(~constant).flatten().tolist():
        column = data.train[:, k].numpy().tobytes()
        equal[k] = column in seen
        seen.add(column)
    for what, marked in (("constant", constant), ("equal to another", equal)):
        which = torch.nonzero(marked).flatten().tolist()
        if which:
            few = ", ".join(data.features[k] if data.features else str(k) for k in which[:5])
            more = f" and {len(which) - 5} more" if len(which) > 5 else ""
            warnings.warn(f"{data.name}: elements that are {what} in training: {few}{more}", stacklevel=3)
