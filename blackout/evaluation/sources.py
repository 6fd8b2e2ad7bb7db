"""The sources of image scores, and samples read from files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from blackout.data import CountData
from blackout.data.file_errors import file_error
from blackout.data.folder import read_folder
from blackout.errors import UserError
from blackout.family import Source
from blackout.files import opened


def count_images(source: Source) -> CountData:
    """The source, if it is a dataset of images of counts, grey or colour.

    Raises:
        UserError: it is something else.
    """
    if not isinstance(source, CountData):
        raise UserError(f"{source.name}: image scores need a dataset of counts, not a {type(source).__name__}")
    if len(source.shape) != 3 or source.shape[0] not in (1, 3):
        raise UserError(f"{source.name}: scores need images [1 or 3, H, W], but a sample has shape {source.shape}")
    return source


def read_samples(path: Path, data: CountData) -> Tensor:
    """Samples from a file or folder: `samples` (or the only array) of an .npz, an .npy, or a folder of images.

    Returns:
        Integer counts [n, *shape of the data].

    Raises:
        UserError: unreadable, or not integers of the dataset's shape and range.
    """
    counts = read_folder(path, data.shape) if path.is_dir() else _to_counts(_read_array(path), path)
    if tuple(counts.shape[1:]) == data.sample_shape:
        counts = counts.reshape(len(counts), *data.shape)
    if counts.ndim == 4 and tuple(counts.shape[1:]) != data.shape:
        counts = counts.permute(0, 3, 1, 2).contiguous()
    if tuple(counts.shape[1:]) != data.shape:
        raise UserError(f"{path}: samples of shape {tuple(counts.shape[1:])} cannot be compared with {data.shape}")
    low, high = int(counts.min()), int(counts.max())
    if low < 0 or high > data.max_count:
        raise UserError(f"{path}: counts {low}..{high} leave {data.name}'s range 0..{data.max_count}")
    return counts


def _read_array(path: Path) -> np.ndarray:
    try:
        with opened(path) as file:
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return loaded
            names = loaded.files
            name = "samples" if "samples" in names else names[0] if len(names) == 1 else None
            if name is None:
                raise UserError(f"{path} must hold an array named samples; it has {', '.join(names) or 'none'}")
            array: np.ndarray = loaded[name]
            return array
    except FileNotFoundError:
        raise UserError(f"no samples at {path}") from None
    except UserError:
        raise
    except Exception as error:  # NumPy's parsers raise half a dozen types on damaged files
        raise file_error(path, "cannot be read as an array", error) from None


def _to_counts(array: np.ndarray, path: Path) -> Tensor:
    if array.dtype.kind not in "iu":
        raise UserError(f"{path} holds {array.dtype}; samples are integer counts, for images uint8")
    if array.ndim < 2 or len(array) < 1:
        raise UserError(f"{path} has shape {array.shape}; samples are [n, ...]")
    return torch.from_numpy(np.ascontiguousarray(array.astype(np.int64) if array.dtype.itemsize > 1 else array))
