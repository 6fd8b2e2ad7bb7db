"""Readers of 10x Genomics' counts: a CellRanger .h5, or matrix.mtx with barcodes and features.

Both hold genes x cells, which become cells x genes here. A matrix.mtx is parsed by NumPy, because
SciPy's reader ends the process on damaged files.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from blackout.counts import LARGEST_COUNT
from blackout.data.formats.compressed import GZIP_SUFFIX, read_bytes
from blackout.data.formats.contents import (
    COUNTS,
    Array,
    FileContents,
    decode_texts,
    quote_names,
)
from blackout.data.formats.lazy import LazyArray, LazySparseMatrix
from blackout.errors import UserError, ensure, refuse

MATRIX_FILE = "matrix.mtx"
FEATURE_FILES = ("features.tsv", "genes.tsv")  # since CellRanger 3, and before
BARCODE_FILE = "barcodes.tsv"
NAME_COLUMN = 1  # of the table of features: id, name, type
TYPE_COLUMN = 2
MATRIX_PARTS = {"data", "indices", "indptr", "shape"}
MEMORY_PER_BYTE = 12  # bytes of memory for every byte of a matrix.mtx, and of names
BARCODE = "barcode"  # name of the column of barcodes


def find_matrix(folder: Path) -> Path | None:
    """Return the matrix.mtx or matrix.mtx.gz of a folder; None if there is none.

    Raises:
        UserError: there are both.
    """
    return _find_one(folder, "", (MATRIX_FILE,))


def read_matrix_market(path: Path, layer: str | None = None) -> FileContents:
    """Read a matrix.mtx, with the names of genes and cells in the files next to it.

    Without them the rows are samples, as in a file of `scipy.io.mmwrite`.

    Args:
        path: of the matrix, such as sample_matrix.mtx.gz next to sample_barcodes.tsv.gz.
        layer: feature type, such as "Gene Expression"; None where there is one only.

    Raises:
        UserError: names of another number than the matrix has, or several feature types.
        ValueError: it is not a matrix of counts.
    """
    plain_name = path.name.removesuffix(GZIP_SUFFIX)
    prefix = plain_name.removesuffix(MATRIX_FILE) if plain_name.endswith(MATRIX_FILE) else ""
    matrix = _parse_matrix(read_bytes(path, MEMORY_PER_BYTE))
    feature_file = _find_one(path.parent, prefix, FEATURE_FILES)
    barcode_file = _find_one(path.parent, prefix, (BARCODE_FILE,))
    if feature_file is None or barcode_file is None:
        refuse(layer is not None, f"{path}: dataset.layer={layer} needs a features.tsv next to it")
        note = "without features.tsv and barcodes.tsv next to it, rows are samples"
        return FileContents({COUNTS: matrix.tocsr()}, notes=(note,))

    features = _read_names(feature_file)
    barcodes = _read_names(barcode_file)
    sizes = (len(features), len(barcodes))
    if matrix.shape != sizes:
        matrix_size = f"its matrix is {matrix.shape[0]} x {matrix.shape[1]}"
        table_sizes = f"there are {sizes[0]} features and {sizes[1]} barcodes"
        advice = "give the three files of one CellRanger output"
        raise UserError(f"{path}: {matrix_size}, but {table_sizes}: {advice}")
    name_column = min(NAME_COLUMN, len(features[0]) - 1)
    names = decode_texts(row[name_column] for row in features)
    types = decode_texts(row[TYPE_COLUMN] if len(row) > TYPE_COLUMN else "" for row in features)
    is_selected = _select_type(path, types, layer)
    counts = matrix.T.tocsr()[:, is_selected]
    return _make_contents(counts, names[is_selected], decode_texts(row[0] for row in barcodes))


def find_tenx_matrices(nodes: Mapping[str, Any]) -> list[str]:
    """Return the places of 10x's matrices in an HDF5 file: `matrix`, or a group for each genome."""
    places = []
    for place in nodes:
        names = {name for name in MATRIX_PARTS | {"barcodes"} if f"{place}/{name}" in nodes}
        if place and "/" not in place and names == MATRIX_PARTS | {"barcodes"}:
            places.append(place)
    return places


def read_tenx_hdf5(
    path: Path,
    arrays: Mapping[str, LazyArray],
    places: list[str],
    layer: str | None,
) -> FileContents:
    """Read the .h5 of CellRanger; the counts stay on disk unless feature types are selected.

    Args:
        path: of the file.
        arrays: by place.
        places: of the matrices, see `find_tenx_matrices`.
        layer: feature type, or genome; None where there is one only.

    Raises:
        UserError: several genomes or feature types, or no such one.
    """
    if layer in places and len(places) > 1:
        place = str(layer)
        layer = None  # it names the genome, and no feature type
    else:
        names = quote_names(places)
        several = f"{path}: it has the genomes {names}: dataset.layer={places[0]} reads the first"
        refuse(len(places) > 1, several)
        place = places[0]
    parts = {name: arrays[f"{place}/{name}"] for name in ("data", "indices", "indptr")}
    num_features, num_barcodes = np.asarray(arrays[f"{place}/shape"]).tolist()
    # columns of genes x cells are rows of cells x genes
    matrix: Any = LazySparseMatrix(np.array([num_barcodes, num_features]), parts)
    is_version_3 = f"{place}/features/name" in arrays
    name_place = f"{place}/features/name" if is_version_3 else f"{place}/gene_names"
    feature_names = np.asarray(arrays[name_place]).astype(str)
    types = np.full(len(feature_names), "")
    if f"{place}/features/feature_type" in arrays:
        types = np.asarray(arrays[f"{place}/features/feature_type"]).astype(str)
    barcodes = np.asarray(arrays[f"{place}/barcodes"]).astype(str)
    ensure(
        feature_names.shape == types.shape == (num_features,) and len(barcodes) == num_barcodes,
        "features and barcodes do not fit the shape of the matrix",
    )
    is_selected = _select_type(path, types, layer)
    if not is_selected.all():
        matrix = matrix[:][:, is_selected]
    return _make_contents(matrix, feature_names[is_selected], barcodes)


