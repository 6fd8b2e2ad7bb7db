"""Zarr stores, refused before and after the library opens them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blackout.data import counts
from blackout.data.formats import read_file
from tests.data.hostile_files.writing import (
    PICKLE,
    Case,
    Read,
    deflated,
    with_bytes,
)

CASES: dict[str, Case] = {}


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
