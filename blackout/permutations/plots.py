"""Pictures of permutations and what they put in order: jigsaws, strips, tours, numbers."""

from __future__ import annotations

import colorsys
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from PIL import Image, ImageDraw, ImageOps
from torch import Tensor

from blackout.files import arrange_tiles
from blackout.permutations.metrics import arranged, wrong_places
from blackout.protocols import Samples

NAMES = {"pieces": "jigsaws", "strips": "strips", "points": "tours", "tokens": "tokens"}
"""Kind of items -> what the picture of solved puzzles is called."""
_RED, _GREY, _WHITE, _INK = (220, 30, 30), (64, 64, 64), (255, 255, 255), (40, 40, 40)
_LEAST_SIDE = 64
"""Pixels of a puzzle's picture at least: small images are enlarged by a whole factor."""
_TOUR_SIDE = 128
_MARGIN = 3
_CELL = 22
_MOST_ITEMS = 24
"""Whose wins are shown, the foremost."""


def picture(samples: Samples, data: Mapping[str, Any], columns: int | None = None) -> Image.Image | None:
    """Samples of a model of permutations, by what they are of; None for items that cannot be shown.

    Bare permutations and rankings as numbers; puzzles and their solutions in a grid, jigsaws before and after.

    Args:
        samples: `samples` [b, n], with `items` [b, n, ...] as they were given where there are any; or, without, items
            in their order. With `target` or `truth`, int64 [b, n], wrong pieces and strips are framed, but not items
            that are alike by `ties` (see `blackout.permutations.metrics.order_scores`), and tours drawn over the
            shortest ones.
        data: facts of the model's data, with their `kind`.
        columns: of the grid; None for about a square.
    """
    here = {name: values.cpu() for name, values in samples.items()}
    kind, shown, items = data.get("kind"), here["samples"], here.get("items")
    if kind in (None, "rankings"):
        rows = shown if items is None else arranged(items, shown)
        return _numbers(rows, data.get("num_tokens", rows.shape[1]), columns)
    if items is None:
        return lists(kind, shown, columns)
    after, wrong, right = arranged(items, shown), None, None
    if (truth := here.get("target", here.get("truth"))) is not None:
        wrong, right = wrong_places(shown, truth, here.get("ties")), arranged(items, truth)
    if kind != "pieces":
        return lists(kind, after, columns, wrong, right)
    pairs = zip(_tiles(kind, items), _tiles(kind, after, wrong), strict=True)
    return arrange_tiles([arrange_tiles(pair, 2, 4, 0, _WHITE) for pair in pairs], columns, 6, 3, _WHITE)


def lists(
    kind: str, items: Tensor, columns: int | None = None, wrong: Tensor | None = None, right: Tensor | None = None
) -> Image.Image | None:
    """Lists of items [b, n, ...] as they lie, in a grid; None for items that cannot be shown.

    Args:
        wrong: bool [b, n], places to be framed.
        right: [b, n, 2], tours to be drawn below.
    """
    if kind == "tokens":
        return _numbers(items, items.shape[1], columns, wrong)
    return arrange_tiles(_tiles(kind, items, wrong, right), columns, 6, 3, _WHITE) if kind in NAMES else None


def wins(orders: Tensor, n: int) -> Tensor:
    """The share of the orders [N, m] that hold both of n items in which one (row) comes before the other: [n, n].

    Ours (tests/permutations/test_datasets.py).
    """
    i, j = torch.triu_indices(orders.shape[1], orders.shape[1], 1)
    before = torch.bincount((orders[:, i] * n + orders[:, j]).flatten(), minlength=n * n).view(n, n).double()
    return before / (before + before.T)


def wins_figure(sets: Mapping[str, Tensor], names: Sequence[str]) -> Any:
    """Matrices of pairwise wins by what they are of, in the order of the first one's means."""
    from matplotlib.figure import Figure

    order = next(iter(sets.values())).nanmean(1).nan_to_num(-1).argsort(descending=True)[:_MOST_ITEMS]
    shortened = [names[k][:16] for k in order]
    figure = Figure(figsize=(2 + 4.6 * len(sets), 4.8), layout="constrained")
    panels = figure.subplots(1, len(sets))
    for axes, (title, matrix) in zip(panels, sets.items(), strict=True):
        shown = axes.imshow(matrix[order][:, order], vmin=0, vmax=1, cmap="RdBu_r")
        axes.set_title(f"pairwise wins, {title}")
        axes.set_xticks(range(len(order)), shortened, rotation=90)
        axes.set_yticks(range(len(order)), shortened)
        axes.set(xlabel="is behind", ylabel="is ahead")
    figure.colorbar(shown, ax=panels, label="share of the orders", shrink=0.8)
    return figure


def _tiles(kind: str, items: Tensor, wrong: Tensor | None = None, right: Tensor | None = None) -> list[Image.Image]:
    """A picture of every list: pieces row by row, the nearest to square; strips, the first on top; or a tour."""
    if kind == "points":
        return [_tour(points, None if right is None else right[i]) for i, points in enumerate(items)]
    root = math.isqrt(n := items.shape[1])
    columns = 1 if kind == "strips" else root if root**2 == n else n
    return [_cells(images, columns, None if wrong is None else wrong[i]) for i, images in enumerate(items)]


def _cells(images: Tensor, columns: int, wrong: Tensor | None) -> Image.Image:
    """Images [n, C, h, w] in [0, 1], enlarged, with a pixel of grey round them, of red where they are wrong."""
    n, channels, h, w = images.shape
    factor = max(1, math.ceil(_LEAST_SIDE / max(math.ceil(n / columns) * h, columns * w)))
    pixels = (images.float().clamp(0, 1) * 255).round().to(torch.uint8)
    pixels = (pixels if channels == 3 else pixels[:, :1].expand(-1, 3, -1, -1)).permute(0, 2, 3, 1)
    cells = []
    for i, one in enumerate(pixels.contiguous().numpy()):
        cell = Image.fromarray(one).resize((w * factor, h * factor), Image.Resampling.NEAREST)
        cells.append(ImageOps.expand(cell, 1, _RED if wrong is not None and bool(wrong[i]) else _GREY))
    return arrange_tiles(cells, columns, 0, 0, _GREY)


def _tour(points: Tensor, right: Tensor | None) -> Image.Image:
    """A closed tour through points [n, 2], black, over the right one, wide and pale."""
    tile = Image.new("RGB", (_TOUR_SIDE, _TOUR_SIDE), _WHITE)
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


def _numbers(rows: Tensor, most: int, columns: int | None = None, wrong: Tensor | None = None) -> Image.Image:
    """Rows of numbers below `most`, each on a colour of its own, of red where it is wrong."""
    cells = []
    for i, row in enumerate(rows.tolist()):
        image = Image.new("RGB", (_CELL * len(row), _CELL), _WHITE)
        pen = ImageDraw.Draw(image)
        for k, item in enumerate(row):
            colour = tuple(round(255 * part) for part in colorsys.hsv_to_rgb(item / most, 0.35, 0.95))
            bad = wrong is not None and bool(wrong[i, k])
            pen.rectangle((k * _CELL, 0, (k + 1) * _CELL - 2, _CELL - 2), fill=_RED if bad else colour)
            pen.text(((k + 0.5) * _CELL - 1, _CELL / 2 - 1), str(item), fill=_INK, anchor="mm")
        cells.append(image)
    return arrange_tiles(cells, columns or max(1, 32 // rows.shape[1]), 6, 6, (225, 225, 225))
