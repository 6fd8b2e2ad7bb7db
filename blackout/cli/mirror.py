"""The copy of a run directory in a remote store, such as s3://bucket/runs, by `fsspec`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from filelock import FileLock

from blackout.distributed import is_first
from blackout.errors import Unobtainable, UserError, refuse
from blackout.files import PART, replacing, working_folder
from blackout.training.checkpoint_files import LAST, PREVIOUS, SIGNATURE_BYTES, signature

LAST_CHECKPOINT = f"checkpoints/{LAST}"
# hidden file of a run: signatures of the checkpoints that were copied to or from its address
KNOWN_SIGNATURES = ".pushed"
GLOB_CHARACTERS = frozenset("*?[")  # stores would read them as patterns


class Mirror:
    """Copies every finished save of a run from its local folder to an address.

    Files appear at the address under their names when they are complete, and `last.ckpt` after all
    that belongs to it. Nothing there is removed. Hidden files, names with `*`, `?` or `[`, and
    `previous.ckpt` are not copied.

    Args:
        address: of the run.
        folder: the local one.

    Raises:
        UserError: no such address; see `working_folder`.
        Unobtainable: the library for it is not installed, or the store does not answer.
    """

    def __init__(self, address: str, folder: Path) -> None:
        working_folder(address)
        self._address = address
        self._folder = folder
        self._copied: dict[str, tuple[int, int]] = {}  # name -> size and time of change
        with self._store_errors():
            import fsspec

            self._store, self._root = fsspec.url_to_fs(address)

    @contextmanager
    def _store_errors(self) -> Iterator[None]:
        """Turn errors of a store into one line, without its text, which may contain a key."""
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            text = getattr(error, "strerror", None) or ""
            if isinstance(error, ImportError):
                text = str(error)
            line = f"{self._address}: {type(error).__name__} {text}".rstrip()
            raise Unobtainable(line) from None

    def fetch(self) -> bool:
        """Fill the folder from the address if it has no run yet; return whether there is one.

        Raises:
            UserError: the folder has another run, or the run was continued elsewhere.
            Unobtainable: the store does not answer.
        """
        with self._store_errors():
            self._store.invalidate_cache()
            remote = {
                path.removeprefix(self._root).lstrip("/"): path
                for path in self._store.find(self._root)
            }
            names = sorted(filter(_is_copied, remote), key=_copy_order)
            if not names:
                return False
            if (self._folder / LAST_CHECKPOINT).exists():  # it is fetched last
                self._check_remote_checkpoint()
                return True
            self._folder.mkdir(parents=True, exist_ok=True)
            with FileLock(self._folder / ".fetching"):  # several processes start at once
                is_known = (self._folder / KNOWN_SIGNATURES).exists()
                if is_known or (self._folder / LAST_CHECKPOINT).exists():
                    self._check_remote_checkpoint()
                    return True
                for name in names:
                    with replacing(self._folder / name) as part:
                        self._store.get_file(remote[name], str(part))
                self._add_signature()
        return True

    def push(self) -> None:
        """Copy what has changed, on process 0.

        Raises:
            UserError: another run is at the address, or the run was continued elsewhere.
            Unobtainable: the store does not answer; what is there is complete.
        """
        if not is_first():
            return
        with self._store_errors():
            self._check_remote_checkpoint()
            # The row that closes metrics.csv is in a file of its own, so the table goes first.
            self._copy("metrics.csv")
            paths = [
                path for path in self._folder.rglob("*") if path.is_file() and not path.is_symlink()
            ]
            names = [str(path.relative_to(self._folder)) for path in paths]
            for name in sorted(filter(_is_copied, names), key=_copy_order):
                self._copy(name)

    def try_to_push(self) -> None:
        """Copy what has changed; print a warning if the store does not answer.

        The next save tries again.
        """
        try:
            self.push()
        except Unobtainable as error:
            print(
                f"warning: the copy of {self._folder} failed and is tried again later: {error}",
                file=sys.stderr,
            )

    def _copy(self, name: str) -> None:
        """Copy a file if it has changed."""
        path = self._folder / name
        if not path.exists():
            return
        state = (path.stat().st_size, path.stat().st_mtime_ns)
        if self._copied.get(name) == state:
            return
        target = f"{self._root}/{name}"
        parent = target.rpartition("/")[0]
        part = f"{parent}/.{uuid4().hex}{PART}"
        self._store.makedirs(parent, exist_ok=True)
        self._store.put_file(str(path), part)
        if name == LAST_CHECKPOINT:
            self._add_signature()
        self._store.mv(part, target)
        self._copied[name] = state

    def _add_signature(self) -> None:
        """Record the checkpoint in the folder as one of this run."""
        with (self._folder / KNOWN_SIGNATURES).open("a", encoding="utf-8") as file:
            file.write(f"{signature(self._folder / LAST_CHECKPOINT)}\n")

    def _check_remote_checkpoint(self) -> None:
        """Refuse a checkpoint at the address that was not copied there, or fetched, by this folder.

        Raises:
            UserError: there is one.
        """
        self._store.invalidate_cache()
        try:
            end = self._store.cat_file(f"{self._root}/{LAST_CHECKPOINT}", start=-SIGNATURE_BYTES)
        except FileNotFoundError:
            return
        signatures = [signature(self._folder / LAST_CHECKPOINT)]
        with suppress(FileNotFoundError):  # nothing was copied from here yet
            signatures += (self._folder / KNOWN_SIGNATURES).read_text(encoding="utf-8").splitlines()
        refuse(
            end.decode(errors="replace") not in signatures,
            f"{self._address} has a checkpoint that did not come from {self._folder}: "
            f"remove {self._folder} to continue from there, or choose another run_id",
        )


def open_mirror(config: Mapping[str, Any], run: Path) -> Mirror | None:
    """Return the copy of a run if `runs_dir` is an address, after filling the run's folder from it.

    Raises:
        UserError: as `Mirror` and its `fetch`.
    """
    runs_dir = str(config["runs_dir"])
    folder = working_folder(runs_dir)
    if folder == Path(runs_dir):
        return None
    mirror = Mirror(f"{runs_dir.rstrip('/')}/{run.relative_to(folder)}", run)
    mirror.fetch()
    return mirror


def fetch_folder(location: str) -> Path:
    """Return the path of a run or model; of an address, the local folder after filling it.

    Raises:
        UserError: nothing is there; or as `Mirror` and its `fetch`.
    """
    folder = working_folder(location)
    if folder != Path(location):
        refuse(not Mirror(location, folder).fetch(), f"{location}: no run and no model is there")
    return folder


def _is_copied(name: str) -> bool:
    """Return whether a file of a run, by its name within it, is copied."""
    if not name or GLOB_CHARACTERS & set(name) or name == f"checkpoints/{PREVIOUS}":
        return False
    is_hidden = any(part.startswith(".") for part in name.split("/"))
    return not is_hidden or name == ".closing.csv"


def _copy_order(name: str) -> tuple[bool, bool, str]:
    """Return a sort key that puts checkpoints last, and `last.ckpt` at the very end."""
    return name.startswith("checkpoints/"), name == LAST_CHECKPOINT, name
