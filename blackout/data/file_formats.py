"""Readers of .npy, .npz, .csv, .parquet, .h5ad, .zarr, HDF5 and TIFF: named arrays, and whole numbers out of these.

Each format is read by the library that is kept for it. NumPy (.npy, .npz, never objects) and CSV need nothing further;
the others are optional (`pip install "blackout-diffusion[science]"`). `write_h5ad` writes samples.
"""

from __future__ import annotations

import csv
import importlib
import io
import json
import logging
import math
import mmap
import os
import re
import stat
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from blackout.counts import LARGEST_COUNT, count_dtype
from blackout.errors import UserError, ensure, refuse
from blackout.files import check_size, opened, read_text, reading, replacing, stored_bytes, taking_at_most

Array = npt.NDArray[Any]
COUNTS = "counts"
_EXTRA = 'pip install "blackout-diffusion[science]"'
_MOST_ARRAYS = 10_000
"""Of one archive."""
_AT_ONCE = 1 << 24
"""Numbers that are checked at once."""
LONGEST_TEXT = 1000
"""Characters of a name, a label or any other text in a file of counts."""
_OF_TEXT, _OF_FIELDS = 64, 20
"""Bytes of memory for a text, and for every byte of a table of text."""
_MOST_PARTS, _DEEPEST = 10_000, 32
"""Parts in which an array may be kept, and more for every eighth byte of it, or that a file may have; their depth."""
_HEAP = b"GCOL\1\0\0\0"
_AROUND = 1 << 30
"""Bytes that a library may take beside what it is asked for."""
_SLENDER = 4
"""An image [H, W] is not as much wider than high; a series [C, L] is."""


@dataclass(frozen=True)
class Store:
    """What a file holds.

    Attributes:
        arrays: by name; counts may be a SciPy sparse matrix, or stay on disk until their rows are asked for (`OnDisk`,
            a memory map); columns of observations are one-dimensional.
        features: names of the columns of `counts`, where the file has them.
        tabular: whether the arrays are the columns of a table, most of them elements of the counts.
        layers: of AnnData, that may hold the counts where X does not.
    """

    arrays: dict[str, Any]
    features: tuple[str, ...] = ()
    tabular: bool = False
    layers: tuple[str, ...] = ()


