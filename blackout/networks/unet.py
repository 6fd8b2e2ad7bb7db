"""A small, plain U-Net: for images of 8x8 to 32x32 pixels and for machines without an accelerator."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blackout.networks.layers import (
    NEAR_ZERO,
    Attention,
    ClassEmbedding,
    TimeEmbedding,
    check_sizes,
    conv1x1,
    conv3x3,
    dense,
    group_norm,
    sides_per_level,
)
from blackout.networks.precision import full_precision


class FiLMBlock(nn.Module):
    """Residual block whose second normalisation is scaled and shifted by the time embedding.

    Maps [B, in_channels, H, W] and an embedding [B, features] to [B, out_channels, H, W].
    """

    def __init__(
        self, in_channels: int, out_channels: int, features: int, dropout: float = 0.0, attend: bool = False
    ) -> None:
        super().__init__()
        self.norm0 = group_norm(in_channels)
        self.conv0 = conv3x3(in_channels, out_channels)
        self.film = dense(features, 2 * out_channels)
        self.norm1 = group_norm(out_channels)
        self.dropout = nn.Dropout(dropout)
        self.conv1 = conv3x3(out_channels, out_channels, scale=NEAR_ZERO)
        self.shortcut = conv1x1(in_channels, out_channels) if in_channels != out_channels else nn.Identity()
        self.attention = Attention(out_channels) if attend else nn.Identity()

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """[B, in_channels, H, W] and an embedding [B, features] -> [B, out_channels, H, W]."""
        h = self.conv0(F.silu(self.norm0(x)))
        scale, shift = self.film(embedding)[:, :, None, None].chunk(2, dim=1)
        h = F.silu(torch.addcmul(shift, self.norm1(h), 1 + scale))
        h = self.conv1(self.dropout(h))
        return self.attention(self.shortcut(x).to(h.dtype) + h)


class DenseBlock(nn.Module):
    """Residual perceptron over all positions of a small grid at once, scaled and shifted by the time embedding.

    At 4x4 it sees the whole image for less than attention costs. [B, channels, *sides] to the same.
    """

    def __init__(self, channels: int, sides: Sequence[int], width: int, features: int, dropout: float = 0.0) -> None:
        super().__init__()
        size = channels * sides[0] * sides[1]
        self.norm = group_norm(channels)
        self.linear0 = dense(size, width)
        self.film = dense(features, 2 * width)
        self.dropout = nn.Dropout(dropout)
        self.linear1 = dense(width, size, scale=NEAR_ZERO)

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """[B, channels, *sides] and an embedding [B, features] -> [B, channels, *sides]."""
        scale, shift = self.film(embedding).chunk(2, dim=1)
        h = F.silu(torch.addcmul(shift, self.linear0(self.norm(x).flatten(1)), 1 + scale))
        h = self.linear1(self.dropout(h)).view(x.shape)
        return x.to(h.dtype) + h


class UNet(nn.Module):
    """Residual blocks on halved levels, one skip connection per level, two blocks on the coarsest.

    Args:
        shape: of the data, (channels, height, width); the sides must be divisible by 2 ** (levels - 1).
        outputs: number of output channel groups per data channel.
        channels: width of the finest level, an even number of at least 4.
        multipliers: width of each level, finest first, in units of `channels`.
        blocks_per_level: residual blocks per level, the same number down and up.
        attention_resolutions: lengths of the longer image side at which blocks are followed by attention.
        dense_blocks: perceptrons over the whole coarsest grid, between its two residual blocks.
        dense_width: their hidden width.
        dropout: probability in the residual blocks and the perceptrons.
        num_classes: number of classes of a conditional network; None for an unconditional one.

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
    ) -> None:
        super().__init__()
        check_sizes("U-Net", outputs=outputs, blocks_per_level=blocks_per_level, dense_width=dense_width)
        check_sizes("U-Net", multipliers=min(multipliers, default=0))
        check_sizes("U-Net", 0, dense_blocks=dense_blocks)
        attend = [side in attention_resolutions for side in sides_per_level(shape, len(multipliers))]
        widths = [channels * multiplier for multiplier in multipliers]
        features = 4 * channels
        self.time = TimeEmbedding(channels, features)
        self.stem = conv3x3(shape[0], widths[0])
        # where in the image a pixel is, which convolutions alone do not know
        self.position = nn.Parameter(torch.zeros(1, widths[0], *shape[1:]))

        def blocks(first: int, level: int) -> nn.ModuleList:
            inputs = [first] + [widths[level]] * (blocks_per_level - 1)
            return nn.ModuleList([FiLMBlock(w, widths[level], features, dropout, attend[level]) for w in inputs])

        finer = range(len(widths) - 1)
        self.down = nn.ModuleList([blocks(widths[level], level) for level in finer])
        self.shrink = nn.ModuleList([nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in pairwise(widths)])
        coarse, grid = widths[-1], [side >> len(finer) for side in shape[1:]]
        self.middle = nn.ModuleList([FiLMBlock(coarse, coarse, features, dropout, attend[-1])])
        self.middle.extend(DenseBlock(coarse, grid, dense_width, features, dropout) for _ in range(dense_blocks))
        self.middle.append(FiLMBlock(coarse, coarse, features, dropout))
        self.grow = nn.ModuleList([nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in pairwise(widths)])
        self.up = nn.ModuleList([blocks(2 * widths[level], level) for level in finer])
        self.norm = group_norm(widths[0])
        self.head = conv3x3(widths[0], outputs * shape[0], scale=NEAR_ZERO)
        self.classes = None if num_classes is None else ClassEmbedding(num_classes, features)

    def forward(self, x: Tensor, label: Tensor, classes: Tensor | None = None) -> Tensor:
        """Map scaled data, float [B, C, H, W], and time labels, float [B], to raw [B, outputs * C, H, W].

        Classes, int64 [B], are for networks that were made with `num_classes`; None is the null class.
        """
        embedding = self.time(label)
        embedding = F.silu(embedding if self.classes is None else self.classes(embedding, classes))
        x = x.to(self.stem.weight.dtype)
        with full_precision(x):
            h = self.stem(x) + self.position
        skips: list[Tensor] = []
        for level, shrink in enumerate(self.shrink):
            h = self._through(self.down[level], h, embedding)
            skips.append(h)
            h = shrink(h)
        h = self._through(self.middle, h, embedding)
        for level in reversed(range(len(self.grow))):
            h = self.grow[level](h)
            h = torch.cat([h, skips.pop().to(h.dtype)], dim=1)
            h = self._through(self.up[level], h, embedding)
        with full_precision(h):
            return self.head(F.silu(self.norm(h.to(self.head.weight.dtype))))

    @staticmethod
    def _through(blocks: nn.Module, h: Tensor, embedding: Tensor) -> Tensor:
        for block in blocks.children():
            h = block(h, embedding)
        return h
