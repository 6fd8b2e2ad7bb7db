"""Files that appear whole or not at all, and the reading of those that others may have changed."""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import json
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from uuid import uuid4

from blackout.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

PART = ".part"
"""Ends the hidden names of what is not yet whole."""

OF_TRAINING = ("step_", "final")
"""Begin the names of what training writes into a run's folder `samples`; nothing else there has such names."""
_FORGOTTEN = 7 * 86400.0
"""Seconds after which nobody goes on with samples that were not finished."""

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


def remove_parts(directory: Path, names: str = "*", older_than: float = 0.0) -> None:
    """Remove what processes that were killed left of files and folders that they were replacing.

    Args:
        directory: where it is.
        names: pattern of the names, without suffix, of what was being replaced.
        older_than: least age in seconds, where the writers may be alive.
    """
    for part in directory.glob(f".{names}-{'[0-9a-f]' * 32}{PART}*"):
        if time.time() - part.lstat().st_mtime < older_than:
            continue
        if part.is_dir() and not part.is_symlink():
            shutil.rmtree(part, ignore_errors=True)
        else:
            part.unlink(missing_ok=True)


def numbered(path: Path) -> Iterator[Path]:
    """x.png, x-2.png, x-3.png, ... without end."""
    yield path
    yield from (path.with_name(f"{path.stem}-{n}{path.suffix}") for n in itertools.count(2))


def new_file(path: Path, given: bool) -> Path:
    """A file to be written where none is, so that nothing is replaced, inputs least of all.

    Args:
        path: its name.
        given: the user gave this name, and means no other; else it gets a number where it is taken.

    Raises:
        UserError: it is there already, or could not be written.
    """
    free = path if given else next(name for name in numbered(path) if not os.path.lexists(name))
    if os.path.lexists(free):
        raise UserError(f"{free} is there already, and is not replaced: give another name, or remove it")
    _check_writable(free.parent, free)
    return free


def _check_writable(folder: Path, what: Path) -> None:
    """Make a folder; find out now, not after an hour of work, whether it can be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(f"cannot write to {what}: {error.strerror or error}") from None


def request_key(content: Any) -> str:
    """32 hexadecimal digits that are the same for the same request: plain values, and the state of files they name.

    Of folders, too, where a `Path` names them.
    """

    def stamps(node: Any) -> Iterator[tuple[int, int]]:
        if isinstance(node, Mapping | list | tuple):
            for part in node.values() if isinstance(node, Mapping) else node:
                yield from stamps(part)
        elif isinstance(node, str | Path):
            with suppress(OSError, ValueError):
                found = os.stat(node)
                if stat.S_ISREG(found.st_mode) or isinstance(node, Path):
                    yield found.st_size, found.st_mtime_ns

    text = json.dumps([content, list(stamps(content))], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@contextmanager
def results_folder(
    folders: Iterable[Path], key: str, names: Collection[str] | None = None, mark: str = ".request"
) -> Iterator[Path]:
    """Yields the first of some folders in which nothing would be replaced but results of the same request.

    It is made and marked as this request's, so that nobody else's results go there and the same request finds it again;
    the mark is taken away if nothing comes of the request.

    Args:
        folders: to be tried in turn.
        key: of the request, see `request_key`.
        names: of the files that may be written; None for any but `OF_TRAINING`.
        mark: name of the hidden file that holds the key.

    Raises:
        UserError: none of them will do, or it cannot be written.
    """
    folder, new = _claimed(folders, key, names, mark)
    try:
        yield folder
    finally:
        if not _results(folder, names) and not list(folder.glob(f".*{PART}.batches")):
            (folder / mark).unlink(missing_ok=True)
            if new:
                with suppress(OSError):  # something else is in it
                    folder.rmdir()


def _claimed(folders: Iterable[Path], key: str, names: Collection[str] | None, mark: str) -> tuple[Path, bool]:
    first, why = None, ""
    for folder in folders:
        new = not folder.exists()
        _check_writable(folder, folder)
        remove_parts(folder, older_than=_FORGOTTEN)
        found, marked = _results(folder, names), folder / mark
        if marked.is_file() and marked.read_bytes() == key.encode():
            if found:
                print(f"{folder} holds results of the same request, which are made again")
            return folder, new
        if not found:
            with suppress(FileExistsError), marked.open("x") as file:
                file.write(key)
                if first is not None:
                    print(f"{first} {why}: the results of this request go to {folder}")
                return folder, new
        if first is None:
            first = folder
            why = f"holds other files ({found[0]})" if found else f"is kept for another request by its {mark}"
    raise UserError(f"{first} {why}, and nothing there is replaced: name a new folder")


def _results(folder: Path, names: Collection[str] | None) -> list[str]:
    """The files of a folder, of those names."""
    found = sorted(path.name for path in folder.iterdir() if not path.name.startswith(".") and not path.is_dir())
    return [name for name in found if (not name.startswith(OF_TRAINING) if names is None else name in names)]


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
