"""Files of ratings."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blackout.errors import UserError

_COLUMNS = ("userId", "movieId", "rating")
LARGEST_RATING = 30.0
"""Above it gains of 2^rating - 1 say nothing but which item is the best."""


class Ratings(NamedTuple):
    """Who rated what how: int64 [N], int64 [N], float32 [N]."""

    user: Tensor
    item: Tensor
    rating: Tensor


def read_ratings(file: Path) -> Ratings:
    """A .csv with a header that names userId, movieId and rating; other columns are not looked at.

    Raises:
        UserError: no such file, a missing column, or what is no number, NaN, or no rating from 0 to 30.
    """
    columns = _columns(file)
    try:
        table = np.loadtxt(file, delimiter=",", skiprows=1, usecols=columns, dtype=np.float64, ndmin=2)
    except (ValueError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: {str(error).splitlines()[0]}") from None
    if not len(table):
        raise UserError(f"{file}: holds no ratings")
    _check(file, table)
    whole = [torch.from_numpy(values.astype(np.int64)) for values in table.T[:2]]
    return Ratings(whole[0], whole[1], torch.from_numpy(table[:, 2].astype(np.float32)))


def _columns(file: Path) -> list[int]:
    """Where the three columns are."""
    if not file.is_file():
        raise UserError(f"{file}: {'not a file' if file.exists() else 'no such file'}")
    try:
        with file.open(encoding="utf-8") as lines:
            header = [name.strip().strip('"') for name in lines.readline().split(",")]
    except UnicodeDecodeError:
        raise UserError(f"{file}: not a text file") from None
    if missing := [name for name in _COLUMNS if name not in header]:
        raise UserError(f"{file}: the column {missing[0]} is missing; found {', '.join(header)[:100]}")
    return [header.index(name) for name in _COLUMNS]


def _check(file: Path, table: NDArray[np.float64]) -> None:
    """Refuse rows [N, 3] that are no ratings."""
    finite = np.isfinite(table).all(axis=1)
    if not finite.all():
        raise UserError(f"{file}: row {int(finite.argmin()) + 1} holds NaN or infinity")
    rating = table[:, 2]
    if rating.min() < 0 or rating.max() > LARGEST_RATING:
        raise UserError(f"{file}: ratings must be from 0 to {LARGEST_RATING:.0f}: {rating.min():g} to {rating.max():g}")
    if (table[:, :2] != np.floor(table[:, :2])).any():
        raise UserError(f"{file}: userId and movieId must be whole numbers")
