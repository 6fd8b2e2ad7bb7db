"""A run's directory: its name, its configuration, and whether a run may continue in it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout
from pytorch_lightning.utilities.rank_zero import rank_zero_only

from blackout.errors import UserError
from blackout.files import opened, refuse_links, remove_parts, replacing
from blackout.programs.settings import decisive, differences
from blackout.training.descriptions import plain

_SECONDS = 60.0
"""In which a picture is written."""
_HOLDER = ".holder"
"""Says which process trains in a run directory; `.lock` beside it is locked by that process as long as it lives."""


def run_id(config: Mapping[str, Any]) -> str:
    """The given run_id, or a hash of all settings that decide the result: the same command finds the same run.

    Raises:
        UserError: the given one is not a plain directory name.
    """
    if config["run_id"] is not None:
        name = str(config["run_id"])
        if not name or name in (".", "..") or any(c in name for c in "/\\\0"):
            raise UserError(f"run_id must be a plain directory name, not '{name}'")
        return name
    return hashlib.sha256(json.dumps(decisive(config), sort_keys=True, default=str).encode()).hexdigest()[:8]


def run_directory(config: Mapping[str, Any], dataset: str) -> Path:
    """`runs/<experiment>/<run_id>`, whether it exists or not.

    Raises:
        UserError: one of the names would leave `runs`.
    """
    experiment = Path(str(config["experiment_name"] or dataset))
    if experiment.is_absolute() or ".." in experiment.parts:
        raise UserError(f"experiment_name must stay within runs_dir, not '{experiment}'")
    return Path(config["runs_dir"]) / experiment / run_id(config)


@contextmanager
def running(directory: Path) -> Iterator[Path]:
    """Inside, no other process trains in a run directory; a killed process holds nothing.

    A run that is refused before its first checkpoint leaves no directory, if there was none.

    Raises:
        UserError: another process has it (the message says which), or it cannot be made.
    """
    if getattr(rank_zero_only, "rank", 0) > 0:
        yield directory
        return
    new = [folder for folder in (directory, *directory.parents) if not folder.exists()]
    lock = FileLock(directory / ".lock")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
        _note_holder(directory)
    except Timeout:
        raise UserError(f"{directory} is in use by {_holder(directory)}: wait for it, or give another run_id") from None
    except OSError as error:
        raise UserError(f"cannot write the run directory {directory}: {error.strerror or error}") from None
    try:
        yield directory
    except UserError:
        if new and not (directory / "checkpoints").exists():
            _remove(new)
        raise
    finally:
        (directory / _HOLDER).unlink(missing_ok=True)
        lock.release()


def _remove(folders: Sequence[Path]) -> None:
    """Remove a run directory and those above it, as far as nobody else has put anything there."""
    shutil.rmtree(folders[0], ignore_errors=True)
    with suppress(OSError):
        for folder in folders[1:]:
            folder.rmdir()


def _note_holder(directory: Path) -> None:
    with replacing(directory / _HOLDER) as part:
        part.write_text(f"process {os.getpid()} on {socket.gethostname()}\n")
    for folder in (directory, directory / "checkpoints"):
        remove_parts(folder)
    samples = directory / "samples"  # where a `sample.py` may be writing: batches for hours, the rest for seconds
    remove_parts(samples, "step_*")
    remove_parts(samples, "final*")
    remove_parts(samples, older_than=_SECONDS, suffix="")


def _holder(directory: Path) -> str:
    try:
        return (directory / _HOLDER).read_text().strip()
    except OSError:
        return "another process"


def open_run(config: Mapping[str, Any], dataset: str) -> Path:
    """Make or reopen `runs/<experiment>/<run_id>` and write the resolved configuration there.

    Raises:
        UserError: the directory cannot be written, holds a run with other settings, or a link out of itself.
    """
    directory = run_directory(config, dataset)
    path = directory / "config.yaml"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        refuse_links(directory, "checkpoints", "samples", "model")
        if path.exists():
            for name, was, now in differences(_read(path), config):
                advice = "give another run_id, or remove the directory"
                raise UserError(f"{directory} holds a run with {name}={was}, not {now}: {advice}")
        if getattr(rank_zero_only, "rank", 0) == 0:
            with replacing(path) as part:
                part.write_text(yaml.safe_dump(dict(config), sort_keys=False))
    except OSError as error:
        raise UserError(f"cannot write the run directory {directory}: {error.strerror or error}") from None
    return directory


def _read(path: Path) -> Mapping[str, Any]:
    try:
        with opened(path) as file:
            old = yaml.safe_load(file)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{path} is damaged: {str(error).splitlines()[0]}; remove it to go on") from None
    if not isinstance(old, Mapping):
        raise UserError(f"{path} is damaged: it holds no settings; remove it to go on")
    settings: Mapping[str, Any] = plain(old, str(path))  # aliases can make a few lines larger than memory
    return settings
