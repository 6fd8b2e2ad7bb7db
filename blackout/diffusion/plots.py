"""Pictures of counts: grids of images or curves, heat maps, colours and their scale."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from PIL import Image, ImageDraw, ImageOps
from torch import Tensor, nn

from blackout.files import laid_out

_SMALLEST_SIDE = 48
"""Pixels: smaller images are enlarged by a whole factor, each count a visible square."""
_SMALLEST_MAP, _WIDEST_MAP = 512, 4096
"""Pixels that a heat map is wide at least and at most; a WebP ends at 16,383."""
_RASTER = 8
"""Channels of a series from which on they are rows of a raster."""
_WIDEST, _RASTERS = 2400, 16
"""Pixels across pictures in columns, at most, and rasters that are shown at most."""
_GAP, _GREY, _LABEL = 2, 64, 12
"""Pixels between the images of a grid, and their brightness; pixels of a line of text below an image."""


def to_pictures(counts: Tensor, max_count: int, logarithmic: bool = False, widest: int = 1024) -> Tensor:
    """Counts [B, C, H, W] or [B, D] -> uint8 [B, H, W, 3], black at 0 and white at max_count and above.

    Between them brightness is the count or, if `logarithmic`, log(1 + count).

    One, three and four (alpha dropped) channels are shown as they are, other numbers side by side, vectors as one row
    of pixels repeated to a band, series [B, C, L] as curves, one channel below the other, or of many channels, such as
    spikes of neurons, as a raster with a row for each, and of volumes [B, C, D, H, W] the largest count along D.

    Pixels are squares as large as `widest`, of one picture, allows, up to some 48 of them along its shorter side.
    """
    side = _SMALLEST_SIDE
    if counts.ndim == 3 and counts.shape[1] >= _RASTER:
        counts, side = counts[:, None], 2 * side
    if counts.ndim == 3:
        return _curves(_grey(counts, max_count, logarithmic))
    if counts.ndim == 5:
        counts = counts.amax(2)
    if counts.ndim == 2:
        counts = counts[:, None, None, :].expand(-1, 1, max(1, counts.shape[1] // 8), -1)
    grey = _grey(counts, max_count, logarithmic)
    if grey.shape[1] in (3, 4):
        pictures = grey[:, :3]
    else:
        pictures = torch.cat(list(grey.split(1, dim=1)), dim=3).expand(-1, 3, -1, -1)
    factor = max(1, min(math.ceil(side / min(pictures.shape[2:])), widest // pictures.shape[3]))
    return pictures.repeat_interleave(factor, 2).repeat_interleave(factor, 3).permute(0, 2, 3, 1).contiguous()


def _curves(grey: Tensor) -> Tensor:
    """Series [B, C, L] of brightness -> uint8 [B, H, L, 3]: white below the curve of each channel."""
    height = torch.arange(_SMALLEST_SIDE - 1, -1, -1)[:, None]
    below = grey.long()[:, :, None] * _SMALLEST_SIDE > 255 * height
    factor = max(1, _SMALLEST_MAP // (4 * grey.shape[-1]))
    drawn = (255 * below).to(torch.uint8).flatten(1, 2).repeat_interleave(factor, 2)
    return drawn[..., None].expand(-1, -1, -1, 3).contiguous()


def _grey(counts: Tensor, max_count: int, logarithmic: bool) -> Tensor:
    """255 x / max_count, or the same of log(1 + x): uint8 of the counts' shape, as `to_pictures` says."""
    if logarithmic:
        return (torch.log1p(counts.double()) * (255 / math.log1p(max_count))).clamp(max=255).round().to(torch.uint8)
    return (counts.double() * (255 / max_count)).clamp(max=255).round().to(torch.uint8)


def heat_map(counts: Tensor, max_count: int, logarithmic: bool = True) -> Image.Image:
    """Vectors [B, D] as rows, one below the other, black at 0 and white at max_count.

    Of more than 4,096 elements a pixel is the largest count of a few.
    """
    grey = _grey(counts.cpu(), max_count, logarithmic)
    grey = nn.functional.adaptive_max_pool1d(grey.float(), min(grey.shape[1], _WIDEST_MAP)).byte()
    factor = max(1, math.ceil(_SMALLEST_MAP / grey.shape[1]))
    grey = grey.repeat_interleave(factor, 1).repeat_interleave(max(4, factor), 0)
    return Image.fromarray(grey.numpy()).convert("RGB")


def with_scale(picture: Image.Image, largest: int, logarithmic: bool) -> Image.Image:
    """A picture of counts over a bar that says which brightness is how many; enlarged, where its numbers need it."""
    picture = ImageOps.scale(picture, math.ceil(160 / picture.width), Image.Resampling.NEAREST)
    width, height = picture.width, 26
    canvas = Image.new("RGB", (width, picture.height + height), (24, 24, 24))
    canvas.paste(picture, (0, 0))
    canvas.paste(Image.linear_gradient("L").rotate(90).resize((width - 8, 8)), (4, picture.height + 3))
    pen = ImageDraw.Draw(canvas)
    for k, (share, anchor) in enumerate(((0.0, "lt"), (0.5, "mt"), (1.0, "rt"))):
        count = (math.expm1(share * math.log1p(largest)) if logarithmic else share * largest) if k else 0
        pen.text((4 + share * (width - 9), picture.height + 13), f"{count:,.0f}", fill=(220, 220, 220), anchor=anchor)
    return canvas


def grid(
    counts: Tensor, max_count: int, columns: int | None = None, logarithmic: bool = False, labels: Sequence[str] = ()
) -> Image.Image:
    """Lay samples out in a near-square grid, two grey pixels between them, with labels below; one alone has neither."""
    if counts.ndim == 3 and counts.shape[1] >= _RASTER and columns is None:
        counts = counts[:_RASTERS]
    pictures = to_pictures(counts.cpu(), max_count, logarithmic, _WIDEST // (columns or 2))
    tiles = [Image.fromarray(picture.numpy()) for picture in pictures]
    if len(tiles) == 1:
        return tiles[0]
    width, height = tiles[0].size
    if labels:
        tiles = [ImageOps.expand(tile, (0, 0, 0, _LABEL), (_GREY,) * 3) for tile in tiles]
    for tile, label in zip(tiles, labels, strict=False):
        ImageDraw.Draw(tile).text((width // 2, height + 1), label[: width // 6], fill=(255,) * 3, anchor="mt")
    return laid_out(tiles, columns, _GAP, _GAP, (_GREY,) * 3)
