"""Files that appear whole or not at all, and the reading of those that others may have changed."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from uuid import uuid4

from blackout.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

PART = ".part"
"""Ends the hidden names of what is not yet whole."""

CONF = next(found for folder in Path(__file__).parents[:2] if (found := folder / "conf").is_dir())
"""The configurations: in a wheel inside the package, in the repository beside it."""


@contextmanager
def replacing(path: Path, durably: bool = False) -> Iterator[Path]:
    """Yields a hidden path beside `path` to write to; it takes `path`'s place when the block ends without an error.

    Its name cannot be foreseen, so that nobody has put a link there. A process that is killed leaves the hidden file
    behind, for `remove_parts`.

    Args:
        path: the file to make or to replace, itself if it is a link; its folder is made where there is none.
        durably: the hidden file ends as `path` does, and is on the disk before it takes `path`'s place.

    Raises:
        OSError: the folder cannot be made or written; `path` is then as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.stem[:40]}-{uuid4().hex}{PART}{path.suffix if durably else ''}")
    try:
        yield part
        if durably:
            with part.open("rb") as file:
                os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)  # also where both were links to one file, which a rename leaves as they are


def save_tensors(tensors: Mapping[str, Tensor], path: Path, about: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file.

    Args:
        about: what it says of itself.

    Raises:
        OSError: with its number, where the disk refuses, which the library tells as text.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(dict(tensors), path, None if about is None else dict(about))
    except SafetensorError as error:
        refused = re.search(r"os error (\d+)", str(error))
        if refused is None:
            raise
        raise OSError(number := int(refused[1]), os.strerror(number), str(path)) from error


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yields a new hidden folder beside `path`, which takes its place when the block ends without an error.

    Raises:
        OSError: it cannot be made or written; `path` is then as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part, old = (path.with_name(f".{path.stem[:40]}-{uuid4().hex}{PART}") for _ in range(2))
    part.mkdir()
    try:
        yield part
        if path.exists():
            os.replace(path, old)
        os.replace(part, path)
    finally:
        for leftover in (part, old):
            shutil.rmtree(leftover, ignore_errors=True)


def remove_parts(directory: Path, names: str = "*", older_than: float = 0.0, suffix: str = "*") -> None:
    """Remove what processes that were killed left of files and folders that they were replacing.

    Args:
        directory: where it is.
        names: pattern of the names, without suffix, of what was being replaced.
        older_than: least age in seconds, where the writers may be alive.
        suffix: pattern of what follows `PART`; "" leaves alone what is replaced durably.
    """
    for part in directory.glob(f".{names}-{'[0-9a-f]' * 32}{PART}{suffix}"):
        if time.time() - part.lstat().st_mtime < older_than:
            continue
        if part.is_dir() and not part.is_symlink():
            shutil.rmtree(part, ignore_errors=True)
        else:
            part.unlink(missing_ok=True)


def opened(path: Path) -> IO[bytes]:
    """An ordinary file, open for reading: no pipe or device, which might never end.

    Raises:
        UserError: it is something else.
        OSError: it is not there, or may not be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UserError(f"{path} is not a file")
    return os.fdopen(descriptor, "rb")


def read_rows(path: Path) -> dict[int, dict[str, Any]]:
    """The rows of a metrics.csv by their step, as text without empty fields.

    Raises:
        UserError: no run has written this file so.
    """
    try:
        with opened(path) as file:
            lines = csv.DictReader(io.TextIOWrapper(file, "utf-8-sig", newline=""), strict=True)
            return {int(row["step"]): {name: text for name, text in row.items() if text} for row in lines}
    except (csv.Error, UnicodeDecodeError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is damaged ({type(error).__name__}: {error}); remove it to go on") from None


def refuse_links(directory: Path, *names: str) -> None:
    """Refuse folders of a directory that are links out of it: nobody expects files there.

    Raises:
        UserError: one of them is.
    """
    for name in names:
        path = directory / name
        if path.is_symlink() and not path.resolve().is_relative_to(directory.resolve()):
            raise UserError(f"{path} is a link out of {directory}: nothing is written through it")


def write_json(content: Any, path: Path) -> None:
    """Write plain containers as JSON, whole or not at all; numbers that JSON does not have become null."""
    plain = json.loads(json.dumps(content), parse_constant=lambda name: None)
    with replacing(path) as part:
        part.write_text(json.dumps(plain, indent=2, allow_nan=False) + "\n")


def save_picture(picture: Any, path: Path) -> None:
    """Write a PIL image, if there is one, as PNG, whole or not at all."""
    if picture is not None:
        with replacing(path) as part:
            picture.save(part, format="png")
