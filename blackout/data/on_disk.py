"""Counts that stay on disk: rows are read when they are used.

What is too large for memory is checked once, block by block. Where rows are not stored one after
the other, as in a folder of images or in compressed chunks, that pass writes them to a folder next
to the file, in which they are.
"""

from __future__ import annotations

import copy
import json
import math
import os
import shutil
import zlib
from collections.abc import Callable, Iterator
from glob import escape
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from filelock import FileLock
from torch import Tensor

from blackout.component import Plain
from blackout.counts import count_dtype
from blackout.data.formats import load_array
from blackout.distributed import rank
from blackout.errors import UserError, escaped
from blackout.files import copy_privacy, remove_parts, replacing_folder, write_json
from blackout.results_folders import request_key
from blackout.safe_reading import available_memory, file_error, open_regular, read_mapping

Array = npt.NDArray[Any]
Blocks = Callable[[], Iterator[Any]]  # yields all rows in blocks of checked counts, dense or CSR
MAX_MEMORY_BYTES = 1 << 30  # of counts that are loaded unless the user decides
MAX_READ_BYTES = 1 << 30  # of one call; Linux reads at most 2 GiB, macOS refuses more
MEMORY_FRACTION = 1 / 8  # of the free memory that such counts may take
ROW_FILES = ("values", "columns", "totals.npy", "ends.npy")  # of packed rows
CHECKSUM_BLOCK = 1 << 20  # bytes that are read at once
MAX_READ_AHEAD = 4  # times the bytes of the pieces that are read together with their gaps


def _read_into(descriptor: int, buffer: memoryview, position: int) -> int:
    """Read bytes at a position of a file into a buffer; return how many."""
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [buffer], position)
    content = os.pread(descriptor, len(buffer), position)  # macOS before 11
    buffer[: len(content)] = content
    return len(content)


def stays_on_disk(shape: tuple[int, ...], itemsize: int, in_memory: bool | None) -> bool:
    """Return whether counts stay on disk: as `in_memory` says, or if None, when they are large."""
    if in_memory is not None:
        return not in_memory
    max_bytes = min(MAX_MEMORY_BYTES, available_memory() * MEMORY_FRACTION)
    return math.prod(shape) * min(itemsize, 4) > max_bytes


class FileArray:
    """An array that is stored uncompressed in a file, row after row.

    Args:
        path: of the file.
        dtype: of the array.
        shape: of the array.
        offset: bytes before it.

    Raises:
        UserError: the file is not an ordinary file; or, when rows are read, it was changed
            meanwhile.
    """

    def __init__(
        self,
        path: Path,
        dtype: npt.DTypeLike,
        shape: tuple[int, ...],
        offset: int = 0,
    ) -> None:
        self.path = path
        self.dtype = np.dtype(dtype)
        self.shape = shape
        self._offset = offset
        self._file = open_regular(path)
        self._state = self._file_state()

    def __reduce__(self) -> tuple[Any, ...]:
        # another process opens the file itself
        return FileArray, (self.path, self.dtype, self.shape, self._offset)

    def __getitem__(self, rows: slice) -> Array:
        first, last, _ = rows.indices(self.shape[0])
        row_size = math.prod(self.shape[1:])
        values = self._read(first * row_size, max(first, last) * row_size)
        return values.reshape(-1, *self.shape[1:])

    def gather(self, starts: Array, ends: Array) -> Array:
        """Return the values starts[k], ..., ends[k] - 1 of the flat array, for every k in turn."""
        if len(starts) == 0:
            return self._read(0, 0)
        low = int(starts.min())
        high = int(ends.max())
        pieces = list(zip(starts.tolist(), ends.tolist(), strict=True))
        if high - low > MAX_READ_AHEAD * int((ends - starts).sum()):
            return np.concatenate([self._read(start, end) for start, end in pieces])
        values = self._read(low, high)
        return np.concatenate([values[start - low : end - low] for start, end in pieces])

    def _read(self, first: int, last: int) -> Array:
        # not a memory map: its pages count as memory of the process, and a file that is truncated
        # would end the process
        num_bytes = (last - first) * self.dtype.itemsize
        position = self._offset + first * self.dtype.itemsize
        content = bytearray(num_bytes)
        num_read = 0
        while num_read < num_bytes:
            buffer = memoryview(content)[num_read : num_read + MAX_READ_BYTES]
            step = _read_into(self._file.fileno(), buffer, position + num_read)
            if step == 0:
                break
            num_read += step
        if num_read < num_bytes or self._file_state() != self._state:
            raise _changed_file(self.path)
        return np.frombuffer(content, self.dtype)

    def _file_state(self) -> tuple[int, int]:
        """Return size and time of the last change, which tell whether the file was changed."""
        status = os.fstat(self._file.fileno())
        return status.st_size, status.st_mtime_ns


