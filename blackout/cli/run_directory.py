"""Directories: that of a run, with its name, configuration, the lock of the one process that trains it, what may change
when it is continued, and copy at an address; and of results.
"""

from __future__ import annotations

import hashlib
import json
import os
import reprlib
import shutil
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import accumulate
from pathlib import Path
from typing import Any
from uuid import uuid4

import yaml
from filelock import FileLock, Timeout

from blackout.cli.sweeps import job_folder, sweeping
from blackout.component import leaves
from blackout.config.allowed_components import PATH_ARGUMENTS, copy_plain_values
from blackout.config.descriptions import add_defaults
from blackout.distributed import computed_once, is_first
from blackout.errors import Unobtainable, UserError, refuse
from blackout.files import (
    PART,
    numbered,
    parse_yaml,
    read_mapping,
    refuse_links,
    remove_parts,
    replacing,
    results_folder,
    working_folder,
)
from blackout.training.checkpoint_files import LAST, PREVIOUS, SIGNED, signature
from blackout.training.export import check_replaceable

_FOUND = ("checkpoints", "metrics.csv", "nonfinite_step_*.json", "samples/*")
"""What a run that fails leaves to whoever asks why."""
_LONGEST_NAME = 256
"""Bytes, more than file systems have for the name of a directory."""
_FILES = (".csv", ".h5ad", ".json", ".npy", ".npz", ".png", ".tif", ".tiff")
"""Endings of files' names, which no folder of results has."""
_OURS = ".pushed"
"""Hidden file of a run: the signatures of the checkpoints that were copied to its address from here, or from there."""
_LAST = f"checkpoints/{LAST}"

WHERE_AND_HOW = frozenset(
    ("data_dir", "data_on_device", "compile", "runs_dir", "run_id", "logger", "plan", "family.monitor")
)
"""Where files are and how results are computed or shown: other values give the same run."""
MAY_CHANGE = WHERE_AND_HOW | {
    "experiment_name", "callbacks", "trainer", "metrics", "sampler", "optimizer.decay_steps",
}  # fmt: skip
"""How long a run goes on, and what is shown and scored on the way: these may change when a run is continued."""
_STEP = ("precision", "accumulate_grad_batches", "gradient_clip_val", "gradient_clip_algorithm", "overfit_batches")
MAY_NOT = frozenset(f"trainer.{name}" for name in _STEP)
"""Parts of groups that may change, which may not: they decide what a step does."""


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
    settings = json.dumps(add_defaults(decisive, ""), sort_keys=True, default=str)
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
    return working_folder(config["runs_dir"]) / experiment / run_id(config)


