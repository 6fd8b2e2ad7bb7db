"""Atomic writing of files and folders, which appear complete or not at all.

A file is written under a hidden name and then renamed. Files that others may have changed are read
by `blackout.safe_reading`. Folders of results are in `blackout.results_folders`.
"""

from __future__ import annotations

import csv
import errno
import hashlib
import itertools
import json
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from blackout.errors import DISK_ERRORS, UserError, refuse

Array = npt.NDArray[Any]

PART = ".part"  # end of the hidden names of unfinished files and folders

# how a file system says that it has no hard links
NO_HARD_LINKS = frozenset([errno.EPERM, errno.EMLINK, errno.ENOSYS, errno.EOPNOTSUPP])
MAX_AGE = 7 * 86400.0  # seconds after which unfinished samples are abandoned
MAX_STEM_LENGTH = 40  # characters of a file's name that its hidden name repeats

# the configurations: inside the package in a wheel, next to it in the repository
CONF = next(folder / "conf" for folder in Path(__file__).parents[:2] if (folder / "conf").is_dir())

# protocol and path; `Path` has reduced `s3://bucket` to one slash
ADDRESS = re.compile(r"([a-z][\w+.:-]*):/+(.*)", re.DOTALL)
ADDRESS_PATH = re.compile(r"([\w.+=/ -]|:\d+/)+")


@contextmanager
def _hidden_file(path: Path, durably: bool) -> Iterator[Path]:
    """Yield a hidden path next to `path`; a file that is still there at the end is removed.

    Args:
        path: the file to write. Its folder is made.
        durably: whether the hidden file has the suffix of `path`, as for `replacing`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = _hidden_path(path, path.suffix if durably else "")
    try:
        with _errors_naming(path, part):
            yield part
    finally:
        # still there after an error, or if both were links to one file, which renaming leaves
        part.unlink(missing_ok=True)


@contextmanager
def replacing(path: Path, durably: bool = False) -> Iterator[Path]:
    """Write a file atomically: yield a temporary path that replaces `path` after the block.

    After an error, `path` is unchanged. Nobody can guess the hidden temporary name and put a link
    there. A process that is killed leaves the temporary file behind; see `remove_parts`.

    Args:
        path: the file to write or to replace; a link is replaced itself. Its folder is made.
        durably: whether the hidden file has the suffix of `path`, and is on the disk before it
            replaces `path`.

    Raises:
        OSError: the folder cannot be made or written; `path` is unchanged then.
    """
    with _hidden_file(path, durably) as part:
        yield part
        if durably:
            _write_through(part)
        _copy_mode(path, part)
        os.replace(part, path)


def _copy_mode(old: Path, new: Path) -> None:
    """Give a new file or folder the permissions of the one that it replaces, if there is one."""
    with suppress(OSError):  # there is none, or the file system has no permissions
        status = old.lstat()
        if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
            new.chmod(stat.S_IMODE(status.st_mode))


def copy_privacy(source: Path, folder: Path) -> None:
    """Restrict the permissions of a new folder to those that other users have for `source`."""
    mode = stat.S_IMODE(source.stat().st_mode)
    others_enter = (mode & 0o044) >> 2  # who may read the source may enter the folder
    folder.chmod(folder.stat().st_mode & (0o700 | mode | others_enter))


@contextmanager
def creating(path: Path) -> Iterator[Path]:
    """Create a file atomically: yield a temporary path that is renamed to `path` after the block.

    Unlike `replacing`, it never replaces a file, even one that has appeared in the meantime. Of two
    writers of one name, one succeeds.

    Args:
        path: the file to write. Its folder is made.

    Raises:
        UserError: there is a file or link of this name.
        OSError: the folder cannot be made or written.
    """
    with _hidden_file(path, durably=False) as part:
        yield part
        _rename_new(part, path)


def _rename_new(part: Path, path: Path) -> None:
    """Rename a file to a name that is not taken.

    Raises:
        UserError: the name is taken.
    """
    try:
        try:
            os.link(part, path)
        except OSError as error:
            if error.errno not in NO_HARD_LINKS:
                raise
            # A file system without hard links: reserve the name, then replace the empty file.
            path.touch(exist_ok=False)
            os.replace(part, path)
    except FileExistsError:
        raise UserError(
            f"{path} was made by another program in the meantime, and is not replaced: "
            "give another name, or remove it"
        ) from None


def _write_through(path: Path) -> None:
    """Wait until the content of a file is on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


@contextmanager
def _errors_naming(path: Path, part: Path) -> Iterator[None]:
    """Replace the file name in errors of a disk: `path` in place of none or the hidden name.

    A full disk is noticed when an open file is written, and that error has no name.
    """
    try:
        yield
    except OSError as error:
        if error.filename in (None, str(part)) and error.errno in DISK_ERRORS:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def _hidden_path(path: Path, suffix: str = "") -> Path:
    """Return a new hidden path next to `path`; `remove_parts` knows the form of its name."""
    return path.with_name(f".{path.stem[:MAX_STEM_LENGTH]}-{uuid4().hex}{PART}{suffix}")


