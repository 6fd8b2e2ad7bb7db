"""A small, plain U-Net: for images of 8x8 to 32x32 pixels and for machines without an accelerator."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blackout.networks.layers import (
    NEAR_ZERO,
    Attention,
    ClassEmbedding,
    TimeEmbedding,
    conv1x1,
    conv3x3,
    dense,
    full_precision,
    group_norm,
    sides_per_level,
)


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
        h = self.conv0(F.silu(self.norm0(x)))
        scale, shift = self.film(embedding)[:, :, None, None].chunk(2, dim=1)
        h = F.silu(torch.addcmul(shift, self.norm1(h), 1 + scale))
        h = self.conv1(self.dropout(h))
        return self.attention(self.shortcut(x).to(h.dtype) + h)


class UNet(nn.Module):
    """Residual blocks on average-pooled levels, joined by skip connections and nearest-neighbour upsampling.

    Args:
        shape: of the data, (channels, height, width); the sides must be divisible by 2 ** (levels - 1).
        outputs: number of output channel groups per data channel.
        channels: width of the finest level, an even number of at least 4.
        multipliers: width of each level, finest first, in units of `channels`.
        blocks_per_level: residual blocks per level, the same number down and up.
        attention_resolutions: lengths of the longer image side at which blocks are followed by attention.
        dropout: probability in the residual blocks.
        num_classes: classes the network can be told; None for a network that knows of none.

    Raises:
        ValueError: the levels do not fit the image, or a number is out of its range.
    """

    def __init__(
        self,
        shape: Sequence[int],
        outputs: int = 1,
        channels: int = 64,
        multipliers: Sequence[int] = (1, 2),
        blocks_per_level: int = 1,
        attention_resolutions: Sequence[int] = (),
        dropout: float = 0.0,
        num_classes: int | None = None,
    ) -> None:
        super().__init__()
        if min(outputs, blocks_per_level, len(multipliers), *multipliers) < 1:
            raise ValueError(
                "outputs, blocks_per_level and one or more multipliers of the U-Net must be at least 1, "
                f"got {outputs}, {blocks_per_level} and {list(multipliers)}"
            )
        attend = [side in attention_resolutions for side in sides_per_level(shape, len(multipliers))]
        widths = [channels * multiplier for multiplier in multipliers]
        features = 4 * channels
        self.time = TimeEmbedding(channels, features)

        self.blocks_per_level = blocks_per_level
        self.stem = conv3x3(shape[0], channels)
        width = channels
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        for level in range(len(widths)):
            for _ in range(blocks_per_level):
                self.down.append(FiLMBlock(width, widths[level], features, dropout, attend[level]))
                width = widths[level]
        self.middle = FiLMBlock(width, width, features, dropout)
        for level in reversed(range(len(widths))):
            for _ in range(blocks_per_level):
                self.up.append(FiLMBlock(width + widths[level], widths[level], features, dropout, attend[level]))
                width = widths[level]
        self.norm = group_norm(width)
        self.head = conv3x3(width, outputs * shape[0], scale=NEAR_ZERO)
        self.classes = None if num_classes is None else ClassEmbedding(num_classes, features)

    def forward(self, x: Tensor, label: Tensor, classes: Tensor | None = None) -> Tensor:
        """Map scaled data, float [B, C, H, W], and time labels, float [B], to raw [B, outputs * C, H, W].

        Classes, int64 [B], are for networks that were made with `num_classes`; None is the null class.
        """
        embedding = self.time(label)
        embedding = F.silu(embedding if self.classes is None else self.classes(embedding, classes))
        x = x.to(self.stem.weight.dtype)
        with full_precision(x):
            h = self.stem(x)
        skips: list[Tensor] = []
        for index, block in enumerate(self.down):
            if index > 0 and index % self.blocks_per_level == 0:
                h = F.avg_pool2d(h, 2)
            h = block(h, embedding)
            skips.append(h)
        h = self.middle(h, embedding)
        for index, block in enumerate(self.up):
            if index > 0 and index % self.blocks_per_level == 0:
                h = F.interpolate(h, scale_factor=2.0, mode="nearest")
            h = block(torch.cat([h, skips.pop()], dim=1), embedding)
        with full_precision(h):
            return self.head(F.silu(self.norm(h.to(self.head.weight.dtype))))
