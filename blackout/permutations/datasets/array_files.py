"""Arrays in files of the user: reading them, and dividing their rows into splits."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from blackout.data.findings import Note
from blackout.data.formats import load_array, load_arrays
from blackout.data.splits import (
    DEFAULT_HOLDOUT,
    SplitRows,
    split_samples,
    take_validation,
    validation_size,
)
from blackout.errors import refuse
from blackout.protocols import Split


def split_at_random(
    values: Tensor, validation: float, holdout: float, seed: int
) -> dict[Split, Tensor]:
    """Divide rows [N, ...] at random into those of the splits, see `split_samples`."""
    return split_rows(values, split_samples(len(values), validation, holdout, seed))


def split_rows(values: Tensor, rows: SplitRows) -> dict[Split, Tensor]:
    """Return the rows [N, ...] of each split."""
    return {"train": values[rows.train], "val": values[rows.val], "test": values[rows.test]}


def read_samples(
    file: Path, name: str, validation: float, holdout: float, seed: int
) -> tuple[Tensor, SplitRows]:
    """Read all samples of an .npy or .npz file, and choose those of each split.

    Splits of an .npz, `train`, `test` and perhaps `val`, are kept; without `val` validation samples
    are taken from `train`. Any other array is divided at random.

    Args:
        file: the file.
        name: array of an .npz that is divided.
        validation: share or number of the samples for validation; 0 for none.
        holdout: share of the samples for testing.
        seed: of the choice.

    Returns:
        Samples [N, ...] and the rows of each split.

    Raises:
        UserError: a missing file or array, a split without samples or of another shape, or values
            that are no finite numbers.
        ValueError: shares out of range.
    """
    loaded = load_arrays(file)
    arrays = loaded if isinstance(loaded, dict) else {}
    # 1. a single array
    if not {"train", "test"} & arrays.keys():
        if len(arrays) > 1:
            warn_of_unused_arrays(arrays, {name})
        values = finite_numbers(load_array(file, name), file)
        num_samples = max(1, len(values)) if values.ndim else 1
        return values, split_samples(num_samples, validation, holdout, seed)
    # 2. an array for each split
    refuse(
        not {"train", "test"} <= arrays.keys(),
        f"{file}: `train` and `test` must come together: add the other one, or store a single "
        f"array `{name}` to be divided",
    )
    names = [split for split in ("train", "val", "test") if split in arrays]
    message = f"{file}: dataset.holdout={holdout} is not used: the file has its own test data"
    refuse(holdout != DEFAULT_HOLDOUT, message)
    warn_of_unused_arrays(arrays, set(names))
    parts = [finite_numbers(arrays[split], file) for split in names]
    shapes = [list(part.shape) for part in parts]
    same_shape = all(len(shape) and shape[0] and shape[1:] == shapes[0][1:] for shape in shapes)
    refuse(
        not same_shape, f"{file}: train, val and test must be [N, ...] of one shape, not {shapes}"
    )
    sizes = [len(part) for part in parts]
    rows = list(torch.arange(sum(sizes)).split(sizes))
    if "val" in arrays:
        return torch.cat(parts), SplitRows(*rows)
    # 3. validation samples from the training samples
    train, test = rows
    num_validation = validation_size(validation, len(train))
    validation_rows = train[:0]
    if num_validation:
        train, validation_rows = take_validation(len(train), num_validation, seed)
    return torch.cat(parts), SplitRows(train, validation_rows, test)


def warn_of_unused_arrays(arrays: Mapping[str, np.ndarray], used: set[str]) -> None:
    """Warn about arrays of a file that are not used.

    Warns:
        Note: their names.
    """
    unused = sorted(arrays.keys() - used)
    if unused:
        warnings.warn(Note(f"not used of this file: {', '.join(unused[:10])}"), stacklevel=3)


def to_float32(values: Tensor, file: Path) -> Tensor:
    """Return numbers as float32.

    Raises:
        UserError: whole numbers that would lose digits.
    """
    is_changed = not values.is_floating_point() and bool((values.float().long() != values).any())
    message = "holds whole numbers above 16,777,216, which lose digits: subtract a number from them"
    refuse(is_changed, f"{file}: {message}")
    return values.float()


def finite_numbers(array: np.ndarray, file: Path) -> Tensor:
    """Return an array of a file as float64 or int64, of the same shape.

    Raises:
        UserError: values that are no numbers, or not finite.
    """
    refuse(array.dtype.kind not in "iufb", f"{file}: arrays must hold numbers, not {array.dtype}")
    refuse(
        not np.isfinite(array).all(),
        f"{file}: holds numbers that are not finite: replace or leave out NaN and infinity",
    )
    return torch.from_numpy(array.astype(np.float64 if array.dtype.kind == "f" else np.int64))
