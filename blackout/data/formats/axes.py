"""Axes of an array by name: samples, channels, depth, rows and columns, in the order of counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from blackout.errors import ensure

# letter of an axis -> what it counts, in the order that counts have
AXES = {
    "N": "samples",
    "E": "elements",
    "C": "channels",
    "L": "positions",
    "Z": "depth",
    "Y": "rows",
    "X": "columns",
}
TIFF_CHANNELS = "CS"  # tifffile's letters of channels, and of the colours of a pixel
AXIS_NAMES = {  # letter of an axis -> its names in files
    "N": "n t time sample samples frame frames image images obs observation cell cells event"
    " events trial trials batch position",
    "E": "feature features gene genes var element elements variable species",
    "C": "c ch channel channels band bands color colour rgb",
    "Z": "z depth slice slices plane planes",
    "Y": "y row rows height lat latitude",
    "X": "x col cols column columns width lon longitude",
}


def tiff_axes(axes: str) -> str:
    """Return the letters of `AXES` for the axes of a TIFF series, as tifffile names them.

    Time, position, and whatever else is neither space nor colour number samples.
    """
    letters = []
    for axis in axes:
        if axis in TIFF_CHANNELS:
            letters.append("C")
        else:
            letters.append(axis if axis in "ZYX" else "N")
    return "".join(letters)


def named_axes(names: Sequence[str]) -> str | None:
    """Return the letters of `AXES` for axes with names, such as "time", "y", "x".

    None if one of the names is not in `AXIS_NAMES`.
    """
    letter_of_name: dict[str, str] = {}
    for letter, words in AXIS_NAMES.items():
        letter_of_name |= dict.fromkeys(words.split(), letter)
    letters = [letter_of_name.get(name.lower()) for name in names]
    return None if None in letters else "".join(map(str, letters))


def check_axes(axes: str, num_axes: int) -> None:
    """Refuse letters that do not describe counts.

    Raises:
        ValueError: another number of axes, an unknown letter, or axes that do not go together.
    """
    allowed = ", ".join(f"{letter} {meaning}" for letter, meaning in AXES.items())
    is_known = isinstance(axes, str) and set(axes) <= AXES.keys()
    ensure(is_known, f"axes must be letters, one for each axis: {allowed}; not {axes!r}")
    if len(axes) != num_axes:
        advice = "give one letter for each axis, such as NYX"
        message = f"axes={axes} names {len(axes)} axes, but the array has {num_axes}"
        raise ValueError(f"{message}: {advice}")
    kinds = set(axes) - {"N"}
    is_possible = kinds in ({"E"}, {"L"}, {"C", "L"}) or {"Y", "X"} <= kinds <= set("CZYX")
    is_once = all(axes.count(letter) <= 1 for letter in "ELZYX")
    forms = "NE, NCL, NYX, NCYX or NCZYX, in any order"
    ensure(is_possible and is_once, f"axes={axes} are not those of counts: {forms}")


def arrange_axes(array: Any, axes: str) -> Any:
    """Return an array with its axes in the order of counts: [N, D], [N, C, L], [N, C, H, W], ...

    Several axes of samples, or of channels, become one. A missing axis of samples or channels has
    the length 1; images [N, H, W] stay as they are.

    Args:
        array: dense; it stays on disk if nothing changes.
        axes: one letter of `AXES` for each axis.

    Raises:
        ValueError: axes that do not describe the array.
    """
    check_axes(axes, len(array.shape))
    groups = [[k for k, axis in enumerate(axes) if axis == letter] for letter in AXES]
    groups_by_letter = dict(zip(AXES, groups, strict=True))
    order = [k for group in groups for k in group]
    kinds = set(axes)
    target_axes = "NE"
    if "L" in kinds:
        target_axes = "NCL"
    elif "Z" in kinds:
        target_axes = "NCZYX"
    elif "Y" in kinds:
        target_axes = "NCYX" if "C" in kinds else "NYX"
    shape = []
    for letter in target_axes:
        shape.append(math.prod(array.shape[k] for k in groups_by_letter[letter]))
    if order == sorted(order) and tuple(shape) == tuple(array.shape):
        return array
    return np.ascontiguousarray(np.asarray(array).transpose(order)).reshape(shape)


def describe_axes(names: Sequence[str], axes: str) -> str:
    """Return the meaning of each axis of a file, such as "T samples, Y rows, X columns"."""
    pairs = zip(names, axes, strict=True)
    return ", ".join(f"{name} {AXES[letter]}" for name, letter in pairs)
