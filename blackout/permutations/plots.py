"""Pictures of permutations and of the items that they order: jigsaws, strips, tours, numbers."""

from __future__ import annotations

import colorsys
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from PIL import Image, ImageDraw, ImageFont, ImageOps
from torch import Tensor

from blackout.permutations.metrics import rearrange, wrong_positions
from blackout.pictures import arrange_tiles
from blackout.protocols import Samples

# kind of items -> name of the picture of solved puzzles
PICTURE_NAMES = {"pieces": "jigsaws", "strips": "strips", "points": "tours", "tokens": "tokens"}

# colours, red, green and blue from 0 to 255
RED = (220, 30, 30)
GREY = (64, 64, 64)
LIGHT_GREY = (225, 225, 225)
WHITE = (255, 255, 255)
TEXT_COLOUR = (40, 40, 40)
TOUR_COLOUR = (20, 20, 20)
SHORTEST_TOUR_COLOUR = (170, 205, 255)

MIN_PUZZLE_SIDE = 64  # pixels; small images are enlarged by an integer factor
TOUR_SIDE = 128  # pixels
TOUR_MARGIN = 3  # pixels
NUMBER_SIDE = 22  # pixels of the cell of a number
TEXT_MARGIN = 8  # pixels next to the name in a cell
MAX_ROW_WIDTH = 32 * NUMBER_SIDE  # pixels of all columns of lists of numbers
MAX_LABEL_LENGTH = 16  # characters
MAX_PRECEDENCE_ITEMS = 24  # items in the figure of precedence, those that win most


def plot_samples(
    samples: Samples, data: Mapping[str, Any], columns: int | None = None
) -> Image.Image | None:
    """Return a picture of samples of a model of permutations; None for items that cannot be shown.

    Bare permutations and rankings are shown as numbers, puzzles as their solutions in a grid,
    jigsaws before and after.

    Args:
        samples: `samples` [b, n] and the `items` of the puzzles [b, n, ...]; or `samples` as items
            in their order. With `target` or `truth`, int64 [b, n], tours are drawn over the
            shortest ones, and wrong pieces and strips are framed. Those that equal the right ones
            by `ties` are not wrong (see `blackout.permutations.metrics.order_scores`).
        data: facts of the model's data, with their `kind`.
        columns: of the grid; None for about a square.
    """
    batch = {name: values.cpu() for name, values in samples.items()}
    kind = data.get("kind")
    solution = batch["samples"]
    items = batch.get("items")
    if kind in (None, "rankings"):
        rows = solution if items is None else rearrange(items, solution)
        num_values = data.get("num_tokens", rows.shape[1])
        return _draw_numbers(rows, num_values, columns, names=data.get("labels") or ())
    if items is None:
        return plot_lists(kind, solution, columns)
    solved_items = rearrange(items, solution)
    truth = batch.get("target", batch.get("truth"))
    is_wrong: Tensor | None = None
    true_items: Tensor | None = None
    if truth is not None:
        is_wrong = wrong_positions(solution, truth, batch.get("ties"))
        true_items = rearrange(items, truth)
    if kind != "pieces":
        return plot_lists(kind, solved_items, columns, is_wrong, true_items)
    pairs = zip(_draw_tiles(kind, items), _draw_tiles(kind, solved_items, is_wrong), strict=True)
    return arrange_tiles(
        [arrange_tiles(pair, 2, 4, 0, WHITE) for pair in pairs], columns, 6, 3, WHITE
    )


def plot_lists(
    kind: str,
    items: Tensor,
    columns: int | None = None,
    is_wrong: Tensor | None = None,
    true_items: Tensor | None = None,
) -> Image.Image | None:
    """Return a picture of lists of items in a grid; None for items that cannot be shown.

    Args:
        kind: of the items.
        items: [b, n, ...].
        columns: of the grid; None for about a square.
        is_wrong: positions to be framed, bool [b, n].
        true_items: tours to be drawn below, [b, n, 2].
    """
    if kind == "tokens":
        return _draw_numbers(items, items.shape[1], columns, is_wrong)
    if kind not in PICTURE_NAMES:
        return None
    return arrange_tiles(_draw_tiles(kind, items, is_wrong, true_items), columns, 6, 3, WHITE)


def precedence_shares(orders: Tensor, num_items: int) -> Tensor:
    """Return the share of orders with both items in which one (row) precedes the other (column).

    Args:
        orders: int64 [N, m].
        num_items: n.

    Returns:
        float64 [n, n]; nan for pairs that no order has.

    References: this project; checked in tests/permutations/test_plots.py.
    """
    n = num_items
    i, j = torch.triu_indices(orders.shape[1], orders.shape[1], 1)
    pairs = (orders[:, i] * n + orders[:, j]).flatten()
    wins = torch.bincount(pairs, minlength=n * n).view(n, n).double()
    return wins / (wins + wins.T)


