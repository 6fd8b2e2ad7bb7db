"""The directory of a run: its name, its settings, and the lock of the process that trains it."""

from __future__ import annotations

import hashlib
import json
import os
import reprlib
import shutil
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import accumulate
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from blackout.component import leaves
from blackout.config.allowed_components import PATH_ARGUMENTS, copy_plain_values
from blackout.config.descriptions import add_defaults
from blackout.distributed import is_first
from blackout.errors import UserError, refuse
from blackout.files import refuse_links, remove_parts, replacing, working_folder
from blackout.safe_reading import parse_yaml, read_mapping
from blackout.training.export import check_replaceable

# what a failed run leaves for whoever looks for the reason; a directory without any is removed
FAILURE_REPORTS = ("checkpoints", "metrics.csv", "nonfinite_step_*.json", "samples/*")
RUN_FOLDERS = ("checkpoints", "samples", "model")
MAX_NAME_BYTES = 255  # of the name of a directory, in common file systems
RUN_ID_LENGTH = 8  # hexadecimal digits

# where files are and how results are computed or shown: other values give the same run
UNRELATED_SETTINGS = frozenset(
    [
        "compile",
        "data_dir",
        "data_on_device",
        "family.monitor",
        "logger",
        "plan",
        "run_id",
        "runs_dir",
        "tf32",
    ]
)
# settings and groups that may change when a run is continued: length, pictures and scores
CHANGEABLE_SETTINGS = UNRELATED_SETTINGS | {
    "callbacks",
    "experiment_name",
    "metrics",
    "optimizer.decay_steps",
    "sampler",
    "trainer",
}
# settings in `CHANGEABLE_SETTINGS` that may not change, because they decide what a step does
FIXED_SETTINGS = frozenset(
    [
        "trainer.accumulate_grad_batches",
        "trainer.gradient_clip_algorithm",
        "trainer.gradient_clip_val",
        "trainer.overfit_batches",
        "trainer.precision",
    ]
)


def run_directory(config: Mapping[str, Any], dataset: str) -> Path:
    """Return `runs/<experiment>/<run_id>`, whether it exists or not.

    Raises:
        UserError: one of the names would leave `runs`.
    """
    experiment = Path(str(config["experiment_name"] or dataset))
    leaves_runs = experiment.is_absolute() or ".." in experiment.parts
    if leaves_runs or not all(map(_is_possible_name, experiment.parts)):
        name = reprlib.repr(str(experiment))
        raise UserError(f"experiment_name must name a directory within runs_dir, not {name}")
    return working_folder(config["runs_dir"]) / experiment / run_id(config)


def run_id(config: Mapping[str, Any]) -> str:
    """Return the chosen run_id, or a hash of all settings that decide the result.

    The same command therefore finds the same run.

    Raises:
        UserError: the chosen one is not a plain directory name.
    """
    if config["run_id"] is None:
        decisive = {name: value for name, value in config.items() if name not in UNRELATED_SETTINGS}
        text = json.dumps(add_defaults(decisive, ""), sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:RUN_ID_LENGTH]
    name = str(config["run_id"])
    is_plain = name not in ("", ".", "..") and not set("/\\") & set(name)
    if not is_plain or not _is_possible_name(name):
        raise UserError(f"run_id must be a plain directory name, not {reprlib.repr(name)}")
    return name


@contextmanager
def locked_run(directory: Path) -> Iterator[Path]:
    """Hold a run directory, so that no other process trains in it; a killed process holds nothing.

    `.lock` is locked by the process that trains as long as it lives, and `.holder` says which one
    it is. A run that is refused before it has any result leaves no new directory.

    Raises:
        UserError: another process holds it (the message says which), or it cannot be created.
    """
    if not is_first():
        yield directory
        return
    new_folders = [folder for folder in (directory, *directory.parents) if not folder.exists()]
    lock = FileLock(directory / ".lock")
    holder = directory / ".holder"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
        with replacing(holder) as part:
            part.write_text(f"process {os.getpid()} on {socket.gethostname()}\n", encoding="utf-8")
        _remove_unfinished_files(directory)
    except Timeout:
        process = "another process"
        with suppress(OSError):  # the process may end meanwhile; then the message is less exact
            process = holder.read_text(encoding="utf-8").strip()
        raise UserError(
            f"{directory} is in use by {process}: wait for it, or choose another run_id"
        ) from None
    except OSError as error:
        raise _write_error(directory, error) from None
    try:
        yield directory
    except UserError:
        has_results = any(next(directory.glob(name), None) for name in FAILURE_REPORTS)
        if new_folders and not has_results:
            shutil.rmtree(directory, ignore_errors=True)
            with suppress(OSError):  # another process has put something there
                for folder in new_folders[1:]:
                    folder.rmdir()
        raise
    finally:
        holder.unlink(missing_ok=True)
        lock.release()


