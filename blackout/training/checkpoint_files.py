"""Checkpoint files: written atomically with a hash, and checked when they are read.

The previous checkpoint is kept and used if the last one is damaged. Nothing in a file is executed.
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

from blackout.component import Plain, leaves
from blackout.config.allowed_components import check_size, copy_plain_values, remove_paths
from blackout.errors import UserError, refuse
from blackout.files import replacing
from blackout.safe_reading import MAX_VALUES, open_regular

LAST = "last.ckpt"
PREVIOUS = "previous.ckpt"
BEST = "best.ckpt"
DAMAGED = "damaged.ckpt"

# Format of checkpoints and exported models; raised when an older program can no longer read them.
FORMAT = 1

SIGNATURE_START = b"blackout sha256 "  # of the comment of the archive; the hash follows
SIGNATURE_BYTES = len(SIGNATURE_START) + 64  # length of the end of a checkpoint that identifies it
HASHED_AT_ONCE = 2**20  # bytes

# Beginnings of names of a model's description that may differ in a continued run.
CHANGEABLE = ("model.sampler", "format", "metrics", "family.monitor", "data.name")

# Parts of a checkpoint that a continued run needs, and their types.
TRAINING_STATE = {"loops": dict, "callbacks": dict, "optimizer_states": list, "lr_schedulers": list}
CONTINUE_ADVICE = "the file is damaged: remove it, and a new run starts"
PROGRESS_COUNTERS = ("ready", "started", "processed", "completed")  # of Lightning's loops


def write_checkpoint(checkpoint: Mapping[str, Any], path: Path) -> None:
    """Write a checkpoint with its hash; an earlier `last.ckpt` is kept as `previous.ckpt`.

    At every moment there is a complete checkpoint of the same name, for other readers and if the
    process is killed.

    Args:
        checkpoint: tensors and plain containers.
        path: of the file.

    Raises:
        OSError: the disk is full or cannot be written; the files that were there are unchanged.
    """
    with replacing(path) as part:
        _write_durably(part, checkpoint)
        if path.name == LAST and path.exists():
            with replacing(path.with_name(PREVIOUS)) as previous:
                try:
                    os.link(path, previous)
                except OSError:
                    # the file system has no links: for a moment there is only the previous file
                    os.replace(path, previous)
    _sync_directory(path.parent)


def find_checkpoint(directory: Path) -> Path | None:
    """Return the last checkpoint, or with a warning the previous one if the last is damaged.

    Args:
        directory: of the checkpoints of a run.

    Returns:
        The path; None if there is no checkpoint.

    Raises:
        UserError: all checkpoints are damaged.
    """
    errors: list[UserError] = []
    for path in (directory / LAST, directory / PREVIOUS):
        if not os.path.lexists(path):
            continue
        try:
            read_checkpoint(path)
        except UserError as error:
            errors.append(error)
            continue
        if errors:
            print(f"warning: {errors[0]}; using {path.name}", file=sys.stderr)
        return path
    if errors:
        raise errors[0]
    return None


def rename_damaged_checkpoint(directory: Path) -> None:
    """Rename a damaged `last.ckpt`, so that the next save does not keep it as `previous.ckpt`.

    Only the run itself may do this.
    """
    with suppress(FileNotFoundError):  # there is only a previous checkpoint
        os.replace(directory / LAST, directory / DAMAGED)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Return the content of a checkpoint: tensors and plain containers.

    Raises:
        UserError: the file cannot be read, does not match its SHA-256, or contains anything that
            would be executed.
    """
    # 1. Read the file.
    try:
        _check_archive(path)
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except UserError:
        raise
    except Exception as error:  # a damaged pickle can raise nearly anything
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        if isinstance(error, pickle.UnpicklingError):
            reason = "holds more than tensors and plain values"
        raise UserError(f"{path} cannot be read as a checkpoint: {reason}") from None

    # 2. Check that it is a checkpoint of this program.
    problem = f"{path} is not a checkpoint of this program"
    content = checkpoint if isinstance(checkpoint, dict) else {}
    for name in ("state_dict", "blackout"):
        refuse(not isinstance(content.get(name), dict), problem)
    for name in content["state_dict"]:
        if not isinstance(name, str):
            raise UserError(f"{problem}: {reprlib.repr(name)} is not the name of a weight")
    check_size(content, f"{problem}: it is too deep or holds too many values")
    copy_plain_values(content["blackout"], f"{path}: the description of its model")
    return content


def first_difference(state: Mapping[str, Any], other_state: Mapping[str, Any]) -> str | None:
    """Compare the names, shapes and kinds of numbers of the tensors of two states.

    Returns:
        The first name, in alphabetical order, that only one state has, or that has another shape or
        kind of numbers in the other; None if there is no difference.
    """
    differing = _tensor_kinds(state) ^ _tensor_kinds(other_state)
    return min((name for name, _, _ in differing), default=None)


