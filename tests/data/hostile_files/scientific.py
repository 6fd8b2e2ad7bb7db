"""HDF5, AnnData, Parquet and TIFF files."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blackout.data import counts
from blackout.data.formats import read_file
from tests.data.hostile_files.arrays import SPARSE
from tests.data.hostile_files.writing import (
    COUNTS,
    Case,
    Read,
    deflated,
    overwrite,
    parts,
    with_bytes,
)

CASES: dict[str, Case] = {}


def hdf5(
    make: Callable[[Any, Any], object], folder: Path, name: str = "x.h5", **settings: Any
) -> Read:
    library = pytest.importorskip("h5py")
    with library.File(folder / name, "w") as file:
        make(library, file)
    return partial(counts, folder / name, **settings)


def opaque(library: Any, file: Any) -> None:
    kind = library.h5t.create(library.h5t.OPAQUE, 8)
    kind.set_tag(b"NUMPY:|O")
    space = library.h5s.create_simple((8, 3))
    library.h5d.create(file.id, b"counts", kind, space)


def virtual(library: Any, file: Any) -> None:
    layout = library.VirtualLayout((8, 3), "<i8")
    layout[:] = library.VirtualSource("/etc/passwd", "x", (8, 3))
    file.create_virtual_dataset("counts", layout)


def elsewhere(library: Any, file: Any) -> None:
    file.create_dataset("counts", (8, 3), "u1", external=[("/etc/passwd", 0, 24)])


def long_text(library: Any, file: Any) -> None:
    file["counts"] = COUNTS
    file["k"] = np.array(["x" * 20_000] * 8, dtype=object)


def damaged_heap(position: int, value: bytes, folder: Path) -> Read:
    """A heap of text whose first object, [number][references][size], is changed at a position."""
    read = hdf5(long_text, folder)
    content = bytearray((folder / "x.h5").read_bytes())
    overwrite(b"GCOL", 16 + position, value)(content)
    (folder / "x.h5").write_bytes(content)
    return read


def compressed(library: Any, file: Any) -> None:
    dataset = file.create_dataset("counts", (10**5, 8), "u1", chunks=(10**5, 8), compression="gzip")
    dataset.id.write_direct_chunk((0, 0), deflated(3 << 29))


def annotated(library: Any, file: Any, **changes: Any) -> None:
    """AnnData of a sparse matrix, as its library writes it, with something else in it."""
    for name, size in (("obs", 8), ("var", 3)):
        frame = file.create_group(name)
        frame.attrs.update(
            {
                "encoding-type": "dataframe",
                "_index": "_index",
                "column-order": np.array(["k"], dtype="S"),
            }
        )
        frame["_index"] = np.array([str(k) for k in range(size)], dtype=object)
        frame["k/codes"] = changes.get("codes", np.zeros(size, "i1"))
        frame["k/categories"] = np.array(["a", "b"], dtype=object)
    x = file.create_group("X")
    x.attrs.update(
        {"encoding-type": changes.get("kind", "csr_matrix"), "shape": changes.get("shape", [8, 3])}
    )
    for name in ("data", "indices", "indptr"):
        x[name] = changes.get(name, parts()[name])


def remove_entry(name: str, library: Any, file: Any) -> None:
    annotated(library, file)
    del file[name]


def linked(library: Any, file: Any) -> None:
    annotated(library, file)
    del file["X"]
    os.mkfifo("other.h5")
    file["X"] = library.ExternalLink("other.h5", "X")


def parquet(make: Callable[[Any], object], folder: Path) -> Read:
    arrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(make(arrow), folder / "x.parquet")
    return partial(counts, folder / "x.parquet")


def few_words(arrow: Any) -> Any:
    words = arrow.DictionaryArray.from_arrays(np.zeros(10**7, "i4"), ["a"])
    return arrow.table({"a": words, "b": words})


def with_library(library: str, name: str, content: bytes, folder: Path) -> Read:
    pytest.importorskip(library)
    return with_bytes(name, content, counts, folder)


WIDE_TIFF = [(tag, 3, 1, 1) for tag in (258, 259, 262, 277)] + [(273, 4, 1, 8), (279, 4, 1, 100)]
WIDE_TIFF += [(tag, 4, 1, 2**32 - 1) for tag in (256, 257, 278)]


def entries(*values: tuple[int, int, int, int]) -> bytes:
    return (
        b"II*\0\x08\0\0\0"
        + struct.pack("<H", len(values))
        + b"".join(struct.pack("<HHII", *v) for v in values)
        + bytes(4)
    )


CASES |= {
    "h5: 10^12 rows": partial(
        hdf5, lambda h5, file: file.create_dataset("counts", (10**12, 3), "i8", chunks=(100, 3))
    ),
    "h5: 10^9 rows": partial(
        hdf5, lambda h5, file: file.create_dataset("counts", (10**9, 3), "i8", chunks=(100, 3))
    ),
    "h5: 10^7 parts": partial(
        hdf5, lambda h5, file: file.create_dataset("counts", (10**7, 3), "u1", chunks=(1, 3))
    ),
    "h5: objects": partial(hdf5, opaque),
    "h5: in another file": partial(hdf5, virtual),
    "h5: bytes of another file": partial(hdf5, elsewhere),
    "h5: a bomb": partial(hdf5, compressed),
    "h5: records": partial(
        hdf5, lambda h5, file: file.create_dataset("counts", (8), [("a", "i8")])
    ),
    "h5: references": partial(
        hdf5, lambda h5, file: file.create_dataset("counts", (8, 3), h5.ref_dtype)
    ),
    "h5: lists": partial(
        hdf5, lambda h5, file: file.create_dataset("counts", (8, 3), h5.vlen_dtype(int))
    ),
    "h5: nothing": partial(hdf5, lambda h5, file: None),
    "h5: groups 3,000 deep": partial(hdf5, lambda h5, file: file.create_group("/g" * 3000)),
    "h5: no space": partial(
        hdf5, lambda h5, file: file.create_dataset("counts", data=h5.Empty("i8"))
    ),
    "h5: long text": partial(hdf5, long_text, labels="k"),
    "h5: text without an end": partial(damaged_heap, 0, bytes(16)),
    "h5: text beyond its heap": partial(damaged_heap, 8, b"\xff" * 8),
    "h5: text": partial(hdf5, lambda h5, file: file.__setitem__("counts", np.full((8, 3), b"a"))),
    "h5ad: no HDF5": partial(with_bytes, "x.h5ad", b"\x89HDF\r\n\x1a\n" + bytes(99), read_file),
    "h5ad: no table": partial(hdf5, lambda h5, file: file.__setitem__("X", COUNTS), name="x.h5ad"),
    "h5ad: no counts": partial(hdf5, partial(remove_entry, "X"), name="x.h5ad"),
    "h5ad: no features": partial(hdf5, partial(remove_entry, "var"), name="x.h5ad"),
    "h5ad: no indices": partial(hdf5, partial(remove_entry, "X/indices"), name="x.h5ad"),
    "h5ad: a link out": partial(hdf5, linked, name="x.h5ad"),
    "h5ad: another matrix": partial(hdf5, partial(annotated, kind="awkward-array"), name="x.h5ad"),
    "h5ad: a category of 99": partial(
        hdf5, partial(annotated, codes=np.full(8, 99, "i1")), name="x.h5ad", labels="k"
    ),
    "h5ad: a category of -99": partial(
        hdf5, partial(annotated, codes=np.full(8, -99)), name="x.h5ad", labels="k"
    ),
    "parquet: no table": partial(
        with_library, "pyarrow", "x.parquet", b"PAR1" + bytes(99) + b"PAR1"
    ),
    "parquet: many rows": partial(parquet, few_words),
    "parquet: lists": partial(parquet, lambda arrow: arrow.table({"a": [[1, 2]] * 9})),
    "parquet: long text": partial(
        parquet, lambda arrow: arrow.table({"a": [1] * 9, "k": ["x" * 10**6] * 9})
    ),
    "parquet: bytes": partial(parquet, lambda arrow: arrow.table({"a": [b"x"] * 9})),
    "parquet: dates": partial(
        parquet, lambda arrow: arrow.table({"a": arrow.array([1] * 9, arrow.timestamp("s"))})
    ),
    "tif: no image": partial(with_library, "tifffile", "x.tif", b"II*\0"),
    "tif: leads back as numbers": partial(
        with_library, "tifffile", "x.tif", b"II*\0\x08\0\0\0\0\0\x08\0\0\0"
    ),
    "tif: 2^32 wide": partial(with_library, "tifffile", "x.tif", entries(*sorted(WIDE_TIFF))),
}
for word, changes in SPARSE.items():
    if (
        isinstance(next(iter(changes.values())), np.ndarray)
        and next(iter(changes.values())).dtype.kind in "iufc"
        and "format" not in changes
    ):
        CASES[f"h5ad: {word}"] = partial(hdf5, partial(annotated, **changes), name="x.h5ad")
