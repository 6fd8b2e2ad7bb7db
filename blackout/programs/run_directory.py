"""Directories: that of a run, with its name and configuration and whether a run may continue in it, and of results."""

from __future__ import annotations

import hashlib
import json
import os
import reprlib
import shutil
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout
from lightning_utilities.core.rank_zero import rank_zero_only

from blackout.distributed import computed_once
from blackout.errors import UserError
from blackout.files import numbered, read_mapping, refuse_links, remove_parts, replacing, results_folder
from blackout.programs.settings import WHERE_AND_HOW, differences
from blackout.programs.sweeps import job_folder, sweeping
from blackout.training.descriptions import plain
from blackout.training.export import check_replaceable
from blackout.training.instantiate import with_defaults

_FOUND = ("checkpoints", "metrics.csv", "nonfinite_step_*.json", "samples/*")
"""What a run that fails leaves to whoever asks why."""
_LONGEST_NAME = 256
"""Bytes, more than file systems have for the name of a directory."""


def run_id(config: Mapping[str, Any]) -> str:
    """The given run_id, or a hash of all settings that decide the result: the same command finds the same run.

    Raises:
        UserError: the given one is not a plain directory name.
    """
    if config["run_id"] is not None:
        name = str(config["run_id"])
        if not _possible(name) or name in ("", ".", "..") or any(c in name for c in "/\\"):
            raise UserError(f"run_id must be a plain directory name, not {reprlib.repr(name)}")
        return name
    decisive = {name: value for name, value in config.items() if name not in WHERE_AND_HOW}
    settings = json.dumps(with_defaults(decisive, ""), sort_keys=True, default=str)
    return hashlib.sha256(settings.encode()).hexdigest()[:8]


def _possible(name: str) -> bool:
    """Whether a file system has such a name, and a line can show it."""
    return name.isprintable() and len(name.encode()) < _LONGEST_NAME


def run_directory(config: Mapping[str, Any], dataset: str) -> Path:
    """`runs/<experiment>/<run_id>`, whether it exists or not.

    Raises:
        UserError: one of the names would leave `runs`.
    """
    experiment = Path(str(config["experiment_name"] or dataset))
    if experiment.is_absolute() or ".." in experiment.parts or not all(map(_possible, experiment.parts)):
        name = reprlib.repr(str(experiment))
        raise UserError(f"experiment_name must be a directory's name within runs_dir, not {name}")
    return Path(config["runs_dir"]) / experiment / run_id(config)


@contextmanager
def running(directory: Path) -> Iterator[Path]:
    """Inside, no other process trains in a run directory; a killed process holds nothing.

    `.holder` says which process has it, and `.lock` is locked by that process as long as it lives. A run that is
    refused before it has found anything leaves no directory, if there was none.

    Raises:
        UserError: another process has it (the message says which), or it cannot be made.
    """
    if getattr(rank_zero_only, "rank", 0) > 0:
        yield directory
        return
    new = [folder for folder in (directory, *directory.parents) if not folder.exists()]
    lock, holder = FileLock(directory / ".lock"), directory / ".holder"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
        with replacing(holder) as part:
            part.write_text(f"process {os.getpid()} on {socket.gethostname()}\n")
        _remove_leftovers(directory)
    except Timeout:
        who = "another process"
        with suppress(OSError):
            who = holder.read_text().strip()
        raise UserError(f"{directory} is in use by {who}: wait for it, or give another run_id") from None
    except OSError as error:
        raise _unwritable(directory, error) from None
    try:
        yield directory
    except UserError:
        if new and not any(found for name in _FOUND for found in directory.glob(name)):
            shutil.rmtree(directory, ignore_errors=True)
            with suppress(OSError):  # somebody else has put something there
                for folder in new[1:]:
                    folder.rmdir()
        raise
    finally:
        holder.unlink(missing_ok=True)
        lock.release()


def _remove_leftovers(directory: Path) -> None:
    """Remove what killed runs left; a `sample.py` may write beside training's own files in `samples`."""
    for folder in (directory, directory / "checkpoints", directory / "samples" / "final"):
        remove_parts(folder)
    for names in ("step_*", "final*"):
        remove_parts(directory / "samples", names)


def open_run(config: Mapping[str, Any], dataset: str) -> Path:
    """Make or reopen `runs/<experiment>/<run_id>` and write the resolved configuration there.

    Raises:
        UserError: the directory cannot be written, holds a run with other settings, files of others, or a link out of
            itself.
    """
    directory = run_directory(config, dataset)
    path, settings = directory / "config.yaml", plain(dict(config), "settings")
    text = yaml.safe_dump(settings, sort_keys=False)
    if yaml.safe_load(text) != settings:
        raise UserError(f"the settings could not be read again from {path}: some name in them is odd")
    try:
        refuse_links(directory, "checkpoints", "samples", "model")
        if path.exists():
            # plain, because aliases can make a few lines larger than memory
            old = plain(read_mapping(path, advice="; remove it to go on"), str(path))
            for name, was, now in differences(with_defaults(old, ""), with_defaults(config, "")):
                advice = "give another run_id, or remove the directory"
                raise UserError(f"{directory} holds a run with {name}={was}, not {now}: {advice}")
        elif directory.exists() and not (directory / "checkpoints").exists():
            for found in directory.glob("[!.]*"):
                raise UserError(f"{directory} holds {found.name}, which is no run's: give another run_id")
        check_replaceable(directory / "model")
        if getattr(rank_zero_only, "rank", 0) == 0:
            with replacing(path) as part:
                part.write_text(text)
    except OSError as error:
        raise _unwritable(directory, error) from None
    return directory


def kept_setting(directory: Path, group: str, name: str) -> Any:
    """A setting of the run in a directory; None where there is no run, or none that can be read."""
    with suppress(OSError, UserError):
        return (read_mapping(directory / "config.yaml").get(group) or {}).get(name)
    return None


def _unwritable(directory: Path, error: OSError) -> UserError:
    return UserError(f"cannot write the run directory {directory}: {error.strerror or error}")


def output_folders(out: str | None, ckpt: Path, folder: str = "samples") -> Iterator[Path]:
    """Where results may go: `out` alone, if it is given; or `folder`, `folder-2`, ... in the run directory.

    That of a checkpoint or model, or beside the model; in a sweep the job's own.

    Raises:
        UserError: a link out of the run directory.
    """
    if out is not None:
        yield Path(out)
        return
    parent = ckpt.parent
    if ckpt.is_dir() and not (ckpt / "config.json").exists():
        parent = ckpt
    elif parent.name == "checkpoints":
        parent = parent.parent
    parent = job_folder() if sweeping() else parent
    for chosen in numbered(parent / folder):
        refuse_links(parent, folder.split("/")[0], str(chosen.relative_to(parent)))
        yield chosen


@contextmanager
def shared_folder(folders: Iterable[Path], key: str, **how: Any) -> Iterator[Path]:
    """`results_folder`, chosen by process 0 for all."""
    with ExitStack() as stack:
        yield computed_once(lambda: stack.enter_context(results_folder(folders, key, **how)))