def _tensor_kinds(state: Mapping[str, Any]) -> set[tuple[str, Any, Any]]:
    """Return name, shape and kind of the numbers of every tensor.

    Floating-point numbers of all precisions are one kind; every other type is a kind of its own.
    """
    kinds = set()
    for name, value in state.items():
        dtype = getattr(value, "dtype", None)
        is_real = isinstance(value, torch.Tensor) and value.is_floating_point()
        kinds.add((name, getattr(value, "shape", None), torch.float32 if is_real else dtype))
    return kinds


def signature(path: Path) -> str:
    """Return the end of a checkpoint, which contains its hash; empty if there is no file."""
    with suppress(OSError), path.open("rb") as file:  # a missing file has no signature
        size = file.seek(0, os.SEEK_END)
        file.seek(-min(SIGNATURE_BYTES, size), os.SEEK_END)
        return file.read().decode(errors="replace")
    return ""


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- checks of a file


def _check_archive(path: Path) -> None:
    """Check the archive of a checkpoint: its hash and its sizes, before anything is unpickled.

    The hash is the comment at the end of the archive. It is that of all bytes of the archive
    without a comment. A file without a comment was written by another program and has no hash.

    Raises:
        UserError: the file is damaged, or too large when it is read.
    """
    with open_regular(path) as file:
        refuse(not zipfile.is_zipfile(file), f"{path} is damaged, or no checkpoint")
        size = file.seek(0, os.SEEK_END)

        # 1. The pickle must be small when it is read.
        with zipfile.ZipFile(file) as archive:
            comment = archive.comment
            members = archive.infolist()
            for member in members:
                if member.filename.endswith("/data.pkl"):
                    refuse(member.file_size > size, f"{path} is damaged")
                    _check_pickle(archive.read(member), path)

        # 2. The tensors are not compressed, so together they are smaller than the file.
        is_compressed = any(member.compress_type for member in members)
        if is_compressed or sum(member.file_size for member in members) > size:
            raise UserError(
                f"{path} is not a checkpoint: it announces tensors larger than the file"
            )

        # 3. The hash.
        if not comment:
            return
        sha256 = hashlib.sha256()
        remaining = size - len(comment) - 2  # the last two bytes before it are its length
        file.seek(0)
        while remaining > 0:
            data = file.read(min(remaining, HASHED_AT_ONCE))
            if not data:
                break
            sha256.update(data)
            remaining -= len(data)
    sha256.update(b"\0\0")  # the length of an empty comment
    refuse(
        comment != SIGNATURE_START + sha256.hexdigest().encode(),
        f"{path} is damaged: it does not match its hash",
    )


# Operations of a pickle that store the object on top of the stack, and that load a stored object.
STORE_OPERATIONS = frozenset(("PUT", "BINPUT", "LONG_BINPUT"))
LOAD_OPERATIONS = frozenset(("GET", "BINGET", "LONG_BINGET"))


def _check_pickle(data: bytes, path: Path) -> None:
    """Check the number of values of every object in a pickle, without building any of them.

    A shared part counts as often as it occurs. A tuple of a few hundred bytes can contain others so
    often that computing its hash, as the key of an entry, would not end. The operations are
    followed on a stack of counts, as `pickletools` describes them.

    Args:
        data: the pickle.
        path: of the checkpoint, for messages.

    Raises:
        UserError: an object has more than `MAX_VALUES` values.
        ValueError: `data` is no pickle.
        IndexError: `data` is no pickle.
        KeyError: `data` is no pickle.
    """
    stack: list[int | None] = []  # counts of values; None is a mark
    memo: dict[Any, int | None] = {}
    for operation, argument, _ in pickletools.genops(data):
        if operation.name in STORE_OPERATIONS:
            memo[argument] = stack[-1]
        elif operation.name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif operation.name in LOAD_OPERATIONS:
            stack.append(memo[argument])
        elif operation.name == "DUP":
            stack.append(stack[-1])
        elif operation.name == "MARK":
            stack.append(None)
        else:
            count = 1
            for kind in reversed(operation.stack_before):
                if kind is pickletools.stackslice:
                    continue  # its values lie above the mark and are counted with it
                value = stack.pop()
                while kind is pickletools.markobject and value is not None:
                    count += value
                    value = stack.pop()
                count += value or 0
            refuse(
                count > MAX_VALUES,
                f"{path} is no checkpoint of this program: it holds too many values",
            )
            stack += [count] * len(operation.stack_after)


# --- writing