class OnDisk:
    """An array of an HDF5 file or a .zarr store, whose rows are read when they are asked for.

    Args:
        array: of either library, whose object keeps the file open.
        path: of the file.
        stored: bytes on the disk that hold it.

    Raises:
        UserError: it says that it is larger than these bytes allow, or one of its parts than the memory does.
        ValueError: it is neither numbers nor text.
    """

    def __init__(self, array: Any, path: Path, stored: int) -> None:
        self._array, self.shape, self.dtype = array, tuple(array.shape or ()), np.dtype(array.dtype)
        ensure(self.dtype.kind in "biufSUOT", f"{self.dtype} is no type of numbers or text")
        chunks = getattr(array, "chunks", None)
        chunk = math.prod(chunks or (1,)) * self.dtype.itemsize
        self._path = path
        check_size(path, chunk)
        check_size(path, max(math.prod(self.shape), chunk), stored, fits=False)
        parts = math.prod(-(-side // part) for side, part in zip(self.shape, chunks, strict=True)) if chunks else 1
        if parts > _MOST_PARTS + stored // 8:
            raise UserError(f"{path}: {stored:,} bytes are said to hold {parts:,} parts of an array")

    def __getitem__(self, rows: slice) -> Array:
        """Those rows.

        Raises:
            UserError: they do not fit into memory.
            ValueError: what lies on disk is damaged.
        """
        asked = math.prod(self.shape[1:]) * len(range(*rows.indices(self.shape[0]))) if self.shape else 1
        each = self.dtype.itemsize if self.dtype.kind in "biuf" else max(self.dtype.itemsize, _OF_TEXT)
        check_size(self._path, asked * each)
        try:
            with taking_at_most(_AROUND + 4 * asked * each):
                return np.asarray(self._array[rows] if self.shape else self._array[()])
        except Exception as error:  # of a dozen decompressors
            reason = " ".join(str(error).split())[:500] or type(error).__name__
            raise ValueError(f"rows from {rows.start or 0} on cannot be read ({reason})") from error

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """All of it, for NumPy; text as NumPy's own.

        Raises:
            ValueError: what lies on disk is damaged, or text is too long.
        """
        if self.dtype.kind in "biuf":
            return np.asarray(self[:], dtype)
        return np.array(list(map(_text, self[:].ravel().tolist())), dtype=str).reshape(self.shape)


def _text(field: Any) -> str:
    """Text of a file, which may be bytes.

    Raises:
        ValueError: it is too long, or no UTF-8 text.
    """
    if len(text := field.decode() if isinstance(field, bytes) else str(field)) > LONGEST_TEXT:
        raise ValueError(f"a text of {len(text):,} characters is too long: at most {LONGEST_TEXT:,} are read")
    return text


def sparse_matrix(kind: str, shape: Any, parts: Mapping[str, Array]) -> Any:
    """A SciPy CSR matrix, whose indices and pointers are all inside: SciPy would write wherever they say.

    Args:
        kind: csr, csc or coo.
        shape: rows and columns.
        parts: `data` and, of the first two, `indices` and `indptr`, of the third `row` and `col`.

    Raises:
        ValueError: it is no such matrix.
    """
    import scipy.sparse

    sides, data = np.asarray(shape), parts["data"]
    if sides.shape != (2,) or sides.dtype.kind not in "iu" or not 0 <= sides.min() <= sides.max() <= LARGEST_COUNT:
        raise ValueError(f"a sparse matrix has a shape of two whole numbers, got {sides.tolist()!r:.100}")
    ensure(kind in ("csr", "csc", "coo"), f"sparse matrices are read as csr, csc or coo, not {kind!r:.100}")
    places = tuple(parts[name] for name in (("row", "col") if kind == "coo" else ("indices", "indptr")))
    if any(part.ndim != 1 or part.dtype.kind not in "iu" for part in places) or data.ndim != 1:
        raise ValueError("indices and pointers of a sparse matrix must be lists of whole numbers, data one too")
    ensure(data.dtype.kind in "biuf", f"a sparse matrix must hold numbers, got {data.dtype}")
    if data.dtype.itemsize < 8 and (kind == "coo" or data.dtype == np.float16):
        data = data.astype(np.float64)  # entries in one place are added
    if kind == "coo":  # whose indices SciPy looks at
        return scipy.sparse.coo_matrix((data, places), tuple(map(int, sides))).tocsr()
    if not _begins(places[1], int(sides[int(kind == "csc")]), len(data)):  # SciPy does not look where the last one is 0
        raise ValueError(f"indptr of a sparse matrix does not fit its shape {sides.tolist()}")
    made = getattr(scipy.sparse, f"{kind}_matrix")((data, *places), tuple(map(int, sides)))
    made.check_format()
    return (made if made.has_canonical_format else made.astype(np.float64)).tocsr()


class SparseOnDisk:
    """A CSR matrix of an HDF5 file or a .zarr store, whose rows are read, and checked, when they are asked for.

    Args:
        shape: rows and columns.
        parts: `data`, `indices` and `indptr`, the last of which is read now.

    Raises:
        ValueError: it is no such matrix.
    """

    def __init__(self, shape: Any, parts: Mapping[str, OnDisk]) -> None:
        self._parts, self._ends = parts, np.asarray(parts["indptr"])
        self.dtype, data = parts["data"].dtype, parts["data"]
        sparse_matrix("csr", (0, np.asarray(shape).flat[-1]), self._of(0, 0, self._ends[:1]))  # refuses what is none
        self.shape = tuple(map(int, np.asarray(shape)))
        whole = len(self.shape) == 2 and _begins(self._ends, self.shape[0], math.prod(data.shape))
        if not whole or data.shape != parts["indices"].shape:
            raise ValueError(f"indptr and indices of a sparse matrix do not fit its shape {list(self.shape)}")

    def __getitem__(self, rows: slice) -> Any:
        """A SciPy CSR matrix of these rows.

        Raises:
            UserError: they do not fit into memory.
            ValueError: what lies on disk is damaged, or no such matrix.
        """
        first, last, _ = rows.indices(self.shape[0])
        ends = self._ends[first : max(first, last) + 1]
        return sparse_matrix("csr", (len(ends) - 1, self.shape[1]), self._of(ends[0], ends[-1], ends - ends[0]))

    def toarray(self) -> Array:
        """All of it, dense."""
        return self[:].toarray()

    def _of(self, first: int, last: int, ends: Array) -> dict[str, Array]:
        place = slice(int(first), int(last))
        return {"data": self._parts["data"][place], "indices": self._parts["indices"][place], "indptr": ends}


def _begins(pointers: Array, rows: int, number: int) -> bool:
    """Whether these say where so many rows of so many numbers begin, and where the last one ends."""
    ends = pointers.astype(np.int64)
    return len(ends) == rows + 1 and ends[0] == 0 and ends[-1] == number and bool((np.diff(ends) >= 0).all())


def read_store(path: Path, layer: str | None = None) -> Store:
    """Read a file by its suffix.

    Args:
        path: .npy, .npz (dense, or a SciPy sparse matrix), .csv, .tsv, .parquet, .h5ad, .zarr, .h5, .hdf5, .tif, .tiff,
            or a folder of .tif files. Sparse matrices of rows (CSR) in an .h5ad or .zarr stay there.
        layer: which array of an .h5ad (a layer), .zarr or HDF5 file holds the counts; None for `X`, `counts` or the
            only one.

    Raises:
        UserError: missing, damaged, of another format, without such a layer, or an optional library is not installed.
    """
    kind = path.suffix.lower()
    if path.is_dir() and kind != ".zarr":
        return _frames(path)
    reader = _READERS.get(kind, _numpy)
    if not (path.is_dir() if kind == ".zarr" else path.is_file()):
        what = "folder" if kind == ".zarr" else "file"
        raise UserError(f"{path}: {f'not a {what}' if path.exists() else f'no such {what}'}")
    formats = ".npy or .npz" if reader is _numpy else kind
    refuse(kind in (".gz", ".xz", ".bz2", ".zip"), f"{path}: unpack it first; what is read is {', '.join(_READERS)}")
    with reading(path, f"not a readable {formats} file of numbers"):
        return reader(path, layer)


def _library(name: str, path: Path) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UserError(f"{path}: {path.suffix} files are read by {name}, which is not installed: {_EXTRA}") from None


def _numpy(path: Path, layer: str | None) -> Store:
    loaded = load_arrays(path, mapped=True)
    if not isinstance(loaded, dict):
        return Store({COUNTS: loaded})
    if {"format", "shape", "data"} <= loaded.keys():  # as SciPy saves a sparse matrix
        return Store({COUNTS: sparse_matrix(_text(loaded["format"].item()), loaded["shape"], loaded)})
    return Store(loaded)


def _csv(path: Path, layer: str | None) -> Store:
    check_size(path, _OF_FIELDS * path.stat().st_size)
    with opened(path) as file:
        lines = io.TextIOWrapper(file, "utf-8-sig", newline="")
        parting = "\t" if path.suffix.lower() == ".tsv" else max(",;\t", key=lines.readline().count)
        lines.seek(0)
        rows = [row for row in csv.reader(lines, delimiter=parting) if row]
    lengths = sorted({len(row) for row in rows})
    found = f"{lengths[0]} to {lengths[-1]}" if lengths else "no row"
    refuse(len(lengths) != 1, f"{path}: every row needs as many fields as the first, found {found}")
    headed = not all(map(is_number, rows[0]))
    refuse(len(rows) == headed, f"{path}: there is a head and no row below it")
    head = list(map(_text, rows[0])) if headed else [f"column {number}" for number in range(lengths[0])]
    return _table(path, head, list(zip(*rows[headed:], strict=True)))


def _parquet(path: Path, layer: str | None) -> Store:
    library = _library("pyarrow.parquet", path)
    with opened(path) as file:
        schema = library.read_schema(file)
        texts = [field.name for field in schema if str(field.type) in ("string", "large_string", "string_view")]
        plain = ("int", "uint", "float", "half", "double", "bool", "decimal", "null", "dictionary<values=string")
        chosen = [field.name for field in schema if field.name in texts or str(field.type).startswith(plain)]
        parts = library.ParquetFile(file, read_dictionary=texts)
        size = parts.metadata.num_rows * len(chosen) * 8
        check_size(path, size, stored_bytes(path))
        with taking_at_most(2 * _AROUND + 4 * size):  # its allocator begins with addresses for 1 GiB
            table = parts.read(chosen, use_threads=False)
    return _table(path, table.column_names, [_arrow(path, column) for column in table.columns])


def _arrow(path: Path, column: Any) -> Array:
    """A column of a table; text by the numbers of its words: a file may name a long one any number of times."""
    if not str(column.type).startswith("dictionary"):
        return column.to_numpy()
    parts = []
    for part in column.chunks:
        words = np.array(["", *(_text(word or "") for word in part.dictionary.to_pylist())])
        check_size(path, len(column) * words.itemsize)
        parts.append(words[1 + part.indices.fill_null(-1).to_numpy(zero_copy_only=False)])
    return np.concatenate(parts) if parts else np.zeros(0, dtype=str)


def _table(path: Path, head: list[str], columns: list[Any]) -> Store:
    """The columns of a table: numbers, NaN where a field is empty, or text."""
    if len(set(head)) != len(head):
        raise UserError(f"{path}: two columns have the name {next(name for name in head if head.count(name) > 1)!r}")
    return Store({name: _typed(column) for name, column in zip(head, columns, strict=True)}, tabular=True)


def _typed(column: Any) -> Array:
    if isinstance(column, np.ndarray) and column.dtype.kind not in "OUS":
        return column
    try:
        return np.array([float(field) if field not in ("", None) else np.nan for field in column])
    except (TypeError, ValueError):  # a field that is no number: the column is text
        return np.array(list(map(_text, column)))


def is_number(field: str) -> bool:
    """Whether a field of a table is a number, or empty."""
    try:
        float(field)
    except ValueError:  # which is how `float` says no
        return field == ""
    return True


def _zarr(path: Path, layer: str | None) -> Store:
    """A .zarr store, whose metadata are looked through before the library sees it: a codec may be Python's pickle."""
    sizes, library = _check_zarr(path), _library("zarr", path)
    # a folder, whatever its name: zip::x would be taken for an address
    folder = library.DirectoryStore if hasattr(library, "DirectoryStore") else library.storage.LocalStore
    root = library.open(folder(str(path)), mode="r")
    if not hasattr(root, "keys"):
        return Store({COUNTS: OnDisk(root, path, sum(sizes.values()))})
    return _hierarchy(path, {"": root, **{name: root[name] for name in sizes if name}}, sizes, layer)


_ZARR_METADATA = (".zarray", ".zgroup", ".zattrs", ".zmetadata", "zarr.json")
_OF_ZARR = re.compile(
    r"[<>|](b1|[iu][1248]|f[248]|[SU][1-9]\d{0,3})|bool|string|u?int(8|16|32|64)|float(16|32|64)"
    r"|fixed_length_utf32|null_terminated_bytes|vlen-utf8|bytes|transpose|crc32c|sharding_indexed|blosc|lz4(hc)?|blosclz"
    r"|zstd|gzip|zlib|snappy|(no|bit)?shuffle|little|big|start|end|array|group|inline|regular|default|v2|C|F|[./]"
)
"""Words that the metadata of a store may have: types, codecs and their settings. None of them makes objects."""
_OF_GROUPS = {"zarr_format", "node_type", "attributes", "consolidated_metadata"}


def _check_zarr(path: Path) -> dict[str, int]:
    """The bytes on the disk of every node of a store, by its place; "" is the store itself.

    Raises:
        UserError: the store holds a link, a pipe or a device, or metadata that ask for anything but numbers and text
            by the words above.
    """
    sizes: dict[str, int] = {}
    for folder, subfolders, names in os.walk(path):
        place = Path(folder).relative_to(path)
        for name in [*subfolders, *names]:
            status = (file := Path(folder, name)).lstat()
            if not (stat.S_ISREG(status.st_mode) or (name in subfolders and stat.S_ISDIR(status.st_mode))):
                raise UserError(f"{file} is a link, a pipe or a device: a store has ordinary files only")
            if name.lower() not in _ZARR_METADATA:
                continue
            if name not in _ZARR_METADATA or name in subfolders:
                raise UserError(f"{file}: metadata of a .zarr store have other names")
            with reading(file, "these metadata of a .zarr store are refused"):
                node = json.loads(read_text(file, most=1 << 26), object_pairs_hook=_once)
                if name == ".zmetadata":
                    node = [part for key, part in node["metadata"].items() if key.rpartition("/")[2] != ".zattrs"]
                if name != ".zattrs":  # on which no library acts
                    _check_words(node)
            if name in (".zarray", ".zgroup", "zarr.json"):
                sizes["" if place == Path(".") else str(place)] = 0
        owner = next((str(p) for p in (place, *place.parents) if str(p) in sizes), "")
        sizes[owner] = sizes.get(owner, 0) + sum(stored_bytes(Path(folder, name)) for name in names)
    return sizes


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A mapping of JSON, without names that occur twice, of which programs take different ones."""
    ensure(len(found := dict(pairs)) >= len(pairs), "a name occurs twice")
    return found


def _check_words(node: Any) -> None:
    """Look through metadata and metadata within them for words that are not in `_OF_ZARR`; raises ValueError."""
    if isinstance(node, dict):
        # only of a node these names have no meaning: elsewhere they are places, which have any name
        own = "zarr_format" in node and not isinstance(node["zarr_format"], dict)
        if own and node.keys() - _OF_GROUPS:
            _check_array(node)
        free = ("attributes", "fill_value", "dimension_names", "dtype" if node.get("dtype") == "|O" else "")
        node = [node[key] for key in node if not (own and key in free)]
    if isinstance(node, list):
        for part in node:
            _check_words(part)
    elif isinstance(node, str) and not _OF_ZARR.fullmatch(node):
        raise ValueError(f"a store of numbers and text has no {node!r:.100}")


def _check_array(node: dict[str, Any]) -> None:
    """Refuse what its words alone do not tell: objects without their codec, codecs that are none, odd shapes."""
    shape: Any = node.get("shape")
    kind, filters, codecs = (node.get(name) for name in ("dtype", "filters", "codecs"))
    chunks = node["chunks"] if node["zarr_format"] == 2 else node["chunk_grid"]["configuration"]["chunk_shape"]
    if (filters or kind == "|O") and (kind, filters) != ("|O", [{"id": "vlen-utf8"}]):
        raise ValueError(f"an array of {kind!r:.60} with the filters {filters!r:.100} is not decoded")
    plain = node["zarr_format"] == 2 and isinstance(kind, str)
    if not plain and (node["zarr_format"] != 3 or not codecs or node.get("storage_transformers")):
        raise ValueError("an array has another format")
    ensure(all(isinstance(codec, dict) for codec in codecs or ()), "a codec is none")
    lists = isinstance(shape, list) and isinstance(chunks, list) and len(shape) == len(chunks)
    if not lists or any(type(side) is not int or side < 0 for side in shape + chunks):
        raise ValueError(f"the shape {shape!r:.60} in parts of {chunks!r:.60} is none")
    ensure(0 not in chunks and not isinstance(node.get("fill_value"), dict | list), "parts or values are none")


def _hdf5(path: Path, layer: str | None) -> Store:
    library = _library("h5py", path)
    nodes: dict[str, Any] = {}
    _check_heaps(path)

    def too_many(name: str, node: Any) -> bool | None:
        nodes[name] = node
        return len(nodes) > _MOST_PARTS or name.count("/") >= _DEEPEST or None

    with taking_at_most(_AROUND):  # of what is damaged the library may read for ever
        file = nodes[""] = library.File(path, "r")  # the nodes keep it open
        if file.visititems(too_many):  # which follows no link, to other files neither
            raise UserError(f"{path} holds more than {_MOST_PARTS:,} arrays and groups, or groups {_DEEPEST} deep")
    known = (library.h5t.INTEGER, library.h5t.FLOAT, library.h5t.ENUM, library.h5t.STRING)
    stored, sizes = stored_bytes(path), {"": 0}
    for name, node in list(nodes.items()):
        if not isinstance(node, library.Dataset):
            continue
        if node.id.get_type().get_class() not in known:
            del nodes[name]  # objects, references and records: NumPy would make objects of some
            continue
        refuse(node.is_virtual or node.external, f"{path}: {name} lies in another file: copy it into this one")
        sizes[name] = min(stored, node.id.get_storage_size())
    return _hierarchy(path, nodes, sizes, layer)


def _check_heaps(path: Path) -> None:
    """Refuse heaps of text whose objects do not fit into them: the library looks for their end for ever.

    A heap is `GCOL`, version, its size, and objects: number, references, size, content; number 0 is what is free.
    """
    with opened(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        heap = content.find(_HEAP)
        while heap >= 0:
            place, end = heap + 16, heap + int.from_bytes(content[heap + 8 : heap + 16], "little")
            while place + 16 <= end:
                number, size = content[place : place + 2], int.from_bytes(content[place + 8 : place + 16], "little")
                step = size if number == b"\0\0" else 16 + -(-size // 8) * 8
                ensure(step >= 16 and place + step <= min(end, len(content)), "its text is damaged")
                place += step
            heap = content.find(_HEAP, heap + 8)


def _hierarchy(path: Path, nodes: dict[str, Any], sizes: dict[str, int], layer: str | None) -> Store:
    """What the nodes of a file hold, by their place in it."""
    found = {name: OnDisk(node, path, sizes[name]) for name, node in nodes.items() if hasattr(node, "dtype")}
    if "obs" in nodes and not isinstance(nodes["obs"], OnDisk) and "_index" in nodes["obs"].attrs:
        return _anndata(path, nodes, found, layer)
    if path.suffix.lower() == ".h5ad":
        raise UserError(f"{path}: no table `obs` of observations: write it again with today's anndata")
    if layer is not None and layer not in found:
        raise UserError(f"{path}: no array {layer!r}, found {', '.join(map(repr, found)) or 'none'}")
    large = {name: len(array.shape) > 1 and array.dtype.kind in "biuf" for name, array in found.items()}
    arrays = {name: array if large[name] else np.asarray(array) for name, array in found.items()}
    return Store(arrays if layer is None else {**arrays, COUNTS: arrays.pop(layer)})


def _anndata(path: Path, nodes: dict[str, Any], found: dict[str, OnDisk], layer: str | None) -> Store:
    """Counts, other layers and observations of AnnData; nothing else of it is read."""
    layers = [name.removeprefix("layers/") for name in nodes if name.startswith("layers/") and name.count("/") == 1]
    if layer is not None and layer not in layers:
        raise UserError(f"{path}: no layer {layer!r}, found {', '.join(map(repr, layers)) or 'none'}")
    if layer is None and "X" not in nodes:
        raise UserError(f"{path}: no X; dataset.layer names one of {', '.join(map(repr, layers)) or 'no layers'}")
    arrays = {name: _annotated(nodes, found, f"layers/{name}") for name in layers if name != layer}  # one may be a mask
    arrays[COUNTS] = _annotated(nodes, found, "X" if layer is None else f"layers/{layer}")
    for name in map(_text, nodes["obs"].attrs.get("column-order", ())):
        arrays[name] = _observed(nodes, found, f"obs/{name}")
    features = _observed(nodes, found, f"var/{_text(nodes['var'].attrs['_index'])}").astype(str)
    return Store(arrays, tuple(features.tolist()), layers=tuple(layers) if layer is None else ())


def _annotated(nodes: dict[str, Any], found: dict[str, OnDisk], name: str) -> Any:
    """A matrix of AnnData, left on the disk if it is dense or of sparse rows."""
    if name in found:
        return found[name]
    about = nodes[name].attrs
    kind = _text(about.get("encoding-type", about.get("h5sparse_format", ""))).removesuffix("_matrix")
    parts = {part: found[f"{name}/{part}"] for part in ("data", "indices", "indptr")}
    shape = np.asarray(about.get("shape", about.get("h5sparse_shape")))
    if kind == "csr":
        return SparseOnDisk(shape, parts)
    return sparse_matrix(kind, shape, {part: np.asarray(values) for part, values in parts.items()})


def _observed(nodes: dict[str, Any], found: dict[str, OnDisk], name: str) -> Array:
    """A column of observations: numbers, NaN where one is missing, or text, "nan" where one is."""
    folder, _, last = name.rpartition("/")
    codes, words = f"{name}/codes", f"{name}/categories"
    if f"{folder}/__categories/{last}" in found:  # as anndata wrote them before 0.8
        codes, words = name, f"{folder}/__categories/{last}"
    if words in nodes:
        number, values = np.asarray(found[codes]), _observed(nodes, found, words)  # which pandas 3 may write in parts
        ensure(number.ndim == 1 and number.dtype.kind in "iu" and values.ndim == 1, f"{name} holds no categories")
        if len(number) and not -1 <= int(number.min()) <= int(number.max()) < len(values):
            raise ValueError(f"{name} has categories {number.min()}..{number.max()} of {len(values)}")
        missing = np.nan if values.dtype.kind in "biuf" else "nan"
        return np.append(values, missing)[number] if (number < 0).any() or not len(values) else values[number]
    if f"{name}/values" in found:
        values, mask = np.asarray(found[f"{name}/values"]), np.asarray(found[f"{name}/mask"])
        return np.where(mask.astype(bool), np.nan if values.dtype.kind in "biuf" else "nan", values)
    return np.asarray(found[name])


def write_h5ad(
    path: Path, counts: Any, numbers: Array, features: Sequence[str], columns: Mapping[str, Array], **more: Any
) -> None:
    """Write samples as an .h5ad of AnnData, whole or not at all.

    Args:
        path: of the file.
        counts: a sparse matrix, for `X`.
        numbers: of the samples.
        features: names of its columns.
        columns: of `obs`, by name.
        more: `layers`, `obsm` and `uns`.

    Raises:
        ImportError: anndata is not installed.
    """
    import anndata
    import pandas

    # names as plain text: the text of pandas 3 is one that anndata does not write
    with pandas.option_context("future.infer_string", False), replacing(path) as part:
        observed = pandas.DataFrame(columns, index=[f"sample {number}" for number in numbers])
        made = anndata.AnnData(counts, obs=observed, **more)
        made.var_names = list(features)
        made.write_h5ad(part)


def _tiff(path: Path, layer: str | None) -> Store:
    library = _library("tifffile", path)
    logging.getLogger("tifffile").disabled = True  # of damaged files one line is said, not one of every tag
    with opened(path) as content, library.TiffFile(content, name=path.name, _multifile=False) as file:
        series = file.series[0]
        size = math.prod(series.shape) * series.dtype.itemsize
        check_size(path, size, stored_bytes(path))
        with taking_at_most(_AROUND + 4 * size):
            return Store({COUNTS: series.asarray()})


def _frames(path: Path) -> Store:
    """A folder with an image in every .tif file, in the order of their names."""
    files = sorted(file for file in path.glob("[!.]*") if file.suffix.lower() in (".tif", ".tiff"))
    refuse(not files, f"{path}: not a file, nor a folder of .tif files")
    images: list[Array] = []
    for file in files:
        images.append(np.asarray(read_store(file).arrays[COUNTS]))
        check_size(path, (len(files) - len(images) + 1) * images[-1].nbytes)
        refuse(images[-1].shape != images[0].shape, f"{file}: {images[-1].shape} pixels, unlike {files[0].name}")
    return Store({COUNTS: np.stack(images)})


_READERS: dict[str, Callable[[Path, str | None], Store]] = {
    ".npy": _numpy, ".npz": _numpy, ".csv": _csv, ".tsv": _csv, ".parquet": _parquet, ".h5ad": _hdf5, ".zarr": _zarr,
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
    shape = sample_shape(name, tuple(array.shape), series)
    return _dense(name, array).view(array.shape[0], *shape)


def sample_shape(name: str, shape: tuple[int, ...], series: bool | None = None) -> tuple[int, ...]:
    """The shape of a sample of counts; raises ValueError. See `to_counts`."""
    allowed = "[N, D], [N, C, L], [N, H, W], [N, C, H, W] or [N, C, D, H, W]"
    ensure(len(shape) in (2, 3, 4, 5), f"{name} must be {allowed}, got {list(shape)}")
    if len(shape) == 4 and shape[-1] in (1, 3, 4) and shape[1] == shape[2] > 4:
        advice = "read as [N, C, H, W]: if its last axis is colour, save numpy.moveaxis(array, -1, 1) instead"
        warnings.warn(f"{name} has the shape {list(shape)}, {advice}", stacklevel=2)
    if len(shape) == 3 and not (shape[2] >= _SLENDER * shape[1] if series is None else series):
        return (1, *shape[1:])
    return shape[1:]


def _dense(name: str, array: Any) -> Tensor:
    """The counts of an array or sparse matrix in the smallest type that holds them."""
    parts, largest = [], 1
    check_size(Path(name), math.prod(array.shape))
    for _, block in blocks(name, array):
        rows = block.toarray() if hasattr(block, "toarray") else block
        largest = max(largest, top := int(rows.max(initial=0)))
        parts.append(torch.from_numpy(rows.astype(np.uint8 if top <= 255 else np.int32)))
    whole = torch.empty(tuple(array.shape), dtype=count_dtype(largest))
    for place in whole.split(len(parts[0]) if parts else 1)[: len(parts)]:
        place.copy_(parts.pop(0))  # each is forgotten once it is in its place
    return whole


def blocks(name: str, array: Any) -> Iterator[tuple[int, Any]]:
    """(first row, rows) of an array or sparse matrix, a few rows at a time, each checked to be counts.

    Raises:
        ValueError: they are none.
    """
    at_once = max(1, _AT_ONCE // max(1, math.prod(array.shape[1:])))
    for first in range(0, array.shape[0], at_once):
        block = array[first : first + at_once]
        if hasattr(block, "toarray"):
            try:
                _check_whole(name, block.data)  # of which it has fewer
            except ValueError:
                _check_whole(name, block.toarray(), first)
                raise
        else:
            _check_whole(name, block := np.asarray(block), first)
        yield first, block


def _check_whole(name: str, array: Array, first: int = 0) -> None:
    """Refuse what is no count.

    Args:
        name: for the message.
        array: rows of the counts.
        first: number of the first row.
    """
    ensure(array.dtype.kind in "iubf", f"{name} must hold whole numbers, got {array.dtype}")
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
    if finite.max() >= 20 and np.count_nonzero(finite % 1) < 0.1 * np.count_nonzero(finite):
        return ""
    return f"; these look {'log-transformed or ' if finite.max() < 20 else ''}normalised: give the raw counts"


def load_arrays(path: Path, mapped: bool = False) -> Array | dict[str, Array]:
    """The array of an .npy file, or those of an .npz by name; objects are never loaded.

    Args:
        path: of the file.
        mapped: leave the array of an .npy on the disk until it is asked for.

    Raises:
        UserError: it is missing or damaged, or says that it holds more than its bytes or than fits into memory.
    """
    with reading(path, "not a readable .npy or .npz file of numbers"), opened(path) as file:
        stored = stored_bytes(path)
        if file.read(2) == b"PK":
            with zipfile.ZipFile(file) as archive:
                return _members(path, archive, stored)
        file.seek(0)
        dtype, shape, fortran = _header(file, os.fstat(file.fileno()).st_size)
        check_size(path, math.prod(shape) * (1 if mapped else int(dtype.itemsize)), stored, fits=not mapped)
        if mapped and 0 not in shape and shape:
            return np.memmap(file, dtype, "r", file.tell(), shape, "F" if fortran else "C")
        file.seek(0)
        return np.lib.format.read_array(file, allow_pickle=False)


def load_array(path: Path, *names: str, mapped: bool = False) -> Array:
    """The array of an .npy file; of an .npz the first one there is of these names, or the only one.

    Raises:
        UserError: as `load_arrays`, or an .npz has several, none by these names.
    """
    found = load_arrays(path, mapped)
    if not isinstance(found, dict):
        return found
    chosen = next((name for name in names if name in found), next(iter(found)) if len(found) == 1 else None)
    if chosen is None:
        wanted = " or ".join(names) if names else "one array"
        raise UserError(f"{path} must hold {wanted}; it has {', '.join(sorted(found)[:20]) or 'none'}")
    return found[chosen]


def _members(path: Path, archive: zipfile.ZipFile, stored: int) -> dict[str, Array]:
    """All arrays of an .npz, once their sizes are known to be possible."""
    members = archive.infolist()
    check_size(path, sum(member.file_size for member in members), stored)
    if len({member.filename for member in members}) < len(members) or len(members) > _MOST_ARRAYS:
        raise ValueError(f"it has arrays of the same name, or more than {_MOST_ARRAYS:,}")
    if any(member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for member in members):
        raise ValueError("it is compressed in a way that NumPy never uses")
    arrays = {}
    for member in members:
        with archive.open(member) as file:
            _header(file, member.file_size)
            file.seek(0)
            arrays[member.filename.removesuffix(".npy")] = np.lib.format.read_array(file, allow_pickle=False)
    return arrays


def _header(file: Any, size: int) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    """dtype, shape and whether columns come first of an .npy of `size` bytes; raises ValueError for what is none."""
    ensure(file.read(6) == b"\x93NUMPY", "these are not the bytes of a NumPy file")
    file.seek(0)
    versions = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    read = versions.get(np.lib.format.read_magic(file))
    if read is None:
        raise ValueError("named fields are no numbers")
    shape, fortran, dtype = read(file)
    advice = "objects are never loaded; text is saved by array.astype(str)"
    ensure(not dtype.hasobject and dtype.kind in "biufcUSmM", f"{dtype} is no type of numbers or text: {advice}")
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > size - file.tell():
        raise ValueError(f"{size:,} bytes do not hold {dtype} {list(shape)}")
    return dtype, shape, fortran
