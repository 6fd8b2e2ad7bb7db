"""The cache folder of scores, with reference statistics, features and weights of a classifier."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from blackout.files import replacing

HASH_LENGTH = 32  # hexadecimal digits


def cache_dir() -> Path:
    """Return `$XDG_CACHE_HOME/blackout`, or `~/.cache/blackout`.

    Without a home directory it is in the folder of temporary files.
    """
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "blackout"
    except RuntimeError:  # no home directory
        return Path(tempfile.gettempdir()) / "blackout-cache"


def key_hash(key: Mapping[str, Any]) -> str:
    """Return 32 hexadecimal digits of the SHA-256 of a key's JSON with sorted names."""
    text = json.dumps(key, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_LENGTH]


def write_cache_file(path: Path, write: Callable[[Path], None]) -> None:
    """Write a cache file atomically; if that fails, warn and continue without it.

    Args:
        path: of the file.
        write: writes the file to a path.
    """
    try:
        with replacing(path, durably=True) as part:
            write(part)
    except OSError as error:
        warnings.warn(f"{path} cannot be cached for the next run: {error}", stacklevel=2)
