"""Missing entries of counts: masks from a file, and imputation for moments."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from blackout.data.formats import load_array
from blackout.errors import ensure

Array = npt.NDArray[Any]
FINITE = "finite"  # the mask by which entries that are NaN are missing


class Donors(NamedTuple):
    """Samples whose values replace missing entries.

    Attributes:
        counts: [M, *shape].
        observed: bool [M, *shape]; None if no entry is missing.
    """

    counts: Tensor
    observed: Tensor | None


def mask_missing(
    array: Any,
    mask: str | None,
    arrays: Mapping[str, Any],
) -> tuple[Any, Array | None]:
    """Replace missing entries by 0, and return which entries were observed.

    Args:
        array: of counts, as the file has them.
        mask: "finite", the name of another array of the file, or a file; True or not 0 where an
            entry was observed. None if all were.
        arrays: of the file by name.

    Returns:
        The counts, and bool of their shape; None if no entry is missing.

    Raises:
        ValueError: no such mask, one of another shape, or a sparse matrix.
        UserError: a file that cannot be read.
    """
    if mask is None:
        return array, None
    message = "a sparse matrix has no missing entries, since what is not stored is 0"
    ensure(not hasattr(array, "tocsr"), f"{message}: leave out dataset.mask")
    array = np.asarray(array)
    if mask != FINITE:
        observed = _read_mask(mask, arrays)
    elif array.dtype.kind == "f":
        observed = ~np.isnan(array)  # infinity is no missing entry, and is refused later
    else:
        observed = np.ones(array.shape, dtype=bool)
    if observed.shape != array.shape:
        shapes = f"{list(array.shape)}, not {list(observed.shape)}"
        raise ValueError(f"dataset.mask={mask} must have the shape of the counts, {shapes}")
    return np.where(observed, array, 0), None if observed.all() else observed


def impute_missing(
    counts: Tensor,
    observed: Tensor,
    seed: int = 0,
    donors: Donors | None = None,
) -> Tensor:
    """Replace missing entries by values of the same element in other, randomly chosen samples.

    This hot-deck imputation preserves means and variances of elements. It weakens their
    correlations where entries are missing. Imputed values are used for moments of the data only;
    training and likelihoods ignore these entries.

    Args:
        counts: [N, *shape].
        observed: bool [N, *shape].
        seed: of the random choice.
        donors: other samples from which values are taken; None takes them from the same ones. A few
            validation samples need others.

    Returns:
        Counts [N, *shape].

    Raises:
        ValueError: an element that was never observed.

    References: Andridge and Little 2010.

    Example:
        >>> counts = torch.tensor([[7, 1], [0, 2]])
        >>> impute_missing(counts, torch.tensor([[True, True], [False, True]])).tolist()
        [[7, 1], [7, 2]]
    """
    imputed = counts.flatten(1).clone()
    observed = observed.flatten(1)
    donor_counts = imputed
    donor_observed = observed
    if donors is not None:
        donor_counts = donors.counts.flatten(1)
        if donors.observed is None:
            donor_observed = torch.ones_like(donor_counts, dtype=torch.bool)
        else:
            donor_observed = donors.observed.flatten(1)

    generator = torch.Generator().manual_seed(seed)
    for element in torch.nonzero(~observed.all(0)).flatten().tolist():
        is_missing = ~observed[:, element]
        values = donor_counts[donor_observed[:, element], element]
        message = f"element {element} is missing in every sample"
        ensure(len(values), f"{message}: leave it out, for vectors by dataset.exclude=[{element}]")
        choice = torch.randint(len(values), (int(is_missing.sum()),), generator=generator)
        imputed[is_missing, element] = values[choice]
    return imputed.view(counts.shape)


def _read_mask(mask: str, arrays: Mapping[str, Any]) -> Array:
    """Read a mask, bool, from an array of the file, or from another file."""
    if mask in arrays:
        stored = arrays[mask]
        array = np.asarray(stored.toarray() if hasattr(stored, "toarray") else stored)
    else:
        file = Path(mask).expanduser()
        allowed = "neither 'finite', nor an array of the file, nor a file"
        ensure(file.is_file(), f"mask={mask} is {allowed}")
        array = load_array(file)
    is_number = array.dtype.kind in "biuf"
    if not is_number or not bool((np.isfinite(array) & (array == np.floor(array))).all()):
        allowed = "booleans or whole numbers, True or not 0 where an entry was observed"
        raise ValueError(f"dataset.mask={mask} must hold {allowed}, not {array.dtype}")
    return array.astype(bool)
