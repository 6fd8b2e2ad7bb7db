"""Entries that nobody measured: where they are, and what stands in their place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from blackout.files import load_array

Array = npt.NDArray[Any]
FINITE = "finite"
"""The mask by which entries that are NaN are missing."""


def without_missing(array: Any, mask: str | None, arrays: dict[str, Any]) -> tuple[Any, Array | None]:
    """Counts with 0 where entries are missing, and where there are any, booleans that are True where one was seen.

    Args:
        array: of counts, as the file has them.
        mask: "finite", the name of another array of the file, or a file; True or not 0 where an entry was seen. None if
            all were.
        arrays: of the file by name.

    Raises:
        ValueError: no such mask, of another shape, or NaN in a sparse matrix.
        UserError: a file that cannot be read.
    """
    if mask is None:
        return array, None
    if hasattr(array, "tocsr"):
        raise ValueError("a sparse matrix has no missing entries: what is not stored is 0")
    array = np.asarray(array)
    if mask == FINITE:
        seen = np.isfinite(array) if array.dtype.kind == "f" else np.ones(array.shape, dtype=bool)
    else:
        seen = _mask(mask, arrays)
    if seen.shape != array.shape:
        raise ValueError(f"the mask must be of the counts' shape {list(array.shape)}, got {list(seen.shape)}")
    return np.where(seen, array, 0), None if seen.all() else seen


def _mask(mask: str, arrays: dict[str, Any]) -> Array:
    if mask in arrays:
        stored = arrays[mask]
        return _booleans(np.asarray(stored.toarray() if hasattr(stored, "toarray") else stored))
    file = Path(mask).expanduser()
    if not file.is_file():
        raise ValueError(f"mask={mask} is neither 'finite', nor an array of the file, nor a file")
    return _booleans(load_array(file))


def _booleans(array: Array) -> Array:
    if array.dtype.kind not in "biuf" or not bool((np.isfinite(array) & (array == np.floor(array))).all()):
        raise ValueError(f"a mask holds booleans or whole numbers, not 0 where an entry was seen; got {array.dtype}")
    return array.astype(bool)


def filled(counts: Tensor, seen: Tensor, seed: int = 0) -> Tensor:
    """Counts whose missing entries are values of the same element in other samples, at random.

    This is a hot deck [Andridge 2010]. Means and variances of elements are then right; what elements say of each other
    is weakened where entries are missing, which is for moments alone: training and likelihoods leave these entries out.

    Args:
        counts: [N, *shape].
        seen: bool [N, *shape].
        seed: of the choice.

    Raises:
        ValueError: an element that was never seen.
    """
    flat, known = counts.flatten(1).clone(), seen.flatten(1)
    generator = torch.Generator().manual_seed(seed)
    for element in torch.nonzero(~known.all(0)).flatten().tolist():
        here = known[:, element]
        values = flat[here, element]
        if not len(values):
            raise ValueError(f"element {element} is missing in every sample")
        chosen = torch.randint(len(values), (int((~here).sum()),), generator=generator)
        flat[~here, element] = values[chosen]
    return flat.view(counts.shape)
