"""Checkpoint files: written whole or not at all, the previous one kept, never executed, verified when read."""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import torch

from blackout.errors import UserError
from blackout.training.descriptions import plain

LAST, PREVIOUS, BEST = "last.ckpt", "previous.ckpt", "best.ckpt"
FORMAT = 1
"""Of checkpoints and exported models; raised when an older program could no longer read them."""


def write_checkpoint(checkpoint: Mapping[str, Any], path: Path) -> None:
    """Write `path` and `path.sha256`; a `last.ckpt` already there is kept as `previous.ckpt`.

    Whenever the process dies, there is one whole checkpoint, and none with a hash that is not its own.

    Raises:
        OSError: the disk is full or may not be written; the files that were there are untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part, digest_part = path.with_name(f".{path.name}.part"), path.with_name(f".{path.name}.sha256.part")
    try:
        digest = _write_durably(part, lambda file: torch.save(checkpoint, file))
        _write_durably(digest_part, lambda file: file.write(f"{digest}  {path.name}\n".encode()))
    except BaseException:
        part.unlink(missing_ok=True)
        digest_part.unlink(missing_ok=True)
        raise
    if path.name == LAST and path.exists():
        previous = path.with_name(PREVIOUS)
        digest_path(previous).unlink(missing_ok=True)  # better none for a moment than another file's
        os.replace(path, previous)
        if digest_path(path).exists():
            os.replace(digest_path(path), digest_path(previous))
    digest_path(path).unlink(missing_ok=True)
    os.replace(part, path)
    os.replace(digest_part, digest_path(path))
    _sync_directory(path.parent)


def digest_path(path: Path) -> Path:
    """Where the SHA-256 of a checkpoint lies, in the format of `sha256sum -c`."""
    return path.with_name(f"{path.name}.sha256")


def find_checkpoint(directory: Path) -> Path | None:
    """The checkpoint from which a run continues: the last, or the previous with a warning when the last is damaged.

    A damaged `last.ckpt` is set aside as `damaged.ckpt`, so that the next save does not turn it into `previous.ckpt`.

    Raises:
        UserError: there are checkpoints, but all are damaged.
    """
    problem: UserError | None = None
    for path in (directory / LAST, directory / PREVIOUS):
        if not path.exists():
            continue
        try:
            read_checkpoint(path)
        except UserError as error:
            problem = problem or error
            continue
        if problem is not None:
            print(f"warning: {problem}; continuing from {path.name}", file=sys.stderr)
            if (directory / LAST).exists():
                os.replace(directory / LAST, directory / "damaged.ckpt")
                digest_path(directory / LAST).unlink(missing_ok=True)
        return path
    if problem is not None:
        raise problem
    return None


def read_checkpoint(path: Path) -> dict[str, Any]:
    """A checkpoint's contents, tensors and plain containers only.

    Raises:
        UserError: unreadable, not what was written (by its SHA-256), or holding anything that would be executed.
    """
    try:
        expected = _recorded_digest(path)
        if expected is not None and digest(path) != expected:
            raise UserError(f"{path} is damaged: it does not match {digest_path(path).name}")
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except UserError:
        raise
    except Exception as error:  # a damaged pickle can raise nearly anything
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        if isinstance(error, pickle.UnpicklingError):
            reason = "holds more than tensors and plain values"
        raise UserError(f"{path} cannot be read as a checkpoint: {reason}") from None
    parts = [checkpoint.get(name) for name in ("state_dict", "blackout")] if isinstance(checkpoint, dict) else [None]
    if not all(isinstance(part, dict) for part in parts):
        raise UserError(f"{path} is not a checkpoint of this program")
    plain(checkpoint["blackout"], f"{path}: the description of its model")
    return checkpoint


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _recorded_digest(path: Path) -> str | None:
    """The hash recorded beside `path` when it was written; None when there is no such record.

    Between two renames of a save, the hash of `previous.ckpt` is still called `last.ckpt.sha256`.
    """
    file, last = digest_path(path), path.with_name(LAST)
    if path.name == PREVIOUS and not file.exists() and not last.exists():
        file = digest_path(last)
    return (file.read_text(errors="replace").split() or [""])[0] if file.exists() else None


class _HashingFile:
    """Writes bytes to a file and hashes them; a disk error is kept, because torch's C++ writer would lose it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.sha256, self.failure = file, hashlib.sha256(), None

    failure: OSError | None

    def write(self, data: Any) -> int:
        if self.failure is None:
            try:
                self._file.write(data)
                self.sha256.update(data)
            except OSError as error:
                self.failure = error
        return memoryview(data).nbytes

    def flush(self) -> None:
        """Required by torch; done once, at the end."""


def _write_durably(path: Path, write: Callable[[Any], object]) -> str:
    """Write a file through to the disk; returns its SHA-256."""
    with path.open("wb") as file:
        hashing = _HashingFile(file)
        write(hashing)
        if hashing.failure is not None:
            raise hashing.failure
        file.flush()
        os.fsync(file.fileno())
    return hashing.sha256.hexdigest()


def _sync_directory(path: Path) -> None:
    """Make renames survive a power failure, where the file system can synchronise directories."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError:
        return
