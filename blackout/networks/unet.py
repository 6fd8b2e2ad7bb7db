"""A small, plain U-Net [Ronneberger 2015] of residual blocks, for images of 8x8 to 32x32 pixels, series and small
volumes, on a CPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blackout.component import component
from blackout.networks.layers import (
    CONVOLUTIONS,
    NEAR_ZERO,
    Attention,
    ClassEmbedding,
    Dropout,
    TimeEmbedding,
    check_sizes,
    conv1x1,
    conv3x3,
    dense,
    full_precision,
    group_norm,
    modulate,
    sides_per_level,
)

_GROWING: dict[int, type[Any]] = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


class FiLMBlock(nn.Module):
    """Residual block whose second normalisation is scaled and shifted by the time embedding [Perez 2018, eq. 2].

    Maps [B, in_channels, H, W] and an embedding [B, features] to [B, out_channels, H, W]; likewise other `axes`.
    """

    def __init__(
        self, in_channels: int, out_channels: int, features: int, dropout: float, attend: bool = False, axes: int = 2
    ) -> None:
        super().__init__()
        self.norm0 = group_norm(in_channels)
        self.conv0 = conv3x3(in_channels, out_channels, axes=axes)
        self.film = dense(features, 2 * out_channels)
        self.norm1 = group_norm(out_channels)
        self.dropout = Dropout(dropout)
        self.conv1 = conv3x3(out_channels, out_channels, NEAR_ZERO, axes)
        changes = in_channels != out_channels
        self.shortcut = conv1x1(in_channels, out_channels, axes=axes) if changes else nn.Identity()
        self.attention = Attention(out_channels, axes) if attend else nn.Identity()

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """[B, in_channels, H, W] and an embedding [B, features] -> [B, out_channels, H, W] [Perez 2018, eq. 2]."""
        h = self.conv0(self.norm0.activate(x))
        h = self.conv1(self.norm1.activate(h, self.film(embedding), self.dropout))
        return self.attention(self.shortcut(x).to(h.dtype) + h)


class DenseBlock(nn.Module):
    """Residual perceptron over all positions of a small grid at once, modulated by the time embedding [Perez 2018].

    At 4x4 it sees the whole image for less than attention costs. [B, channels, *sides] to the same.
    """

    def __init__(self, channels: int, sides: Sequence[int], width: int, features: int, dropout: float = 0.0) -> None:
        super().__init__()
        size = channels * math.prod(sides)
        self.norm = group_norm(channels)
        self.linear0 = dense(size, width)
        self.film = dense(features, 2 * width)
        self.dropout = Dropout(dropout)
        self.linear1 = dense(width, size, scale=NEAR_ZERO)

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """[B, channels, *sides] and an embedding [B, features] -> [B, channels, *sides], `modulate`
        [Perez 2018, eq. 2].
        """
        h = F.silu(modulate(self.linear0(self.norm(x).flatten(1)), self.film(embedding)))
        h = self.linear1(self.dropout(h)).view(x.shape)
        return x.to(h.dtype) + h


@component("body")
class UNet(nn.Module):
    """Residual blocks on halved levels, one skip connection per level, two blocks on the coarsest [Ronneberger 2015].

    Args:
        shape: of the data, (channels, height, width), (channels, length), (length,) or a volume's with three sides; the
            sides must be divisible by 2 ** (levels - 1) times `fold`.
        outputs: number of output channel groups per data channel.
        channels: width of the finest level, an even number of at least 4.
        multipliers: width of each level, finest first, in units of `channels`.
        blocks_per_level: residual blocks per level, the same number down and up.
        attention_resolutions: lengths of the longer image side at which blocks are followed by attention.
        dense_blocks: perceptrons over the whole coarsest grid, between its two residual blocks.
        dense_width: their hidden width.
        dropout: probability in the residual blocks and the perceptrons.
        num_classes: number of classes of a conditional network; None for an unconditional one.
        covariate_levels: levels of each covariate, see `ClassEmbedding`.
        noise: channels beside the data's, of noise that the network turns into a draw.
        fold: so many neighbours along every side are channels of one place, which saves the finest level's work.

    Raises:
        ValueError: the levels do not fit the image, or a number is out of its range.
    """

    def __init__(
        self,
        shape: Sequence[int],
        outputs: int = 1,
        channels: int = 32,
        multipliers: Sequence[int] = (1, 2),
        blocks_per_level: int = 1,
        attention_resolutions: Sequence[int] = (),
        dense_blocks: int = 0,
        dense_width: int = 512,
        dropout: float = 0.0,
        num_classes: int | None = None,
        fold: int = 1,
        covariate_levels: Sequence[int] | None = None,
        noise: int = 0,
    ) -> None:
        super().__init__()
        check_sizes("U-Net", outputs=outputs, blocks_per_level=blocks_per_level, dense_width=dense_width, fold=fold)
        check_sizes("U-Net", multipliers=min(multipliers, default=0))
        check_sizes("U-Net", 0, dense_blocks=dense_blocks, noise=noise)
        self.shape, self.fold, self.noise, space = tuple(shape), fold, noise, folded_shape(shape, fold)
        axes = len(space) - 1
        attend = [side in attention_resolutions for side in sides_per_level(space, len(multipliers), (1, 2, 3))]
        widths = [channels * multiplier for multiplier in multipliers]
        features = 4 * channels
        self.time = TimeEmbedding(channels, features)
        self.stem = conv3x3(space[0] + noise * fold**axes, widths[0], axes=axes)
        # where in the image a pixel is, which convolutions alone do not know
        self.position = nn.Parameter(torch.zeros(1, widths[0], *space[1:]))

        def blocks(first: int, level: int) -> nn.ModuleList:
            inputs = [first] + [widths[level]] * (blocks_per_level - 1)
            return nn.ModuleList([FiLMBlock(w, widths[level], features, dropout, attend[level], axes) for w in inputs])

        finer = range(len(widths) - 1)
        self.down = nn.ModuleList([blocks(widths[level], level) for level in finer])
        self.shrink = nn.ModuleList([CONVOLUTIONS[axes](a, b, 3, stride=2, padding=1) for a, b in pairwise(widths)])
        coarse, grid = widths[-1], [side >> len(finer) for side in space[1:]]
        self.middle = nn.ModuleList([FiLMBlock(coarse, coarse, features, dropout, attend[-1], axes)])
        self.middle.extend(DenseBlock(coarse, grid, dense_width, features, dropout) for _ in range(dense_blocks))
        self.middle.append(FiLMBlock(coarse, coarse, features, dropout, axes=axes))
        self.grow = nn.ModuleList([_GROWING[axes](b, a, 2, stride=2) for a, b in pairwise(widths)])
        self.up = nn.ModuleList([blocks(2 * widths[level], level) for level in finer])
        self.norm = group_norm(widths[0])
        self.head = conv3x3(widths[0], outputs * space[0], NEAR_ZERO, axes)
        self.classes = None if num_classes is None else ClassEmbedding(num_classes, features, covariate_levels)

    def forward(self, x: Tensor, label: Tensor, classes: Tensor | None = None) -> Tensor:
        """Map scaled data, float [B, *shape], and time labels, float [B], to raw [B, outputs * C, *sides].

        [Ronneberger 2015], as in the class.

        Classes, int64 [B], are for networks that were made with `num_classes`; None is the null class.
        """
        embedding = self.time(label)
        embedding = F.silu(embedding if self.classes is None else self.classes(embedding, classes))
        x = folded(x.reshape(len(x), -1, *self.shape[-max(1, len(self.shape) - 1) :]), self.fold)
        x = x.to(self.position.dtype)
        with full_precision(x):
            h = self.stem(x) + self.position
        skips: list[Tensor] = []
        for blocks, shrink in zip(self.down, self.shrink, strict=True):
            skips.append(self._through(blocks, h, embedding))
            h = shrink(skips[-1])
        h = self._through(self.middle, h, embedding)
        for blocks, grow in reversed(list(zip(self.up, self.grow, strict=True))):
            h = grow(h)
            h = self._through(blocks, torch.cat([h, skips.pop().to(h.dtype)], dim=1), embedding)
        with full_precision(h):
            raw = self.head(self.norm.activate(h.to(self.position.dtype)))
        return unfolded(raw, self.fold).reshape(len(x), -1, *self.shape[1:])

    @staticmethod
    def _through(blocks: nn.Module, h: Tensor, embedding: Tensor) -> Tensor:
        """Features [B, C, *sides] after these blocks, given an embedding [B, features]."""
        for block in blocks.children():
            h = block(h, embedding)
        return h


def folded_shape(shape: Sequence[int], fold: int) -> tuple[int, ...]:
    """Channels and sides of what a U-Net works on, where the data are of `shape`: that of `folded`."""
    channels, *sides = shape if len(shape) > 1 else (1, *shape)
    if any(side % fold for side in sides):
        raise ValueError(f"sides that are multiples of fold={fold} are needed, got {'x'.join(map(str, sides))}")
    return (channels * fold ** len(sides), *(side // fold for side in sides))


def folded(x: Tensor, fold: int) -> Tensor:
    """[B, C, n * fold, ...] -> [B, C * fold ** axes, n, ...]: neighbours become channels of one place.

    Ours (tests/networks/test_small_networks.py).
    """
    axes = x.ndim - 2
    split = x.reshape(*x.shape[:2], *(size for side in x.shape[2:] for size in (side // fold, fold)))
    return split.permute(0, 1, *range(3, 3 + 2 * axes, 2), *range(2, 2 + 2 * axes, 2)).flatten(1, 1 + axes)


def unfolded(x: Tensor, fold: int) -> Tensor:
    """The inverse of `folded`: [B, C * fold ** axes, n, ...] -> [B, C, n * fold, ...]."""
    axes, sides = x.ndim - 2, [side * fold for side in x.shape[2:]]
    split = x.unflatten(1, (-1, *[fold] * axes))
    order = [axis for k in range(axes) for axis in (2 + axes + k, 2 + k)]
    return split.permute(0, 1, *order).reshape(len(x), -1, *sides)
