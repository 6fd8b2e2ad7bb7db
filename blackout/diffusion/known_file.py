"""The elements that are given when images are to be completed, from a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from blackout.counts import count_dtype
from blackout.data.file_errors import file_error
from blackout.diffusion.inpainting import KnownElements
from blackout.errors import UserError
from blackout.files import opened


def read_known(path: Path, sample_shape: tuple[int, ...], max_count: int, num_samples: int) -> KnownElements:
    """Read `x0` and `mask` from an .npz: arrays of one sample or of num_samples, images channels last.

    Raises:
        UserError: not such a file, or not for this model.
    """
    try:
        with opened(path) as content, np.load(content, allow_pickle=False) as file:
            x0, mask = file["x0"], file["mask"]
    except Exception as error:  # NumPy's parsers raise half a dozen types on damaged files
        raise file_error(path, "inpaint= needs an .npz with the arrays x0 and mask", error) from None
    if not np.issubdtype(x0.dtype, np.integer) or mask.dtype != bool:
        raise UserError(f"inpaint={path}: x0 must be integers and mask booleans, not {x0.dtype} and {mask.dtype}")
    if x0.size and not 0 <= x0.min() <= x0.max() <= max_count:
        raise UserError(f"inpaint={path}: x0 must be counts in 0..{max_count}, not {x0.min()}..{x0.max()}")
    counts, known = (_channels_first(array, sample_shape) for array in (x0.astype(np.int64), mask))
    for name, array in (("x0", counts), ("mask", known)):
        if tuple(array.shape[1:]) != sample_shape or len(array) not in (1, num_samples):
            raise UserError(
                f"inpaint={path}: {name} must be one sample or {num_samples} of the model's shape, channels last"
            )
    rows = max(len(counts), len(known))
    return KnownElements(
        counts.to(count_dtype(max_count)).expand(rows, *sample_shape), known.expand(rows, *sample_shape)
    )


def _channels_first(array: np.ndarray, shape: tuple[int, ...]) -> Tensor:
    tensor = torch.from_numpy(array)
    if tensor.ndim == len(shape):
        tensor = tensor[None]
    return tensor.permute(0, 3, 1, 2) if tensor.ndim == 4 else tensor