def check_run(directory: Path, config: Mapping[str, Any]) -> None:
    """Compare settings with those of the run in a directory, if there is one; nothing is written.

    Raises:
        UserError: the directory has a run with other settings, files of others, or a link that
            leads out of it; or the settings could not be read again.
    """
    path = directory / "config.yaml"
    _settings_text(path, config)
    try:
        refuse_links(directory, *RUN_FOLDERS)
        for folder in (directory / name for name in RUN_FOLDERS):
            refuse(folder.exists() and not folder.is_dir(), f"{folder} is not a folder: remove it")
        if path.exists():
            old = copy_plain_values(read_mapping(path, advice="; remove it to go on"), str(path))
            changes = differences(add_defaults(old, ""), add_defaults(config, ""))
            for name, old_value, new_value in changes:
                advice = "choose another run_id, or remove the directory"
                raise UserError(
                    f"{directory} has a run with {name}={old_value}, not {new_value}: {advice}"
                )
        elif directory.exists() and not (directory / "checkpoints").exists():
            # Another process of this run may just have written its settings.
            for file in {*directory.glob("[!.]*")} - {path}:
                raise UserError(
                    f"{directory} is not a run directory, because it contains {file.name}: "
                    "choose another run_id"
                )
        check_replaceable(directory / "model")
    except OSError as error:
        raise _write_error(directory, error) from None


def write_settings(directory: Path, config: Mapping[str, Any]) -> None:
    """Write the settings of a run, on process 0, after all checks and just before it goes on.

    A start that is refused leaves the settings with which the weights were made.

    Raises:
        UserError: the directory cannot be written.
    """
    path = directory / "config.yaml"
    text = _settings_text(path, config)
    if not is_first():
        return
    try:
        with replacing(path) as part:
            part.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _write_error(directory, error) from None


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield (name, old, new) of settings that differ but may not when a run is continued."""
    old_values = dict(leaves(old))
    new_values = dict(leaves(new))
    for name in sorted(old_values.keys() | new_values.keys()):
        old_value = old_values.get(name)
        new_value = new_values.get(name)
        if old_value != new_value and not _may_change(name):
            yield name, old_value, new_value


def read_setting(directory: Path, group: str, name: str) -> Any:
    """Return a setting of the run in a directory; None without a run that can be read."""
    try:
        settings = read_mapping(directory / "config.yaml").get(group)
    except (OSError, UserError):  # a new run, or a file that `check_run` refuses
        return None
    return settings.get(name) if isinstance(settings, Mapping) else None


def _may_change(name: str) -> bool:
    """Return whether a setting, by its dotted name, may change when a run is continued."""
    if name in FIXED_SETTINGS:
        return False
    if name.startswith("dataset.") and name.rpartition(".")[2] in PATH_ARGUMENTS:
        return True  # data are recognised by their content, not by where they are
    name_and_groups = set(accumulate(name.split("."), "{}.{}".format))
    return bool(name_and_groups & CHANGEABLE_SETTINGS)


def _is_possible_name(name: str) -> bool:
    """Return whether a file system can have such a name, and a line can show it."""
    return name.isprintable() and len(name.encode()) <= MAX_NAME_BYTES


def _remove_unfinished_files(directory: Path) -> None:
    """Remove the parts of files that killed runs left.

    In `samples`, only training's own: `sample.py` may be writing there.
    """
    for folder in (directory, directory / "checkpoints", directory / "samples" / "final"):
        remove_parts(folder)
    for names in ("step_*", "final*"):
        remove_parts(directory / "samples", names)


def _settings_text(path: Path, config: Mapping[str, Any]) -> str:
    """Return the settings as YAML, from which the same settings are read.

    Raises:
        UserError: they could not be read again.
    """
    settings = copy_plain_values(dict(config), "settings")
    text = yaml.safe_dump(settings, sort_keys=False)
    try:
        is_same = parse_yaml(text) == settings
    except (ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path} would not give these settings again: {error}") from None
    refuse(
        not is_same,
        f"{path} would not give these settings again: use names of plain letters and digits",
    )
    return text


def _write_error(directory: Path, error: OSError) -> UserError:
    return UserError(f"cannot write the run directory {directory}: {error.strerror or error}")
