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

from blackout.counts import LARGEST_COUNT, count_dtype
from blackout.data.arrays import CountData
from blackout.data.file_errors import file_error
from blackout.data.labels import TOTAL, classes, group_split, label_file
from blackout.data.splits import held_out_split
from blackout.data.stores import COUNTS, Store, blocks, read_store
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
) -> CountData:
    """Counts from a file: [N, C, H, W], [N, H, W] (one channel) or [N, D]; see `stores.read_store` for its formats.

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
            return _made(file.stem, _given_split(store.arrays), max_count, store)
        return _split_here(file, store, wanted, group, (holdout, seed, bins), max_count)
    except ValueError as error:
        raise UserError(f"{file}: {error}") from error


def _made(
    name: str, parts: tuple[Tensor, Tensor, Tensor | None, Tensor | None], max_count: int | None, store: Store,
    words: tuple[str, ...] = (),
) -> CountData:  # fmt: skip
    train, test = parts[:2]
    if max_count is None:
        max_count = int(max(train.max(), test.max())) if train.numel() and test.numel() else 1
        if max_count == 0:
            raise ValueError("all counts are zero: there is nothing to learn")
    data = CountData(name, train, test, max_count, *parts[2:], class_names=words, features=store.features)
    _warn_of_features(data)
    return data


def _given_split(arrays: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    if "train" not in arrays or "test" not in arrays:
        raise ValueError(f"'train' and 'test' must come together, found {_names(arrays)}")
    return (
        _to_counts("train", arrays["train"]),
        _to_counts("test", arrays["test"]),
        _to_labels("train_labels", arrays.get("train_labels")),
        _to_labels("test_labels", arrays.get("test_labels")),
    )


def _split_here(
    file: Path, store: Store, wanted: list[str], group: str | None, how: tuple[float, int, int], max_count: int | None
) -> CountData:
    name, matrix, columns, features = _divided(store, {*wanted, *([group] if group else ())})
    data = _to_counts(name, matrix)
    columns = {TOTAL: data.flatten(1).sum(1, dtype=torch.int64).numpy(), **columns}
    codes, words = _classes(file, wanted, columns, how[2])
    if codes is not None and codes.shape != data.shape[:1]:
        raise ValueError(f"one label per sample is needed, [{len(data)}], got {list(codes.shape)}")
    if group is not None:
        if group not in columns:
            raise ValueError(f"there is no column {group!r}, found {', '.join(map(repr, columns))}")
        train, test = map(torch.from_numpy, group_split(columns[group], *how[:2]))
    else:
        train, test = held_out_split(len(data), how[0], how[1], codes)
    of_split = (None, None) if codes is None else (codes[train], codes[test])
    described = Store({}, features or store.features)
    return _made(file.stem, (data[train], data[test], *of_split), max_count, described, words)


def _divided(store: Store, asked: set[str]) -> tuple[str, Any, dict[str, Array], tuple[str, ...]]:
    """(name, counts, columns of observations, names of features) of a store."""
    arrays = store.arrays
    if store.tabular:
        head = [name for name, column in arrays.items() if name not in asked and column.dtype.kind in "iufb"]
        if not head:
            raise ValueError(f"no column of numbers is left for the counts, found {_names(arrays)}")
        columns = {name: column for name, column in arrays.items() if name not in head}
        return COUNTS, np.stack([arrays[name] for name in head], axis=1), columns, tuple(head)
    named = [name for name in arrays if name != "labels" and name not in asked]
    candidates = [COUNTS] if COUNTS in arrays else named
    if len(candidates) != 1:
        raise ValueError(f"an array named 'counts', or 'train' and 'test', is needed, found {_names(arrays)}")
    return candidates[0], arrays[candidates[0]], {k: v for k, v in arrays.items() if k != candidates[0]}, ()


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
            try:
                columns[name] = label_file(Path(name).expanduser())
            except (OSError, ValueError) as error:
                raise file_error(Path(name), "not a readable file of labels", error) from error
    codes, words = classes(wanted, columns, bins)
    return torch.from_numpy(codes), words


def _names(arrays: dict[str, Any]) -> str:
    return ", ".join(map(repr, arrays)) or "nothing"


def _to_counts(name: str, array: Any) -> Tensor:
    """An array or sparse matrix as integer counts [N, C, H, W] or [N, D], refused where that would change a value."""
    whole = _dense(name, array) if hasattr(array, "tocsr") else _to_integers(name, array)
    if whole.ndim not in (2, 3, 4):
        raise ValueError(f"{name} must be [N, C, H, W], [N, H, W] or [N, D], got {list(whole.shape)}")
    if whole.ndim == 4 and whole.shape[-1] in (1, 3, 4) and whole.shape[1] == whole.shape[2] > 4:
        advice = "read as [N, C, H, W]: if its last axis is colour, save numpy.moveaxis(array, -1, 1) instead"
        warnings.warn(f"{name} has the shape {list(whole.shape)}, {advice}", stacklevel=2)
    return whole[:, None] if whole.ndim == 3 else whole


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


def _to_labels(name: str, array: Array | None) -> Tensor | None:
    if array is None:
        return None
    if array.dtype.kind not in "iu":
        raise ValueError(f"{name} must hold whole numbers, got {array.dtype}")
    return torch.from_numpy(array.astype(np.int64))


def _warn_of_features(data: CountData) -> None:
    """Warn of elements that are constant, or equal to another one, in vectors."""
    if len(data.shape) != 1 or data.shape[0] > _MOST_COMPARED:
        return
    rows = data.train
    constant = torch.nonzero((rows == rows[:1]).all(0)).flatten()
    seen: dict[bytes, int] = {}
    pairs = [(seen.setdefault(rows[:, k].numpy().tobytes(), k), k) for k in range(data.shape[0])]
    constants = set(constant.tolist())
    equal = [(a, b) for a, b in pairs if a != b and b not in constants]
    for what, which in (("constant", constant.tolist()), ("equal to another", [b for _, b in equal])):
        if which and len(rows) > 1:
            few = ", ".join(data.features[k] if data.features else str(k) for k in which[:5])
            more = f" and {len(which) - 5} more" if len(which) > 5 else ""
            warnings.warn(f"{data.name}: elements that are {what} in training: {few}{more}", stacklevel=3)
