"""Pictures of counts: grids of images or curves, heat maps, brightness and its scale."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from PIL import Image, ImageDraw, ImageFont, ImageOps
from torch import Tensor, nn

from blackout.pictures import arrange_tiles

WHITE = 255  # brightness

# smaller images are enlarged by a whole factor, so that each count is a visible square
MIN_IMAGE_SIDE = 48  # pixels
MIN_RASTER_SIDE = 2 * MIN_IMAGE_SIDE  # pixels
MAX_IMAGE_WIDTH = 1024  # pixels
VECTOR_ASPECT = 8  # width over height of a vector that is shown as a band

MIN_HEAT_MAP_WIDTH = 512  # pixels
MAX_HEAT_MAP_WIDTH = 4096  # pixels; the WebP format allows 16,383
MIN_ROW_HEIGHT = 4  # pixels of a row of a heat map
MIN_CURVE_WIDTH = 128  # pixels

# heat maps with names
MAX_NAMED_ELEMENTS = 64
NAMED_CELL_WIDTH = 13  # pixels of a column, for its name
NAMED_ROW_HEIGHT = 6  # pixels
MAX_NAME_LENGTH = 24  # characters
MIN_MEAN = 1e-6  # of an element that is 0 in all training data

MIN_RASTER_CHANNELS = 8  # from here on the channels of a series are rows of a raster
MAX_RASTERS = 16  # in a grid
MAX_GRID_WIDTH = 2400  # pixels of all columns
DEFAULT_COLUMNS = 2  # by which the width of an image is limited if there is no number of columns

GAP = 2  # pixels between the images of a grid
BACKGROUND = (64, 64, 64)
LABEL_HEIGHT = 12  # pixels of a line of text below an image
LABEL_COLOUR = (255, 255, 255)
CHARACTER_WIDTH = 6  # pixels

# the scale below a picture
MIN_SCALE_WIDTH = 160  # pixels, for its numbers
SCALE_HEIGHT = 26  # pixels, with its numbers
BAR_HEIGHT = 8  # pixels
BAR_MARGIN = 4  # pixels on the left and the right
BAR_TOP = 3  # pixels above the bar
NUMBERS_TOP = 13  # pixels above the numbers
SCALE_BACKGROUND = (24, 24, 24)
NUMBERS_COLOUR = (220, 220, 220)


def to_pictures(
    counts: Tensor, max_count: int, logarithmic: bool = False, max_width: int = MAX_IMAGE_WIDTH
) -> Tensor:
    """Convert counts to RGB images, black at 0 and white at `max_count` and above.

    - Images of one or three channels are shown as they are, of four without the last (alpha).
      Other numbers of channels are shown side by side.
    - Vectors are shown as a band: one row of pixels, repeated.
    - Series are shown as curves, one channel below the other. Those of many channels, such as
      spikes of neurons, are shown as a raster with one row per channel.
    - Volumes are shown by the largest count along their depth.

    Small images are enlarged by a whole factor, until the shorter side has about 48 pixels or the
    width reaches `max_width`.

    Args:
        counts: [B, C, H, W], [B, D], [B, C, L] or [B, C, D, H, W].
        max_count: the count that is white.
        logarithmic: whether brightness is log(1 + count) instead of the count.
        max_width: of one image, in pixels.

    Returns:
        uint8 [B, H', W', 3].
    """
    # 1. Bring the data to the shape of images [B, C, H, W].
    min_side = MIN_IMAGE_SIDE
    if counts.ndim == 3:
        if counts.shape[1] < MIN_RASTER_CHANNELS:
            return _curves(_brightness(counts, max_count, logarithmic))
        counts = counts[:, None]
        min_side = MIN_RASTER_SIDE
    elif counts.ndim == 5:
        counts = counts.amax(2)
    elif counts.ndim == 2:
        height = max(1, counts.shape[1] // VECTOR_ASPECT)
        counts = counts[:, None, None, :].expand(-1, 1, height, -1)

    # 2. Three channels.
    brightness = _brightness(counts, max_count, logarithmic)
    if brightness.shape[1] in (3, 4):
        pictures = brightness[:, :3]
    else:
        channels = brightness.split(1, dim=1)
        pictures = torch.cat(list(channels), dim=3).expand(-1, 3, -1, -1)

    # 3. Enlarge small images.
    height, width = pictures.shape[2:]
    factor = max(1, min(math.ceil(min_side / min(height, width)), max_width // width))
    pictures = pictures.repeat_interleave(factor, 2).repeat_interleave(factor, 3)
    return pictures.permute(0, 2, 3, 1).contiguous()


def _curves(brightness: Tensor) -> Tensor:
    """Draw series [B, C, L] of brightness as white areas below curves, uint8 [B, H, W, 3]."""
    height = torch.arange(MIN_IMAGE_SIDE - 1, -1, -1)[:, None]
    is_below = brightness.long()[:, :, None] * MIN_IMAGE_SIDE > WHITE * height
    factor = max(1, MIN_CURVE_WIDTH // brightness.shape[-1])
    pixels = (WHITE * is_below).to(torch.uint8).flatten(1, 2).repeat_interleave(factor, 2)
    return pixels[..., None].expand(-1, -1, -1, 3).contiguous()


def _brightness(counts: Tensor, max_count: int, logarithmic: bool) -> Tensor:
    """Return 255 x / max_count of counts x, or the same of log(1 + x), uint8 of their shape."""
    if logarithmic:
        scaled = torch.log1p(counts.double()) * (WHITE / math.log1p(max_count))
    else:
        scaled = counts.double() * (WHITE / max_count)
    return scaled.clamp(max=WHITE).round().to(torch.uint8)


def heat_map(counts: Tensor, max_count: int, logarithmic: bool = True) -> Image.Image:
    """Draw vectors [B, D] as rows, one below the other, black at 0 and white at `max_count`.

    With more than 4,096 elements a pixel shows the largest count of several elements.
    """
    brightness = _brightness(counts.cpu(), max_count, logarithmic)
    width = min(brightness.shape[1], MAX_HEAT_MAP_WIDTH)
    brightness = nn.functional.adaptive_max_pool1d(brightness.float(), width).byte()
    factor = max(1, math.ceil(MIN_HEAT_MAP_WIDTH / width))
    row_height = max(MIN_ROW_HEIGHT, factor)
    pixels = brightness.repeat_interleave(factor, 1).repeat_interleave(row_height, 0)
    return Image.fromarray(pixels.numpy()).convert("RGB")


def relative_heat_map(
    counts: Tensor,
    means: Tensor,
    element_names: Sequence[str] = (),
    row_names: Sequence[str] = (),
) -> Image.Image:
    """Draw vectors as rows of a heat map of counts relative to the mean of their element.

    Brightness is x / (x + mean): 0 is black, the mean is grey, and far above it is white. So
    elements of all sizes can be seen next to each other. With names of elements, only the 64 with
    the largest means are shown.

    Args:
        counts: [B, D].
        means: of the elements, [D].
        element_names: written above the columns; empty for none.
        row_names: written next to the first row of each run of equal names; empty for none.
    """
    # 1. Brightness of every cell.
    columns = torch.arange(len(means))
    cell_width = max(1, math.ceil(MIN_HEAT_MAP_WIDTH / len(means)))
    if element_names:
        largest = means.argsort(descending=True, stable=True)[:MAX_NAMED_ELEMENTS]
        columns = largest.sort().values
        cell_width = NAMED_CELL_WIDTH
    x = counts.cpu().double()[:, columns]
    share = x / (x + means.double()[columns].clamp(min=MIN_MEAN))
    brightness = (WHITE * share).round().to(torch.uint8)
    if not element_names and brightness.shape[1] > MAX_HEAT_MAP_WIDTH:
        pooled = nn.functional.adaptive_max_pool1d(brightness.float(), MAX_HEAT_MAP_WIDTH)
        brightness = pooled.byte()
    row_height = NAMED_ROW_HEIGHT if row_names or element_names else MIN_ROW_HEIGHT
    pixels = brightness.repeat_interleave(cell_width, 1).repeat_interleave(row_height, 0)
    cells = Image.fromarray(pixels.numpy()).convert("RGB")

    # 2. Names.
    font = ImageFont.load_default()
    names = [element_names[k][:MAX_NAME_LENGTH] for k in columns] if element_names else []
    rows = [name[:MAX_NAME_LENGTH] for name in row_names]
    left = max((math.ceil(font.getlength(name)) + GAP for name in rows), default=0)
    top = max((math.ceil(font.getlength(name)) + GAP for name in names), default=0)
    canvas = Image.new("RGB", (left + cells.width, top + cells.height), SCALE_BACKGROUND)
    canvas.paste(cells, (left, top))
    for k, name in enumerate(names):
        text = Image.new("RGB", (top, cell_width), SCALE_BACKGROUND)
        ImageDraw.Draw(text).text((0, 0), name, fill=NUMBERS_COLOUR, font=font)
        canvas.paste(text.transpose(Image.Transpose.ROTATE_90), (left + k * cell_width, 0))
    pen = ImageDraw.Draw(canvas)
    free_from = 0  # pixels from the top that earlier names leave free
    for k, name in enumerate(rows):
        y = top + k * row_height
        if y >= free_from and (k == 0 or name != rows[k - 1]):
            pen.text((0, y), name, fill=NUMBERS_COLOUR, font=font)
            free_from = y + LABEL_HEIGHT
    return canvas


def add_scale(picture: Image.Image, max_count: int, logarithmic: bool) -> Image.Image:
    """Add a bar below a picture of counts that shows which count has which brightness.

    A picture that is too narrow for the numbers of the bar is enlarged.
    """
    # 1. Picture and bar.
    factor = math.ceil(MIN_SCALE_WIDTH / picture.width)
    picture = ImageOps.scale(picture, factor, Image.Resampling.NEAREST)
    width = picture.width
    canvas = Image.new("RGB", (width, picture.height + SCALE_HEIGHT), SCALE_BACKGROUND)
    canvas.paste(picture, (0, 0))
    bar = Image.linear_gradient("L").rotate(90).resize((width - 2 * BAR_MARGIN, BAR_HEIGHT))
    canvas.paste(bar, (BAR_MARGIN, picture.height + BAR_TOP))

    # 2. The counts of black, of half the brightness, and of white.
    pen = ImageDraw.Draw(canvas)
    for share, anchor in ((0.0, "lt"), (0.5, "mt"), (1.0, "rt")):
        count = math.expm1(share * math.log1p(max_count)) if logarithmic else share * max_count
        position = (BAR_MARGIN + share * (width - 2 * BAR_MARGIN - 1), picture.height + NUMBERS_TOP)
        pen.text(position, f"{count:,.0f}", fill=NUMBERS_COLOUR, anchor=anchor)
    return canvas


def grid(
    counts: Tensor,
    max_count: int,
    columns: int | None = None,
    logarithmic: bool = False,
    labels: Sequence[str] = (),
) -> Image.Image:
    """Lay samples out in a grid with grey lines between them and labels below.

    A single sample has neither lines nor label.

    Args:
        counts: samples, see `to_pictures`.
        max_count: the count that is white.
        columns: of the grid; None for a nearly square one.
        logarithmic: whether brightness is log(1 + count) instead of the count.
        labels: texts of the samples; empty for none.
    """
    is_raster = counts.ndim == 3 and counts.shape[1] >= MIN_RASTER_CHANNELS
    if is_raster and columns is None:
        counts = counts[:MAX_RASTERS]
    max_width = MAX_GRID_WIDTH // (columns or DEFAULT_COLUMNS)
    pictures = to_pictures(counts.cpu(), max_count, logarithmic, max_width)
    tiles = [Image.fromarray(picture.numpy()) for picture in pictures]
    if len(tiles) == 1:
        return tiles[0]
    width, height = tiles[0].size
    if labels:
        tiles = [ImageOps.expand(tile, (0, 0, 0, LABEL_HEIGHT), BACKGROUND) for tile in tiles]
    for tile, label in zip(tiles, labels, strict=False):
        text = label[: width // CHARACTER_WIDTH]
        position = (width // 2, height + 1)
        ImageDraw.Draw(tile).text(position, text, fill=LABEL_COLOUR, anchor="mt")
    return arrange_tiles(tiles, columns, GAP, GAP, BACKGROUND)
