"""Readers of generated samples, to compare them with data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from blackout.data.count_data import CountData
from blackout.data.formats import COUNTS, load_array, read_file
from blackout.data.formats.contents import quote_names
from blackout.data.formats.reader import READERS
from blackout.data.images import read_image_folder
from blackout.errors import UserError, refuse
from blackout.safe_reading import check_size, reading

NUMPY_SUFFIXES = {".npy", ".npz"}


def read_samples(path: Path, data: CountData) -> Tensor:
    """Read samples from a file or folder.

    Args:
        path: `samples` (or the only array) of an .npz, an .npy, a folder of images, or a file of
            counts as of `dataset=counts`, such as .h5ad, .csv or .tif.
        data: data that the samples are compared with.

    Returns:
        Integer counts [n, *shape of the data].

    Raises:
        UserError: unreadable, or not integers of the data's shape and range.
    """
    # 1. Read, and bring the axes in order.
    is_folder = path.is_dir()
    counts = read_image_folder(path, data.shape) if is_folder else _read_array(path, data.features)
    if tuple(counts.shape[1:]) == data.sample_shape:
        counts = counts.reshape(len(counts), *data.shape)
    if counts.ndim == 4 and tuple(counts.shape[1:]) != data.shape:
        counts = counts.permute(0, 3, 1, 2).contiguous()  # channels last
    if tuple(counts.shape[1:]) != data.shape:
        message = f"samples must have the shape {list(data.shape)} of the data"
        raise UserError(f"{path}: {message}, not {list(counts.shape[1:])}")

    # 2. Convert the units of the data's file.
    if (data.offset, data.gain) != (0, 1):
        values = counts.long() - data.offset
        if bool((values % data.gain != 0).any()):
            units = f"{data.offset} plus multiples of {data.gain}"
            advice = "save them in the units of the data's file"
            raise UserError(f"{path}: samples must be {units}, as the data are: {advice}")
        counts = values // data.gain

    # 3. Check the range.
    low = int(counts.min())
    high = int(counts.max())
    if low < 0 or high > data.max_count:
        allowed = f"{data.name} has 0..{data.max_count}: clip them"
        raise UserError(f"{path}: counts {low}..{high} are out of range; {allowed}")
    return counts


def read_labels(path: Path, num_samples: int) -> dict[str, Tensor]:
    """Read the classes of samples from an .npz file, if it has them.

    Args:
        path: of the samples.
        num_samples: n, their number.

    Returns:
        `classes`, int64 [n]; empty for files without classes.

    Raises:
        UserError: the classes are not whole numbers of at least 0, one per sample.
    """
    if path.suffix != ".npz" or not path.is_file():
        return {}
    with reading(path, "not a readable .npz file of samples"):
        with np.load(path, allow_pickle=False) as archive:
            if "classes" not in archive.files:
                return {}
            classes = np.asarray(archive["classes"])
    is_valid = classes.dtype.kind in "iu" and classes.shape == (num_samples,)
    actual = f"{classes.dtype} {list(classes.shape)}"
    message = f"{path}: classes must be {num_samples} whole numbers, one per sample, not {actual}"
    refuse(not is_valid, message)
    refuse(classes.min() < 0, f"{path}: classes must be at least 0, not {classes.min()}")
    return {"classes": torch.from_numpy(classes.astype(np.int64))}


def _read_array(path: Path, features: Sequence[str]) -> Tensor:
    refuse(not path.exists(), f"no samples at {path}")
    if path.suffix.lower() in READERS.keys() - NUMPY_SUFFIXES:
        array = _read_table(path, features)
    else:
        array = load_array(path, "samples")
    advice = "round and save them as integers, for images uint8"
    message = f"samples must be integer counts, not {array.dtype}"
    refuse(array.dtype.kind not in "iu", f"{path}: {message}: {advice}")
    is_batch = array.ndim >= 2 and len(array) >= 1
    message = f"samples must have the shape [n, ...], n at least 1, not {list(array.shape)}"
    refuse(not is_batch, f"{path}: {message}")
    if array.dtype.itemsize > 1:
        array = array.astype(np.int64)
    return torch.from_numpy(np.ascontiguousarray(array))


def _read_table(path: Path, features: Sequence[str]) -> npt.NDArray[Any]:
    """Return the counts of a table, AnnData or TIFF file; named elements in the order of the data.

    Raises:
        UserError: an element of the data is missing, or there are no counts.
    """
    contents = read_file(path)
    if contents.is_table:
        names = list(features or contents.arrays)
        missing = [name for name in names if name not in contents.arrays]
        message = f"column {quote_names(missing[:1])} of the data is missing: add it"
        refuse(bool(missing), f"{path}: {message}")
        array = np.stack([contents.arrays[name] for name in names], 1)
    else:
        counts = contents.arrays.get(COUNTS)
        actual = quote_names(contents.arrays)
        refuse(counts is None, f"{path}: an array named 'counts' is needed, found {actual}")
        check_size(path, 8 * math.prod(counts.shape))  # type: ignore[union-attr]
        is_sparse = hasattr(counts, "toarray")
        array = np.asarray(counts.toarray() if is_sparse else counts)  # type: ignore[union-attr]
        file_features = list(contents.features)
        if features and file_features and file_features != list(features):
            missing = [name for name in features if name not in file_features]
            message = f"element {quote_names(missing[:1])} of the data is missing: add it"
            refuse(bool(missing), f"{path}: {message}")
            array = array[:, [file_features.index(name) for name in features]]
    if array.dtype.kind == "f" and bool((array == np.round(array)).all()):
        return array.astype(np.int64)  # AnnData often keeps counts as float32
    return array
