"""NumPy files and archives, and sparse matrices in them."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from blackout.data import counts
from tests.data.hostile_files.writing import (
    COUNTS,
    PICKLE,
    Case,
    Read,
    npy,
    npy_bytes,
    npy_of,
    overwrite,
    parts,
    sparse_file,
    with_bytes,
    write_archive,
)

CASES: dict[str, Case] = {}


HEADERS = {
    "empty": b"",
    "a magic alone": b"\x93NUMPY",
    "half a magic": b"\x93NUM",
    "text": b"1,2,3\n4,5,6\n",
    "pickle": PICKLE,
    "objects": npy_of("|O", (1), body=PICKLE),
    "objects in a record": npy_of([("a", "|O")], (1), body=PICKLE),
    "a record": npy_of([("a", "<i8"), ("b", "<i8")], (3)),
    "bytes without a kind": npy_of("|V8", (8, 3)),
    "10^12 rows": npy_of("<i8", (10**12, 3)),
    "2^62 x 4": npy_of("<i8", (2**62, 4)),
    "10^30 rows": npy_of("<i8", (10**30, 1)),
    "more than there is": npy_of("<i8", (9, 3)),
    "negative": npy_of("<i8", (-8, 3)),
    "twice negative": npy_of("<i8", (-8, -3)),
    "a fraction of a row": npy_of("<i8", (8.0, 3)),
    "rows of text": npy_of("<i8", ("8", "3")),
    "truth for a side": npy_of("<i8", (True, 24), "x"),
    "no tuple": npy_of("<i8", 24),
    "no shape": npy("{'descr': '<i8'}\n"),
    "another kind": npy_of("<q9", (8, 3)),
    "wide text": npy_of("<U2000000000", (1)),
    "a list of arrays": npy_of(("<i8", (10**9)), (1)),
    "a program": npy("__import__('os').makedirs('owned')\n"),
    "a call as shape": npy(
        "{'descr': '<i8', 'fortran_order': False, 'shape': __import__('os').makedirs('owned')}\n"
    ),
    "deep": npy("(" * 9000 + "\n"),
    "deep signs": npy("-" * 9000 + "1\n"),
    "long": npy("{" + " " * 60000 + "}\n"),
    "cut in its header": npy_of("<i8", (8, 3))[:40],
    "cut in its numbers": npy_of("<i8", (8, 3))[:-1],
    "version 3": npy(
        "{'descr': [('é', '<i8')], 'fortran_order': False, 'shape': (3)}\n", bytes(192), b"\3\0"
    ),
    "version 9": npy("{}", b"", b"\x09\0"),
    "dates": npy_of("<M8[D]", (8, 3)),
    "complex": npy_of("<c16", (4, 3)),
    "words": npy_of("<U2", (8, 3)),
    "no axis": npy_of("<i8", ()),
    "one axis": npy_of("<i8", (24)),
    "six axes": npy_of("<i8", (2, 2, 3, 2, 1, 1)),
    "no rows": npy_of("<i8", (0, 3)),
    "no columns": npy_of("<i8", (8, 0)),
    "2^60 empty rows": npy_of("<i8", (2**60, 0)),
}


for word, content in HEADERS.items():
    CASES[f"npy: {word}"] = partial(with_bytes, "x.npy", content, counts)
    if word in list(HEADERS)[: list(HEADERS).index("dates")] and word != "truth for a side":
        CASES[f"npy in npz: {word}"] = partial(
            lambda content, folder: write_archive(folder, {"counts": content}), content
        )
CASES["npy: a hole of 8 GB"] = partial(
    sparse_file, "x.npy", npy_of("<i8", (10**9, 1), body=b""), 8 * 10**9, counts
)
CASES["npy: a hole of 4 TB"] = partial(
    sparse_file, "x.npy", npy_of("<i4", (10**12, 1), body=b""), 4 * 10**12, counts
)


def zip_bomb(folder: Path) -> Read:
    """200 MB of one value, in 200 kB."""
    with (
        zipfile.ZipFile(folder / "x.npz", "w", zipfile.ZIP_DEFLATED) as file,
        file.open("counts.npy", "w") as member,
    ):
        member.write(npy_of("|u1", (200, 10**6), body=b""))
        for _ in range(200):
            member.write(bytes(10**6))
    return partial(counts, folder / "x.npz")


def patched_archive(change: Callable[[bytearray], None], folder: Path) -> Read:
    """An archive whose directory says something else."""
    write_archive(folder, {"counts": npy_bytes(COUNTS)}, zipfile.ZIP_DEFLATED)
    content = bytearray((folder / "x.npz").read_bytes())
    change(content)
    (folder / "x.npz").write_bytes(content)
    return partial(counts, folder / "x.npz")


def repeated_name(folder: Path) -> Read:
    with zipfile.ZipFile(folder / "x.npz", "w") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            file.writestr("counts.npy", npy_bytes(COUNTS))
    return partial(counts, folder / "x.npz")


CASES |= {
    "npz: a bomb": zip_bomb,
    "npz: says 4 GB": partial(patched_archive, overwrite(b"PK\1\2", 24, b"\xfe\xff\xff\xff")),
    "npz: says less": partial(patched_archive, overwrite(b"PK\1\2", 24, b"\x10\0\0\0")),
    "npz: says another sum": partial(patched_archive, overwrite(b"PK\1\2", 16, b"\x01\2\3\4")),
    "npz: encrypted": partial(patched_archive, overwrite(b"PK\1\2", 8, b"\1")),
    "npz: elsewhere": partial(patched_archive, overwrite(b"PK\1\2", 42, b"\xff\xff\xff\x7f")),
    "npz: an unknown method": partial(patched_archive, overwrite(b"PK\1\2", 10, b"\x63")),
    "npz: cut": partial(patched_archive, lambda content: content.__delitem__(slice(-30, None))),
    "npz: no end": partial(with_bytes, "x.npz", b"PK\3\4" + bytes(100), counts),
    "npz: bzip2": partial(
        write_archive, members={"counts": npy_bytes(COUNTS)}, method=zipfile.ZIP_BZIP2
    ),
    "npz: lzma": partial(
        write_archive, members={"counts": npy_bytes(COUNTS)}, method=zipfile.ZIP_LZMA
    ),
    "npz: a name twice": repeated_name,
    "npz: 11,000 arrays": partial(write_archive, members={f"a{k}": b"" for k in range(11_000)}),
    "npz: nothing": partial(write_archive, members={}),
    "npz: two without a name": partial(
        write_archive, members={"a": npy_bytes(COUNTS), "b": npy_bytes(COUNTS)}
    ),
    "npz: complex labels": partial(
        write_archive, members={"counts": npy_bytes(COUNTS), "labels": npy_bytes(np.ones(8) * 1j)}
    ),
}


def matrix_of_process(path: Path) -> object:
    from blackout.diffusion.processes.generator import from_generator

    return from_generator(str(path))


def changed_entry(name: str, position: int, value: Any, dtype: Any = np.int64) -> dict[str, Any]:
    array = parts()[name].astype(dtype)
    array[position] = value
    return {name: array}


SPARSE = {
    "an index of 10^9": changed_entry("indices", 3, 10**9),
    "an index of -10^9": changed_entry("indices", 3, -(10**9)),
    "one too many": changed_entry("indices", 3, 3),
    "an index of 2^63": changed_entry("indices", 3, 2**63, np.uint64),
    "a pointer of 10^9": changed_entry("indptr", -1, 10**9),
    "a pointer back": changed_entry("indptr", 3, 0),
    "a negative pointer": changed_entry("indptr", 2, -5),
    "a first pointer": changed_entry("indptr", 0, 1),
    "a pointer of 2^64 - 1": changed_entry("indptr", 4, 2**64 - 1, np.uint64),
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
        lambda changes, folder: write_archive(
            folder, {name: npy_bytes(array) for name, array in parts(**changes).items()}
        ),
        changes,
    )
CASES["sparse npz: row of 10^9"] = lambda folder: write_archive(
    folder,
    {
        "format": npy_bytes(np.array(b"coo")),
        "shape": npy_bytes(np.array([8, 3])),
        "data": npy_bytes(np.ones(2)),
        "row": npy_bytes(np.array([0, 10**9])),
        "col": npy_bytes(np.array([0, 1])),
    },
)
CASES["sparse npz: no pointers at all"] = lambda folder: write_archive(
    folder, {name: npy_bytes(array) for name, array in parts().items() if name != "indptr"}
)
CASES["sparse npz: as the matrix of a process"] = lambda folder: write_archive(
    folder,
    {name: npy_bytes(array) for name, array in parts(**SPARSE["an index of 10^9"]).items()},
    read=matrix_of_process,
)
