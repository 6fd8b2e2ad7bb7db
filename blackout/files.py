"""Files that appear whole or not at all."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4


@contextmanager
def replacing(path: Path, shared: bool = False) -> Iterator[Path]:
    """Yields a hidden path beside `path` to write to; it takes `path`'s place when the block ends without an error.

    A process that is killed leaves the hidden file behind, to be overwritten by the next attempt.

    Args:
        path: the file to make or to replace; its folder is made where there is none.
        shared: other programs may write the same file at the same time (a cache): the hidden file is this writer's
            alone, ends as `path` does, and is on the disk before it takes `path`'s place.

    Raises:
        OSError: the folder cannot be made or written; `path` is then as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.stem}-{uuid4().hex}{path.suffix}" if shared else f".{path.name}.part")
    try:
        yield part
        if shared:
            with part.open("rb") as file:
                os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_json(content: Any, path: Path) -> None:
    """Write plain containers as JSON, whole or not at all; numbers that JSON does not have become null."""
    with replacing(path) as part:
        part.write_text(json.dumps(_finite(content), indent=2, allow_nan=False) + "\n")


def save_picture(picture: Any, path: Path) -> None:
    """Write a PIL image, if there is one, as PNG, whole or not at all."""
    if picture is not None:
        with replacing(path) as part:
            picture.save(part, format="png")


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