def _make_contents(counts: Any, names: Array, barcodes: Array) -> FileContents:
    return FileContents(
        {COUNTS: counts, BARCODE: barcodes}, tuple(names.tolist()), index=(BARCODE,)
    )


def _select_type(path: Path, types: Array, layer: str | None) -> Array:
    """Return which features are of a type, bool [D].

    Raises:
        UserError: there are several types and none was chosen, or no such one.
    """
    names, sizes = np.unique(types, return_counts=True)
    pairs = zip(names.tolist(), sizes, strict=True)
    listed = ", ".join(f"{size:,} {name!r}" for name, size in pairs)
    if layer is not None:
        message = f"{path}: its features have no types: leave out dataset.layer={layer}"
        refuse(set(names.tolist()) <= {""}, message)
        message = f"{path}: there are no features of type {layer!r}, only {listed}"
        refuse(layer not in names, message)
        return types == layer
    first = names[sizes.argmax()] if len(names) else ""
    choice = f"dataset.layer='{first}' reads those"
    refuse(len(names) > 1, f"{path}: it has features of several types, {listed}: {choice}")
    return np.ones(len(types), dtype=bool)


def _find_one(folder: Path, prefix: str, names: tuple[str, ...]) -> Path | None:
    """Return the file of one of some names, plain or gzipped.

    Raises:
        UserError: there are several.
    """
    files = []
    for name in names:
        files += [folder / f"{prefix}{name}{suffix}" for suffix in ("", GZIP_SUFFIX)]
    existing = [file for file in files if file.is_file()]
    listed = ", ".join(file.name for file in existing)
    refuse(len(existing) > 1, f"{folder} has {listed}: remove all but one")
    return existing[0] if existing else None


def _read_names(path: Path) -> list[list[str]]:
    """Read the rows of a table of names, separated by tabs.

    Raises:
        UserError: rows of unequal length, or none.
    """
    text = read_bytes(path, MEMORY_PER_BYTE).decode()
    rows = [line.rstrip("\r").split("\t") for line in text.split("\n")]
    if rows[-1] == [""]:
        rows.pop()
    lengths = {len(row) for row in rows}
    message = "every line needs as many fields, separated by tabs, as the first"
    refuse(len(lengths) != 1, f"{path}: {message}: correct the others")
    return rows


def _parse_matrix(content: bytes) -> Any:
    """Parse a coordinate matrix of numbers: COO of its shape.

    Raises:
        ValueError: another kind of matrix, entries outside, twice, or of another number.
    """
    stream = io.BytesIO(content)
    banner = stream.readline(1000).decode().lower().split()
    allowed = "a coordinate matrix of integers or real numbers, as of scipy.io.mmwrite,"
    is_valid = banner[:3] == ["%%matrixmarket", "matrix", "coordinate"]
    is_valid &= banner[3:] in (["integer", "general"], ["real", "general"])
    ensure(is_valid, f"{allowed} is read, not {' '.join(banner)[:80]!r}")
    line = b"%"
    while line.startswith(b"%") or (line and not line.strip()):
        line = stream.readline()
    sizes = [int(word) for word in line.split()]
    is_possible = len(sizes) == 3 and 0 <= min(sizes) <= max(sizes) <= LARGEST_COUNT
    ensure(is_possible, f"three sizes are needed after the banner, not {sizes}")
    num_rows, num_columns, num_entries = sizes
    has_entries = stream.tell() < len(content.rstrip())
    entries = np.zeros((0, 3))
    if has_entries:
        entries = np.loadtxt(stream, dtype=np.float64, comments=None, ndmin=2)
    announced = f"its header announces {num_entries:,} entries"
    actual = f"{len(entries):,} lines of {entries.shape[1]} numbers"
    message = f"{announced} of 3 numbers, but it has {actual}: the file is damaged"
    ensure(entries.shape == (num_entries, 3), message)
    positions = entries[:, :2].astype(np.int64) - 1
    is_inside = ((positions >= 0) & (positions < [num_rows, num_columns])).all()
    message = f"an entry is outside its matrix of {num_rows:,} x {num_columns:,}"
    is_whole = (positions + 1 == entries[:, :2]).all()
    ensure(is_inside and is_whole, f"{message}: rows and columns count from 1")
    numbers = positions[:, 0] * num_columns + positions[:, 1]
    ensure(
        len(np.unique(numbers)) == num_entries, "an entry occurs twice: add them up, or remove one"
    )
    import scipy.sparse  # only here: it takes long to import

    place = (positions[:, 0], positions[:, 1])
    return scipy.sparse.coo_matrix((entries[:, 2], place), (num_rows, num_columns))
