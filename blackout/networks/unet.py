"""Small U-Net of residual blocks for images of 8x8 to 32x32 pixels, series and small volumes.

References: Ronneberger et al. 2015.
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
from blackout.networks.dropout import Dropout
from blackout.networks.layers import (
    CONVOLUTIONS,
    NEAR_ZERO,
    Attention,
    ClassEmbedding,
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
from blackout.networks.space_to_depth import depth_to_space, space_to_depth, space_to_depth_shape

# By the number of spatial axes
TRANSPOSED_CONVOLUTIONS: dict[int, type[Any]] = {
    1: nn.ConvTranspose1d,
    2: nn.ConvTranspose2d,
    3: nn.ConvTranspose3d,
}


class FiLMBlock(nn.Module):
    """Residual block of two convolutions; the time embedding modulates the second norm.

    Args:
        in_channels: of the input.
        out_channels: of the output.
        features: of the time embedding.
        dropout: probability before the second convolution.
        attend: whether self-attention follows.
        axes: number of spatial axes.

    References: Perez et al. 2018, eq. 2.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        features: int,
        dropout: float,
        attend: bool = False,
        axes: int = 2,
    ) -> None:
        super().__init__()
        self.norm0 = group_norm(in_channels)
        self.conv0 = conv3x3(in_channels, out_channels, axes=axes)
        self.film = dense(features, 2 * out_channels)
        self.norm1 = group_norm(out_channels)
        self.dropout = Dropout(dropout)
        self.conv1 = conv3x3(out_channels, out_channels, NEAR_ZERO, axes)
        self.shortcut: nn.Module = nn.Identity()
        if in_channels != out_channels:
            self.shortcut = conv1x1(in_channels, out_channels, axes=axes)
        self.attention = Attention(out_channels, axes) if attend else nn.Identity()

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """Map [B, in_channels, *sides] and an embedding [B, features] to [B, out, *sides]."""
        h = self.conv0(self.norm0.activate(x))
        h = self.norm1.activate(h, self.film(embedding), self.dropout)
        h = self.conv1(h)
        return self.attention(self.shortcut(x).to(h.dtype) + h)


