"""Where counts are in a file, what its numbers mean, and how its axes become those of counts."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from blackout.config.overrides import format_override
from blackout.data.findings import Note
from blackout.data.formats import FileContents, arrange_axes, describe_axes
from blackout.data.missing import FINITE
from blackout.data.tiles import propose_tile
from blackout.errors import ensure

Array = npt.NDArray[Any]
PLAIN_AXES = ("NE", "NYX", "NCYX", "NCZYX", "YX")  # that need no explanation
MAX_COLOURS = 4  # channels of one picture; more are often frames of a stack


@dataclass(frozen=True)
class FileLayout:
    """Where the counts are in a file; see `counts` for the meaning of each field."""

    layer: str | int | None
    columns: list[str | int]
    exclude: list[str | int]
    mask: str | None
    series: bool | None
    sequences: str | None
    letters: str
    in_memory: bool | None
    axes: str | None
    tile: int | None
    stride: int | None


@dataclass(frozen=True)
class Units:
    """What a stored number means: offset + gain x count; see `counts` for an offset of None."""

    offset: int | None
    gain: int


class Arrangement:
    """Rearrangement of the axes of an array to those of counts, and of its mask.

    Args:
        layout: of the file, with `axes`, `series` and `tile`.
        file_axes: letters that the file gives, see `formats.AXES`; None without names.

    Raises:
        ValueError: settings that exclude each other.
    """

    def __init__(self, layout: FileLayout, file_axes: str | None) -> None:
        is_free = layout.axes is None or layout.series is None
        ensure(is_free, "give series or axes, not both: series is for three axes without names")
        message = "stride is the distance between tiles: dataset.tile is needed as well"
        ensure(layout.stride is None or layout.tile is not None, message)
        self._tile = layout.tile
        self._series = layout.series
        self._axes = layout.axes
        if layout.axes is None and layout.series is None:
            self._axes = file_axes

    def arrange(self, matrix: Any) -> tuple[Any, bool | None]:
        """Return an array with the axes of counts, and whether three axes are a series.

        Raises:
            ValueError: axes that do not describe it, a single image that is not cut into tiles, or
                `series` for another number of axes.
        """
        num_axes = len(matrix.shape)
        message = "dataset.series is for three axes [N, C, L] or [N, H, W]"
        advice = f"not {list(matrix.shape)}: leave it out"
        ensure(self._series is None or num_axes == 3, f"{message}, {advice}")
        axes = self._axes
        if axes is None and self._tile is not None:  # images without names of axes
            axes = {2: "YX", 3: "NYX", 4: "NCYX", 5: "NCZYX"}.get(num_axes)
            shape = list(matrix.shape)
            ensure(
                axes is not None, f"dataset.tile cuts images, not an array {shape}: leave it out"
            )
        if axes is None:
            return matrix, self._series
        arranged = arrange_axes(matrix, axes)
        is_image = "Y" in axes
        if self._tile is not None:
            message = f"dataset.tile cuts images, and axes={axes} has no rows and columns"
            ensure(is_image, f"{message}: leave it out")
        elif is_image and "N" not in axes:
            raise ValueError(self._describe_image(axes, tuple(arranged.shape)))
        return arranged, "L" in axes

    def arrange_mask(
        self, mask: str | None, shape: tuple[int, ...], columns: dict[str, Array]
    ) -> dict[str, Array]:
        """Return the columns of a file, with the axes of the mask rearranged as those of counts.

        Raises:
            ValueError: tiles are cut, or the mask lies in another file, where its axes have no
                names.
        """
        if mask in (None, FINITE) or (self._axes is None and self._tile is None):
            return columns
        is_changed = self._tile is not None or self._axes not in (None, "NYX", "NCYX", "NE", "NCL")
        message = f"mask={mask} must be in the same file as counts with axes or tiles"
        advice = "add it to the file as an array"
        ensure(mask in columns or not is_changed, f"{message}: {advice}")
        if mask not in columns or self._tile is not None or np.shape(columns[mask]) != shape:
            message = f"dataset.mask={mask} and dataset.tile cannot be combined"
            advice = "store missing entries as NaN, and use dataset.mask=finite"
            ensure(self._tile is None, f"{message}: {advice}")
            return columns
        arranged = arrange_axes(np.asarray(columns[mask]), str(self._axes))
        return {**columns, str(mask): arranged}

    def _describe_image(self, axes: str, shape: tuple[int, ...]) -> str:
        """Return what to do with a file of one image."""
        height, width = shape[-2:]
        tile = propose_tile(height, width)
        message = f"it holds one image of {height} x {width} pixels: dataset.tile={tile} cuts tiles"
        planes = "Z" if "Z" in axes else None
        if "C" in axes and planes is None and shape[1] > MAX_COLOURS:
            planes = "C"
        if planes is None and "C" in axes:
            return f"{message} from it"
        if planes is None:
            return f"{message} from it, dataset.axes=NE reads its rows as samples"
        setting = format_override("dataset.axes", axes.replace(planes, "N", 1))
        return f"{message} from it, {setting} reads each of its planes as a sample"


def note_axes(name: str, contents: FileContents, layout: FileLayout) -> None:
    """Warn how the named axes of an array are read.

    Warns:
        Note: axes in another order than that of counts, or with unknown names.
    """
    names = contents.axis_names.get(name, ())
    axes = contents.axes.get(name)
    if names and layout.axes is None and layout.series is None:
        if axes is None:
            listed = ", ".join(map(repr, names))
            message = f"axes are called {listed}, and the first is read as samples"
            warnings.warn(Note(f"{message}; set dataset.axes to change that"), stacklevel=4)
        elif axes not in PLAIN_AXES:
            warnings.warn(Note(f"axes of the file: {describe_axes(names, axes)}"), stacklevel=4)