class Mirror:
    """What is kept of a run directory at an address of any store that `fsspec` knows, such as s3://bucket/runs.

    The run works in a local folder, and every save that is finished is copied. Files appear at the address under their
    names when they are whole, and `last.ckpt` after all that belongs to it; nothing there is removed. What is hidden,
    or has a name with `*`, `?` or `[`, and `previous.ckpt` stay here.

    Args:
        address: of the run.
        folder: where it works.

    Raises:
        UserError: no such address; see `working_folder`.
        Unobtainable: the library for it is not installed, or the store does not answer.
    """

    def __init__(self, address: str, folder: Path) -> None:
        working_folder(address)
        self._address, self._folder = address, folder
        self._sent: dict[str, tuple[int, int]] = {}  # size and time of every file that was copied
        with self._asked():
            import fsspec

            self._store, self._root = fsspec.url_to_fs(address)

    @contextmanager
    def _asked(self) -> Iterator[None]:
        try:
            yield
        except UserError:
            raise
        except Exception as error:  # whose text may hold a key
            told = str(error) if isinstance(error, ImportError) else getattr(error, "strerror", None) or ""
            raise Unobtainable(f"{self._address}: {type(error).__name__} {told}".rstrip()) from None

    def fetch(self) -> bool:
        """Fill the folder from the address if there is no run in it yet; whether there is anything.

        Raises:
            UserError: the folder has another run, or the run has gone on elsewhere.
            Unobtainable: the store does not answer.
        """
        with self._asked():
            self._store.invalidate_cache()
            there = {path.removeprefix(self._root).lstrip("/"): path for path in self._store.find(self._root)}
            names = sorted(filter(_kept, there), key=_in_order)
            if not names:
                return False
            if (self._folder / _LAST).exists():  # which is fetched last
                self._refuse_others()
                return True
            self._folder.mkdir(parents=True, exist_ok=True)
            with FileLock(self._folder / ".fetching"):  # several processes begin at once
                if (self._folder / _OURS).exists() or (self._folder / _LAST).exists():
                    self._refuse_others()
                    return True
                for name in names:
                    with replacing(self._folder / name) as part:
                        self._store.get_file(there[name], str(part))
                self._remember()
        return True

    def push(self) -> None:
        """Copy what has changed, on process 0.

        Raises:
            UserError: at the address is another run, or the run has gone on elsewhere.
            Unobtainable: the store does not answer; what is there is whole.
        """
        if not is_first():
            return
        with self._asked():
            self._refuse_others()
            self._put("metrics.csv")  # before the row of its end is looked for, which is in a file of its own
            paths = (path for path in self._folder.rglob("*") if path.is_file() and not path.is_symlink())
            for name in sorted(filter(_kept, (str(path.relative_to(self._folder)) for path in paths)), key=_in_order):
                self._put(name)

    def try_to_push(self) -> None:
        """`push`, or a warning where the store does not answer: the next save tries again."""
        try:
            self.push()
        except Unobtainable as error:
            print(f"warning: not copied: {error}; {self._folder} has all of it", file=sys.stderr)

    def _put(self, name: str) -> None:
        """Copy one file, if it has changed."""
        path, there = self._folder / name, f"{self._root}/{name}"
        if not path.exists() or self._sent.get(name) == (stamp := (path.stat().st_size, path.stat().st_mtime_ns)):
            return
        parent = there.rpartition("/")[0]
        part = f"{parent}/.{uuid4().hex}{PART}"
        self._store.makedirs(parent, exist_ok=True)
        self._store.put_file(str(path), part)
        if name == _LAST:
            self._remember()
        self._store.mv(part, there)
        self._sent[name] = stamp

    def _remember(self) -> None:
        """Know the checkpoint in the folder as this run's."""
        with (self._folder / _OURS).open("a") as file:
            file.write(f"{signature(self._folder / _LAST)}\n")

    def _refuse_others(self) -> None:
        """Raises UserError where the checkpoint at the address is none that was copied to or from there."""
        self._store.invalidate_cache()
        try:
            there = self._store.cat_file(f"{self._root}/{_LAST}", start=-SIGNED).decode(errors="replace")
        except FileNotFoundError:
            return
        known = [signature(self._folder / _LAST)]
        with suppress(FileNotFoundError):  # nothing was copied from here yet
            known += (self._folder / _OURS).read_text().splitlines()
        advice = f"remove {self._folder} to go on from there, or give another run_id"
        refuse(there not in known, f"{self._address} has a checkpoint that {self._folder} does not know: {advice}")


def _kept(name: str) -> bool:
    """Whether a file of a run, by its name within it, is kept at an address."""
    hidden = any(part.startswith(".") for part in name.split("/")) and name != ".closing.csv"
    return bool(name) and not hidden and not set("*?[") & set(name) and name != f"checkpoints/{PREVIOUS}"


def _in_order(name: str) -> tuple[bool, bool, str]:
    """Sorts checkpoints after what belongs to them, and the last of them to the end."""
    return name.startswith("checkpoints/"), name == _LAST, name


def mirror_of(config: Mapping[str, Any], run: Path) -> Mirror | None:
    """The copy of a run where `runs_dir` is an address, from which the run's folder is filled; None for a folder.

    Raises:
        UserError: as `Mirror` and its `fetch`.
    """
    place = str(config["runs_dir"])
    if (folder := working_folder(place)) == Path(place):
        return None
    mirror = Mirror(f"{place.rstrip('/')}/{run.relative_to(folder)}", run)
    mirror.fetch()
    return mirror


def fetched(place: str) -> Path:
    """The path of a run or model; of one at an address the local folder, filled from there.

    Raises:
        UserError: nothing is there; or as `Mirror` and its `fetch`.
    """
    if (folder := working_folder(place)) != Path(place) and not Mirror(place, folder).fetch():
        raise UserError(f"{place}: there is nothing")
    return folder


@contextmanager
def running(directory: Path) -> Iterator[Path]:
    """Inside, no other process trains in a run directory; a killed process holds nothing.

    `.holder` says which process has it, and `.lock` is locked by that process as long as it lives. A run that is
    refused before it has found anything leaves no directory, if there was none.

    Raises:
        UserError: another process has it (the message says which), or it cannot be made.
    """
    if not is_first():
        yield directory
        return
    new = [folder for folder in (directory, *directory.parents) if not folder.exists()]
    lock, holder = FileLock(directory / ".lock"), directory / ".holder"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
        with replacing(holder) as part:
            part.write_text(f"process {os.getpid()} on {socket.gethostname()}\n")
        # what killed runs left; a `sample.py` may write beside training's own files in `samples`
        for folder in (directory, directory / "checkpoints", directory / "samples" / "final"):
            remove_parts(folder)
        for names in ("step_*", "final*"):
            remove_parts(directory / "samples", names)
    except Timeout:
        who = "another process"
        with suppress(OSError):  # the process may end meanwhile; the message is then less exact
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


