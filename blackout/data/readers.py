"""Files of counts as the sciences keep them: named arrays out of each, and whole numbers, nothing else, out of these.

Each format is read by the library that is kept for it. NumPy and CSV need nothing further; the others are optional
(`pip install "blackout[science]"`).
"""

from __future__ import annotations

import csv
import importlib
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from blackout.counts import LARGEST_COUNT, count_dtype
from blackout.errors import UserError

Array = npt.NDArray[Any]
COUNTS = "counts"
_EXTRA = 'pip install "blackout[science]"'
_AT_ONCE = 1 << 24
"""Numbers that are checked at once."""
_SLENDER = 4
"""An image [H, W] is not as much wider than high; a series [C, L] is."""


def file_error(path: Path, problem: str, cause: Exception) -> UserError:
    """An error that names a file, what is wrong with it and the library's reason, in one line."""
    reason = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause)
    if "pickle" in reason:  # NumPy's guess about any bytes that are not its own; pickles are not read on any advice
        reason = "these are not the bytes of a NumPy file"
    return UserError(f"{path}: {problem} ({' '.join(reason.split()) or type(cause).__name__})")


@contextmanager
def reading(path: Path, problem: str) -> Iterator[None]:
    """Inside, whatever a library raises about a file, which parsers do in many types, is one `file_error`.

    Raises:
        UserError: as it was raised inside, or in place of any other exception.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise file_error(path, problem, error) from error


@dataclass(frozen=True)
class Store:
    """What a file holds.

    Attributes:
        arrays: by name; counts may be a SciPy sparse matrix, or stay on disk until their rows are asked for (`OnDisk`,
            a memory map); columns of observations are one-dimensional.
        features: names of the columns of `counts`, where the file has them.
        tabular: whether the arrays are the columns of a table, most of them elements of the counts.
    """

    arrays: dict[str, Any]
    features: tuple[str, ...] = ()
    tabular: bool = False


class OnDisk:
    """An array of an HDF5 file or a .zarr store, whose rows are read when they are asked for.

    Args:
        array: of either library, whose object keeps the file open.
    """

    def __init__(self, array: Any) -> None:
        self._array, self.shape, self.dtype = array, tuple(array.shape), np.dtype(array.dtype)

    def __getitem__(self, rows: slice) -> Array:
        """Those rows.

        Raises:
            ValueError: what lies on disk is damaged.
        """
        try:
            return np.asarray(self._array[rows])
        except Exception as error:  # of a dozen decompressors
            reason = " ".join(str(error).split())
            raise ValueError(f"rows from {rows.start or 0} on cannot be read ({reason})") from error

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """All of it, for NumPy."""
        return np.asarray(self[:], dtype)


def read_store(path: Path, layer: str | None = None) -> Store:
    """Read a file by its suffix.

    Args:
        path: .npy, .npz (dense, or a SciPy sparse matrix), .csv, .tsv, .parquet, .h5ad, .zarr, .h5, .hdf5, .tif, .tiff.
        layer: which array of an .h5ad (a layer), .zarr or HDF5 file holds the counts; None for `X`, `counts` or the
            only one.

    Raises:
        UserError: missing, damaged, of another format, without such a layer, or an optional library is not installed.
    """
    kind = path.suffix.lower()
    reader = _READERS.get(kind, _numpy)
    if not path.is_file() and not (kind == ".zarr" and path.is_dir()):
        raise UserError(f"{path}: {'not a file' if path.exists() else 'no such file'}")
    formats = ".npy or .npz" if reader is _numpy else kind
    with reading(path, f"not a readable {formats} file of numbers"):
        return reader(path, layer)


def _library(name: str, path: Path) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UserError(f"{path}: {path.suffix} files are read by {name}, which is not installed: {_EXTRA}") from None


def _numpy(path: Path, layer: str | None) -> Store:
    loaded = np.load(path, mmap_mode="r", allow_pickle=False)
    if isinstance(loaded, np.ndarray):
        return Store({COUNTS: loaded})
    with loaded:
        if {"format", "shape", "data"} <= set(loaded.files):  # as SciPy saves a sparse matrix
            import scipy.sparse

            return Store({COUNTS: scipy.sparse.load_npz(path).tocsr()})
        return Store({name: loaded[name] for name in loaded.files})


def _csv(path: Path, layer: str | None) -> Store:
    with path.open(newline="") as file:
        rows = [row for row in csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",") if row]
    lengths = sorted({len(row) for row in rows})
    if len(lengths) != 1:
        raise UserError(f"{path}: every row needs as many fields as the first, found {lengths or 'no row'}")
    headed = not all(map(is_number, rows[0]))
    head = rows[0] if headed else [f"column {number}" for number in range(lengths[0])]
    return _table(path, head, list(zip(*rows[headed:], strict=True)))


def _parquet(path: Path, layer: str | None) -> Store:
    table = _library("pyarrow.parquet", path).read_table(path)
    return _table(path, table.column_names, [column.to_numpy() for column in table.columns])


def _table(path: Path, head: list[str], columns: list[Any]) -> Store:
    """The columns of a table: numbers, NaN where a field is empty, or text."""
    if len(set(head)) != len(head):
        raise UserError(f"{path}: two columns have the name {next(name for name in head if head.count(name) > 1)!r}")
    arrays = {name: _typed(column) for name, column in zip(head, columns, strict=True)}
    return Store(arrays, tabular=True)


def _typed(column: Any) -> Array:
    array = np.asarray(column)
    if array.dtype.kind not in "OUS":
        return array
    try:
        return np.array([float(field) if field not in ("", None) else np.nan for field in array])
    except (TypeError, ValueError):
        return array.astype(str)


def is_number(field: str) -> bool:
    """Whether a field of a table is a number, or empty."""
    try:
        float(field)
    except ValueError:
        return field == ""
    return True


def _anndata(path: Path, layer: str | None) -> Store:
    library = _library("anndata", path)
    data = library.read_zarr(path) if path.suffix.lower() == ".zarr" else library.read_h5ad(path)
    if layer is not None and layer not in data.layers:
        raise UserError(f"{path}: no layer {layer!r}, found {', '.join(map(repr, data.layers)) or 'none'}")
    matrix = data.X if layer is None else data.layers[layer]
    arrays = {str(name): other for name, other in data.layers.items() if name != layer}  # one may be a mask
    arrays[COUNTS] = matrix.tocsr() if hasattr(matrix, "tocsr") else np.asarray(matrix)
    for name in data.obs.columns:
        column = np.asarray(data.obs[name])
        arrays[str(name)] = column if column.dtype.kind in "iufb" else column.astype(str)
    return Store(arrays, tuple(map(str, data.var_names)))


def _zarr(path: Path, layer: str | None) -> Store:
    _refuse_pickles(path)
    library = _library("zarr", path)
    opened = library.open(str(path), mode="r")
    if not hasattr(opened, "keys"):
        return Store({COUNTS: OnDisk(opened)})
    if "obs" in opened:
        return _anndata(path, layer)
    return Store(_chosen(path, dict(opened.arrays()), layer))


def _refuse_pickles(path: Path) -> None:
    """A .zarr store can ask for Python's pickle, which executes what it reads."""
    for name in (".zarray", "zarr.json", ".zmetadata"):
        for file in path.rglob(name) if path.is_dir() else ():
            if "pickle" in file.read_text(errors="replace"):
                raise UserError(f"{path}: {file.relative_to(path)} asks for pickled objects, which are never loaded")


