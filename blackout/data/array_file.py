"""A user's own counts: arrays saved by NumPy."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from blackout.counts import LARGEST_COUNT
from blackout.data.arrays import CountData
from blackout.data.file_errors import file_error
from blackout.data.splits import held_out_split
from blackout.errors import UserError

Array = npt.NDArray[Any]


def counts(
    path: str | os.PathLike[str], max_count: int | None = None, holdout: float = 0.1, seed: int = 0
) -> CountData:
    """Counts from an `.npy` file or an `.npz` archive: [N, C, H, W], [N, H, W] (one channel) or [N, D].

    An archive holds either `train` and `test`, optionally with `train_labels` and `test_labels`; or `counts`, or a
    single array of any name, optionally with `labels`, which is split here (by class, if there are labels). Counts may
    be integers of any type, booleans, or floating-point whole numbers. Pickled objects are never loaded.

    Args:
        path: the file.
        max_count: largest count there can be; None takes the largest there is.
        holdout: share of the samples to hold out, where the file has no split.
        seed: seed of the split.

    Raises:
        UserError: a file that is missing, damaged or not of this form; counts that are negative, not whole, or above
            `max_count`. The message names the file, the value and its index.
    """
    file = Path(path).expanduser()
    arrays = _read(file)
    try:
        has_split = "train" in arrays or "test" in arrays
        parts = _given_split(arrays) if has_split else _own_split(arrays, holdout, seed)
        train, test = parts[:2]
        if max_count is None:
            max_count = int(max(train.max(), test.max())) if train.numel() and test.numel() else 1
            if max_count == 0:
                raise ValueError("all counts are zero: there is nothing to learn")
        return CountData(file.stem, train, test, max_count, *parts[2:])
    except ValueError as error:
        raise UserError(f"{file}: {error}") from error


def _read(file: Path) -> dict[str, Array]:
    if not file.is_file():
        raise UserError(f"{file}: {'not a file' if file.exists() else 'no such file'}")
    try:
        loaded = np.load(file, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return {"counts": loaded}
        with loaded:
            return {name: loaded[name] for name in loaded.files}
    except Exception as error:  # NumPy's parsers raise half a dozen types on damaged files
        raise file_error(file, "not a readable .npy or .npz file of numbers", error) from error


def _given_split(arrays: dict[str, Array]) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    if "train" not in arrays or "test" not in arrays:
        raise ValueError(f"'train' and 'test' must come together, found {_names(arrays)}")
    return (
        _to_counts("train", arrays["train"]),
        _to_counts("test", arrays["test"]),
        _to_labels("train_labels", arrays.get("train_labels")),
        _to_labels("test_labels", arrays.get("test_labels")),
    )


def _own_split(
    arrays: dict[str, Array], holdout: float, seed: int
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    candidates = ["counts"] if "counts" in arrays else [name for name in arrays if name != "labels"]
    if len(candidates) != 1:
        raise ValueError(f"an array named 'counts', or 'train' and 'test', is needed, found {_names(arrays)}")
    data = _to_counts(candidates[0], arrays[candidates[0]])
    labels = _to_labels("labels", arrays.get("labels"))
    if labels is not None and labels.shape != data.shape[:1]:
        raise ValueError(f"one label per sample is needed, [{len(data)}], got {list(labels.shape)}")
    train, test = held_out_split(len(data), holdout, seed, labels)
    if labels is None:
        return data[train], data[test], None, None
    return data[train], data[test], labels[train], labels[test]


def _names(arrays: dict[str, Array]) -> str:
    return ", ".join(map(repr, arrays)) or "nothing"


def _to_counts(name: str, array: Array) -> Tensor:
    """An array as integer counts [N, C, H, W] or [N, D], refused where that would change a value."""
    whole = _to_integers(name, array)
    if whole.ndim not in (2, 3, 4):
        raise ValueError(f"{name} must be [N, C, H, W], [N, H, W] or [N, D], got {list(whole.shape)}")
    if whole.ndim == 4 and whole.shape[-1] in (1, 3, 4) and whole.shape[1] == whole.shape[2] > 4:
        advice = "read as [N, C, H, W]: if its last axis is colour, save numpy.moveaxis(array, -1, 1) instead"
        warnings.warn(f"{name} has the shape {list(whole.shape)}, {advice}", stacklevel=2)
    return whole[:, None] if whole.ndim == 3 else whole


def _to_integers(name: str, array: Array) -> Tensor:
    if array.dtype.kind == "f":
        array = array.astype(np.float64)  # half precision cannot even be compared with the bounds below
        fractional = ~np.isfinite(array) | (array != np.floor(array))
        _refuse_first(name, array, fractional, "counts must be whole numbers")
    elif array.dtype.kind not in "iub":
        raise ValueError(f"{name} must hold whole numbers, got {array.dtype}")
    if array.dtype.kind in "if":
        _refuse_first(name, array, array < 0, "counts must not be negative")
    _refuse_first(name, array, array > LARGEST_COUNT, f"counts must be at most {LARGEST_COUNT}")
    # torch has neither NumPy's wider unsigned types nor other byte orders
    return torch.from_numpy(array.astype(np.uint8 if array.dtype.itemsize == 1 else np.int64))


def _refuse_first(name: str, array: Array, bad: npt.NDArray[np.bool_], rule: str) -> None:
    if bad.any():
        index = np.unravel_index(int(bad.argmax()), array.shape)
        raise ValueError(f"{name}: {rule}, got {array[index]} at index {[int(i) for i in index]}")


def _to_labels(name: str, array: Array | None) -> Tensor | None:
    if array is None:
        return None
    if array.dtype.kind not in "iu":
        raise ValueError(f"{name} must hold whole numbers, got {array.dtype}")
    return torch.from_numpy(array.astype(np.int64))