def check_run(directory: Path, config: Mapping[str, Any]) -> None:
    """Compare the settings of a start with those of the run in a directory, if there is one; nothing is written.

    Raises:
        UserError: the directory holds a run with other settings, files of others, or a link out of itself; or the
            settings could not be read again.
    """
    path = directory / "config.yaml"
    _settings_text(path, config)
    try:
        refuse_links(directory, "checkpoints", "samples", "model")
        if path.exists():
            old = copy_plain_values(read_mapping(path, advice="; remove it to go on"), str(path))
            for name, was, now in differences(add_defaults(old, ""), add_defaults(config, "")):
                advice = "give another run_id, or remove the directory"
                raise UserError(f"{directory} holds a run with {name}={was}, not {now}: {advice}")
        elif directory.exists() and not (directory / "checkpoints").exists():
            for found in {*directory.glob("[!.]*")} - {path}:  # which another process of this run may just have written
                raise UserError(f"{directory} holds {found.name}, which is no run's: give another run_id")
        check_replaceable(directory / "model")
    except OSError as error:
        raise _unwritable(directory, error) from None


def write_settings(directory: Path, config: Mapping[str, Any]) -> None:
    """Write the resolved settings of a run, on process 0: when all is checked, and just before the run goes on.

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
        raise _unwritable(directory, error) from None


def _settings_text(path: Path, config: Mapping[str, Any]) -> str:
    """The settings as YAML, from which the same settings are read.

    Raises:
        UserError: they could not be read again.
    """
    settings = copy_plain_values(dict(config), "settings")
    text = yaml.safe_dump(settings, sort_keys=False)
    try:
        same = parse_yaml(text) == settings
    except (ValueError, yaml.YAMLError) as error:
        raise UserError(f"the settings could not be read again from {path}: {error}") from None
    refuse(not same, f"the settings could not be read again from {path}: some name in them is odd")
    return text


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """(name, old, new) of settings that may not change when a run is continued, but have."""
    was, now = dict(leaves(old)), dict(leaves(new))
    for name in sorted(was.keys() | now.keys()):
        groups = set(accumulate(name.split("."), "{}.{}".format))
        # data are known by their content, not by where they are
        place = name.startswith("dataset.") and name.rpartition(".")[2] in PATH_ARGUMENTS
        may = name not in MAY_NOT and (place or groups & MAY_CHANGE)
        if was.get(name) != now.get(name) and not may:
            yield name, was.get(name), now.get(name)


def kept_setting(directory: Path, group: str, name: str) -> Any:
    """A setting of the run in a directory; None where there is no run, or none that can be read."""
    try:
        settings = read_mapping(directory / "config.yaml").get(group)
    except (OSError, UserError):  # a new run, or a file that `check_run` refuses
        return None
    return settings.get(name) if isinstance(settings, Mapping) else None


def _unwritable(directory: Path, error: OSError) -> UserError:
    return UserError(f"cannot write the run directory {directory}: {error.strerror or error}")


def output_folders(out: str | None, ckpt: Path, folder: str = "samples") -> Iterator[Path]:
    """Where results may go: `out` alone, if it is given; or `folder`, `folder-2`, ... in the run directory.

    That of a checkpoint or model, or beside the model; in a sweep the job's own.

    Raises:
        UserError: a link out of the run directory, or `out` is the name of a file.
    """
    if out is not None:
        a_file = Path(out).suffix.lower() in _FILES and not Path(out).is_dir()
        refuse(a_file, f"out={out} names a folder, for samples.npz and others: leave its ending out")
        yield Path(out)
        return
    run = ckpt if ckpt.is_dir() and not (ckpt / "config.json").exists() else ckpt.parent
    run = run.parent if run.name == "checkpoints" else run
    parent = job_folder() if sweeping() else run
    for chosen in numbered(parent / folder):
        refuse_links(parent, folder.split("/")[0], str(chosen.relative_to(parent)))
        yield chosen


@contextmanager
def shared_folder(folders: Iterable[Path], key: str, **how: Any) -> Iterator[Path]:
    """`results_folder`, chosen by process 0 for all."""
    with ExitStack() as stack:
        yield computed_once(lambda: stack.enter_context(results_folder(folders, key, **how)))
