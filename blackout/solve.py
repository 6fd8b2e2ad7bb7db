"""`blackout solve PICTURE grid=4`: put a cut and shuffled picture, or a folder of pieces, together.

Pieces keep their orientation and are rectangles of one size. They are told by their borders alone, nothing is learned;
in what order they come is not looked at. The solution is written beside the picture, and the probability of every piece
is printed: among the arrangements that a beam found, by `blackout.permutations.borders`.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from blackout.data.images import IMG_EXTENSIONS, read_image
from blackout.errors import CommandParser, UserError, refuse, run_command
from blackout.files import new_file, save_picture
from blackout.flows import solve as graphs
from blackout.flows.graphs.problems import TAKES
from blackout.permutations.borders import BEAM_WIDTH, neighbour_scores, solve_by_borders
from blackout.permutations.queries import place_probabilities

_MOST = 256
"""Pieces."""


def solve(pieces: Tensor, columns: int, width: int = BEAM_WIDTH) -> tuple[Tensor, Tensor, Tensor]:
    """Arrange pieces [n, C, h, w] row by row on a grid; they may come in any order.

    Args:
        pieces: of a picture.
        columns: of the grid; n is a multiple.
        width: of the beam.

    Returns:
        Arrangements, the best first: which piece comes at every place, row by row, int64 [K, n]; their probabilities,
        float64 [K], with sum 1; and how likely a piece is at a place, float64 [n places, n pieces].
    """
    shuffled = torch.randperm(len(pieces), generator=torch.Generator().manual_seed(0))  # equals in no order of theirs
    orders, sums = solve_by_borders(neighbour_scores(pieces[shuffled].unsqueeze(0)), columns, width)
    orders = shuffled[orders]
    return orders[0], sums[0].double().softmax(-1), place_probabilities(orders, sums)[0]


def read_pieces(path: Path, grid: str | None) -> tuple[Tensor, int]:
    """The pieces uint8 [n, 3, h, w] of a picture that is cut, or of a folder in the order of names; and the columns.

    Args:
        path: a picture, or a folder of equal ones.
        grid: "4" for 4x4, or rows x columns such as "3x5"; None for a square of all pieces of a folder.

    Raises:
        UserError: neither, pieces of different sizes, or a grid that does not fit.
    """
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix.lower() in IMG_EXTENSIONS)
        side = round(len(files) ** 0.5)
        grid = grid or (str(side) if side**2 == len(files) else None)
    if grid is None:
        raise UserError(f"{path}: grid=4 for 4x4 pieces, or grid=3x5 for 3 rows of 5, is needed")
    if not (found := re.fullmatch(r"([0-9]{1,3})(?:x([0-9]{1,3}))?", grid)):
        raise UserError(f"grid must be a number such as 4, or rows x columns such as 3x5, not {grid}")
    rows, columns = int(found[1]), int(found[2] or found[1])
    refuse(not 2 <= rows * columns <= _MOST, f"grid={grid}: 2 to {_MOST} pieces are put together, not {rows * columns}")
    images = [torch.from_numpy(np.array(read_image(file, "RGB"))).permute(2, 0, 1) for file in files]
    if not path.is_dir():
        height, width = (side // number for side, number in zip(images[0].shape[1:], (rows, columns), strict=True))
        refuse(min(height, width) < 2, f"grid={grid}: the pieces of {path} would have no 2x2 pixels")
        cropped = images[0][:, : rows * height, : columns * width]
        cut = cropped.unflatten(1, (rows, height)).unflatten(3, (columns, width))
        return cut.permute(1, 3, 0, 2, 4).flatten(0, 1), columns
    refuse(len(images) != rows * columns, f"{path}: {len(images)} pictures are no grid of {rows}x{columns}")
    for file, image in zip(files, images, strict=True):
        if image.shape != images[0].shape or min(image.shape[1:]) < 2:
            sizes = [f"{one.shape[2]}x{one.shape[1]}" for one in (image, images[0])]
            raise UserError(f"{file}: pieces must be of one size, at least 2x2: {sizes[0]}, {files[0].name} {sizes[1]}")
    return torch.stack(images), columns


def main(arguments: list[str] | None = None) -> None:
    """The command line; `blackout solve mis GRAPHS` and other problems on graphs have one of their own."""
    words = sys.argv[1:] if arguments is None else arguments
    if words and words[0] in TAKES:
        graphs.main()
        return
    parser = CommandParser(prog="blackout solve", description=__doc__)
    parser.add_argument("picture", type=Path, help="a picture cut into shuffled pieces, or a folder of pieces")
    parser.add_argument("settings", nargs="*", help="grid=4 or grid=3x5; top=3 (arrangements to print); out=solved.png")
    run_command(_run, parser, arguments)


def _run(given: argparse.Namespace) -> None:
    settings = dict(one.split("=", 1) for one in given.settings if "=" in one)
    if len(settings) < len(given.settings) or settings.keys() - {"grid", "top", "out"}:
        raise UserError(f"settings are grid=, top= and out=, not {' '.join(given.settings)}")
    if not re.fullmatch(r"[1-9][0-9]{0,4}", top := settings.get("top", "1")):
        raise UserError(f"top must be a whole number of at least 1, not {top}")
    picture = given.picture.expanduser()
    refuse(not picture.exists(), f"{picture}: no such file or folder")
    pieces, columns = read_pieces(picture, settings.get("grid"))
    name = settings.get("out", f"{picture.name if picture.is_dir() else picture.stem}-solved.png")
    out = new_file(Path(name).expanduser() if "out" in settings else picture.parent / name, "out" in settings)
    orders, probabilities, places = solve(pieces, columns)
    rows = pieces[orders[0]].unflatten(0, (-1, columns)).permute(0, 3, 1, 4, 2).flatten(0, 1).flatten(1, 2)
    save_picture(Image.fromarray(rows.numpy()), out)
    print(f"pieces:  {len(pieces) // columns} rows of {columns}, {pieces.shape[3]}x{pieces.shape[2]} pixels each")
    for order, probability in zip(orders[: int(top)].tolist(), probabilities.tolist(), strict=False):
        print(f"order:   {' '.join(map(str, order))} (probability {probability:.3f})")
    print("piece at every place, counted from 0 row by row as given, and its probability:")
    own = places.gather(1, orders[0].unsqueeze(1)).squeeze(1)
    told = [f"{piece:>4} {p:.3f}" for piece, p in zip(orders[0].tolist(), own.tolist(), strict=True)]
    print("\n".join("  ".join(told[i : i + columns]) for i in range(0, len(told), columns)))
    print(f"solved:  {out}")


if __name__ == "__main__":
    main()