class _HashingFile:
    """Writes bytes to a file and hashes them.

    A disk error is stored, because torch's C++ writer would lose it.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()
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
        """Do nothing: torch requires the method, and the file is flushed once at the end."""


def _write_durably(path: Path, checkpoint: Mapping[str, Any]) -> None:
    """Write a checkpoint to a new file and to the disk, with its hash as the archive's comment.

    Raises:
        OSError: the file exists, or the disk cannot be written.
    """
    with path.open("xb") as file:
        hashing = _HashingFile(file)
        torch.save(checkpoint, hashing)  # type: ignore[arg-type]  # it needs only these methods
        if hashing.failure is not None:
            raise hashing.failure
        comment = SIGNATURE_START + hashing.sha256.hexdigest().encode()
        # An archive without a comment ends with the length of the comment, which is 0.
        file.seek(-2, os.SEEK_END)
        file.write(len(comment).to_bytes(2, "little") + comment)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    """Make renames survive a power failure, if the file system can synchronise directories."""
    with suppress(OSError):  # it cannot: a rename may be lost, but only if the power fails
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# --- checks before a run continues


def check_fits(checkpoint: Mapping[str, Any], model: Any, path: Path) -> None:
    """Check that a run can continue from a checkpoint: same data, model and format.

    Args:
        checkpoint: as returned by `read_checkpoint`.
        model: in training, a `blackout.training.model.Model`.
        path: of the checkpoint, for messages.

    Raises:
        UserError: names the first difference.
    """
    _check_format(checkpoint, path)
    _check_training_state(checkpoint, path)
    _check_same_description(checkpoint["blackout"], model.config, path)
    _check_same_shapes(checkpoint, model.state_dict(), path)
    _check_learning_rates(checkpoint, path)


def _check_format(checkpoint: Mapping[str, Any], path: Path) -> None:
    """Refuse another format."""
    file_format = checkpoint["blackout"].get("format", FORMAT)
    refuse(
        file_format != FORMAT,
        f"{path} has format {file_format}; this version continues format {FORMAT}",
    )


def _check_training_state(checkpoint: Mapping[str, Any], path: Path) -> None:
    """Refuse a checkpoint without the state of loops, callbacks or optimisers."""
    for name, kind in TRAINING_STATE.items():
        refuse(
            not isinstance(checkpoint.get(name), kind),
            f"{path} cannot be continued: it holds no {name}; {CONTINUE_ADVICE}",
        )
    for key, value in leaves(checkpoint["loops"]):
        if key.rpartition(".")[2] in PROGRESS_COUNTERS and type(value) is not int:
            raise UserError(f"{path} cannot be continued: {key} is not a number; {CONTINUE_ADVICE}")


def _check_same_description(saved_config: Mapping[str, Any], config: Plain, path: Path) -> None:
    """Refuse another description, apart from `CHANGEABLE` names.

    Args:
        saved_config: description in the checkpoint.
        config: description of the model in training.
        path: of the checkpoint.
    """
    dataset = remove_paths(saved_config.get("dataset"))
    saved_values = dict(leaves({**saved_config, "dataset": dataset}))
    values = dict(leaves(config))
    for key in sorted(values.keys() | saved_values.keys()):
        if key.startswith(CHANGEABLE):
            continue
        saved_value = saved_values.get(key)
        value = values.get(key)
        if saved_value != value:
            raise UserError(
                f"{path} belongs to another run: {key} is {saved_value} in it and {value} here; "
                "use the settings of that run, or start from its weights with init_from=<run>"
            )


def _check_same_shapes(checkpoint: Mapping[str, Any], state: Mapping[str, Any], path: Path) -> None:
    """Refuse weights of other names or shapes, and optimiser states of shapes of no weight.

    Args:
        checkpoint: to be continued.
        state: of the model in training, by name.
        path: of the checkpoint.
    """
    difference = first_difference(checkpoint["state_dict"], state)
    refuse(
        difference is not None,
        f"{path} does not fit: weight {difference} is missing in it or here, or has another shape; "
        "use the same network=... as that run",
    )
    shapes = {torch.Size(), *(value.shape for value in state.values())}
    for optimizer in checkpoint["optimizer_states"]:
        for key, value in leaves(optimizer):
            shape = getattr(value, "shape", torch.Size())
            is_step = key.endswith(".step")
            if shape not in shapes or (is_step and shape):
                raise UserError(
                    f"{path} does not fit: {key} of the optimizer has another shape; "
                    "use the same network=... and optimizer=... as that run"
                )


def _check_learning_rates(checkpoint: Mapping[str, Any], path: Path) -> None:
    """Refuse learning rates that are no numbers, with which only the first step would fail."""
    for optimizer in checkpoint["optimizer_states"]:
        groups = optimizer.get("param_groups") if isinstance(optimizer, Mapping) else None
        for group in groups if isinstance(groups, list) else ():
            rate = group.get("lr") if isinstance(group, Mapping) else None
            if not isinstance(rate, int | float | torch.Tensor):
                raise UserError(
                    f"{path} cannot be continued: a learning rate in it is not a number; "
                    f"{CONTINUE_ADVICE}"
                )
    for scheduler in checkpoint["lr_schedulers"]:
        step = scheduler.get("last_epoch") if isinstance(scheduler, Mapping) else None
        if type(step) is not int:
            raise UserError(
                f"{path} cannot be continued: the step of its learning rate is not a whole "
                f"number; {CONTINUE_ADVICE}"
            )
