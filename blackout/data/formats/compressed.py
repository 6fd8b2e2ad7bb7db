"""Files of text as bytes, unpacked where they are gzipped."""

from __future__ import annotations

import gzip
from pathlib import Path

from blackout.errors import refuse
from blackout.safe_reading import (
    MAX_COMPRESSION,
    MAX_UNCHECKED_BYTES,
    available_memory,
    check_size,
    open_regular,
    stored_bytes,
)

GZIP_SUFFIX = ".gz"


def inner_suffix(path: Path) -> str:
    """Return the suffix of a file in lower case, without that of gzip."""
    if path.suffix.lower() == GZIP_SUFFIX:
        return Path(path.stem).suffix.lower()
    return path.suffix.lower()


def read_bytes(path: Path, memory_per_byte: int) -> bytes:
    """Read a file, unpacked if its suffix is .gz.

    Args:
        path: of the file.
        memory_per_byte: bytes of memory that its reader takes for every byte.

    Raises:
        UserError: it is larger than its stored bytes or the memory allow.
        OSError: it is damaged, or cannot be read.
    """
    if path.suffix.lower() != GZIP_SUFFIX:
        check_size(path, memory_per_byte * path.stat().st_size)
        with open_regular(path) as file:
            return file.read()
    limit = MAX_UNCHECKED_BYTES + MAX_COMPRESSION * stored_bytes(path)
    limit = min(limit, available_memory() // memory_per_byte)
    with open_regular(path) as file, gzip.GzipFile(fileobj=file) as archive:
        content = archive.read(limit + 1)
    refuse(
        len(content) > limit,
        f"{path}: it unpacks to more than {limit:,} bytes, the limit here: unpack it first",
    )
    return content
