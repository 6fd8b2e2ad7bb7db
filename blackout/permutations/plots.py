"""Pictures of puzzles and their solutions: jigsaws before and after, sorted strips, tours over the shortest ones."""

from __future__ import annotations

import math

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from blackout.permutations.metrics import arranged, wrong_places

NAMES = {"pieces": "jigsaws", "strips": "strips", "points": "tours", "tokens": "tokens"}
"""Kind of items -> what the picture of solved puzzles is called."""
_RED, _GREY = (220, 30, 30), (64, 64, 64)
_LEAST_SIDE = 64
"""Pixels of a puzzle's picture at least: small images are enlarged by a whole factor."""
_TOUR_SIDE = 128
_MARGIN = 3


def solved_puzzles(
    kind: str,
    items: Tensor,
    solution: Tensor,
    truth: Tensor | None = None,
    ties: Tensor | None = None,
    columns: int | None = None,
) -> Image.Image | None:
    """Puzzles and their solutions in a grid; None for items that cannot be shown.

    Args:
        kind: of `Puzzles`.
        items: [b, n, ...] as they were given.
        solution: int64 [b, n].
        truth: int64 [b, n]; with it wrong pieces and strips are framed, and tours drawn over the shortest ones.
        ties: see `blackout.permutations.metrics.order_scores`; items that are alike are not framed.
        columns: of the grid.
    """
    items, solution = items.cpu(), solution.cpu()
    wrong = None if truth is None else wrong_places(solution, truth.cpu(), None if ties is None else ties.cpu())
    after = arranged(items, solution)
    if kind == "points":
        right = None if truth is None else arranged(items, truth.cpu())
        tiles = [_tour(points, None if right is None else right[i]) for i, points in enumerate(after)]
    elif kind == "pieces":
        tiles = []
        for i in range(len(items)):
            before, solved = _jigsaw(items[i], None), _jigsaw(after[i], None if wrong is None else wrong[i])
            tiles.append(_beside(before, solved))
    else:
        return lists(kind, after, columns, wrong)
    return _grid(tiles, columns)


def lists(kind: str, items: Tensor, columns: int | None = None, wrong: Tensor | None = None) -> Image.Image | None:
    """Lists of items [b, n, ...] as they lie, in a grid; None for items that cannot be shown.

    Args:
        wrong: bool [b, n], places to be framed.
    """
    items, each = items.cpu(), [None] * len(items) if wrong is None else list(wrong)
    if kind == "pieces":
        return _grid([_jigsaw(one, marks) for one, marks in zip(items, each, strict=True)], columns)
    if kind == "strips":
        return _grid([_strips(one, marks) for one, marks in zip(items, each, strict=True)], columns)
    if kind == "points":
        return _grid([_tour(points, None) for points in items], columns)
    if kind == "tokens":
        return _tokens(items, wrong)
    return None


def _pixels(images: Tensor) -> Tensor:
    """[n, C, h, w] in [0, 1] -> uint8 [n, h, w, 3]."""
    grey = (images.float().clamp(0, 1) * 255).round().to(torch.uint8)
    colours = grey if grey.shape[1] == 3 else grey[:, :1].expand(-1, 3, -1, -1)
    return colours.permute(0, 2, 3, 1)


def _jigsaw(pieces: Tensor, wrong: Tensor | None) -> Image.Image:
    """Pieces [n, C, h, w] row by row, the nearest to square; a pixel of grey between them, red round the wrong."""
    n = len(pieces)
    columns = math.isqrt(n) if math.isqrt(n) ** 2 == n else n
    return _cells(_pixels(pieces), columns, wrong)


def _strips(strips: Tensor, wrong: Tensor | None) -> Image.Image:
    """Strips [n, C, h, w], the first on top."""
    return _cells(_pixels(strips), 1, wrong)


def _cells(pixels: Tensor, columns: int, wrong: Tensor | None) -> Image.Image:
    """Images uint8 [n, h, w, 3] in columns, enlarged, framed in red where they are wrong."""
    n, h, w, _ = pixels.shape
    rows = math.ceil(n / columns)
    factor = max(1, math.ceil(_LEAST_SIDE / max(rows * h, columns * w)))
    pixels = pixels.repeat_interleave(factor, 1).repeat_interleave(factor, 2)
    h, w = h * factor, w * factor
    canvas = torch.tensor(_GREY, dtype=torch.uint8).expand(rows * (h + 2), columns * (w + 2), 3).clone()
    for i in range(n):
        top, left = (i // columns) * (h + 2), (i % columns) * (w + 2)
        if wrong is not None and bool(wrong[i]):
            canvas[top : top + h + 2, left : left + w + 2] = torch.tensor(_RED, dtype=torch.uint8)
        canvas[top + 1 : top + 1 + h, left + 1 : left + 1 + w] = pixels[i]
    return Image.fromarray(canvas.numpy())


def _tour(points: Tensor, right: Tensor | None) -> Image.Image:
    """A closed tour through points [n, 2], black, over the right one, wide and pale."""
    tile = Image.new("RGB", (_TOUR_SIDE, _TOUR_SIDE), (255, 255, 255))
    draw = ImageDraw.Draw(tile)
    low, high = points.amin(), points.amax()
    span = float((high - low).clamp(min=1e-6))

    def path(tour: Tensor) -> list[tuple[float, float]]:
        place = _MARGIN + (tour - low) / span * (_TOUR_SIDE - 1 - 2 * _MARGIN)
        return [(float(x), _TOUR_SIDE - 1 - float(y)) for x, y in torch.cat([place, place[:1]])]

    if right is not None:
        draw.line(path(right), fill=(170, 205, 255), width=5)
    draw.line(path(points), fill=(20, 20, 20), width=1)
    for x, y in path(points):
        draw.ellipse((x - 2, y - 2, x + 2, y + 2), fill=_RED)
    return tile


def _tokens(items: Tensor, wrong: Tensor | None) -> Image.Image:
    """A row for every list, a cell for every token: dark to light by number, red where it is wrong."""
    n = items.shape[1]
    shade = (40 + items.float() * (215 / max(1, n - 1))).round().to(torch.uint8)
    cells = shade.unsqueeze(-1).repeat(1, 1, 3)
    if wrong is not None:
        cells[wrong.cpu()] = torch.tensor(_RED, dtype=torch.uint8)
    side = max(1, min(12, 1200 // n))
    return Image.fromarray(cells.repeat_interleave(side, 0).repeat_interleave(side, 1).numpy())


def _beside(left: Image.Image, right: Image.Image) -> Image.Image:
    tile = Image.new("RGB", (left.width + right.width + 4, left.height), (255, 255, 255))
    tile.paste(left, (0, 0))
    tile.paste(right, (left.width + 4, 0))
    return tile


def _grid(tiles: list[Image.Image], columns: int | None) -> Image.Image | None:
    """Pictures of one size in a near-square grid, white between them."""
    if not tiles:
        return None
    width, height = tiles[0].width + 6, tiles[0].height + 6
    columns = columns or max(1, round(math.sqrt(len(tiles) * height / width)))
    rows = math.ceil(len(tiles) / columns)
    canvas = Image.new("RGB", (columns * width, rows * height), (255, 255, 255))
    for i, tile in enumerate(tiles):
        canvas.paste(tile, ((i % columns) * width + 3, (i // columns) * height + 3))
    return canvas