class DiskCounts:
    """Counts [N, *shape] on disk in place of a tensor; indexing by a slice or int64 [b] reads rows.

    Args:
        values: counts of all rows; of sparse rows, all that are not 0.
        shape: of a sample.
        max_count: largest count.
        totals: of every row, int64 [N].
        sparse: for sparse rows, the column of each value, and the pointers to the first value of
            every row and past the last one, int64 [N + 1].
    """

    device = torch.device("cpu")

    def __init__(
        self,
        values: FileArray,
        shape: tuple[int, ...],
        max_count: int,
        totals: Tensor,
        sparse: tuple[FileArray, Array] | None = None,
    ) -> None:
        self._values = values
        self._sample_shape = shape
        self._max_count = max_count
        self._sparse = sparse
        self.row_numbers = torch.arange(len(totals))
        self.totals = totals
        self.dtype = count_dtype(max_count)
        self.ndim = 1 + len(shape)

    @property
    def shape(self) -> torch.Size:
        """Shape of all counts, [N, *shape]."""
        return torch.Size((len(self.row_numbers), *self._sample_shape))

    def __len__(self) -> int:
        return len(self.row_numbers)

    def __repr__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{type(self).__name__}({dtype} {list(self.shape)})"

    def numel(self) -> int:
        """Return the number of counts."""
        return self.shape.numel()

    def max(self) -> int:
        """Return the largest count of all rows of the file, whether or not they were taken."""
        return self._max_count

    def take(self, rows: Tensor) -> DiskCounts:
        """Select rows, int64 [n], without reading them: they stay on disk."""
        return self._replace(row_numbers=self.row_numbers[rows], totals=self.totals[rows])

    def merge(self, other: DiskCounts, rows: Tensor, other_rows: Tensor) -> DiskCounts:
        """Merge with other rows of the same file; `rows` and `other_rows` are the new numbers."""
        row_numbers = torch.empty(len(self) + len(other), dtype=torch.int64)
        totals = self.totals.new_empty(len(row_numbers))
        row_numbers[rows] = self.row_numbers
        row_numbers[other_rows] = other.row_numbers
        totals[rows] = self.totals
        totals[other_rows] = other.totals
        return self._replace(row_numbers=row_numbers, totals=totals)

    def to(self, target: torch.device | str | torch.dtype) -> DiskCounts:
        """Return the same counts, read to another device, or with another dtype that holds them."""
        if isinstance(target, torch.dtype):
            return self._replace(dtype=target)
        return self._replace(device=torch.device(target))

    def __getitem__(self, rows: slice | Tensor | int) -> Tensor:
        row_numbers = self.row_numbers[rows].numpy()
        counts = self._read(row_numbers.reshape(-1)).to(self.device)
        return counts if row_numbers.ndim else counts[0]

    def index_select(self, dim: int, index: Tensor) -> Tensor:
        """Read the rows `index`, int64 [b], as `Tensor.index_select` with dim 0."""
        return self[index.cpu()]

    def sparse_sums(self, chunk_samples: int) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return the sums of `count_statistics.Sums`, from sparse rows only; else None.

        Returns:
            Sums over samples, int64 [*shape]; of squares, float64 [*shape]; totals, float64 [N].
        """
        if self._sparse is None:
            return None
        sample_elements = math.prod(self._sample_shape)
        element = np.zeros(sample_elements)
        square = np.zeros(sample_elements)
        for row_numbers in self.row_numbers.split(chunk_samples):
            rows = self._read_sparse(row_numbers.numpy()).astype(np.float64)
            element += rows.sum(0).A1
            square += rows.power(2).sum(0).A1
        element_sums = torch.from_numpy(element).long().view(self._sample_shape)
        square_sums = torch.from_numpy(square).view(self._sample_shape)
        return element_sums, square_sums, self.totals.double()

    def _replace(self, **attributes: Any) -> DiskCounts:
        changed = copy.copy(self)
        vars(changed).update(attributes)
        return changed

    def _read(self, row_numbers: Array) -> Tensor:
        """Read rows of the file, int64 [b]: counts [b, *shape]."""
        size = math.prod(self._sample_shape)
        if self._sparse is None:
            counts = self._values.gather(row_numbers * size, (row_numbers + 1) * size)
        else:
            counts = self._read_sparse(row_numbers).toarray().ravel()
        if len(counts) and not 0 <= int(counts.min()) <= int(counts.max()) <= self._max_count:
            raise _changed_file(self._values.path)
        numpy_dtype = np.uint8 if self.dtype == torch.uint8 else np.int32
        return torch.from_numpy(counts.astype(numpy_dtype)).view(-1, *self._sample_shape)

    def _read_sparse(self, row_numbers: Array) -> Any:
        """Read sparse rows of the file, int64 [b], as a SciPy CSR matrix."""
        from scipy.sparse import csr_matrix  # only here: it takes long to import

        assert self._sparse is not None
        columns, pointers = self._sparse
        starts = pointers[row_numbers]
        ends = pointers[row_numbers + 1]
        indices = columns.gather(starts, ends)
        values = self._values.gather(starts, ends)
        size = math.prod(self._sample_shape)
        if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < size:
            raise _changed_file(columns.path)
        row_pointers = np.append(0, np.cumsum(ends - starts))
        return csr_matrix((values, indices, row_pointers), (len(row_numbers), size))


def scan_rows(stored: FileArray, shape: tuple[int, ...], blocks: Blocks) -> DiskCounts:
    """Check counts that are stored contiguously in a file, and return them as `DiskCounts`.

    Args:
        stored: all rows, [N, ...].
        shape: of a sample.
        blocks: yields the rows.
    """
    max_count = 0
    totals = [np.zeros(0, np.int64)]
    for rows in blocks():
        max_count = max(max_count, int(rows.max(initial=0)))
        totals.append(rows.reshape(len(rows), -1).sum(1, dtype=np.int64))
    _report(stored.path, stored.shape[0], stored.path)
    return DiskCounts(stored, shape, max_count, torch.from_numpy(np.concatenate(totals)))


def pack_rows(
    path: Path,
    num_samples: int,
    shape: tuple[int, ...],
    request: Any,
    blocks: Blocks,
) -> DiskCounts:
    """Write rows one after the other to a folder next to a file, once, and return them.

    Args:
        path: of the file or folder that they are made of.
        num_samples: number of rows.
        shape: of a sample.
        request: plain values that determine the rows besides the content of `path`. The same
            request uses the same folder again.
        blocks: yields the rows.

    Raises:
        UserError: the disk is full, or the folder cannot be written.
    """
    path = Path(os.path.realpath(path))
    files = [path]
    if not path.is_file():
        files = sorted(Path(folder, name) for folder, _, names in os.walk(path) for name in names)
    key = request_key([files, request])[:8]
    folder = path.with_name(f"{path.name}.rows-{key}")
    lock = FileLock(folder.with_name(f".{path.name}.rows.lock"))
    try:
        # 1. Write the folder; one process writes, others wait. Disks change bytes, rarely.
        with lock:
            remove_parts(folder.parent, escape(folder.stem[:40]))
            is_new = not folder.is_dir()
            if is_new:
                _write_folder(folder, path, blocks)
        if not is_new and _is_damaged(folder):
            with lock:
                if _is_damaged(folder):  # no other process has written it again meanwhile
                    print(f"{escaped(folder)} is damaged: its rows are written again", flush=True)
                    shutil.rmtree(folder)
                    _write_folder(folder, path, blocks)

        # 2. Open it.
        description = read_mapping(folder / "about.json")
        totals = load_array(folder / "totals.npy")
        dtype = np.dtype(description["dtype"])
        num_values = (folder / "values").stat().st_size // dtype.itemsize
        values = FileArray(folder / "values", dtype, (num_values,))
        num_columns = (folder / "columns").stat().st_size // 4
        columns = FileArray(folder / "columns", np.int32, (num_columns,))
        pointers = load_array(folder / "ends.npy")
    except OSError as error:
        advice = "rows cannot be written here; dataset.in_memory=true does not need them"
        raise file_error(folder, advice, error) from error
    _report(path, num_samples, folder)
    sparse = (columns, pointers) if num_columns else None
    return DiskCounts(values, shape, description["largest"], torch.from_numpy(totals), sparse)


def _write_folder(folder: Path, path: Path, blocks: Blocks) -> None:
    """Write the rows of a file or folder `path` to a new folder, complete or not at all."""
    with replacing_folder(folder) as part:
        copy_privacy(path, part)
        if not _write_rows(part, blocks(), np.uint8):
            _write_rows(part, blocks(), np.int32)


def _is_damaged(folder: Path) -> bool:
    """Return whether a file of packed rows is missing or differs from its checksum."""
    try:
        description = read_mapping(folder / "about.json")
        checksums = description.pop("checksums", None)
        return checksums != _checksums(folder, description)
    except (OSError, UserError):
        return True


def _checksums(folder: Path, description: Plain) -> dict[str, int]:
    """Return the CRC-32 of the files of packed rows, and of their description without these."""
    text = json.dumps(description, sort_keys=True)
    checksums = {"description": zlib.crc32(text.encode())}
    for name in ROW_FILES:
        checksums[name] = 0
        with open_regular(folder / name) as file:
            while block := file.read(CHECKSUM_BLOCK):
                checksums[name] = zlib.crc32(block, checksums[name])
    return checksums


def _write_rows(folder: Path, blocks: Iterator[Any], dtype: npt.DTypeLike) -> bool:
    """Write rows to a folder; return False if a count is too large for the dtype."""
    max_count = 0
    totals = [np.zeros(0, np.int64)]
    pointers = [np.zeros(1, np.int64)]
    with (folder / "values").open("wb") as values, (folder / "columns").open("wb") as columns:
        for block in blocks:
            is_sparse = hasattr(block, "tocsr")
            if is_sparse:
                block.sum_duplicates()
                counts = block.data
                block_totals = block.sum(1)
            else:
                counts = block
                block_totals = block.reshape(len(block), -1).sum(1, dtype=np.int64)
            max_count = max(max_count, int(counts.max(initial=0)))
            if max_count > np.iinfo(dtype).max:
                return False
            values.write(counts.astype(dtype).tobytes())
            totals.append(np.asarray(block_totals).ravel())
            if is_sparse:
                columns.write(block.indices.astype(np.int32).tobytes())
                pointers.append(pointers[-1][-1] + block.indptr[1:].astype(np.int64))
    np.save(folder / "totals.npy", np.concatenate(totals).astype(np.int64))
    np.save(folder / "ends.npy", np.concatenate(pointers))
    description: dict[str, Any] = {"dtype": np.dtype(dtype).str, "largest": max_count}
    checksums = _checksums(folder, description)
    write_json({**description, "checksums": checksums}, folder / "about.json")
    return True


def _changed_file(path: Path) -> UserError:
    return UserError(f"{path} was changed while it was in use: start again")


def _report(path: Path, num_samples: int, location: Path) -> None:
    if rank() == 0:
        advice = "dataset.in_memory=true loads them"
        name = escaped(path.name)
        print(f"{name}: {num_samples:,} samples stay on disk, in {escaped(location)} ({advice})")
