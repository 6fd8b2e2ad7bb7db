"""Where computed files are kept between runs, and how they get there without ever being half-written."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def cache_dir() -> Path:
    """``$XDG_CACHE_HOME/blackout``, or ``~/.cache/blackout``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "blackout"


def key_hash(key: Mapping[str, Any]) -> str:
    """Hexadecimal name of a key: 32 digits of the SHA-256 of its JSON with sorted names."""
    text = json.dumps(key, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, then put it in place of ``path`` at once.

    Raises:
        OSError: the folder cannot be made or written; ``path`` is then as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def keep(path: Path, write: Callable[[Path], None]) -> None:
    """``write_atomically`` for a file that only saves time: where it cannot be written, warn and go on."""
    try:
        write_atomically(path, write)
    except OSError as error:
        warnings.warn(f"cannot keep {path} for the next run: {error}", stacklevel=2)
