"""Checkpoint files: written whole or not at all, the previous one kept and found again, never executed, verified when
read.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import pickletools
import reprlib
import sys
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import torch

from blackout.component import leaves
from blackout.config.allowed_components import check_size, copy_plain_values, remove_paths
from blackout.errors import UserError, refuse
from blackout.files import replacing
from blackout.safe_reading import MAX_VALUES, open_regular

LAST, PREVIOUS, BEST = "last.ckpt", "previous.ckpt", "best.ckpt"
FORMAT = 1
"""Of checkpoints and exported models; raised when an older program could no longer read them."""
_SIGNATURE = b"blackout sha256 "
SIGNED = len(_SIGNATURE) + 64
"""Bytes at the end of a checkpoint that tell it from all others."""
_MAY_CHANGE = ("model.sampler", "format", "metrics", "family.monitor", "data.name")
"""Parts of a model's description that may differ in a continued run."""


def write_checkpoint(checkpoint: Mapping[str, Any], path: Path) -> None:
    """Write `path` with its hash inside; a `last.ckpt` already there is kept as `previous.ckpt`.

    Whenever the process dies, and whenever somebody else reads, there is a whole checkpoint under the same name.

    Raises:
        OSError: the disk is full or may not be written; the files that were there are untouched.
    """
    with replacing(path) as part:
        _write_durably(part, checkpoint)
        if path.name == LAST and path.exists():
            with replacing(path.with_name(PREVIOUS)) as kept:
                try:
                    os.link(path, kept)
                except OSError:  # the file system has no links: for a moment there is only the previous one
                    os.replace(path, kept)
    _sync_directory(path.parent)


def find_checkpoint(directory: Path) -> Path | None:
    """The checkpoint to be used: the last, or the previous with a warning when the last is damaged.

    Raises:
        UserError: there are checkpoints, but all are damaged.
    """
    problems: list[UserError] = []
    for path in filter(os.path.lexists, (directory / LAST, directory / PREVIOUS)):
        try:
            read_checkpoint(path)
        except UserError as error:
            problems.append(error)
            continue
        if problems:
            print(f"warning: {problems[0]}; using {path.name}", file=sys.stderr)
        return path
    if problems:
        raise problems[0]
    return None


def set_damaged_aside(directory: Path) -> None:
    """Rename a `last.ckpt` from which a run could not continue, so that the next save does not keep it as the previous.

    Only the run itself may do so.
    """
    with suppress(FileNotFoundError):  # there is only the previous one
        os.replace(directory / LAST, directory / "damaged.ckpt")


def read_checkpoint(path: Path) -> dict[str, Any]:
    """A checkpoint's contents, tensors and plain containers only.

    Raises:
        UserError: unreadable, not what was written (by its SHA-256), or holding anything that would be executed.
    """
    try:
        _verify(path)
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except UserError:
        raise
    except Exception as error:  # a damaged pickle can raise nearly anything
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        if isinstance(error, pickle.UnpicklingError):
            reason = "holds more than tensors and plain values"
        raise UserError(f"{path} cannot be read as a checkpoint: {reason}") from None
    parts = checkpoint if isinstance(checkpoint, dict) else {}
    if not all(isinstance(parts.get(name), dict) for name in ("state_dict", "blackout")):
        raise UserError(f"{path} is not a checkpoint of this program")
    if odd := [name for name in parts["state_dict"] if not isinstance(name, str)]:
        raise UserError(f"{path} is not a checkpoint of this program: {reprlib.repr(odd[0])} is no name of a weight")
    check_size(parts, f"{path} is not a checkpoint of this program: it is too deep or holds too many values")
    copy_plain_values(parts["blackout"], f"{path}: the description of its model")
    return parts


def first_difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """The first name under which only one of two states has a tensor, or has one of another shape; None of none."""
    shapes = [{(name, getattr(value, "shape", None)) for name, value in state.items()} for state in (one, other)]
    return min((name for name, _ in shapes[0] ^ shapes[1]), default=None)


def signature(path: Path) -> str:
    """The end of a checkpoint, which holds its hash; nothing of one that is not there."""
    with suppress(OSError), path.open("rb") as file:  # not there: nothing
        file.seek(-min(SIGNED, file.seek(0, os.SEEK_END)), os.SEEK_END)
        return file.read().decode(errors="replace")
    return ""


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _verify(path: Path) -> None:
    """Raises UserError unless a file is what was written, by its hash.

    The hash is the comment at the end of the archive, and that of all bytes of the archive without a comment. A file
    without one was written by another program and is taken as it is.
    """
    with open_regular(path) as file:
        refuse(not zipfile.is_zipfile(file), f"{path} is damaged, or no checkpoint")
        with zipfile.ZipFile(file) as archive:
            comment, members = archive.comment, archive.infolist()
            for member in members:
                if member.filename.endswith("/data.pkl"):
                    refuse(member.file_size > file.seek(0, os.SEEK_END), f"{path} is damaged")
                    _check_pickle(archive.read(member), path)
        size = file.seek(0, os.SEEK_END)
        if any(part.compress_type for part in members) or sum(part.file_size for part in members) > size:
            raise UserError(f"{path} is no checkpoint: its tensors are said to be larger than the file")
        if not comment:
            return
        left, sha256 = size - len(comment) - 2, hashlib.sha256()
        file.seek(0)
        while left > 0 and (data := file.read(min(left, 2**20))):
            sha256.update(data)
            left -= len(data)
    sha256.update(b"\0\0")
    refuse(comment != _SIGNATURE + sha256.hexdigest().encode(), f"{path} is damaged: it does not match its hash")