def _hdf5(path: Path, layer: str | None) -> Store:
    library = _library("h5py", path)
    nodes: dict[str, Any] = {}
    library.File(path, "r").visititems(lambda name, node: nodes.update({name: node}))  # the nodes keep the file open
    return Store(
        _chosen(path, {name: node for name, node in nodes.items() if isinstance(node, library.Dataset)}, layer)
    )


def _chosen(path: Path, found: dict[str, Any], layer: str | None) -> dict[str, Any]:
    """The arrays of a hierarchical file; `layer`, if it is given, as the counts."""
    if layer is not None and layer not in found:
        raise UserError(f"{path}: no array {layer!r}, found {', '.join(map(repr, found)) or 'none'}")
    large = {name: len(array.shape or ()) > 1 and array.dtype.kind in "iufb" for name, array in found.items()}
    arrays = {name: OnDisk(array) if large[name] else _plain(array[...]) for name, array in found.items()}
    return arrays if layer is None else {**arrays, COUNTS: arrays.pop(layer)}


def _plain(array: Any) -> Array:
    """Text as NumPy's own."""
    found = np.asarray(array)
    if found.dtype.kind == "O":
        return np.array([x.decode() if isinstance(x, bytes) else str(x) for x in found.ravel()]).reshape(found.shape)
    return found.astype(str) if found.dtype.kind in "ST" else found


def _tiff(path: Path, layer: str | None) -> Store:
    return Store({COUNTS: _library("tifffile", path).imread(path)})


