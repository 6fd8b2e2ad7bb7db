"""The cache folder of what scores are made from: reference statistics, features, a classifier's weights."""

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


def cache_dir() -> Path:
    """`$XDG_CACHE_HOME/blackout`, or `~/.cache/blackout`; without a home directory, in that of temporary files."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "blackout"
    except RuntimeError:  # no home directory
        return Path(tempfile.gettempdir()) / "blackout-cache"


def key_hash(key: Mapping[str, Any]) -> str:
    """32 hexadecimal digits of the SHA-256 of a key's JSON with sorted names."""
    return hashlib.sha256(json.dumps(key, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:32]


def keep(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a cache file, whole or not at all; where it cannot be written, warn and continue."""
    try:
        with replacing(path, durably=True) as part:
            write(part)
    except OSError as error:
        warnings.warn(f"cannot keep {path} for the next run: {error}", stacklevel=2)
