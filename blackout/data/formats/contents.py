"""What a reader finds in a file: named arrays, text, and what it leaves out."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from blackout.errors import UserError, ensure, refuse
from blackout.version import install_command

Array = npt.NDArray[Any]
COUNTS = "counts"  # name of the array that holds the counts
SHADOWED_COLUMN = "a column with the name of the counts: rename it"  # why it is not used
MAX_TEXT_LENGTH = 1000  # characters of a name, a label or any other text in a file of counts
LIBRARY_BYTES = 1 << 30  # memory that a library may take besides the arrays it returns
# words for a missing value, as pandas and R write them
MISSING_WORDS = frozenset(
    ["", "NA", "N/A", "n/a", "<NA>", "#N/A", "#NA", "NaN", "nan", "-nan", "NaT", "NULL", "null"]
)
MISSING_NUMBER = MISSING_WORDS | {"None", "none"}  # which are names of classes elsewhere
# Python reads more: 1_000 as 1000, and digits of other scripts
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|infinity)", re.I | re.A)


@dataclass(frozen=True)
class FileContents:
    """Content of a file: arrays by name, and what is known about them.

    Attributes:
        arrays: by name; counts may be a SciPy sparse matrix, or stay on disk until rows are read
            (`LazyArray`, a memory map). Columns of observations are one-dimensional.
        features: names of the columns of `counts`, where the file has them.
        is_table: whether the arrays are the columns of a table, most of them elements of the
            counts.
        layers: of AnnData, which may hold the counts where X does not.
        index: names of arrays that number or name the samples; those of a table are no elements.
        axis_names: what the file calls the axes of an array, by name.
        axes: one letter for each axis of an array whose axis names are known, see `axes.AXES`.
        units: factors that other programs apply to an array, as text by name.
        no_data: number that stands for a missing entry, by name of an array.
        unread: descriptions of what the file holds and no setting can use, by name.
        notes: messages about how the file was read, if that is not obvious.
        warnings: messages about what looks wrong in the file.
    """

    arrays: dict[str, Any]
    features: tuple[str, ...] = ()
    is_table: bool = False
    layers: tuple[str, ...] = ()
    index: tuple[str, ...] = ()
    axis_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    axes: Mapping[str, str] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    no_data: Mapping[str, float] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def decode_text(field: Any) -> str:
    """Return text of a file, which may be bytes.

    Raises:
        ValueError: the text is too long, has a NUL character, or is not UTF-8.
    """
    text = field.decode() if isinstance(field, bytes) else str(field)
    if len(text) > MAX_TEXT_LENGTH:
        raise ValueError(
            f"a text has {len(text):,} characters; at most {MAX_TEXT_LENGTH:,} are allowed: "
            f"shorten {text[:20]!r}..."
        )
    ensure("\0" not in text, f"the text {text[:40]!r} has a NUL character: the file is damaged")
    return text


def decode_texts(fields: Any) -> Array:
    """Return texts of a file as NumPy's strings; errors as of `decode_text`."""
    return np.array([decode_text(field) for field in fields], dtype=str)


def is_number(field: str) -> bool:
    """Return whether a field of a table is a number, or a word for a missing one."""
    return field in MISSING_NUMBER or NUMBER.fullmatch(field) is not None


def refuse_layer(path: Path, layer: str | None) -> None:
    """Refuse a layer of a file in whose format there are none.

    Raises:
        UserError: a layer was chosen.
    """
    message = "dataset.layer chooses an array of an .npz, .h5ad, .zarr, HDF5 or TIFF file"
    refuse(layer is not None, f"{path}: {message}; this file has no layers")


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
        advice = f"{name}, which is not installed: {install_command('science')}"
        raise UserError(f"{path}: {path.suffix} files are read by {advice}") from None