_READERS: dict[str, Callable[[Path, str | None], Store]] = {
    ".npy": _numpy, ".npz": _numpy, ".csv": _csv, ".tsv": _csv, ".parquet": _parquet, ".h5ad": _anndata, ".zarr": _zarr,
    ".h5": _hdf5, ".hdf5": _hdf5, ".tif": _tiff, ".tiff": _tiff,
}  # fmt: skip


def to_counts(name: str, array: Any, series: bool | None = None) -> Tensor:
    """An array or sparse matrix as integer counts, refused where that would change a value.

    Args:
        name: for messages.
        array: [N, D], [N, C, L], [N, H, W], [N, C, H, W] or [N, C, D, H, W].
        series: whether three axes are [N, C, L]; None where L is at least four times as long, else [N, H, W].

    Returns:
        The same; images of one channel as [N, 1, H, W].
    """
    if len(array.shape) not in (2, 3, 4, 5):
        allowed = "[N, D], [N, C, L], [N, H, W], [N, C, H, W] or [N, C, D, H, W]"
        raise ValueError(f"{name} must be {allowed}, got {list(array.shape)}")
    whole = _dense(name, array)
    if whole.ndim == 4 and whole.shape[-1] in (1, 3, 4) and whole.shape[1] == whole.shape[2] > 4:
        advice = "read as [N, C, H, W]: if its last axis is colour, save numpy.moveaxis(array, -1, 1) instead"
        warnings.warn(f"{name} has the shape {list(whole.shape)}, {advice}", stacklevel=2)
    if whole.ndim == 3 and not (whole.shape[2] >= _SLENDER * whole.shape[1] if series is None else series):
        return whole[:, None]
    return whole


def _dense(name: str, array: Any) -> Tensor:
    """The counts of an array or sparse matrix in the smallest type that holds them, by blocks of rows."""
    if hasattr(array, "tocsr"):
        _check_whole(name, array.data)  # of which it has fewer; what follows then finds nothing
    at_once = max(1, _AT_ONCE // max(1, math.prod(array.shape[1:])))
    parts, largest = [], 1
    for first in range(0, array.shape[0], at_once):
        block = array[first : first + at_once]
        rows = block.toarray() if hasattr(block, "toarray") else np.asarray(block)
        _check_whole(name, rows, first)
        top = int(rows.max(initial=0))
        largest = max(largest, top)
        parts.append(torch.from_numpy(rows.astype(np.uint8 if top <= 255 else np.int32)))
    whole = torch.empty(tuple(array.shape), dtype=count_dtype(largest))
    for place in whole.split(at_once)[: len(parts)]:
        place.copy_(parts.pop(0))  # each is forgotten once it is in its place
    return whole


def _check_whole(name: str, array: Array, first: int = 0) -> None:
    """Refuse what is no count.

    Args:
        name: for the message.
        array: rows of the counts.
        first: number of the first row.
    """
    if array.dtype.kind not in "iubf":
        raise ValueError(f"{name} must hold whole numbers, got {array.dtype}")
    if array.dtype.kind == "f":
        array = array.astype(np.float64)  # half precision cannot even be compared with the bounds below
        fractional = ~np.isfinite(array) | (array != np.floor(array))
        if fractional.any():
            raise ValueError(f"{name}: counts must be whole numbers, {_first(array, fractional, first)}{_looks(array)}")
    check_range(f"{name}: counts", array, LARGEST_COUNT, str(LARGEST_COUNT), first)


def check_range(what: str, array: Array, largest: int, limit: str, first: int = 0) -> None:
    """Refuse counts outside 0..largest, which a message calls `limit`, with the first bad value; raises ValueError."""
    for bad, rule in ((array < 0, "must not be negative"), (array > largest, f"must be at most {limit}")):
        if bad.any():
            raise ValueError(f"{what} {rule}, {_first(array, bad, first)}")


def _first(array: Array, bad: Array, first: int) -> str:
    """The first bad value and its index, the number of the first row being `first`."""
    index = np.unravel_index(int(bad.argmax()), array.shape)
    return f"got {array[index]} at index {[int(index[0]) + first, *map(int, index[1:])]}"


def _looks(array: Array) -> str:
    """What numbers that are not whole look like, as the end of a message."""
    finite = array[np.isfinite(array)]
    if len(finite) < array.size:
        return "; dataset.mask=finite takes these entries for missing" if np.isnan(array).any() else ""
    if finite.min() < 0:
        return "; these look standardised or centred: give the raw counts"
    if finite.max() <= 1:
        return "; these look like shares: give the raw counts"
    return "; these look log-transformed or normalised: give the raw counts" if finite.max() < 20 else ""
