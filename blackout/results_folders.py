"""Folders of results: the first one in which only results of the same request would be replaced.

A folder is marked with a hash of the request. The same request finds it again, and no other uses
it.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from blackout.errors import UserError, escaped, printable
from blackout.files import MAX_AGE, PART, check_writable, remove_parts

# starts of the names of files that training writes into a run's folder `samples`; no other file
# there has such a name
TRAINING_FILE_PREFIXES = ("step_", "final")


def request_key(content: Any) -> str:
    """Return a hash, 32 hexadecimal digits, of a request and the state of the files it names.

    Args:
        content: plain values of the request. Sizes and times of the files that texts in it name
            are part of the key, and those of folders that a `Path` names.
    """
    text = json.dumps([content, list(_file_stamps(content))], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _file_stamps(node: Any) -> Iterator[tuple[int, int]]:
    """Yield size and time of change of the files that nested plain values name."""
    if isinstance(node, Mapping | list | tuple):
        for part in node.values() if isinstance(node, Mapping) else node:
            yield from _file_stamps(part)
    elif isinstance(node, str | Path):
        with suppress(OSError, ValueError):  # text that is not the name of a file
            status = os.stat(node)
            if stat.S_ISREG(status.st_mode) or isinstance(node, Path):
                yield status.st_size, status.st_mtime_ns


@contextmanager
def results_folder(
    folders: Iterable[Path],
    key: str,
    names: Collection[str] | None = None,
    mark: str = ".request",
) -> Iterator[Path]:
    """Yield the first folder that is free, or that holds results of the same request.

    The folder is made and marked with the key, so that no other request uses it and the same
    request finds it again. The mark is removed if the request leaves no results.

    Args:
        folders: candidates, in order.
        key: of the request, see `request_key`.
        names: of the files that may be written; None for all that do not start with
            `TRAINING_FILE_PREFIXES`.
        mark: name of the hidden file that holds the key.

    Raises:
        UserError: no folder is free, or it cannot be written.
    """
    # 1. The first folder that is free, or marked with this key.
    refusal = ""
    for folder in folders:
        is_new = not folder.exists()
        check_writable(folder, folder)
        remove_parts(folder, older_than=MAX_AGE)
        results = _result_names(folder, names)
        marked = folder / mark
        if not results:
            # another process may mark it first, so the key is read below
            with suppress(FileExistsError), marked.open("x", encoding="utf-8") as file:
                file.write(key)
        if marked.is_file() and marked.read_bytes() == key.encode():
            break
        reason = f"belongs to another request, by its file {mark}"
        if results:
            reason = f"holds other files ({results[0]})"
        refusal = refusal or f"{folder} {reason}"
    else:
        raise UserError(f"{refusal}, and nothing there is replaced: give a new folder")
    if results:
        print(f"{escaped(folder)} holds results of the same request, which are replaced")
    elif refusal:
        print(f"{printable(refusal)}: the results of this request go to {escaped(folder)}")

    # 2. Remove the mark if there are no results, finished or unfinished.
    try:
        yield folder
    finally:
        if not _result_names(folder, names) and not list(folder.glob(f".*{PART}.batches")):
            marked.unlink(missing_ok=True)
            if is_new:
                with suppress(OSError):  # not empty: it stays
                    folder.rmdir()


def _result_names(folder: Path, names: Collection[str] | None) -> list[str]:
    """Return the sorted names of the results in a folder; see `results_folder`."""
    files = [
        path.name
        for path in folder.iterdir()
        if not path.name.startswith(".") and not path.is_dir()
    ]
    if names is None:
        return sorted(name for name in files if not name.startswith(TRAINING_FILE_PREFIXES))
    return sorted(name for name in files if name in names)