class DenseBlock(nn.Module):
    """Residual MLP over all positions of a small grid at once, modulated by the time embedding.

    On a 4x4 grid it mixes the whole image for less than attention costs.

    Args:
        channels: of input and output.
        sides: of the grid.
        width: of the hidden layer.
        features: of the time embedding.
        dropout: probability after the hidden layer.

    References: Perez et al. 2018, eq. 2.
    """

    def __init__(
        self,
        channels: int,
        sides: Sequence[int],
        width: int,
        features: int,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        size = channels * math.prod(sides)
        self.norm = group_norm(channels)
        self.linear0 = dense(size, width)
        self.film = dense(features, 2 * width)
        self.dropout = Dropout(dropout)
        self.linear1 = dense(width, size, scale=NEAR_ZERO)

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """Map [B, channels, *sides] and an embedding [B, features] to the same shape."""
        h = self.linear0(self.norm(x).flatten(1))
        h = F.silu(modulate(h, self.film(embedding)))
        h = self.linear1(self.dropout(h)).view(x.shape)
        return x.to(h.dtype) + h


@component("body")
class UNet(nn.Module):
    """U-Net with one skip connection per level and at least two blocks on the coarsest level.

    Args:
        shape: of one sample: (channels, height, width), (channels, length), (length,), or
            (channels, depth, height, width). Sides must be multiples of
            2 ** (levels - 1) * `fold`.
        outputs: number of output channels per data channel.
        channels: width of the finest level, an even number of at least 4.
        multipliers: width of each level, finest first, in units of `channels`.
        blocks_per_level: residual blocks per level, the same number down and up.
        attention_resolutions: lengths of the longer image side at which blocks are followed by
            attention.
        dense_blocks: number of MLPs over the whole coarsest grid, between its two residual blocks.
        dense_width: their hidden width.
        dropout: probability in the residual blocks and the MLPs.
        num_classes: number of classes of a conditional network; None for an unconditional one.
        fold: neighbours per side that are stacked as channels, which saves work at the finest
            level.
        covariate_levels: number of levels of each covariate, see `ClassEmbedding`.
        noise: number of channels of noise after the data's, for distilled models.

    Raises:
        ValueError: the levels do not fit the image, or a size is out of range.

    Example:
        >>> network = UNet((1, 8, 8), channels=8)
        >>> network(torch.zeros(2, 1, 8, 8), torch.tensor([0.0, 999.0])).shape
        torch.Size([2, 1, 8, 8])

    References: Ronneberger et al. 2015.
    """

    def __init__(  # noqa: PLR0913 - built from YAML
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
        # 1. Check the sizes.
        check_sizes(
            "U-Net",
            outputs=outputs,
            blocks_per_level=blocks_per_level,
            dense_width=dense_width,
            fold=fold,
            multipliers=min(multipliers, default=0),
        )
        check_sizes("U-Net", 0, dense_blocks=dense_blocks, noise=noise)
        self.shape = tuple(shape)
        self.fold = fold
        self.noise = noise
        in_channels, *sides = space_to_depth_shape(shape, fold)
        axes = len(sides)
        level_sides = sides_per_level((in_channels, *sides), len(multipliers), (1, 2, 3))
        attend = [side in attention_resolutions for side in level_sides]
        widths = [channels * multiplier for multiplier in multipliers]
        features = 4 * channels

        def blocks(first_width: int, level: int) -> nn.ModuleList:
            width = widths[level]
            in_widths = [first_width] + [width] * (blocks_per_level - 1)
            return nn.ModuleList(
                FiLMBlock(in_width, width, features, dropout, attend[level], axes)
                for in_width in in_widths
            )

        # 2. Time embedding and first convolution. Convolutions alone do not know the position.
        self.time = TimeEmbedding(channels, features)
        self.stem = conv3x3(in_channels + noise * fold**axes, widths[0], axes=axes)
        self.position = nn.Parameter(torch.zeros(1, widths[0], *sides))

        # 3. Way down: blocks, then a strided convolution, for every level but the coarsest.
        fine_levels = range(len(widths) - 1)
        self.down = nn.ModuleList(blocks(widths[level], level) for level in fine_levels)
        self.shrink = nn.ModuleList(
            CONVOLUTIONS[axes](fine, coarse, 3, stride=2, padding=1)
            for fine, coarse in pairwise(widths)
        )

        # 4. Coarsest level.
        width = widths[-1]
        coarsest_sides = [side >> len(fine_levels) for side in sides]
        self.middle = nn.ModuleList([FiLMBlock(width, width, features, dropout, attend[-1], axes)])
        self.middle.extend(
            DenseBlock(width, coarsest_sides, dense_width, features, dropout)
            for _ in range(dense_blocks)
        )
        self.middle.append(FiLMBlock(width, width, features, dropout, axes=axes))

        # 5. Way up: a transposed convolution, then blocks that also get the skip connection.
        self.grow = nn.ModuleList(
            TRANSPOSED_CONVOLUTIONS[axes](coarse, fine, 2, stride=2)
            for fine, coarse in pairwise(widths)
        )
        self.up = nn.ModuleList(blocks(2 * widths[level], level) for level in fine_levels)
        self.norm = group_norm(widths[0])
        self.head = conv3x3(widths[0], outputs * in_channels, NEAR_ZERO, axes)
        self.classes: ClassEmbedding | None = None
        if num_classes is not None:
            self.classes = ClassEmbedding(num_classes, features, covariate_levels)

    def forward(self, x: Tensor, time_index: Tensor, classes: Tensor | None = None) -> Tensor:
        """Map scaled data and time indices to raw outputs.

        Args:
            x: scaled data, float [B, *shape], with `noise` more channels if there are any.
            time_index: time indices, float [B].
            classes: int64 [B], of a network with `num_classes`; None for the null class.

        Returns:
            [B, outputs * C, *sides], channel groups in order.
        """
        # 1. Embed time and class.
        embedding = self.time(time_index)
        if self.classes is not None:
            embedding = self.classes(embedding, classes)
        embedding = F.silu(embedding)

        # 2. First convolution.
        sides = self.shape[-max(1, len(self.shape) - 1) :]
        x = space_to_depth(x.reshape(len(x), -1, *sides), self.fold).to(self.position.dtype)
        with full_precision(x):
            h = self.stem(x) + self.position

        # 3. Way down, coarsest level, way up.
        skips: list[Tensor] = []
        for blocks, shrink in zip(self.down, self.shrink, strict=True):
            h = self._apply_blocks(blocks, h, embedding)
            skips.append(h)
            h = shrink(h)
        h = self._apply_blocks(self.middle, h, embedding)
        for blocks, grow in zip(reversed(self.up), reversed(self.grow), strict=True):
            h = grow(h)
            h = torch.cat([h, skips.pop().to(h.dtype)], dim=1)
            h = self._apply_blocks(blocks, h, embedding)

        # 4. Last convolution.
        with full_precision(h):
            raw = self.head(self.norm.activate(h.to(self.position.dtype)))
        return depth_to_space(raw, self.fold).reshape(len(x), -1, *self.shape[1:])

    @staticmethod
    def _apply_blocks(blocks: nn.Module, h: Tensor, embedding: Tensor) -> Tensor:
        """Apply blocks in turn to features [B, C, *sides], with an embedding [B, features]."""
        for block in blocks.children():
            h = block(h, embedding)
        return h
