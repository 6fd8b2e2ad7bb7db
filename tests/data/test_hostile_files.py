"""Files that would take memory or time, or execute code: each is refused soon, in one line.

A case is a function that makes a file in a folder and returns a function that reads it. Cases of a
library that is not installed are skipped; checks before a library opens a file need no library.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import time
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from PIL import Image

from benchmarks.graph_methods import read_table
from blackout.cli.comparison_page import save_comparison
from blackout.cli.pages import load_picture
from blackout.cli.report_page import save_report
from blackout.data import counts, image_folder
from blackout.data.formats import load_array, read_file, sparse_matrix
from blackout.errors import UserError
from blackout.evaluation import reference
from blackout.flows.graphs.files import READERS, read_graphs
from blackout.flows.targets.base import read_arrays
from blackout.posterior.noise import to_tensor
from blackout.safe_reading import available_memory, limit_memory, read_rows
from blackout.training.checkpoint_files import read_checkpoint

Read = Callable[[], object]
Case = Callable[[Path], Read]
CASES: dict[str, Case] = {}
COUNTS = np.arange(24).reshape(8, 3)
MAX_SECONDS = 5.0  # of CPU time for a refusal
MAX_BYTES = 1 << 30  # of memory for a refusal


class Trap:
    """Makes a folder when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.makedirs, ("owned",)