def precedence_figure(shares: Mapping[str, Tensor], names: Sequence[str]) -> Any:
    """Return a figure of matrices of `precedence_shares`.

    Items are sorted by their mean in the first matrix.

    Args:
        shares: [n, n] by title.
        names: of the items.
    """
    from matplotlib.figure import Figure

    mean_share = next(iter(shares.values())).nanmean(1).nan_to_num(-1)
    order = mean_share.argsort(descending=True)[:MAX_PRECEDENCE_ITEMS]
    labels = [names[k][:MAX_LABEL_LENGTH] for k in order]
    figure = Figure(figsize=(2 + 4.6 * len(shares), 4.8), layout="constrained")
    panels = figure.subplots(1, len(shares))
    for axes, (title, matrix) in zip(panels, shares.items(), strict=True):
        image = axes.imshow(matrix[order][:, order], vmin=0, vmax=1, cmap="RdBu_r")
        axes.set_title(f"pairwise wins, {title}")
        axes.set_xticks(range(len(order)), labels, rotation=90)
        axes.set_yticks(range(len(order)), labels)
        axes.set(xlabel="is behind", ylabel="is ahead")
    figure.colorbar(image, ax=panels, label="share of the orders", shrink=0.8)
    return figure


def _draw_tiles(
    kind: str,
    items: Tensor,
    is_wrong: Tensor | None = None,
    true_items: Tensor | None = None,
) -> list[Image.Image]:
    """Return a picture of every list: pieces in a grid, strips from the top, or a tour."""
    if kind == "points":
        return [
            _draw_tour(points, None if true_items is None else true_items[i])
            for i, points in enumerate(items)
        ]
    n = items.shape[1]
    side = math.isqrt(n)
    columns = side if side**2 == n else n
    if kind == "strips":
        columns = 1
    return [
        _draw_images(images, columns, None if is_wrong is None else is_wrong[i])
        for i, images in enumerate(items)
    ]


def _draw_images(images: Tensor, columns: int, is_wrong: Tensor | None) -> Image.Image:
    """Return images [n, C, h, w] in [0, 1], enlarged and framed.

    Frames are grey, or red where an image is wrong.
    """
    n, channels, h, w = images.shape
    rows = math.ceil(n / columns)
    factor = max(1, math.ceil(MIN_PUZZLE_SIDE / max(rows * h, columns * w)))
    pixels = (images.float().clamp(0, 1) * 255).round().to(torch.uint8)
    if channels != 3:
        pixels = pixels[:, :1].expand(-1, 3, -1, -1)
    arrays = pixels.permute(0, 2, 3, 1).contiguous().numpy()
    cells = []
    for i, array in enumerate(arrays):
        cell = Image.fromarray(array).resize((w * factor, h * factor), Image.Resampling.NEAREST)
        colour = RED if is_wrong is not None and bool(is_wrong[i]) else GREY
        cells.append(ImageOps.expand(cell, 1, colour))
    return arrange_tiles(cells, columns, 0, 0, GREY)


def _draw_tour(points: Tensor, shortest: Tensor | None) -> Image.Image:
    """Return a closed tour through points [n, 2] in black, over the shortest one, wide and pale."""
    tile = Image.new("RGB", (TOUR_SIDE, TOUR_SIDE), WHITE)
    draw = ImageDraw.Draw(tile)
    low = points.amin()
    span = float((points.amax() - low).clamp(min=1e-6))

    def to_pixels(tour: Tensor) -> list[tuple[float, float]]:
        """Return the closed tour in pixels, with y upwards."""
        pixels = TOUR_MARGIN + (tour - low) / span * (TOUR_SIDE - 1 - 2 * TOUR_MARGIN)
        return [(float(x), TOUR_SIDE - 1 - float(y)) for x, y in torch.cat([pixels, pixels[:1]])]

    if shortest is not None:
        draw.line(to_pixels(shortest), fill=SHORTEST_TOUR_COLOUR, width=5)
    draw.line(to_pixels(points), fill=TOUR_COLOUR, width=1)
    for x, y in to_pixels(points):
        draw.ellipse((x - 2, y - 2, x + 2, y + 2), fill=RED)
    return tile


def _draw_numbers(
    rows: Tensor,
    num_values: int,
    columns: int | None = None,
    is_wrong: Tensor | None = None,
    names: Sequence[str] = (),
) -> Image.Image:
    """Return rows of integers below `num_values`, each with its colour, red where it is wrong.

    Args:
        rows: int64 [b, n].
        num_values: number of colours.
        columns: of the grid; None for as many as fit.
        is_wrong: bool [b, n].
        names: of the integers, which are written in their place; empty for none.
    """
    side = NUMBER_SIDE
    texts = [str(name)[:MAX_LABEL_LENGTH] for name in names or range(num_values)]
    font = ImageFont.load_default()
    width = max(side, *(math.ceil(font.getlength(text)) + TEXT_MARGIN for text in texts))
    cells = []
    for i, row in enumerate(rows.tolist()):
        image = Image.new("RGB", (width * len(row), side), WHITE)
        draw = ImageDraw.Draw(image)
        for k, item in enumerate(row):
            rgb = colorsys.hsv_to_rgb(item / num_values, 0.35, 0.95)
            colour = tuple(round(255 * part) for part in rgb)
            if is_wrong is not None and bool(is_wrong[i, k]):
                colour = RED
            draw.rectangle((k * width, 0, (k + 1) * width - 2, side - 2), fill=colour)
            centre = ((k + 0.5) * width - 1, side / 2 - 1)
            draw.text(centre, texts[item], fill=TEXT_COLOUR, anchor="mm", font=font)
        cells.append(image)
    default_columns = max(1, MAX_ROW_WIDTH // (width * rows.shape[1]))
    return arrange_tiles(cells, columns or default_columns, 6, 6, LIGHT_GREY)
