"""Text tables, masks, labels and exposure maps, and images."""

from __future__ import annotations

import io
import struct
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from blackout.data import counts, image_folder
from blackout.posterior.parameter_maps import to_tensor
from tests.data.hostile_files.writing import (
    COUNTS,
    Case,
    Read,
    sparse_file,
)

CASES: dict[str, Case] = {}


def text(content: str | bytes, folder: Path, name: str = "x.csv", **settings: Any) -> Read:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return partial(counts, path, **settings)


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
    "csv: a bomb": partial(sparse_file, "x.csv", b"a,b\n", 10**13, counts),
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


def picture(kind: str, mode: str = "RGB") -> bytes:
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
    "png: cut": partial(image, picture("png")[:45]),
    "png: no image": partial(image, b"\x89PNG\r\n\x1a\n"),
    "png: empty": partial(image, b""),
    "png: 16 bits": partial(image, picture("png", "I;16")),
    "tif: floating-point": partial(image, picture("tiff", "F"), name="a.tif"),
    "png: a PDF": partial(image, picture("pdf")),
    "png: an icon": partial(image, picture("ico")),
    "jpg: text": partial(image, b"GIF89a" + b"x" * 99, name="a.jpg"),
    "tif: leads back": partial(image, b"II*\0\x08\0\0\0\0\0\x08\0\0\0", name="a.tif"),
    "ppm: 10^9 wide": partial(image, b"P6 1000000000 1000000000 255\n", name="a.ppm"),
}
