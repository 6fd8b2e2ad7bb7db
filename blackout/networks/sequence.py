"""A residual convolutional network on sequences: of levels without an order, which are embedded, or of counts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blackout.networks.layers import (
    NEAR_ZERO,
    ClassEmbedding,
    TimeEmbedding,
    check_sizes,
    dense,
    group_norm,
    initialised,
)
from blackout.networks.precision import full_precision


class StateInputs:
    """The states themselves, for bodies that embed them."""

    def __call__(self, xt: Tensor, t: Tensor) -> Tensor:
        """Levels [B, *shape] -> the same as float32."""
        return xt.float()


class DilatedBlock(nn.Module):
    """Residual block of two convolutions, the first dilated, scaled and shifted by the time embedding between them.

    Maps [B, width, L] and an embedding [B, features] to [B, width, L].
    """

    def __init__(self, width: int, features: int, kernel: int, dilation: int, dropout: float) -> None:
        super().__init__()
        self.norm0, self.norm1 = group_norm(width), group_norm(width)
        reach = dilation * (kernel - 1) // 2
        self.conv0 = nn.Conv1d(width, width, kernel, padding=reach, dilation=dilation)
        self.film = dense(features, 2 * width)
        self.dropout = nn.Dropout(dropout)
        self.conv1 = nn.Conv1d(width, width, 1)
        nn.init.xavier_uniform_(self.conv1.weight, gain=NEAR_ZERO**0.5)

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """[B, width, L] and an embedding [B, features] -> [B, width, L]."""
        scale, shift = self.film(embedding)[:, :, None].chunk(2, dim=1)
        h = self.conv0(F.silu(self.norm0(x)))
        h = F.silu(torch.addcmul(shift, self.norm1(h), 1 + scale))
        return x.to(h.dtype) + self.conv1(self.dropout(h))


class SequenceConvolution(nn.Module):
    """Dilated convolutions along a sequence, with what every place is and its surroundings as far as the whole.

    Args:
        shape: of the data, (L,).
        outputs: number of output groups per place.
        levels: states there can be, which are embedded; None for numbers on a scale.
        width: features per place, an even number of at least 4.
        depth: number of residual blocks; their dilations are 1, 2, 4, ... up to the length, and again.
        kernel: places that a convolution sees, an odd number.
        dropout: probability within the blocks.
        num_classes: number of classes of a conditional network; None for an unconditional one.
        covariate_levels: levels of each covariate, see `ClassEmbedding`.

    Raises:
        ValueError: no sequence, an even kernel, or another number out of its range.
    """

    def __init__(
        self,
        shape: Sequence[int],
        outputs: int = 1,
        levels: int | None = None,
        width: int = 96,
        depth: int = 6,
        kernel: int = 3,
        dropout: float = 0.0,
        num_classes: int | None = None,
        covariate_levels: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        check_sizes("sequence network", outputs=outputs, depth=depth, kernel=kernel)
        if len(shape) != 1 or kernel % 2 == 0:
            raise ValueError(f"sequences [L] and an odd kernel are needed, got shape {list(shape)}, kernel={kernel}")
        length, features = shape[0], 2 * width
        self.levels = levels
        self.time = TimeEmbedding(width, features)
        self.stem = nn.Embedding(levels, width) if levels is not None else dense(1, width)
        self.position = nn.Parameter(torch.zeros(1, width, length))
        dilations = [2**k for k in range(max(1, (length - 1).bit_length() - 1))]
        self.blocks = nn.ModuleList(
            DilatedBlock(width, features, kernel, dilations[k % len(dilations)], dropout) for k in range(depth)
        )
        self.norm = group_norm(width)
        self.head = initialised(nn.Linear(width, outputs), NEAR_ZERO)
        self.classes = None if num_classes is None else ClassEmbedding(num_classes, features, covariate_levels)

    def forward(self, x: Tensor, label: Tensor, classes: Tensor | None = None) -> Tensor:
        """Map states or scaled data, float [B, L], and time labels, float [B], to raw outputs [B, outputs * L].

        Classes, int64 [B], are for networks that were made with `num_classes`; None is the null class.
        """
        embedding = self.time(label)
        embedding = F.silu(embedding if self.classes is None else self.classes(embedding, classes))
        with full_precision(x):
            h = self.stem(x.long() if self.levels is not None else x[:, :, None].to(self.stem.weight.dtype))
            h = h.transpose(1, 2) + self.position
        for block in self.blocks:
            h = block(h, embedding)
        with full_precision(h):
            h = F.silu(self.norm(h.to(self.head.weight.dtype)))
            return self.head(h.transpose(1, 2)).transpose(1, 2).flatten(1)
