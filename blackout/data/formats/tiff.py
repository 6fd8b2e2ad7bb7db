"""Readers of TIFF files, and of folders with one image per file."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from blackout.data.formats.axes import tiff_axes
from blackout.data.formats.contents import (
    COUNTS,
    LIBRARY_BYTES,
    Array,
    FileContents,
    load_library,
    refuse_layer,
)
from blackout.errors import UserError, ensure, refuse
from blackout.safe_reading import check_size, limit_memory, open_regular, reading, stored_bytes

SUFFIXES = (".tif", ".tiff")
IMAGE_AXES = "ZCSYX"  # tifffile's letters; other axes of length 1 say nothing
DAMAGE = re.compile("corrupt|truncat|incomplete|missing data", re.IGNORECASE)  # in tifffile's log
MAX_LISTED = 5  # series or files that a message lists
NODATA_TAG = 42113  # of GDAL: text of the number that stands for no data
# photometric interpretation -> what its counts are, where they are not brightness
PHOTOMETRIC_NOTES = {
    0: "0 is white in this file: larger counts are darker",
    3: "colours of a palette are left out: counts are the numbers of the colours",
}


@dataclass(frozen=True)
class _Series:
    """An array of a TIFF file.

    Args:
        pixels: of the array.
        axes: tifffile's letters of its axes.
        notes: about what is in the file and is not used.
        no_data: the value of missing pixels; None if there are none.
    """

    pixels: Array
    axes: str
    notes: tuple[str, ...]
    no_data: float | None


def read_tiff(path: Path, layer: str | None = None) -> FileContents:
    """Read the series of a TIFF file, with the axes that OME, ImageJ or tifffile give them.

    Series of one shape are joined. Of others one is chosen by its number.

    Args:
        path: of the file.
        layer: number of a series; None for all.

    Raises:
        UserError: series of several shapes, no such series, or frames that are not in the file.
    """
    library = load_library("tifffile", path)
    with _collect_log() as messages, open_regular(path) as content:
        with library.TiffFile(content, name=path.name, _multifile=False) as file:
            all_series = _choose_series(path, list(file.series), layer)
            size = sum(math.prod(series.shape) * series.dtype.itemsize for series in all_series)
            check_size(path, size, stored_bytes(path))
            with limit_memory(LIBRARY_BYTES + 4 * size):
                parts = [_read_series(series) for series in all_series]
    pixels = parts[0].pixels
    axes = parts[0].axes
    if len(parts) > 1:
        pixels = np.stack([part.pixels for part in parts])
        axes = f"I{axes}"
    letters = tiff_axes(axes)
    notes = parts[0].notes
    problems: tuple[str, ...] = ()
    damage = next((message for message in messages if DAMAGE.search(message)), None)
    ensure(damage is None, f"the file is damaged: {damage}")
    if messages:
        more = f" (and {len(messages) - 1} more)" if len(messages) > 1 else ""
        problems = (f"tifffile: {messages[0]}{more}",)
    no_data = parts[0].no_data
    return FileContents(
        {COUNTS: pixels},
        axis_names={COUNTS: tuple(axes)},
        axes={COUNTS: letters},
        no_data={} if no_data is None else {COUNTS: no_data},
        notes=notes,
        warnings=problems,
    )


def read_tiff_folder(path: Path, layer: str | None = None) -> FileContents:
    """Read a folder of .tif files, an image or a stack in each, in the natural order of names.

    In this order img_2 comes before img_10, as in a list of labels.

    Raises:
        UserError: the folder has no such file, or images of different shapes.
    """
    refuse_layer(path, layer)
    visible = list(path.glob("[!.]*"))
    files = sorted((f for f in visible if f.suffix.lower() in SUFFIXES), key=natural_key)
    refuse(not files, f"{path}: not a file, nor a folder of .tif files or of 10x's matrix.mtx")
    images: list[Array] = []
    problems: list[str] = []
    first = FileContents({})
    for file in files:
        refuse(not file.is_file(), f"{file}: {'not a file' if file.exists() else 'no such file'}")
        with reading(file, f"not a readable {file.suffix.lower()} file of numbers"):
            contents = read_tiff(file)
        image = np.asarray(contents.arrays[COUNTS])
        if not images:
            first = contents
        images.append(image)
        problems += [f"{file.name}: {warning}" for warning in contents.warnings]
        check_size(path, (len(files) - len(images) + 1) * image.nbytes)
        if image.shape != images[0].shape or contents.axes != first.axes:
            sizes = f"{list(image.shape)}, that of {files[0].name} is {list(images[0].shape)}"
            raise UserError(f"{file}: the shape is {sizes}: move it to another folder, or crop it")
    notes = list(first.notes)
    if files != sorted(files):
        notes.append(f"files are in natural order, {files[0].name} to {files[-1].name}")
    not_read = sorted(file.name for file in visible if file not in files)
    if not_read:
        listed = ", ".join(not_read[:MAX_LISTED])
        notes.append(f"not read, as they are no .tif files: {listed}, {len(not_read)} in all")
    if len(problems) > 1:
        problems = [f"{problems[0]} (and warnings about {len(problems) - 1} more files)"]
    stack = np.stack(images)
    return replace(
        first,
        arrays={COUNTS: stack},
        axis_names={COUNTS: ("file", *first.axis_names[COUNTS])},
        axes={COUNTS: f"N{first.axes[COUNTS]}"},
        notes=tuple(notes),
        warnings=tuple(problems),
    )


def natural_key(path: Path) -> list[tuple[int, int, str]]:
    """Return a key that sorts names by the numbers in them: img_2 before img_10."""
    parts = re.split(r"(\d+)", path.name)
    return [(1, int(part), part) if part.isdecimal() else (0, 0, part) for part in parts]


def _choose_series(path: Path, all_series: Sequence[Any], layer: str | None) -> list[Any]:
    """Return the series that are read, all of one shape, type and axes.

    Raises:
        UserError: there is no such series, or they differ.
    """
    refuse(not all_series, f"{path}: it has no image; save it again, such as with Fiji")
    kinds = [(series.shape, str(series.dtype), series.axes) for series in all_series]
    if layer is not None:
        names = [str(number) for number in range(len(all_series))]
        refuse(layer not in names, f"{path}: there is no series {layer!r}, only 0 to {names[-1]}")
        return [all_series[int(layer)]]
    if len(set(kinds)) > 1:
        listed = []
        for number, (shape, dtype, axes) in enumerate(kinds[:MAX_LISTED]):
            listed.append(f"{number}: {axes} {'x'.join(map(str, shape))} {dtype}")
        more = f", {len(kinds)} in all" if len(kinds) > MAX_LISTED else ""
        largest = max(range(len(kinds)), key=lambda number: math.prod(kinds[number][0]))
        raise UserError(
            f"{path}: its series differ ({'; '.join(listed)}{more}): dataset.layer={largest} "
            "reads the largest"
        )
    return list(all_series)


def _read_series(series: Any) -> _Series:
    """Read a series.

    Raises:
        ValueError: some of its frames are not in the file.
    """
    num_missing = sum(page is None for page in series.pages)
    message = f"{num_missing} of {len(series.pages)} frames are in other files"
    ensure(not num_missing, f"{message}: save the whole series in one file")
    pixels = series.asarray()
    notes = []
    keyframe = series.keyframe
    if len(series.levels) > 1:
        notes.append(f"{len(series.levels) - 1} reduced copies of the image are left out")
    if int(keyframe.photometric) in PHOTOMETRIC_NOTES:
        notes.append(PHOTOMETRIC_NOTES[int(keyframe.photometric)])
    no_data = float(keyframe.nodata) if NODATA_TAG in keyframe.tags else None
    sizes = zip(series.axes, pixels.shape, strict=True)
    dimensions = [(axis, size) for axis, size in sizes if size > 1 or axis in IMAGE_AXES]
    axes = "".join(axis for axis, _ in dimensions)
    pixels = pixels.reshape([size for _, size in dimensions])
    return _Series(pixels, axes, tuple(notes), no_data)


class _LogMessages(logging.Handler):
    """A handler that keeps messages."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message of a record, as one line."""
        self.messages.append(" ".join(record.getMessage().split()))


@contextmanager
def _collect_log() -> Iterator[list[str]]:
    """Collect what tifffile logs: it goes on with what is left of a damaged file."""
    logger = logging.getLogger("tifffile")
    handler = _LogMessages()
    propagates = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield handler.messages
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates
