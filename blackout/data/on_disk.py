"""Counts that stay on the disk: rows that are read when they are asked for, and files of rows made from any store.

What is too large for memory is looked through once, by blocks. Where its rows do not lie one after the other, as those
of a folder of images or of compressed parts do not, that pass writes them to a folder beside it, in which they do.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Iterator
from glob import escape
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from filelock import FileLock
from torch import Tensor

from blackout.counts import count_dtype
from blackout.data.file_formats import load_array
from blackout.distributed import rank
from blackout.errors import UserError
from blackout.files import (
    file_error,
    memory,
    opened,
    read_mapping,
    remove_parts,
    replacing_folder,
    request_key,
    write_json,
)

Array = npt.NDArray[Any]
Blocks = Callable[[], Iterator[Any]]
"""Makes all rows again, a few at a time, each checked to be counts: arrays, or SciPy's CSR matrices."""
_IN_MEMORY, _SHARE = 1 << 30, 8
"""Bytes that are held in memory at most, and the share of it, where the user does not say."""
_SPREAD = 4
"""Numbers that lie in a stretch this much longer are read in pieces, others with what is between them."""


def stays_on_disk(shape: tuple[int, ...], itemsize: int, in_memory: bool | None) -> bool:
    """Whether counts are to be read from the disk: as the user says, else where they are large beside the memory."""
    most = min(_IN_MEMORY, memory() // _SHARE)
    return math.prod(shape) * min(itemsize, 4) > most if in_memory is None else not in_memory


class Stream:
    """Numbers of a file, as its bytes are.

    Args:
        path: of the file.
        dtype: of a number.
        shape: of the array that they are.
        offset: bytes before it.

    Raises:
        UserError: it is no ordinary file.
    """

    def __init__(self, path: Path, dtype: npt.DTypeLike, shape: tuple[int, ...], offset: int = 0) -> None:
        self.path, self.dtype, self.shape, self._offset = path, np.dtype(dtype), shape, offset
        self._file = opened(path)
        self._state = self._stamp()

    def __reduce__(self) -> tuple[Any, ...]:
        return Stream, (self.path, self.dtype, self.shape, self._offset)  # another process opens the file itself

    def _stamp(self) -> tuple[int, int]:
        status = os.fstat(self._file.fileno())
        return status.st_size, status.st_mtime_ns

    def __getitem__(self, rows: slice) -> Array:
        first, last, _ = rows.indices(self.shape[0])
        size = math.prod(self.shape[1:])
        return self._read(first * size, max(first, last) * size).reshape(-1, *self.shape[1:])

    def _read(self, first: int, last: int) -> Array:
        # not mapped: pages would count as this process's, and a file that shrinks would end it
        wanted, at = (last - first) * self.dtype.itemsize, self._offset + first * self.dtype.itemsize
        content, read = bytearray(wanted), 0
        while read < wanted:  # one call gives 2 GiB at most
            part = os.preadv(self._file.fileno(), [memoryview(content)[read:]], at + read)
            if not part:
                break
            read += part
        if read < wanted or self._stamp() != self._state:
            raise UserError(f"{self.path} was changed while it was in use: start again")
        return np.frombuffer(content, self.dtype)

    def gather(self, starts: Array, ends: Array) -> Array:
        """Numbers starts[k] .. ends[k] - 1, for every k in turn."""
        pairs = list(zip(starts.tolist(), ends.tolist(), strict=True))
        low, high = (int(starts.min()), int(ends.max())) if pairs else (0, 0)
        if high - low > _SPREAD * int((ends - starts).sum()):
            return np.concatenate([self._read(start, end) for start, end in pairs])
        whole = self._read(low, high)
        return np.concatenate([whole[:0], *(whole[start - low : end - low] for start, end in pairs)])


class Rows:
    """Counts [N, *shape] on the disk, where `CountData` else has a tensor; a slice or int64 [b] of them is one.

    Args:
        values: of all rows; of sparse ones, all that are not 0.
        shape: of a sample.
        largest: count that there is.
        totals: of every row, int64 [N].
        sparse: the columns of `values`; in which of these every row begins, and where the last one ends, int64 [N + 1].
    """

    device = torch.device("cpu")

    def __init__(
        self,
        values: Stream,
        shape: tuple[int, ...],
        largest: int,
        totals: Tensor,
        sparse: tuple[Stream, Array] | None = None,
    ) -> None:
        self._values, self._each, self._largest, self._sparse = values, shape, largest, sparse
        self.row_numbers, self.totals = torch.arange(len(totals)), totals
        self.dtype, self.ndim = count_dtype(largest), 1 + len(shape)

    @property
    def shape(self) -> torch.Size:
        """[N, *shape]."""
        return torch.Size((len(self.row_numbers), *self._each))

    def __len__(self) -> int:
        return len(self.row_numbers)

    def numel(self) -> int:
        """How many counts these are."""
        return self.shape.numel()

    def max(self) -> int:
        """The largest count of all rows, those that were not taken too."""
        return self._largest

    def take(self, rows: Tensor) -> Rows:
        """The rows with these numbers, int64 [n], on the disk as well."""
        return self._with(row_numbers=self.row_numbers[rows], totals=self.totals[rows])

    def merged(self, others: Rows, places: Tensor, places_of_others: Tensor) -> Rows:
        """These rows and others of the same store as one, at these places, int64 [N] and [M]."""
        chosen = torch.empty(len(self) + len(others), dtype=torch.int64)
        totals = self.totals.new_empty(len(chosen))
        for rows, where in ((self, places), (others, places_of_others)):
            chosen[where], totals[where] = rows.row_numbers, rows.totals
        return self._with(row_numbers=chosen, totals=totals)

    def to(self, kind: torch.device | str | torch.dtype) -> Rows:
        """The same, of which tensors are made on another device or of another dtype that holds them."""
        return self._with(**({"dtype": kind} if isinstance(kind, torch.dtype) else {"device": torch.device(kind)}))

    def _with(self, **attributes: Any) -> Rows:
        changed = copy.copy(self)
        vars(changed).update(attributes)
        return changed

    def __getitem__(self, rows: slice | Tensor | int) -> Tensor:
        places = self.row_numbers[rows].numpy()
        read = self._read(places.reshape(-1)).to(self.device)
        return read if places.ndim else read[0]

    def index_select(self, dim: int, index: Tensor) -> Tensor:
        """Rows with the numbers `index`, int64 [b], as of a tensor."""
        return self[index.cpu()]

    def _read(self, places: Array) -> Tensor:
        """Rows of the file with these numbers, int64 [b]: counts [b, *shape]."""
        size = math.prod(self._each)
        if self._sparse is None:
            counts = self._values.gather(places * size, (places + 1) * size)
        else:
            counts = self._stored(places).toarray().ravel()
        if len(counts) and not 0 <= int(counts.min()) <= int(counts.max()) <= self._largest:
            raise UserError(f"{self._values.path} was changed while it was in use: start again")
        plain = np.uint8 if self.dtype == torch.uint8 else np.int32
        return torch.from_numpy(counts.astype(plain)).view(-1, *self._each)

    def _stored(self, places: Array) -> Any:
        """Sparse rows [b] of the file, as SciPy's CSR matrix."""
        from scipy.sparse import csr_matrix

        assert self._sparse is not None
        columns, ends = self._sparse
        starts, stops = ends[places], ends[places + 1]
        found, values = columns.gather(starts, stops), self._values.gather(starts, stops)
        size = math.prod(self._each)
        if len(found) and not 0 <= int(found.min()) <= int(found.max()) < size:
            raise UserError(f"{columns.path} was changed while it was in use: start again")
        return csr_matrix((values, found, np.append(0, np.cumsum(stops - starts))), (len(places), size))

    def sparse_sums(self, at_once: int) -> tuple[Tensor, Tensor, Tensor] | None:
        """Sums over samples, int64 [*shape], and of squares, float64 [*shape], and totals of samples, [N]: see `sums`.

        None where rows are not sparse.
        """
        if self._sparse is None:
            return None
        element, square = (np.zeros(math.prod(self._each)) for _ in range(2))
        for places in self.row_numbers.split(at_once):
            wide = self._stored(places.numpy()).astype(np.float64)
            element += wide.sum(0).A1
            square += wide.power(2).sum(0).A1
        sums = torch.from_numpy(element).long(), torch.from_numpy(square)
        return sums[0].view(self._each), sums[1].view(self._each), self.totals.double()


def rows_of(stored: Stream, shape: tuple[int, ...], blocks: Blocks) -> Rows:
    """Rows of a file in which they lie one after the other, looked through once.

    Args:
        stored: all of them, [N, ...].
        shape: of a sample.
        blocks: makes them.
    """
    found = [(0, np.zeros(0, np.int64))]
    found += [(int(rows.max(initial=0)), rows.reshape(len(rows), -1).sum(1, dtype=np.int64)) for rows in blocks()]
    _say(stored.path, stored.shape[0], stored.path)
    return Rows(stored, shape, max(top for top, _ in found), torch.from_numpy(np.concatenate([of for _, of in found])))


def packed(path: Path, number: int, shape: tuple[int, ...], request: Any, blocks: Blocks) -> Rows:
    """Rows in files that are made of a store once, in a folder beside it; the same request finds them again.

    Args:
        path: of the store, a file or a folder.
        number: of samples.
        shape: of a sample.
        request: what decides the rows besides the store's content, plain values.
        blocks: makes them.

    Raises:
        UserError: there is no room for them on the disk, or the folder cannot be written.
    """
    path = path.resolve()
    files = [path] if path.is_file() else sorted(Path(at, name) for at, _, names in os.walk(path) for name in names)
    folder = path.with_name(f"{path.name}.rows-{request_key([files, request])[:8]}")
    try:
        with FileLock(folder.with_name(f".{path.name}.rows.lock")):  # one process writes, others wait
            remove_parts(folder.parent, escape(folder.stem[:40]))
            if not folder.is_dir():
                with replacing_folder(folder) as part:
                    if not _written(part, blocks(), np.uint8):
                        _written(part, blocks(), np.int32)
        about, totals = read_mapping(folder / "about.json"), load_array(folder / "totals.npy")
        sizes = [(folder / name).stat().st_size for name in ("values", "columns")]
        values = Stream(folder / "values", about["dtype"], (sizes[0] // np.dtype(about["dtype"]).itemsize,))
        ends = (Stream(folder / "columns", np.int32, (sizes[1] // 4,)), load_array(folder / "ends.npy"))
    except OSError as error:
        raise file_error(folder, "rows cannot be kept here; dataset.in_memory=true needs none", error) from error
    _say(path, number, folder)
    return Rows(values, shape, about["largest"], torch.from_numpy(totals), ends if sizes[1] else None)


def _written(folder: Path, blocks: Iterator[Any], dtype: npt.DTypeLike) -> bool:
    """Write rows; False where a count is too large for the type."""
    largest, totals, ends = 0, [np.zeros(0, np.int64)], [np.zeros(1, np.int64)]
    with (folder / "values").open("wb") as values, (folder / "columns").open("wb") as columns:
        for block in blocks:
            sparse = hasattr(block, "tocsr")
            if sparse:
                block.sum_duplicates()
            counts = block.data if sparse else block
            largest = max(largest, int(counts.max(initial=0)))
            if largest > np.iinfo(dtype).max:
                return False
            values.write(counts.astype(dtype).tobytes())
            of_rows = block.sum(1) if sparse else block.reshape(len(block), -1).sum(1, dtype=np.int64)
            totals.append(np.asarray(of_rows).ravel())
            if sparse:
                columns.write(block.indices.astype(np.int32).tobytes())
                ends.append(ends[-1][-1] + block.indptr[1:].astype(np.int64))
    np.save(folder / "totals.npy", np.concatenate(totals).astype(np.int64))
    np.save(folder / "ends.npy", np.concatenate(ends))
    write_json({"dtype": np.dtype(dtype).str, "largest": largest}, folder / "about.json")
    return True


def _say(path: Path, number: int, where: Path) -> None:
    if rank() == 0:
        print(f"{path.name}: {number:,} samples stay on the disk, in {where} (dataset.in_memory=true loads them)")
