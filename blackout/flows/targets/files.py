"""Arrays of the user's, from files."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blackout.errors import UserError, summary


def read_arrays(path: str | Path, where: str = "target.path") -> dict[str, NDArray[Any]]:
    """The arrays of an .npz.

    Raises:
        UserError: it does not exist, is no .npz, is damaged, or holds objects.
    """
    if not Path(path).is_file():
        raise UserError(f"{where}: {path} does not exist")
    if not zipfile.is_zipfile(path):
        raise UserError(f"{where}: {path} is no .npz of arrays")
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except Exception as error:  # NumPy's parsers raise half a dozen types on damaged files
        raise UserError(f"{where}: {path} is no .npz of arrays ({summary(error)})") from None
