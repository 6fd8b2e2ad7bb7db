"""Counts, files and checks that tests of file formats share."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from blackout.data import counts
from blackout.data.findings import Finding, Note
from blackout.errors import UserError

MATRIX = np.random.default_rng(0).poisson(5.0, (60, 6))
FRAMES = np.random.default_rng(1).poisson(5.0, (30, 16, 16)).astype(np.uint16)
NAMES = "abcdef"


def all_rows(data: Any) -> list[list[int]]:
    """Return all samples of a data set as sorted flat rows."""
    return sorted(torch.cat([data.train, data.val, data.test]).flatten(1).tolist())


def sorted_rows(array: Any) -> list[list[int]]:
    """Return an array [N, ...] as sorted flat rows."""
    return sorted(np.asarray(array).reshape(len(array), -1).tolist())


@contextlib.contextmanager
def messages() -> Iterator[dict[str, list[str]]]:
    """Collect notes and findings, under `note` and `finding`."""
    collected: dict[str, list[str]] = {"note": [], "finding": []}
    with warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always")
        yield collected
    for warning in recorded:
        if isinstance(warning.message, Note):
            collected["note"].append(str(warning.message))
        elif isinstance(warning.message, Finding):
            collected["finding"].append(str(warning.message))


def check(path: Path, expected: Any, *words: str, **settings: Any) -> Any:
    """Check the counts of a file, and that every word is in a note or finding."""
    with messages() as collected:
        data = counts(path, **settings)
    assert all_rows(data) == sorted_rows(expected)
    text = " | ".join([*collected["note"], *collected["finding"]])
    assert all(word in text for word in words), text
    return data


def refused(path: Path, word: str, **settings: Any) -> None:
    """Check that a file is refused in one line that has the word."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(UserError) as error:
            counts(path, **settings)
    assert word in str(error.value) and "\n" not in str(error.value), error.value


def table(rows: Any = MATRIX, head: str = "", separator: str = ",") -> str:
    """Return the text of a table."""
    lines = [separator.join(map(str, row)) for row in rows]
    return "\n".join(([head] if head else []) + lines) + "\n"


def write(path: Path, content: str | bytes) -> Path:
    """Write a file and return its path."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path
