"""Functions that write hostile files and return what reads them."""

from __future__ import annotations

import io
import os
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from blackout.data import counts

Read = Callable[[], object]
Case = Callable[[Path], Read]
COUNTS = np.arange(24).reshape(8, 3)


class Trap:
    """Makes a folder when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.makedirs, ("owned",)


PICKLE = pickle.dumps(Trap())


def with_bytes(name: str, content: bytes, read: Callable[[Path], object], folder: Path) -> Read:
    (folder / name).write_bytes(content)
    return partial(read, folder / name)


def sparse_file(
    name: str, header: bytes, size: int, read: Callable[[Path], object], folder: Path
) -> Read:
    with (folder / name).open("wb") as file:
        file.write(header)
        file.truncate(len(header) + size)
    return partial(read, folder / name)


def write_archive(
    folder: Path, members: Mapping[str, bytes], method: int = zipfile.ZIP_STORED, read: Any = counts
) -> Read:
    with zipfile.ZipFile(folder / "x.npz", "w", method) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return partial(read, folder / "x.npz")


def npy_bytes(array: Any) -> bytes:
    np.save(file := io.BytesIO(), array, allow_pickle=False)
    return file.getvalue()


def overwrite(marker: bytes, offset: int, value: bytes) -> Callable[[bytearray], None]:
    def change(content: bytearray) -> None:
        start = content.rindex(marker) + offset
        content[start : start + len(value)] = value

    return change


def npy(header: bytes | str, body: bytes = b"", version: bytes = b"\1\0") -> bytes:
    text = header.encode() if isinstance(header, str) else header
    return (
        b"\x93NUMPY"
        + version
        + struct.pack("<H" if version == b"\1\0" else "<I", len(text))
        + text
        + body
    )


def npy_of(descr: Any, shape: Any, order: Any = False, body: bytes = bytes(192)) -> bytes:
    return npy(repr({"descr": descr, "fortran_order": order, "shape": shape}) + "\n", body)


def parts(**changes: Any) -> dict[str, Any]:
    matrix = scipy.sparse.csr_matrix(COUNTS)
    arrays = {
        "data": matrix.data,
        "indices": matrix.indices,
        "indptr": matrix.indptr,
        "shape": np.array(matrix.shape),
    }
    return arrays | {"format": np.array(b"csr")} | changes


def deflated(size: int) -> bytes:
    """At least `size` zeros in a thousandth of the bytes; only the checksum at the end is wrong."""
    deflate = zlib.compressobj()
    first = deflate.compress(bytes(1 << 24)) + deflate.flush(zlib.Z_FULL_FLUSH)
    repeated = deflate.compress(bytes(1 << 24)) + deflate.flush(zlib.Z_FULL_FLUSH)
    return first + repeated * (size >> 24) + deflate.flush()
