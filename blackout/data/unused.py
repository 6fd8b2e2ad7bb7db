"""Warnings about contents of a file that are not used, and errors for settings that are not."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from blackout.data.findings import Finding, Note
from blackout.data.formats import COUNTS, FileContents
from blackout.errors import UserError

MAX_NAMES = 10  # arrays that a message lists
MASK_NAMES = ("mask", "observed", "valid")  # of arrays that may say which entries were observed


def refuse_unused(settings: Mapping[str, tuple[Any, Any]], reason: str) -> None:
    """Refuse settings that this form of file does not use, unless they have their default.

    Args:
        settings: value and default by name.
        reason: why they are not used.

    Raises:
        UserError: names the first that differs from its default.
    """
    for name, (value, default) in settings.items():
        if value != default:
            raise UserError(f"dataset.{name}={value} is not used: {reason}; leave it out")


def warn_about_reading(contents: FileContents) -> None:
    """Pass on the reader's notes and warnings about a file.

    Warns:
        Note: how it was read.
        Finding: what looks wrong in it.
    """
    for note in contents.notes:
        warnings.warn(Note(note), stacklevel=3)
    for problem in contents.warnings:
        warnings.warn(Finding(problem), stacklevel=3)


def warn_about_unused(
    contents: FileContents, used_names: Collection[str], excluded_names: Collection[str]
) -> None:
    """Warn about arrays of a file that are neither counts, labels, covariates nor a mask.

    Args:
        contents: of the file.
        used_names: names of arrays that are used.
        excluded_names: names that the user leaves out, about which nothing is said.

    Warns:
        Note: names of other arrays.
        Finding: a column of a table that cannot be read, or an array that may be a mask.
    """
    # 1. What no setting can use.
    unused = []
    for name, kind in contents.unread.items():
        if name in excluded_names:
            continue
        if contents.is_table and name:
            message = f"column {name!r} is left out, as it is {kind}"
            warnings.warn(Finding(message, exclude=[name]), stacklevel=3)
        else:
            unused.append(f"{name or 'a column without a name'} ({kind})")
    if contents.is_table:  # columns that are no elements are named where these are found
        names = []
    else:
        names = sorted(contents.arrays.keys() - {*used_names, *contents.index, *excluded_names})

    # 2. Other arrays.
    counts = contents.arrays.get(COUNTS)
    for name in names:
        array = contents.arrays[name]
        same_shape = counts is not None and np.shape(array) == tuple(counts.shape)
        if same_shape and name.lower() in MASK_NAMES:
            message = f"array {name!r} has the shape of the counts and is not used"
            hint = f"dataset.mask={name} observes the entries where it is true"
            warnings.warn(Finding(f"{message}: {hint}"), stacklevel=3)
        else:
            unused.append(name)
    if unused:
        more = f" and {len(unused) - MAX_NAMES} more" if len(unused) > MAX_NAMES else ""
        listed = ", ".join(unused[:MAX_NAMES])
        warnings.warn(Note(f"not used of this file: {listed}{more}"), stacklevel=3)
