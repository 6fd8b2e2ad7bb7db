"""Writing of pictures as PNG files, and grids of pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from blackout.files import creating, replacing


def save_picture(
    picture: Any, path: Path, about: str | None = None, dpi: int = 100, *, is_new: bool = False
) -> None:
    """Write a PIL image or a matplotlib figure to a PNG file, atomically.

    Args:
        picture: the image or figure; None writes nothing.
        path: of the file.
        about: description that reports read from the file; None for the `Description` of an image.
        dpi: pixels per inch of a figure.
        is_new: whether no file may be replaced; see `creating`.
    """
    if picture is None:
        return
    with (creating if is_new else replacing)(path) as part:
        if hasattr(picture, "savefig"):
            picture.savefig(part, format="png", dpi=dpi, metadata={"Description": about})
            return
        from PIL.PngImagePlugin import PngInfo  # only here: not every program draws

        metadata = PngInfo()
        description = about or picture.info.get("Description")
        if description:
            metadata.add_itxt("Description", description)
        picture.save(part, format="png", pnginfo=metadata)


def arrange_tiles(
    tiles: Sequence[Any],
    columns: int | None,
    gap: int,
    margin: int,
    colour: tuple[int, int, int],
) -> Any:
    """Arrange PIL images of one size in a grid.

    Args:
        tiles: the images, at least one.
        columns: of the grid; None for a nearly square one.
        gap: pixels between images.
        margin: pixels around the grid.
        colour: of gaps and margin, RGB.

    Returns:
        A PIL image.
    """
    from PIL import Image  # only here: not every program draws

    tile_width = tiles[0].width + gap
    tile_height = tiles[0].height + gap
    if not columns:
        columns = max(1, round(math.sqrt(len(tiles) * tile_height / tile_width)))
    columns = min(len(tiles), columns)
    rows = math.ceil(len(tiles) / columns)
    border = 2 * margin - gap
    size = (columns * tile_width + border, rows * tile_height + border)
    canvas = Image.new("RGB", size, colour)
    for k, tile in enumerate(tiles):
        row, column = divmod(k, columns)
        canvas.paste(tile, (margin + column * tile_width, margin + row * tile_height))
    return canvas
