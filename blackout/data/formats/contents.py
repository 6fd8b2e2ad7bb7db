"""What a reader finds in a file: named arrays, and text."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from blackout.errors import UserError

Array = npt.NDArray[Any]
COUNTS = "counts"  # name of the array that holds the counts
MAX_TEXT_LENGTH = 1000  # characters of a name, a label or any other text in a file of counts
LIBRARY_BYTES = 1 << 30  # memory that a library may take besides the arrays it returns
SCIENCE_EXTRA = 'pip install "blackout-diffusion[science]"'


@dataclass(frozen=True)
class FileContents:
    """Arrays of a file.

    Attributes:
        arrays: by name; counts may be a SciPy sparse matrix, or stay on disk until rows are read
            (`LazyArray`, a memory map). Columns of observations are one-dimensional.
        features: names of the columns of `counts`, where the file has them.
        is_table: whether the arrays are the columns of a table, most of them elements of the
            counts.
        layers: of AnnData, which may hold the counts where X does not.
    """

    arrays: dict[str, Any]
    features: tuple[str, ...] = ()
    is_table: bool = False
    layers: tuple[str, ...] = ()


def decode_text(field: Any) -> str:
    """Return text of a file, which may be bytes.

    Raises:
        ValueError: the text is too long, or not UTF-8.
    """
    text = field.decode() if isinstance(field, bytes) else str(field)
    if len(text) > MAX_TEXT_LENGTH:
        raise ValueError(
            f"a text has {len(text):,} characters; at most {MAX_TEXT_LENGTH:,} are allowed",
        )
    return text


def decode_texts(fields: Any) -> Array:
    """Return texts of a file as NumPy's strings; errors as of `decode_text`."""
    return np.array([decode_text(field) for field in fields], dtype=str)


def is_number(field: str) -> bool:
    """Whether a field of a table is a number or empty."""
    try:
        float(field)
    except ValueError:  # not a number
        return field == ""
    return True


def quote_names(names: Any, empty: str = "none") -> str:
    """Format names for a message, such as "'a', 'b'"."""
    return ", ".join(map(repr, names)) or empty


def load_library(name: str, path: Path) -> Any:
    """Import the optional library that reads a file.

    Raises:
        UserError: it is not installed; the message has the command that installs it.
    """
    try:
        return importlib.import_module(name)
    except ImportError:
        advice = f"{name}, which is not installed: {SCIENCE_EXTRA}"
        raise UserError(f"{path}: {path.suffix} files are read by {advice}") from None