PICKLE = pickle.dumps(Trap())


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In the folder where a trap would act, with the memory that a refusal may take."""
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    assert not (tmp_path / "owned").exists()


def refused(read: Read) -> str:
    start = time.process_time()
    with limit_memory(MAX_BYTES), pytest.raises((UserError, ValueError)) as error:
        read()
    assert isinstance(error.value, UserError) or type(error.value) is ValueError
    assert time.process_time() - start < MAX_SECONDS
    message = str(error.value)
    assert message and "\n" not in message and len(message) < 2000, message
    return message


def test_the_memory_limit_works() -> None:
    before = available_memory()
    with limit_memory(1 << 25), pytest.raises(MemoryError):
        np.empty(1 << 31, dtype=np.uint8)  # more than a long session has freed
    assert before > 0 and np.empty(1 << 27, dtype=np.uint8).size


# --- NumPy's files


def npy(header: bytes | str, body: bytes = b"", version: bytes = b"\1\0") -> bytes:
    text = header.encode() if isinstance(header, str) else header
    return (
        b"\x93NUMPY"
        + version
        + struct.pack("<H" if version == b"\1\0" else "<I", len(text))
        + text
        + body
    )


def described(descr: Any, shape: Any, order: Any = False, body: bytes = bytes(192)) -> bytes:
    return npy(repr({"descr": descr, "fortran_order": order, "shape": shape}) + "\n", body)


HEADERS = {
    "empty": b"",
    "a magic alone": b"\x93NUMPY",
    "half a magic": b"\x93NUM",
    "text": b"1,2,3\n4,5,6\n",
    "pickle": PICKLE,
    "objects": described("|O", (1), body=PICKLE),
    "objects in a record": described([("a", "|O")], (1), body=PICKLE),
    "a record": described([("a", "<i8"), ("b", "<i8")], (3)),
    "bytes without a kind": described("|V8", (8, 3)),
    "10^12 rows": described("<i8", (10**12, 3)),
    "2^62 x 4": described("<i8", (2**62, 4)),
    "10^30 rows": described("<i8", (10**30, 1)),
    "more than there is": described("<i8", (9, 3)),
    "negative": described("<i8", (-8, 3)),
    "twice negative": described("<i8", (-8, -3)),
    "a fraction of a row": described("<i8", (8.0, 3)),
    "rows of text": described("<i8", ("8", "3")),
    "truth for a side": described("<i8", (True, 24), "x"),
    "no tuple": described("<i8", 24),
    "no shape": npy("{'descr': '<i8'}\n"),
    "another kind": described("<q9", (8, 3)),
    "wide text": described("<U2000000000", (1)),
    "a list of arrays": described(("<i8", (10**9)), (1)),
    "a program": npy("__import__('os').makedirs('owned')\n"),
    "a call as shape": npy(
        "{'descr': '<i8', 'fortran_order': False, 'shape': __import__('os').makedirs('owned')}\n"
    ),
    "deep": npy("(" * 9000 + "\n"),
    "deep signs": npy("-" * 9000 + "1\n"),
    "long": npy("{" + " " * 60000 + "}\n"),
    "cut in its header": described("<i8", (8, 3))[:40],
    "cut in its numbers": described("<i8", (8, 3))[:-1],
    "version 3": npy(
        "{'descr': [('é', '<i8')], 'fortran_order': False, 'shape': (3)}\n", bytes(192), b"\3\0"
    ),
    "version 9": npy("{}", b"", b"\x09\0"),
    "dates": described("<M8[D]", (8, 3)),
    "complex": described("<c16", (4, 3)),
    "words": described("<U2", (8, 3)),
    "no axis": described("<i8", ()),
    "one axis": described("<i8", (24)),
    "six axes": described("<i8", (2, 2, 3, 2, 1, 1)),
    "no rows": described("<i8", (0, 3)),
    "no columns": described("<i8", (8, 0)),
    "2^60 empty rows": described("<i8", (2**60, 0)),
}


def with_bytes(name: str, content: bytes, read: Callable[[Path], object], folder: Path) -> Read:
    (folder / name).write_bytes(content)
    return partial(read, folder / name)


def hole(name: str, header: bytes, size: int, read: Callable[[Path], object], folder: Path) -> Read:
    with (folder / name).open("wb") as file:
        file.write(header)
        file.truncate(len(header) + size)
    return partial(read, folder / name)


for word, content in HEADERS.items():
    CASES[f"npy: {word}"] = partial(with_bytes, "x.npy", content, counts)
    if word in list(HEADERS)[: list(HEADERS).index("dates")] and word != "truth for a side":
        CASES[f"npy in npz: {word}"] = partial(
            lambda content, folder: archive(folder, {"counts": content}), content
        )
CASES["npy: a hole of 8 GB"] = partial(
    hole, "x.npy", described("<i8", (10**9, 1), body=b""), 8 * 10**9, counts
)
CASES["npy: a hole of 4 TB"] = partial(
    hole, "x.npy", described("<i4", (10**12, 1), body=b""), 4 * 10**12, counts
)


def archive(
    folder: Path, members: Mapping[str, bytes], method: int = zipfile.ZIP_STORED, read: Any = counts
) -> Read:
    with zipfile.ZipFile(folder / "x.npz", "w", method) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return partial(read, folder / "x.npz")


def saved(array: Any) -> bytes:
    np.save(file := io.BytesIO(), array, allow_pickle=False)
    return file.getvalue()


def zeros(folder: Path) -> Read:
    """200 MB of one value, in 200 kB."""
    with (
        zipfile.ZipFile(folder / "x.npz", "w", zipfile.ZIP_DEFLATED) as file,
        file.open("counts.npy", "w") as member,
    ):
        member.write(described("|u1", (200, 10**6), body=b""))
        for _ in range(200):
            member.write(bytes(10**6))
    return partial(counts, folder / "x.npz")


def patched(change: Callable[[bytearray], None], folder: Path) -> Read:
    """An archive whose directory says something else."""
    archive(folder, {"counts": saved(COUNTS)}, zipfile.ZIP_DEFLATED)
    content = bytearray((folder / "x.npz").read_bytes())
    change(content)
    (folder / "x.npz").write_bytes(content)
    return partial(counts, folder / "x.npz")


def put(where: bytes, offset: int, value: bytes) -> Callable[[bytearray], None]:
    def change(content: bytearray) -> None:
        at = content.rindex(where) + offset
        content[at : at + len(value)] = value

    return change


def repeated_name(folder: Path) -> Read:
    with zipfile.ZipFile(folder / "x.npz", "w") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            file.writestr("counts.npy", saved(COUNTS))
    return partial(counts, folder / "x.npz")


CASES |= {
    "npz: a bomb": zeros,
    "npz: says 4 GB": partial(patched, put(b"PK\1\2", 24, b"\xfe\xff\xff\xff")),
    "npz: says less": partial(patched, put(b"PK\1\2", 24, b"\x10\0\0\0")),
    "npz: says another sum": partial(patched, put(b"PK\1\2", 16, b"\x01\2\3\4")),
    "npz: encrypted": partial(patched, put(b"PK\1\2", 8, b"\1")),
    "npz: elsewhere": partial(patched, put(b"PK\1\2", 42, b"\xff\xff\xff\x7f")),
    "npz: an unknown method": partial(patched, put(b"PK\1\2", 10, b"\x63")),
    "npz: cut": partial(patched, lambda content: content.__delitem__(slice(-30, None))),
    "npz: no end": partial(with_bytes, "x.npz", b"PK\3\4" + bytes(100), counts),
    "npz: bzip2": partial(archive, members={"counts": saved(COUNTS)}, method=zipfile.ZIP_BZIP2),
    "npz: lzma": partial(archive, members={"counts": saved(COUNTS)}, method=zipfile.ZIP_LZMA),
    "npz: a name twice": repeated_name,
    "npz: 11,000 arrays": partial(archive, members={f"a{k}": b"" for k in range(11_000)}),
    "npz: nothing": partial(archive, members={}),
    "npz: two without a name": partial(archive, members={"a": saved(COUNTS), "b": saved(COUNTS)}),
    "npz: complex labels": partial(
        archive, members={"counts": saved(COUNTS), "labels": saved(np.ones(8) * 1j)}
    ),
}


# --- sparse matrices


def parts(**changes: Any) -> dict[str, Any]:
    made = scipy.sparse.csr_matrix(COUNTS)
    found = {
        "data": made.data,
        "indices": made.indices,
        "indptr": made.indptr,
        "shape": np.array(made.shape),
    }
    return found | {"format": np.array(b"csr")} | changes


def at(name: str, where: int, value: Any, dtype: Any = np.int64) -> dict[str, Any]:
    array = parts()[name].astype(dtype)
    array[where] = value
    return {name: array}


SPARSE = {
    "an index of 10^9": at("indices", 3, 10**9),
    "an index of -10^9": at("indices", 3, -(10**9)),
    "one too many": at("indices", 3, 3),
    "an index of 2^63": at("indices", 3, 2**63, np.uint64),
    "a pointer of 10^9": at("indptr", -1, 10**9),
    "a pointer back": at("indptr", 3, 0),
    "a negative pointer": at("indptr", 2, -5),
    "a first pointer": at("indptr", 0, 1),
    "a pointer of 2^64 - 1": at("indptr", 4, 2**64 - 1, np.uint64),
    "fewer pointers": {"indptr": parts()["indptr"][:-1]},
    "more pointers": {"indptr": np.append(parts()["indptr"], 10**6)},
    "no pointers": {"indptr": np.zeros(0, int)},
    "fewer numbers": {"data": parts()["data"][:-2]},
    "fewer indices": {"indices": parts()["indices"][:-2]},
    "a smaller shape": {"shape": np.array([8, 2])},
    "more rows": {"shape": np.array([9, 3])},
    "2^40 rows": {"shape": np.array([2**40, 3])},
    "negative rows": {"shape": np.array([-8, 3])},
    "three sides": {"shape": np.array([8, 3, 1])},
    "no sides": {"shape": np.array(24)},
    "fractions of rows": {"shape": np.array([8.0, 3.0])},
    "sides of text": {"shape": np.array(["8", "3"])},
    "fractions as indices": {"indices": parts()["indices"] + 0.0},
    "fractions as pointers": {"indptr": parts()["indptr"] * 1.0},
    "text": {"data": parts()["data"].astype(str)},
    "complex": {"data": parts()["data"] * 1j},
    "dates": {"data": parts()["data"].astype("M8[D]")},
    "a table of numbers": {"data": parts()["data"][:, None]},
    "a table of indices": {"indices": parts()["indices"][:, None]},
    "another format": {"format": np.array(b"xyz")},
    "a format of objects": {"format": np.array(b"os.system")},
    "a column for csc": {"format": np.array(b"csc")},
}
for word, changes in SPARSE.items():
    CASES[f"sparse npz: {word}"] = partial(
        lambda changes, folder: archive(
            folder, {name: saved(of) for name, of in parts(**changes).items()}
        ),
        changes,
    )
CASES["sparse npz: row of 10^9"] = lambda folder: archive(
    folder,
    {
        "format": saved(np.array(b"coo")),
        "shape": saved(np.array([8, 3])),
        "data": saved(np.ones(2)),
        "row": saved(np.array([0, 10**9])),
        "col": saved(np.array([0, 1])),
    },
)
CASES["sparse npz: no pointers at all"] = lambda folder: archive(
    folder, {name: saved(of) for name, of in parts().items() if name != "indptr"}
)
CASES["sparse npz: as the matrix of a process"] = lambda folder: archive(
    folder,
    {name: saved(of) for name, of in parts(**SPARSE["an index of 10^9"]).items()},
    read=matrix_of_process,
)


def matrix_of_process(path: Path) -> object:
    from blackout.diffusion.processes.generator import from_generator

    return from_generator(str(path))


def test_entries_in_one_place_are_added_without_loss() -> None:
    data = np.array([200, 100], dtype=np.uint8)
    zero = np.zeros(2, dtype=np.int32)
    for made in (
        sparse_matrix("csr", (1, 1), {"data": data, "indices": zero, "indptr": np.array([0, 2])}),
        sparse_matrix("csc", (1, 1), {"data": data, "indices": zero, "indptr": np.array([0, 2])}),
        sparse_matrix("coo", (1, 1), {"data": data, "row": zero, "col": zero}),
    ):
        assert made.toarray().tolist() == [[300]]


def test_shapes_of_few_bits_are_no_smaller() -> None:
    parts = {"data": np.ones(255), "indices": np.zeros(255, np.int32), "indptr": np.arange(256)}
    assert sparse_matrix("csr", np.array([255, 1], np.uint8), parts).sum() == 255


# --- tables, masks, labels and maps


def text(content: str | bytes, folder: Path, name: str = "x.csv", **how: Any) -> Read:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return partial(counts, path, **how)


def with_second_file(kind: str, array: Any, folder: Path) -> Read:
    """Write counts, and a mask or labels in another file."""
    np.save(folder / "x.npy", COUNTS)
    np.save(folder / "y.npy", array)
    return partial(counts, folder / "x.npy", **{kind: str(folder / "y.npy")})


def as_exposure(array: Any, folder: Path) -> Read:
    np.save(folder / "y.npy", array)
    return partial(to_tensor, str(folder / "y.npy"), "exposure")


CASES |= {
    "csv: nothing": partial(text, ""),
    "csv: a head alone": partial(text, "a,b\n"),
    "csv: short rows": partial(text, "a,b\n1,2\n3\n"),
    "csv: 200 kB in a field": partial(text, "a,b\n" + "x" * 200_000 + ",1\n"),
    "csv: 20,000 letters": partial(text, "k,a\n" + ("x" * 20_000 + ",1\n") * 9, labels="k"),
    "csv: a head of 20,000 letters": partial(text, "x" * 20_000 + ",b\n1,2\n"),
    "csv: NUL": partial(text, b"a\n1\0\n2\n"),
    "csv: Latin-1": partial(text, b"a,b\n\xe9,1\n"),
    "csv: UTF-16": partial(text, "a,b\n1,2\n".encode("utf-16")),
    "csv: 10^400": partial(text, "a\n" + "1e400\n" * 9),
    "csv: NaN": partial(text, "a\n" + "nan\n" * 9),
    "csv: negative": partial(text, "a\n" + "-1\n" * 9),
    "csv: two heads": partial(text, "a,a\n1,2\n"),
    "csv: 1,000 lengths": partial(text, "".join("1," * k + "\n" for k in range(1000))),
    "csv: 5,000 digits": partial(text, "a\n" + "9" * 5000 + "\n1\n"),
    "csv: an open quote": partial(text, 'a,b\n"1,2\n3,4\n'),
    "csv: a bomb": partial(hole, "x.csv", b"a,b\n", 10**13, counts),
    "csv: no letters": partial(text, "s\n" + "ACGT\n" * 9, sequences="s", letters=""),
    "tsv: commas": partial(text, "a,b\n1,2\n", name="x.tsv"),
    "a file of another kind": partial(text, "a", name="x.xyz"),
}
WRONG = {
    "text": np.full((8, 3), "a"),
    "NaN": np.full((8, 3), np.nan),
    "0.3": np.full((8, 3), 0.3),
    "infinity": np.full((8, 3), np.inf),
    "dates": np.full((8, 3), "2020-01-01", dtype="M8[D]"),
    "complex": np.ones((8, 3)) * 1j,
    "another shape": np.ones((3, 8), bool),
    "bytes": np.full((8, 3), b"a"),
    "spans": np.ones((8, 3), dtype="m8[s]"),
}
for word, array in WRONG.items():
    CASES[f"mask: {word}"] = partial(with_second_file, "mask", array)
    if word not in ("text", "bytes", "0.3", "another shape"):
        CASES[f"labels: {word}"] = partial(with_second_file, "labels", array[:, 0])
    if word not in ("0.3", "NaN", "infinity", "another shape"):
        CASES[f"exposure: {word}"] = partial(as_exposure, array)
CASES["labels: two columns"] = partial(with_second_file, "labels", COUNTS[:, :2])
CASES["labels: fewer"] = partial(with_second_file, "labels", COUNTS[:5, 0])


# --- images


def image(content: bytes, folder: Path, name: str = "a.png") -> Read:
    (folder / "images").mkdir()
    (folder / "images" / name).write_bytes(content)
    return partial(image_folder, folder / "images", 8)


def chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png(width: int, height: int, body: bytes = b"") -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(body))
        + chunk(b"IEND", b"")
    )


def painted(kind: str, mode: str = "RGB") -> bytes:
    Image.new(mode, (16, 16)).save(file := io.BytesIO(), kind)
    return file.getvalue()


SCRIPT = (
    b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 16 16\n"
    b"(owned) (w) file closefile\nshowpage\n%%EOF\n"
)
CASES |= {
    "png: PostScript": partial(image, SCRIPT),
    "png: 100,000 x 100,000": partial(image, png(100_000, 100_000)),
    "png: a bomb": partial(image, png(12_000, 12_000, bytes(10**6))),
    "png: 2^31 x 2^31": partial(image, png(2**31 - 1, 2**31 - 1)),
    "png: cut": partial(image, painted("png")[:45]),
    "png: no image": partial(image, b"\x89PNG\r\n\x1a\n"),
    "png: empty": partial(image, b""),
    "png: 16 bits": partial(image, painted("png", "I;16")),
    "tif: floating-point": partial(image, painted("tiff", "F"), name="a.tif"),
    "png: a PDF": partial(image, painted("pdf")),
    "png: an icon": partial(image, painted("ico")),
    "jpg: text": partial(image, b"GIF89a" + b"x" * 99, name="a.jpg"),
    "tif: leads back": partial(image, b"II*\0\x08\0\0\0\0\0\x08\0\0\0", name="a.tif"),
    "ppm: 10^9 wide": partial(image, b"P6 1000000000 1000000000 255\n", name="a.ppm"),
}


# --- zarr, without the library

V2 = {
    "zarr_format": 2,
    "shape": [8, 3],
    "chunks": [8, 3],
    "dtype": "<i8",
    "compressor": None,
    "fill_value": 0,
    "order": "C",
    "filters": None,
}
BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
V3 = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [8, 3],
    "data_type": "int64",
    "fill_value": 0,
    "codecs": [BYTES],
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [8, 3]}},
    "attributes": {},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
}
GROUP = {"zarr_format": 3, "node_type": "group", "attributes": {}}
GROUP_2 = {"zarr_format": 2}
TEXT = {"dtype": "|O", "filters": [{"id": "vlen-utf8"}]}
WIDE = {"name": "fixed_length_utf32", "configuration": {"length_bytes": 10**10}}
BAD_V2 = V2 | {"filters": [{"id": "pickle"}]}
BAD_V3 = V3 | {"codecs": [BYTES, {"name": "numcodecs.pickle"}]}


def store(files: Mapping[str, Any], folder: Path) -> Read:
    for name, content in files.items():
        path = folder / "x.zarr" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif callable(content):
            content(path)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content))
    return partial(read_file, folder / "x.zarr")


def spaces(path: Path) -> None:
    with path.open("wb") as file:
        file.writelines([b" " * 10**6] * 100)


def inline(**metadata: Any) -> dict[str, Any]:
    """A group that says itself what is in it."""
    return GROUP | {
        "consolidated_metadata": {"kind": "inline", "must_understand": False, "metadata": metadata}
    }


NO_TABLE = {".zgroup": GROUP_2, "obs/.zgroup": GROUP_2, "obs/.zattrs": {"_index": "i"}}


def in_parts(rows: int) -> dict[str, Any]:
    return {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [rows, 3]}}}


def sharded(**changes: Any) -> dict[str, Any]:
    inner = {
        "chunk_shape": [4, 3],
        "codecs": [BYTES],
        "index_codecs": [BYTES, {"name": "crc32c"}],
    } | changes
    return V3 | {"codecs": [{"name": "sharding_indexed", "configuration": inner}]}


ESCAPED = json.dumps(BAD_V2).replace("pickle", "p\\u0069ckle")
STORES: dict[str, dict[str, Any]] = {
    "a pickle": {".zarray": BAD_V2, "0.0": PICKLE},
    "a pickle in other letters": {".zarray": ESCAPED, "0.0": PICKLE},
    "a pickle as compressor": {".zarray": V2 | {"compressor": {"id": "pickle"}}, "0.0": PICKLE},
    "objects as pickles": {".zarray": BAD_V2 | {"dtype": "|O"}, "0.0": PICKLE},
    "objects": {".zarray": V2 | {"dtype": "|O"}},
    "objects as JSON": {".zarray": V2 | {"dtype": "|O", "filters": [{"id": "json2"}]}},
    "objects as msgpack": {".zarray": V2 | {"dtype": "|O", "filters": [{"id": "msgpack2"}]}},
    "text, then a pickle": {
        ".zarray": V2 | {"dtype": "|O", "filters": [{"id": "vlen-utf8"}, {"id": "pickle"}]}
    },
    "categories": {
        ".zarray": V2 | {"filters": [{"id": "categorize", "labels": ["a"], "dtype": "|O"}]}
    },
    "differences of objects": {
        ".zarray": V2 | {"filters": [{"id": "delta", "dtype": "<i8", "astype": "|O"}]}
    },
    "records": {".zarray": V2 | {"dtype": [["a", "|O"]]}},
    "bytes without a kind": {".zarray": V2 | {"dtype": "|V8"}},
    "dates": {".zarray": V2 | {"dtype": "<M8[s]"}},
    "wide text": {".zarray": V2 | {"dtype": "<U1000000000"}},
    "a kind of two lines": {".zarray": V2 | {"dtype": "<i8\n"}},
    "a setting of a codec": {".zarray": V2 | {"compressor": {"id": "blosc", "cname": "|O"}}},
    "a codec without a name": {".zarray": V2 | {"compressor": {"cname": "lz4"}}},
    "a codec of text": {".zarray": V2 | {"compressor": "pickle"}},
    "a name twice": {".zarray": ESCAPED[:-1] + ', "filters": null}'},
    "capitals": {".ZARRAY": BAD_V2, ".zgroup": GROUP_2},
    "filters in capitals": {".zarray": {key.upper(): value for key, value in BAD_V2.items()}},
    "deep inside": {".zgroup": GROUP_2, "a/b/.zarray": BAD_V2, "a/b/0.0": PICKLE},
    "consolidated": {
        "c/.zarray": V2,
        ".zmetadata": {"metadata": {"c/.zarray": BAD_V2}},
        "c/0.0": PICKLE,
    },
    "consolidated, like attributes": {".zmetadata": {"metadata": {"a.zattrs": BAD_V2}}},
    "consolidated, not at all": {".zmetadata": {"metadata": [1]}},
    "another format": {".zarray": V2 | {"zarr_format": 1}},
    "negative": {".zarray": V2 | {"shape": [-8, 3]}},
    "parts of nothing": {".zarray": V2 | {"chunks": [0, 3]}},
    "parts of other axes": {".zarray": V2 | {"chunks": [8]}},
    "sides of text": {".zarray": V2 | {"shape": ["8", "3"]}},
    "sides of fractions": {".zarray": V2 | {"shape": [8.5, 3]}},
    "truth for sides": {".zarray": V2 | {"shape": [True, 3]}},
    "no shape": {".zarray": {"zarr_format": 2, "dtype": "<i8"}},
    "a list to fill with": {".zarray": V2 | {"fill_value": [1]}},
    "no JSON": {".zarray": "{"},
    "deep JSON": {".zarray": "[" * 10**5},
    "JSON of other bytes": {".zarray": b"\xff\xfe{"},
    "a long number": {".zarray": '{"shape": 1' + "0" * 9999 + "}"},
    "a JSON of 100 MB": {".zarray": spaces},
    "a pipe for metadata": {".zarray": os.mkfifo},
    "a pipe for numbers": {".zarray": V2, "0.0": os.mkfifo},
    "a link to numbers": {".zarray": V2, "0.0": lambda path: path.symlink_to("/etc/passwd")},
    "a link to a folder": {".zgroup": GROUP_2, "a": lambda path: path.symlink_to("/")},
    "a folder for metadata": {".zarray/x": b""},
    "a device": {".zarray": V2, "0.0": lambda path: path.symlink_to("/dev/zero")},
    "3: a pickle": {"zarr.json": BAD_V3},
    "3: in other letters": {"zarr.json": json.dumps(BAD_V3).replace("pickle", "p\\u0069ckle")},
    "3: an unknown codec": {"zarr.json": V3 | {"codecs": [BYTES, {"name": "mine"}]}},
    "3: a codec by address": {
        "zarr.json": V3 | {"codecs": [{"name": "os.system", "configuration": {"command": "x"}}]}
    },
    "3: no codec": {"zarr.json": V3 | {"codecs": []}},
    "3: a codec of text": {"zarr.json": V3 | {"codecs": ["bytes"]}},
    "3: a setting": {
        "zarr.json": V3 | {"codecs": [{"name": "bytes", "configuration": {"endian": "pickle"}}]}
    },
    "3: inside parts": {"zarr.json": sharded(codecs=BAD_V3["codecs"])},
    "3: in the index of parts": {"zarr.json": sharded(index_codecs=BAD_V3["codecs"])},
    "3: parts in parts": {"zarr.json": sharded(codecs=sharded(codecs=BAD_V3["codecs"])["codecs"])},
    "3: in front of parts": {
        "zarr.json": V3 | {"codecs": [*BAD_V3["codecs"], *sharded()["codecs"]]}
    },
    "3: a transformer": {"zarr.json": V3 | {"storage_transformers": [{"name": "mine"}]}},
    "3: objects": {"zarr.json": V3 | {"data_type": "object"}},
    "3: a record": {
        "zarr.json": V3 | {"data_type": {"name": "structured", "configuration": {"fields": []}}}
    },
    "3: bytes": {"zarr.json": V3 | {"data_type": "r64"}},
    "3: wide text": {"zarr.json": V3 | {"data_type": WIDE}},
    "3: a grid": {"zarr.json": V3 | in_parts(0)},
    "3: no grid": {"zarr.json": V3 | {"chunk_grid": None}},
    "3: consolidated": {"zarr.json": inline(c=BAD_V3), "c/zarr.json": V3},
    "3: consolidated as attributes": {"zarr.json": inline(node_type=GROUP, attributes=BAD_V3)},
    "3: consolidated twice": {"zarr.json": inline(g=inline(c=BAD_V3))},
    "3: consolidated of 2": {"zarr.json": inline(c=BAD_V2)},
    "3: a name twice": {
        "zarr.json": json.dumps(BAD_V3)[:-1] + ', "codecs": [' + json.dumps(BYTES) + "]}"
    },
    "3: another format": {"zarr.json": V3 | {"zarr_format": 4}},
    "3: capitals": {"ZARR.json": BAD_V3},
    "3: a pipe": {"zarr.json": os.mkfifo},
}
for word, files in STORES.items():
    CASES[f"zarr: {word}"] = partial(store, files)
CASES["zarr: a file"] = partial(with_bytes, "x.zarr", b"PK\3\4", read_file)


# --- zarr, with the library


def deflated(size: int) -> bytes:
    """At least `size` zeros in a thousandth of the bytes; only the checksum at the end is wrong."""
    deflate = zlib.compressobj()
    first = deflate.compress(bytes(1 << 24)) + deflate.flush(zlib.Z_FULL_FLUSH)
    again = deflate.compress(bytes(1 << 24)) + deflate.flush(zlib.Z_FULL_FLUSH)
    return first + again * (size >> 24) + deflate.flush()


def zstandard(size: int) -> bytes:
    return bytes(
        pytest.importorskip("numcodecs").get_codec({"id": "zstd"}).encode(np.zeros(size, np.uint8))
    )


def opened_store(files: Mapping[str, Any], folder: Path, library: str = "zarr") -> Read:
    pytest.importorskip(library)
    read = store(files, folder)
    return partial(counts, read.args[0])  # type: ignore[attr-defined]


def version3(files: Mapping[str, Any], folder: Path) -> Read:
    if int(pytest.importorskip("zarr").__version__.split(".")[0]) < 3:
        pytest.skip("format 3 is read from zarr 3 on")
    return opened_store(files, folder)


def bomb(codec: str, make: Callable[[int], bytes], folder: Path) -> Read:
    return opened_store(
        {".zarray": V2 | {"compressor": {"id": codec}}, "0.0": make(3 << 29)}, folder
    )


CASES |= {
    "zarr: 10^12 rows": partial(opened_store, {".zarray": V2 | {"shape": [10**12, 3]}}),
    "zarr: 10^30 rows": partial(opened_store, {".zarray": V2 | {"shape": [10**30, 3]}}),
    "zarr: 10^9 rows": partial(opened_store, {".zarray": V2 | {"shape": [10**9, 3]}}),
    "zarr: parts of 10^12": partial(opened_store, {".zarray": V2 | {"chunks": [10**12, 3]}}),
    "zarr: 10^7 parts": partial(
        opened_store, {".zarray": V2 | {"shape": [10**7, 3], "chunks": [1, 3]}}
    ),
    "zarr: no numbers": partial(
        opened_store, {".zarray": V2 | {"compressor": {"id": "zlib"}}, "0.0": b"xyz"}
    ),
    "zarr: fewer numbers": partial(opened_store, {".zarray": V2, "0.0": bytes(8)}),
    "zarr: a bomb of zlib": partial(bomb, "zlib", deflated),
    "zarr: a bomb of zstd": partial(bomb, "zstd", zstandard),
    "zarr: text that is none": partial(
        opened_store, {".zarray": V2 | TEXT, "0.0": b"\xff\xff\xff\x7f" + bytes(40)}
    ),
    "zarr: nothing": partial(opened_store, {".zgroup": GROUP_2}),
    "zarr: no metadata": partial(opened_store, {"x": b""}),
    "zarr: no AnnData": partial(opened_store, NO_TABLE),
    "zarr: 3, 10^12 rows": partial(version3, {"zarr.json": V3 | {"shape": [10**12, 3]}}),
    "zarr: 3, parts of 10^12": partial(version3, {"zarr.json": V3 | in_parts(10**12)}),
    "zarr: 3, no numbers": partial(version3, {"zarr.json": V3, "c/0/0": b"xyz"}),
    "zarr: 3, parts that are none": partial(version3, {"zarr.json": sharded(), "c/0/0": bytes(36)}),
}


# --- HDF5, AnnData, Parquet, TIFF


def hdf5(make: Callable[[Any, Any], object], folder: Path, name: str = "x.h5", **how: Any) -> Read:
    library = pytest.importorskip("h5py")
    with library.File(folder / name, "w") as file:
        make(library, file)
    return partial(counts, folder / name, **how)


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
    put(b"GCOL", 16 + position, value)(content)
    (folder / "x.h5").write_bytes(content)
    return read


def compressed(library: Any, file: Any) -> None:
    made = file.create_dataset("counts", (10**5, 8), "u1", chunks=(10**5, 8), compression="gzip")
    made.id.write_direct_chunk((0, 0), deflated(3 << 29))


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


def without(name: str, library: Any, file: Any) -> None:
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
    "h5ad: no counts": partial(hdf5, partial(without, "X"), name="x.h5ad"),
    "h5ad: no features": partial(hdf5, partial(without, "var"), name="x.h5ad"),
    "h5ad: no indices": partial(hdf5, partial(without, "X/indices"), name="x.h5ad"),
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


# --- pipes and links


def pipe(name: str, read: Callable[[Path], object], folder: Path) -> Read:
    os.mkfifo(folder / name)
    return partial(read, folder / name)


def run(
    change: Callable[[Path], object], name: str, read: Callable[[Path], object], folder: Path
) -> Read:
    """A run's directory in which one file is something else."""
    made = folder / "runs" / "a"
    (made / "model").mkdir(parents=True)
    (made / "samples").mkdir()
    (made / "config.yaml").write_text("seed: 0\n")
    (made / "model/config.json").write_text("{}")
    (made / "model/model.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
    (made / name).unlink(missing_ok=True)
    change(made / name)
    return partial(read, made)


def led_out(path: Path) -> None:
    target = path.parents[2 if path.parent.name == "a" else 3] / "elsewhere"
    target.write_text("a: 1\n")
    path.symlink_to(target)


def comparison(made: Path) -> object:
    return save_comparison([made], made / "compare.html")


for suffix in ("npy", "npz", "csv", "tsv", "parquet", "h5ad", "h5", "hdf5", "tif", "zarr"):
    CASES[f"pipe: x.{suffix}"] = partial(pipe, f"x.{suffix}", counts)
for suffix in READERS:
    CASES[f"pipe: graph{suffix}"] = partial(pipe, f"x{suffix}", read_graphs)
for word, read in {
    "exposure": lambda path: to_tensor(str(path), "exposure"),
    "array": load_array,
    "target": read_arrays,
    "checkpoint": read_checkpoint,
    "metrics": read_rows,
    "reference": lambda path: reference.file_reference(path, None),
    "table": lambda path: read_table(path.parent),
}.items():
    CASES[f"pipe: {word}"] = partial(pipe, "table.csv", read)
for name, read in {
    "config.yaml": save_report,
    "metrics.json": save_report,
    "samples/metrics.json": save_report,
    "model/config.json": save_report,
    "model/model.safetensors": save_report,
    "metrics.csv": comparison,
}.items():
    for word, change in {
        "a pipe": os.mkfifo,
        "a link out": led_out,
        "a folder": Path.mkdir,
    }.items():
        CASES[f"run: {name} is {word}"] = partial(run, change, name, read)
CASES["run: config.yaml is 1 GB"] = partial(
    run, lambda path: (path.touch(), os.truncate(path, 1 << 30)), "config.yaml", save_report
)


def checkpoint(method: int, size: int, folder: Path) -> Read:
    """An archive as torch writes it, but for one tensor that says it is larger."""
    with zipfile.ZipFile(folder / "x.ckpt", "w") as file:
        file.writestr("archive/data.pkl", pickle.dumps({}, 2))
        file.writestr("archive/data/0", deflated(1 << 26) if method else bytes(99))
    content = bytearray((folder / "x.ckpt").read_bytes())
    put(b"PK\1\2", 10, struct.pack("<H", method))(content)
    put(b"PK\1\2", 24, struct.pack("<I", size))(content)
    (folder / "x.ckpt").write_bytes(content)
    return partial(read_checkpoint, folder / "x.ckpt")


CASES["graph: a hole of 1 GB"] = partial(hole, "x.txt", b"0 1\n", 1 << 29, read_graphs)
CASES["checkpoint: compressed"] = partial(checkpoint, zipfile.ZIP_DEFLATED, 1 << 26)
CASES["checkpoint: says 4 GB"] = partial(checkpoint, zipfile.ZIP_STORED, 2**32 - 2)


def test_there_are_many_cases() -> None:
    assert len(CASES) > 300


@pytest.mark.parametrize("name", CASES)
def test_hostile_files_are_refused_in_one_line(name: str, tmp_path: Path) -> None:
    refused(CASES[name](tmp_path))


def test_pictures_of_a_run_that_are_pipes_are_left_out(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "final.png")
    assert load_picture(tmp_path / "final.png", "x", tmp_path) is None
    (tmp_path / "b").mkdir()
    Image.new("L", (4, 4)).save(tmp_path / "x.png")
    (tmp_path / "b" / "x.png").symlink_to(tmp_path / "x.png")
    assert load_picture(tmp_path / "b" / "x.png", "x", tmp_path / "b") is None
    assert load_picture(tmp_path / "x.png", "x", tmp_path) is not None
