"""Jigsaws of pictures: pieces of a cut picture or in a folder, arranged by their borders alone.

Nothing is learned. Pieces keep their orientation and are rectangles of one size; the order in which
they come is ignored.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from blackout.data.images import IMAGE_EXTENSIONS, read_image
from blackout.errors import UserError, refuse
from blackout.permutations.borders import BEAM_WIDTH, neighbour_scores, solve_by_borders
from blackout.permutations.queries import place_probabilities

MAX_PIECES = 256
MIN_PIECE_SIDE = 2  # pixels


class Arrangements(NamedTuple):
    """Arrangements of n pieces on a grid, the best first."""

    orders: Tensor  # the piece at every place, row by row, int64 [K, n]
    probabilities: Tensor  # of the arrangements, among those that were found, float64 [K]
    places: Tensor  # probability of every piece at every place, float64 [n places, n pieces]


def arrange_pieces(pieces: Tensor, columns: int, beam_width: int = BEAM_WIDTH) -> Arrangements:
    """Arrange pieces on a grid.

    Args:
        pieces: of a picture, in any order, [n, C, h, w].
        columns: of the grid; n is a multiple.
        beam_width: of the beam search.
    """
    # the order of equal pieces must not matter
    shuffled = torch.randperm(len(pieces), generator=torch.Generator().manual_seed(0))
    scores = neighbour_scores(pieces[shuffled].unsqueeze(0))
    orders, log_scores = solve_by_borders(scores, columns, beam_width)
    orders = shuffled[orders]
    probabilities = log_scores[0].double().softmax(-1)
    return Arrangements(orders[0], probabilities, place_probabilities(orders, log_scores)[0])


def read_pieces(path: Path, grid: str | None) -> tuple[Tensor, int]:
    """Return pieces, uint8 [n, 3, h, w], and the number of columns of their grid.

    Args:
        path: a picture, which is cut, or a folder of pieces, which are sorted by name.
        grid: "4" for 4x4, or rows x columns such as "3x5"; None for a square, of a folder.

    Raises:
        UserError: no pictures, pieces of different sizes, or a grid that does not fit.
    """
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix.lower() in IMAGE_EXTENSIONS)
        side = round(len(files) ** 0.5)
        if not grid and side**2 == len(files):
            grid = str(side)
    if grid is None:
        raise UserError(f"{path}: the grid is missing; add grid=4 for 4x4 pieces, or grid=3x5")
    rows, columns = _parse_grid(grid)
    if not path.is_dir():
        return _cut_picture(path, _read_picture(path), rows, columns), columns
    number = len(files)
    refuse(
        number != rows * columns,
        f"{path}: {number} pictures do not fill a {rows}x{columns} grid; choose another grid=",
    )
    images = [_read_picture(file) for file in files]
    for file, image in zip(files, images, strict=True):
        if image.shape != images[0].shape or min(image.shape[1:]) < MIN_PIECE_SIDE:
            raise UserError(
                f"{file}: pieces must be of one size, at least 2x2 pixels; this one is "
                f"{_format_size(image)}, {files[0].name} is {_format_size(images[0])}"
            )
    return torch.stack(images), columns


def join_pieces(pieces: Tensor, columns: int) -> Image.Image:
    """Return the picture that pieces [n, 3, h, w] make, row by row."""
    rows = pieces.unflatten(0, (-1, columns))
    return Image.fromarray(rows.permute(0, 3, 1, 4, 2).flatten(0, 1).flatten(1, 2).numpy())


def _parse_grid(grid: str) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]{1,3})(?:x([0-9]{1,3}))?", grid)
    if match is None:
        raise UserError(
            f"grid={grid}: the grid must be a number such as 4, or rows x columns such as 3x5"
        )
    rows = int(match[1])
    columns = int(match[2] or match[1])
    refuse(
        not 2 <= rows * columns <= MAX_PIECES,
        f"grid={grid}: there must be 2 to {MAX_PIECES} pieces, not {rows * columns}",
    )
    return rows, columns


def _read_picture(path: Path) -> Tensor:
    return torch.from_numpy(np.array(read_image(path, "RGB"))).permute(2, 0, 1)


def _cut_picture(path: Path, image: Tensor, rows: int, columns: int) -> Tensor:
    """Cut a picture [3, H, W]; pixels that do not fill a row or column of pieces are left out."""
    height = image.shape[1] // rows
    width = image.shape[2] // columns
    refuse(
        min(height, width) < MIN_PIECE_SIDE,
        f"grid={rows}x{columns}: the pieces of {path} would be smaller than 2x2 pixels",
    )
    cropped = image[:, : rows * height, : columns * width]
    pieces = cropped.unflatten(1, (rows, height)).unflatten(3, (columns, width))
    return pieces.permute(1, 3, 0, 2, 4).flatten(0, 1)


def _format_size(image: Tensor) -> str:
    return f"{image.shape[2]}x{image.shape[1]}"
