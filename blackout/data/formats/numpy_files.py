"""Readers of .npy and .npz files; pickled objects are never loaded."""

from __future__ import annotations

import math
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from blackout.data.formats.contents import (
    COUNTS,
    Array,
    FileContents,
    decode_text,
    quote_names,
    refuse_layer,
)
from blackout.data.formats.sparse import sparse_matrix
from blackout.errors import UserError, ensure, refuse
from blackout.safe_reading import check_size, open_regular, reading, stored_bytes

MAX_ARRAYS = 10_000  # arrays of one archive


def read_numpy(path: Path, layer: str | None = None) -> FileContents:
    """Read an .npy, an .npz, or a sparse matrix saved by SciPy.

    Args:
        path: of the file.
        layer: array of an .npz that holds the counts; None for `counts` or the only one.

    Raises:
        UserError: there is no such array; see also `load_arrays`.
    """
    arrays = load_arrays(path, mapped=True)
    if not isinstance(arrays, dict):
        refuse_layer(path, layer)
        return FileContents({COUNTS: arrays})
    if {"format", "shape", "data"} <= arrays.keys():
        refuse_layer(path, layer)
        kind = decode_text(arrays["format"].item())
        matrix_keys = {"format", "shape", "data", "indices", "indptr", "row", "col", "_is_array"}
        columns = {name: arrays[name] for name in arrays.keys() - matrix_keys}
        return FileContents({COUNTS: sparse_matrix(kind, arrays["shape"], arrays), **columns})
    if layer is None:
        return FileContents(arrays)
    names = quote_names(arrays)
    refuse(layer not in arrays, f"{path}: there is no array dataset.layer={layer}, only {names}")
    counts = arrays.pop(layer)
    has_other = arrays.pop(COUNTS, None) is not None
    unread = {COUNTS: "not the chosen array"} if has_other else {}
    return FileContents({**arrays, COUNTS: counts}, unread=unread)


def load_arrays(path: Path, mapped: bool = False) -> Array | dict[str, Array]:
    """Return the array of an .npy file, or the arrays of an .npz by name.

    Args:
        path: of the file.
        mapped: leave the array of an .npy on disk until it is used.

    Raises:
        UserError: the file is missing or damaged, or declares more than its bytes or the memory
            hold.
    """
    with reading(path, "not a readable .npy or .npz file of numbers"), open_regular(path) as file:
        stored = stored_bytes(path)
        if file.read(2) == b"PK":
            with zipfile.ZipFile(file) as archive:
                return _read_members(path, archive, stored)
        file.seek(0)
        dtype, shape, is_fortran = _read_header(file, os.fstat(file.fileno()).st_size)
        item_bytes = 1 if mapped else int(dtype.itemsize)
        check_size(path, math.prod(shape) * item_bytes, stored, in_memory=not mapped)
        if mapped and shape and 0 not in shape:
            return np.memmap(file, dtype, "r", file.tell(), shape, "F" if is_fortran else "C")
        file.seek(0)
        return np.lib.format.read_array(file, allow_pickle=False)


def load_array(path: Path, *names: str, mapped: bool = False) -> Array:
    """Return the array of an .npy; of an .npz the first with one of `names`, or the only one.

    Raises:
        UserError: as for `load_arrays`, or an .npz has several arrays and none with these names.
    """
    arrays = load_arrays(path, mapped)
    if not isinstance(arrays, dict):
        return arrays
    for name in names:
        if name in arrays:
            return arrays[name]
    if len(arrays) == 1:
        return next(iter(arrays.values()))
    required = f"an array named {' or '.join(names)}" if names else "one array"
    present = quote_names(sorted(arrays)[:20])
    raise UserError(f"{path} must hold {required}; it has {present}: save that one alone")


def _read_members(path: Path, archive: zipfile.ZipFile, stored: int) -> dict[str, Array]:
    """Read all arrays of an .npz, after checking that their sizes are possible."""
    members = archive.infolist()
    check_size(path, sum(member.file_size for member in members), stored)
    num_names = len({member.filename for member in members})
    if num_names < len(members) or len(members) > MAX_ARRAYS:
        raise ValueError(f"it has arrays of the same name, or more than {MAX_ARRAYS:,}")
    methods = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
    if any(member.compress_type not in methods for member in members):
        raise ValueError(
            "it is compressed by a method that NumPy does not use: save it with "
            "numpy.savez_compressed"
        )
    arrays = {}
    for member in members:
        with archive.open(member) as file:
            _read_header(file, member.file_size)
            file.seek(0)
            array = np.lib.format.read_array(file, allow_pickle=False)
            arrays[member.filename.removesuffix(".npy")] = array
    return arrays


def _read_header(file: Any, size: int) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    """Return dtype, shape and whether the order is Fortran's of an .npy with `size` bytes.

    Raises:
        ValueError: it is not an .npy file of numbers or text, or too short for its shape.
    """
    ensure(file.read(6) == b"\x93NUMPY", "not a NumPy file")
    file.seek(0)
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
    elif version == (2, 0):
        shape, is_fortran, dtype = np.lib.format.read_array_header_2_0(file)
    else:  # version 3 is for names of fields that are not ASCII
        raise ValueError("arrays with named fields are not supported: save each field as an array")
    advice = "save numbers, or text by array.astype(str); objects are never loaded"
    is_supported = not dtype.hasobject and dtype.kind in "biufcUSmM"
    ensure(is_supported, f"arrays of {dtype} are not supported: {advice}")
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > size - file.tell():
        raise ValueError(f"{size:,} bytes do not hold {dtype} {list(shape)}")
    return dtype, shape, is_fortran
