"""Arrays of HDF5 files and .zarr stores that stay on disk until rows of them are read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from blackout.data.formats.contents import LIBRARY_BYTES, Array, decode_texts
from blackout.data.formats.sparse import are_row_pointers, sparse_matrix
from blackout.errors import UserError, ensure
from blackout.safe_reading import check_size, limit_memory

TEXT_BYTES = 64  # memory for one text
MIN_ALLOWED_CHUNKS = 10_000  # chunks that any array may have
BYTES_PER_CHUNK = 8  # stored bytes for each chunk beyond these


class LazyArray:
    """An array of an HDF5 file or a .zarr store.

    Args:
        array: of either library; it keeps the file open.
        path: of the file.
        stored_bytes: bytes on disk that hold the array.

    Raises:
        UserError: the array is larger than its bytes allow, or one chunk exceeds the memory.
        ValueError: it holds neither numbers nor text.
    """

    def __init__(self, array: Any, path: Path, stored_bytes: int) -> None:
        self._array = array
        self._path = path
        self.shape = tuple(array.shape or ())
        self.dtype = np.dtype(array.dtype)
        message = f"arrays of {self.dtype} are not supported; use numbers or text"
        ensure(self.dtype.kind in "biufSUOT", message)
        chunk_shape = getattr(array, "chunks", None)
        chunk_bytes = math.prod(chunk_shape or (1,)) * self.dtype.itemsize
        check_size(path, chunk_bytes)
        check_size(path, max(math.prod(self.shape), chunk_bytes), stored_bytes, in_memory=False)
        num_chunks = 1
        if chunk_shape:
            sides = zip(self.shape, chunk_shape, strict=True)
            num_chunks = math.prod(-(-side // chunk_side) for side, chunk_side in sides)
        if num_chunks > MIN_ALLOWED_CHUNKS + stored_bytes // BYTES_PER_CHUNK:
            content = f"{num_chunks:,} chunks of an array"
            raise UserError(f"{path}: {stored_bytes:,} bytes cannot hold {content}")

    def __getitem__(self, rows: slice) -> Array:
        """Read rows.

        Raises:
            UserError: they do not fit into memory.
            ValueError: the file is damaged.
        """
        size = 1
        if self.shape:
            size = math.prod(self.shape[1:]) * len(range(*rows.indices(self.shape[0])))
        item_bytes = self.dtype.itemsize
        if self.dtype.kind not in "biuf":
            item_bytes = max(item_bytes, TEXT_BYTES)
        check_size(self._path, size * item_bytes)
        try:
            with limit_memory(LIBRARY_BYTES + 4 * size * item_bytes):
                return np.asarray(self._array[rows] if self.shape else self._array[()])
        except Exception as error:  # a dozen decompressors raise errors of many types
            reason = " ".join(str(error).split())[:500] or type(error).__name__
            raise ValueError(f"rows from {rows.start or 0} on cannot be read ({reason})") from error

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Read everything, for NumPy; text becomes NumPy's strings.

        Raises:
            ValueError: the file is damaged, or a text is too long.
        """
        if self.dtype.kind in "biuf":
            return np.asarray(self[:], dtype)
        return decode_texts(self[:].ravel().tolist()).reshape(self.shape)


class LazySparseMatrix:
    """A CSR matrix of an HDF5 file or a .zarr store, whose rows are checked when they are read.

    Args:
        shape: numbers of rows and columns.
        parts: `data`, `indices` and `indptr`; the last is read at once.

    Raises:
        ValueError: the parts are not such a matrix.
    """

    def __init__(self, shape: Any, parts: Mapping[str, LazyArray]) -> None:
        data = parts["data"]
        self._parts = parts
        self._pointers = np.asarray(parts["indptr"])
        self.dtype = data.dtype
        # check shape and types with no rows
        sides = np.asarray(shape)
        sparse_matrix("csr", (0, sides.flat[-1]), self._read(0, 0, self._pointers[:1]))
        self.shape = tuple(map(int, sides))
        fits = len(self.shape) == 2 and data.shape == parts["indices"].shape
        if not fits or not are_row_pointers(self._pointers, self.shape[0], math.prod(data.shape)):
            message = (
                f"do not fit its shape {list(self.shape)}: the file is damaged, write it again"
            )
            raise ValueError(f"indptr and indices of a sparse matrix {message}")

    def __getitem__(self, rows: slice) -> Any:
        """Read rows as a SciPy CSR matrix.

        Raises:
            UserError: they do not fit into memory.
            ValueError: the file is damaged, or the rows are not those of such a matrix.
        """
        first, last, _ = rows.indices(self.shape[0])
        pointers = self._pointers[first : max(first, last) + 1]
        parts = self._read(pointers[0], pointers[-1], pointers - pointers[0])
        return sparse_matrix("csr", (len(pointers) - 1, self.shape[1]), parts)

    def toarray(self) -> Array:
        """Read everything as a dense array."""
        return self[:].toarray()

    def _read(self, first: int, last: int, pointers: Array) -> dict[str, Array]:
        entries = slice(int(first), int(last))
        data = self._parts["data"][entries]
        indices = self._parts["indices"][entries]
        return {"data": data, "indices": indices, "indptr": pointers}