def save_tensors(
    tensors: Mapping[str, Tensor], path: Path, about: Mapping[str, str] | None = None
) -> None:
    """Write a safetensors file.

    Args:
        tensors: by name.
        path: of the file.
        about: metadata of the file.

    Raises:
        OSError: the disk refuses; it has the error number, which the library gives as text.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(dict(tensors), path, None if about is None else dict(about))
        path.chmod(mode)  # as of any new file; the library lets no other user read it
    except SafetensorError as error:
        match = re.search(r"os error (\d+)", str(error))
        if match is None:
            raise
        number = int(match[1])
        raise OSError(number, os.strerror(number), str(path)) from error


def hash_tensors(subject: str, tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 (hex) of names, types, shapes and values of tensors.

    Args:
        subject: text that is part of the hash; different subjects have different hashes.
        tensors: by name.
    """
    digest = hashlib.sha256(f"{subject}\n".encode())
    for name, value in sorted(tensors.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        values = value.detach().cpu().contiguous().reshape(-1)
        digest.update(values.view(torch.uint8).numpy().data)
    return digest.hexdigest()


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Write a folder atomically: yield a temporary folder that replaces `path` after the block.

    Raises:
        OSError: it cannot be made or written; `path` is unchanged then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = _hidden_path(path)
    old = _hidden_path(path)
    try:
        part.mkdir()
        yield part
        if path.exists():
            _copy_mode(path, part)
            os.replace(path, old)
        os.replace(part, path)
    finally:
        # a signal that came between the two renamings left no folder
        if not os.path.lexists(path) and old.exists():
            os.replace(old, path)
        for leftover in (part, old):
            shutil.rmtree(leftover, ignore_errors=True)


def remove_parts(directory: Path, names: str = "*", older_than: float = 0.0) -> None:
    """Remove temporary files and folders that killed processes have left behind.

    Args:
        directory: the folder that contains them.
        names: pattern of the names, without suffix, of what was being replaced.
        older_than: minimum age in seconds, in case the writers are still running.
    """
    for part in directory.glob(f".{names}-{'[0-9a-f]' * 32}{PART}*"):
        if time.time() - part.lstat().st_mtime < older_than:
            continue
        if part.is_dir() and not part.is_symlink():
            shutil.rmtree(part, ignore_errors=True)
        else:
            part.unlink(missing_ok=True)


def numbered_paths(path: Path) -> Iterator[Path]:
    """Yield x.png, x-2.png, x-3.png, ... without end."""
    yield path
    yield from (path.with_name(f"{path.stem}-{n}{path.suffix}") for n in itertools.count(2))


def new_file(path: Path, is_fixed: bool) -> Path:
    """Return the path for a new file, after checking that it can be written.

    Args:
        path: of the file.
        is_fixed: whether the file must have this name, which the user chose; otherwise a number is
            added if the file exists.

    Raises:
        UserError: it exists, or cannot be written.
    """
    if not is_fixed:
        path = next(
            candidate for candidate in numbered_paths(path) if not os.path.lexists(candidate)
        )
    refuse(
        os.path.lexists(path),
        f"{path} exists, and is not replaced: give another name, or remove it",
    )
    check_writable(path.parent, path)
    remove_parts(path.parent, path.stem[:MAX_STEM_LENGTH], MAX_AGE)
    return path


def refuse_address(path: Path) -> None:
    """Raise UserError for the address of a remote store, such as s3://bucket/runs."""
    if match := ADDRESS.fullmatch(str(path)):
        address = f"{match[1]}://{match[2].rpartition('@')[2]}"  # without a key before the @
        raise UserError(
            f"{address} is an address, and only runs (runs_dir=<address>) are written to a remote "
            "store: give a local folder, or mount the store"
        )


def working_folder(location: str) -> Path:
    """Return the local folder of a location, which is a path or the address of a remote store.

    Runs at s3://bucket/x are written to runs/s3/bucket/x, and copied from there.

    Raises:
        UserError: an address that gives no name of a folder, or that may contain a key.
    """
    match = ADDRESS.fullmatch(location)
    if match is None:
        return Path(location)
    is_plain = ADDRESS_PATH.fullmatch(match[2]) and ".." not in match[2].split("/")
    if not is_plain or ":" in match[1]:
        raise UserError(
            "an address must be like s3://bucket/path, of letters, digits and . _ + = -; give keys "
            "by the environment, or where fsspec looks for them"
        )
    return Path("runs", match[1], match[2])


def check_writable(folder: Path, target: Path) -> None:
    """Make a folder, and check that files can be written there, before an hour of work.

    Raises:
        UserError: it cannot; the message names `target`.
    """
    refuse_address(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(f"cannot write to {target}: {error.strerror or error}") from None


def refuse_links(directory: Path, *names: str) -> None:
    """Refuse subfolders of a directory that are links to places outside it.

    Raises:
        UserError: one of them does.
    """
    for name in names:
        path = directory / name
        is_inside = Path(os.path.realpath(path)).is_relative_to(os.path.realpath(directory))
        if path.is_symlink() and not is_inside:
            raise UserError(f"{path} is a link out of {directory}: nothing is written through it")


def save_arrays(path: Path, **arrays: Any) -> None:
    """Write arrays to a compressed .npz file, atomically."""
    with replacing(path) as part, part.open("wb") as file:
        np.savez_compressed(file, **arrays)


def write_table(columns: Sequence[str], rows: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Write a .csv file atomically; values that a row lacks are left empty."""
    with replacing(path) as part, part.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def write_json(content: Any, path: Path) -> None:
    """Write plain containers to a JSON file, atomically.

    Numbers that JSON does not have (infinity, NaN) become null.
    """
    plain = json.loads(json.dumps(content), parse_constant=lambda name: None)
    with replacing(path) as part:
        part.write_text(json.dumps(plain, indent=2, allow_nan=False) + "\n", encoding="utf-8")
