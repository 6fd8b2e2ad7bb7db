"""Pictures of permutations: cycles as arrows on a circle, words as letters, rankings as strips of items."""

from __future__ import annotations

import colorsys
import math
from collections.abc import Mapping
from typing import Any

from PIL import Image, ImageDraw

from blackout.family import Samples
from blackout.permutations.metrics import arranged
from blackout.permutations.plots import lists, solved_puzzles

_CELL, _GAP = 96, 6
_TILE = 22
_BACK, _INK = (255, 255, 255), (40, 40, 40)


def picture(samples: Samples, data: Mapping[str, Any], columns: int | None = None) -> Image.Image | None:
    """Bare permutations as cycle diagrams, words and rankings as strips, puzzles as `solved_puzzles` shows them.

    Args:
        samples: `samples` [b, n], with `items` [b, n, ...] where there are any; or, without, items in their order.
        data: facts of the model's data, with their `kind`.
        columns: of the grid; None for about a square.
    """
    kind, shown, items = data.get("kind"), samples["samples"], samples.get("items")
    if kind is None:
        return laid_out([cycle_diagram(row) for row in shown.tolist()], columns)
    if kind not in ("words", "rankings"):
        if items is None:
            return lists(kind, shown, columns)
        return solved_puzzles(kind, items, shown, samples.get("target"), samples.get("ties"), columns)
    rows = shown if items is None else arranged(items, shown)
    cells = [strip(row, data["num_tokens"], kind == "words") for row in rows.tolist()]
    return laid_out(cells, columns or max(1, 32 // rows.shape[1]))


def laid_out(cells: list[Image.Image], columns: int | None = None) -> Image.Image:
    """Cells of one size in a grid, about a square unless it has `columns`."""
    columns = columns or max(1, math.ceil(math.sqrt(len(cells))))
    width, height = cells[0].width + _GAP, cells[0].height + _GAP
    canvas = Image.new(
        "RGB", (columns * width + _GAP, math.ceil(len(cells) / columns) * height + _GAP), (225, 225, 225)
    )
    for k, cell in enumerate(cells):
        canvas.paste(cell, (_GAP + k % columns * width, _GAP + k // columns * height))
    return canvas


def cycle_diagram(x: list[int]) -> Image.Image:
    """Items on a circle, an arrow from i to x[i], a colour for every cycle; fixed points are rings."""
    n, centre, radius = len(x), _CELL / 2, _CELL / 2 - 9
    image = Image.new("RGB", (_CELL, _CELL), _BACK)
    pen = ImageDraw.Draw(image)
    points = [
        (centre + radius * math.sin(2 * math.pi * i / n), centre - radius * math.cos(2 * math.pi * i / n))
        for i in range(n)
    ]
    colours = _cycle_colours(x)
    for i, j in enumerate(x):
        (a, b), (c, d) = points[i], points[j]
        if i == j:
            pen.ellipse((a - 5, b - 5, a + 5, b + 5), outline=colours[i], width=2)
            continue
        pen.line((a, b, c, d), fill=colours[i], width=2)
        along = math.atan2(d - b, c - a)
        for turn in (2.7, -2.7):
            pen.line((c, d, c + 8 * math.cos(along + turn), d + 8 * math.sin(along + turn)), fill=colours[i], width=2)
    for a, b in points:
        pen.ellipse((a - 2, b - 2, a + 2, b + 2), fill=_INK)
    return image


def _cycle_colours(x: list[int]) -> list[tuple[int, int, int]]:
    colours: dict[int, tuple[int, int, int]] = {}
    found = 0
    for start in range(len(x)):
        i, before = start, len(colours)
        while i not in colours and 0 <= i < len(x):
            colours[i] = _hue(found / 7)
            i = x[i]
        found += len(colours) > before
    return [colours[i] for i in range(len(x))]


def strip(items: list[int], num_tokens: int, letters: bool = False) -> Image.Image:
    """Tokens side by side, each on a colour of its own: letters, or numbers."""
    image = Image.new("RGB", (_TILE * len(items), _TILE), _BACK)
    pen = ImageDraw.Draw(image)
    for k, item in enumerate(items):
        pen.rectangle((k * _TILE, 0, (k + 1) * _TILE - 2, _TILE - 2), fill=_hue(item / num_tokens, 0.35))
        text = chr(ord("a") + item) if letters else str(item)
        pen.text(((k + 0.5) * _TILE - 1, _TILE / 2 - 1), text, fill=_INK, anchor="mm")
    return image


def _hue(turn: float, saturation: float = 0.75) -> tuple[int, int, int]:
    red, green, blue = colorsys.hsv_to_rgb(turn % 1.0, saturation, 0.95 if saturation < 0.5 else 0.75)
    return round(255 * red), round(255 * green), round(255 * blue)
