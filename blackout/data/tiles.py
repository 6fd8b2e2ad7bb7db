"""Tiles of large images: squares that are cut at equal distances and become samples."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from blackout.data.findings import Finding, Note
from blackout.errors import ensure

Array = npt.NDArray[Any]
MAX_PROPOSED_TILE = 64  # pixels
MIN_PROPOSED_TILES = 16  # along both axes together, so that there are samples to hold out
IMAGE = "image"  # name of the column with the number of the image that a tile comes from


def propose_tile(height: int, width: int) -> int:
    """Return the largest tile side, a power of two up to 64, of which an image has 16 tiles."""
    tile = MAX_PROPOSED_TILE
    while tile > 1 and (height // tile) * (width // tile) < MIN_PROPOSED_TILES:
        tile //= 2
    return tile


def cut_tiles(images: Any, tile: int, stride: int | None = None) -> tuple[Array, Array]:
    """Cut tiles from images, row by row.

    Args:
        images: [..., H, W]; the first axis numbers the images.
        tile: height and width of a tile.
        stride: distance of neighbouring tiles; None for `tile`, which gives tiles that do not
            overlap.

    Returns:
        Tiles [M, ..., tile, tile], and the number of the image of each, int64 [M].

    Warns:
        Note: rows and columns that are in no tile.
        Finding: tiles overlap.

    Raises:
        ValueError: tiles larger than the images, or sizes below 1.

    Example:
        >>> tiles, image = cut_tiles(np.arange(16).reshape(1, 4, 4), tile=2)
        >>> tiles.shape, image.tolist()
        ((4, 2, 2), [0, 0, 0, 0])
    """
    stride = tile if stride is None else stride
    sizes = {"tile": tile, "stride": stride}
    for name, size in sizes.items():
        is_size = type(size) is int and size >= 1
        ensure(is_size, f"{name} must be a whole number of at least 1, not {size!r}")
    images = np.asarray(images)
    height, width = images.shape[-2:]
    fits = tile <= min(height, width)
    message = f"tile={tile} is larger than the images of {height} x {width} pixels"
    ensure(fits, f"{message}: use dataset.tile={propose_tile(height, width)}")

    # 1. Tiles of all images: [N, rows, columns, ..., tile, tile].
    windows = np.lib.stride_tricks.sliding_window_view(images, (tile, tile), axis=(-2, -1))
    windows = windows[..., ::stride, ::stride, :, :]
    num_rows, num_columns = windows.shape[-4:-2]
    tiles = np.moveaxis(windows, (-4, -3), (1, 2))
    tiles = tiles.reshape(len(images) * num_rows * num_columns, *images.shape[1:-2], tile, tile)

    # 2. What is left out, or in several tiles.
    unused = (
        max(0, height - (num_rows - 1) * stride - tile),
        max(0, width - (num_columns - 1) * stride - tile),
    )
    shape = f"{num_rows} x {num_columns} tiles of {tile} x {tile} pixels from each image"
    warnings.warn(Note(f"{shape}, of {len(images)}"), stacklevel=2)
    if math.prod(size + 1 for size in unused) > 1:
        message = f"the last {unused[0]} rows and {unused[1]} columns are in no tile"
        warnings.warn(Note(message), stacklevel=2)
    if stride > tile:
        message = f"pixels between the tiles are left out: dataset.stride={stride}"
        warnings.warn(Note(message), stacklevel=2)
    if stride < tile and len(tiles) > len(images):
        advice = "dataset.group=image keeps the tiles of an image together"
        message = "tiles overlap, so that test pixels are among the training pixels"
        warnings.warn(Finding(f"{message}; {advice} where there are several"), stacklevel=2)
    image_numbers = np.repeat(np.arange(len(images)), num_rows * num_columns)
    return tiles, image_numbers