_PUTS = frozenset(("PUT", "BINPUT", "LONG_BINPUT"))
_GETS = frozenset(("GET", "BINGET", "LONG_BINGET"))


def _check_pickle(pickled: bytes, path: Path) -> None:
    """Count the values of every object that a pickle describes, shared parts as often as they occur; nothing is made.

    A tuple of a few hundred bytes can hold others so often that to hash it, as the name of an entry, would not end.
    The operations are followed on a stack of counts, as `pickletools` describes them.

    Raises:
        UserError: an object of more than `MAX_VALUES` values.
        ValueError, IndexError, KeyError: it is no pickle.
    """
    stack: list[int | None] = []  # counts of values; None is a mark
    memo: dict[Any, int | None] = {}
    for operation, argument, _ in pickletools.genops(pickled):
        if operation.name in _PUTS:
            memo[argument] = stack[-1]
        elif operation.name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif operation.name in _GETS:
            stack.append(memo[argument])
        elif operation.name == "DUP":
            stack.append(stack[-1])
        elif operation.name == "MARK":
            stack.append(None)
        else:
            count = 1
            for kind in reversed(operation.stack_before):
                if kind is pickletools.stackslice:
                    continue
                value = stack.pop()
                while kind is pickletools.markobject and value is not None:
                    count += value
                    value = stack.pop()
                count += value or 0
            refuse(count > MAX_VALUES, f"{path} is no checkpoint of this program: it holds too many values")
            stack += [count] * len(operation.stack_after)


class _HashingFile:
    """Writes bytes to a file and hashes them; a disk error is kept, because torch's C++ writer would lose it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.sha256 = file, hashlib.sha256()
        self.failure: OSError | None = None

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


def _write_durably(path: Path, checkpoint: Mapping[str, Any]) -> None:
    """Write a checkpoint through to the disk, with its hash as the comment of the archive that torch writes."""
    with path.open("xb") as file:
        hashing = _HashingFile(file)
        torch.save(checkpoint, hashing)  # type: ignore[arg-type]  # it needs no more than these methods
        if hashing.failure is not None:
            raise hashing.failure
        comment = _SIGNATURE + hashing.sha256.hexdigest().encode()
        file.seek(-2, os.SEEK_END)  # the length of the comment ends an archive without one
        file.write(len(comment).to_bytes(2, "little") + comment)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    """Make renames survive a power failure, where the file system can synchronise directories."""
    with suppress(OSError):  # file systems that cannot: the rename is safe unless the power fails
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def check_fits(checkpoint: Mapping[str, Any], model: Any, path: Path) -> None:
    """Refuse, before a run continues from it, a checkpoint of other data, another model or another format.

    Args:
        model: in training, a `blackout.training.model.Model`.

    Raises:
        UserError: the message names the first difference.
    """
    old = checkpoint["blackout"]
    if (written := old.get("format", FORMAT)) != FORMAT:
        raise UserError(f"{path} has format {written}; this version continues format {FORMAT}")
    for name, kind in {"loops": dict, "callbacks": dict, "optimizer_states": list, "lr_schedulers": list}.items():
        refuse(not isinstance(checkpoint.get(name), kind), f"{path} cannot be continued: it holds no {name}")
    for key, value in leaves(checkpoint["loops"]):
        if key.rpartition(".")[2] in ("ready", "started", "processed", "completed") and type(value) is not int:
            raise UserError(f"{path} cannot be continued: {key} is no number of steps")
    was = dict(leaves(old | {"dataset": remove_paths(old.get("dataset"))}))
    now = dict(leaves(model.config))
    for key in sorted(now.keys() | was.keys()):
        if not key.startswith(_MAY_CHANGE) and was.get(key) != now.get(key):
            raise UserError(f"{path} is of another run: {key} is {was.get(key)} there and {now.get(key)} here")
    saved, mine = checkpoint["state_dict"], model.state_dict()
    different = first_difference(saved, mine)
    refuse(different is not None, f"{path} does not fit: weight {different} is only there or here, or of another shape")
    shapes = {torch.Size(), *(value.shape for value in mine.values())}
    for part in checkpoint["optimizer_states"]:
        for key, value in leaves(part):
            shape = getattr(value, "shape", torch.Size())
            if shape not in shapes or (key.endswith(".step") and shape):
                raise UserError(f"{path} does not fit: {key} of the optimizer has another shape")
    _check_learning_rates(checkpoint, path)


def _check_learning_rates(checkpoint: Mapping[str, Any], path: Path) -> None:
    """Refuse learning rates that are no numbers, at which only the first step would fail."""
    for optimizer in checkpoint["optimizer_states"]:
        groups = optimizer.get("param_groups") if isinstance(optimizer, Mapping) else None
        for group in groups if isinstance(groups, list) else ():
            if not isinstance(group, Mapping) or not isinstance(group.get("lr"), int | float | torch.Tensor):
                raise UserError(f"{path} cannot be continued: a learning rate in it is no number")
    for scheduler in checkpoint["lr_schedulers"]:
        if not isinstance(scheduler, Mapping) or type(scheduler.get("last_epoch")) is not int:
            raise UserError(f"{path} cannot be continued: the step of its learning rate is no whole number")
