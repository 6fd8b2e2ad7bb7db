"""Readers of generated samples, to compare them with data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from blackout.data.count_data import CountData
from blackout.data.formats import load_array
from blackout.data.images import read_image_folder
from blackout.errors import UserError, refuse
from blackout.safe_reading import reading


def read_samples(path: Path, data: CountData) -> Tensor:
    """Read samples from a file or folder.

    Args:
        path: `samples` (or the only array) of an .npz, an .npy, or a folder of images.
        data: data that the samples are compared with.

    Returns:
        Integer counts [n, *shape of the data].

    Raises:
        UserError: unreadable, or not integers of the data's shape and range.
    """
    # 1. Read, and bring the axes in order.
    counts = read_image_folder(path, data.shape) if path.is_dir() else _read_array(path)
    if tuple(counts.shape[1:]) == data.sample_shape:
        counts = counts.reshape(len(counts), *data.shape)
    if counts.ndim == 4 and tuple(counts.shape[1:]) != data.shape:
        counts = counts.permute(0, 3, 1, 2).contiguous()  # channels last
    if tuple(counts.shape[1:]) != data.shape:
        shapes = f"samples of shape {tuple(counts.shape[1:])} cannot be compared with {data.shape}"
        raise UserError(f"{path}: {shapes}")

    # 2. Convert the units of the data's file.
    if (data.offset, data.gain) != (0, 1):
        values = counts.long() - data.offset
        if bool((values % data.gain != 0).any()):
            units = f"{data.offset} plus multiples of {data.gain}"
            raise UserError(f"{path}: samples must be {units}, as the data are")
        counts = values // data.gain

    # 3. Check the range.
    low = int(counts.min())
    high = int(counts.max())
    if low < 0 or high > data.max_count:
        allowed = f"{data.name} has 0..{data.max_count}"
        raise UserError(f"{path}: counts {low}..{high} are out of range; {allowed}")
    return counts


def read_labels(path: Path) -> dict[str, Tensor]:
    """Return `classes`, int64 [n], where an .npz has the classes of its samples."""
    if path.suffix != ".npz" or not path.is_file():
        return {}
    with reading(path, "not a readable .npz file of samples"):
        with np.load(path, allow_pickle=False) as archive:
            if "classes" not in archive.files:
                return {}
            classes = np.asarray(archive["classes"]).astype(np.int64)
    return {"classes": torch.from_numpy(classes)}


def _read_array(path: Path) -> Tensor:
    refuse(not path.exists(), f"no samples at {path}")
    array = load_array(path, "samples")
    allowed = "samples must be integer counts, for images uint8"
    refuse(array.dtype.kind not in "iu", f"{path} holds {array.dtype}; {allowed}")
    is_batch = array.ndim >= 2 and len(array) >= 1
    refuse(not is_batch, f"{path} has shape {array.shape}; samples must be [n, ...]")
    if array.dtype.itemsize > 1:
        array = array.astype(np.int64)
    return torch.from_numpy(np.ascontiguousarray(array))
