"""Readers of TIFF files, and of folders with one image per file."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import numpy as np

from blackout.data.formats.contents import (
    COUNTS,
    LIBRARY_BYTES,
    Array,
    FileContents,
    load_library,
)
from blackout.errors import UserError, refuse
from blackout.safe_reading import check_size, limit_memory, open_regular, reading, stored_bytes

SUFFIXES = (".tif", ".tiff")


def read_tiff(path: Path, layer: str | None = None) -> FileContents:
    """Read the first series of a TIFF file."""
    library = load_library("tifffile", path)
    logging.getLogger("tifffile").disabled = True  # a damaged file gives one error, not one per tag
    with open_regular(path) as content:
        with library.TiffFile(content, name=path.name, _multifile=False) as file:
            series = file.series[0]
            size = math.prod(series.shape) * series.dtype.itemsize
            check_size(path, size, stored_bytes(path))
            with limit_memory(LIBRARY_BYTES + 4 * size):
                return FileContents({COUNTS: series.asarray()})


def read_tiff_folder(path: Path) -> FileContents:
    """Read a folder of .tif files, one image in each, in the order of their names.

    Raises:
        UserError: the folder has no such file, or images of different shapes.
    """
    files = sorted(file for file in path.glob("[!.]*") if file.suffix.lower() in SUFFIXES)
    refuse(not files, f"{path}: not a file, nor a folder of .tif files")
    images: list[Array] = []
    for file in files:
        refuse(not file.is_file(), f"{file}: {'not a file' if file.exists() else 'no such file'}")
        with reading(file, f"not a readable {file.suffix.lower()} file of numbers"):
            image = np.asarray(read_tiff(file).arrays[COUNTS])
        images.append(image)
        check_size(path, (len(files) - len(images) + 1) * image.nbytes)
        if image.shape != images[0].shape:
            raise UserError(f"{file}: {image.shape} pixels, unlike {files[0].name}")
    return FileContents({COUNTS: np.stack(images)})
