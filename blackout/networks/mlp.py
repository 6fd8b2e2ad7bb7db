"""A residual multilayer perceptron, for counts that are not images."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blackout.networks.layers import NEAR_ZERO, ClassEmbedding, TimeEmbedding, check_sizes, dense, full_precision


class FiLMPerceptron(nn.Module):
    """Residual two-layer perceptron whose normalised input is scaled and shifted by the time embedding.

    Maps [B, width] and an embedding [B, width] to [B, width].
    """

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.film = dense(width, 2 * width)
        self.dense0 = dense(width, width)
        self.dropout = nn.Dropout(dropout)
        self.dense1 = dense(width, width, scale=NEAR_ZERO)

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """[B, width] and an embedding [B, width] -> [B, width]."""
        scale, shift = self.film(embedding).chunk(2, dim=1)
        h = F.silu(self.dense0(torch.addcmul(shift, self.norm(x), 1 + scale)))
        return x + self.dense1(self.dropout(h))


class ResidualMLP(nn.Module):
    """Residual perceptrons on the flattened data: no notion of neighbourhood, any shape.

    Args:
        shape: of the data, (D,) or (C, H, W).
        outputs: number of output groups per element of the data.
        width: features of the residual stream, an even number of at least 4.
        depth: number of residual perceptrons.
        dropout: probability within them.
        num_classes: number of classes of a conditional network; None for an unconditional one.

    Raises:
        ValueError: a number is out of its range.
    """

    def __init__(
        self,
        shape: Sequence[int],
        outputs: int = 1,
        width: int = 256,
        depth: int = 4,
        dropout: float = 0.0,
        num_classes: int | None = None,
    ) -> None:
        super().__init__()
        check_sizes("perceptron", outputs=outputs, depth=depth, shape=min(shape))
        self.shape = tuple(shape)
        size = math.prod(shape)
        self.time = TimeEmbedding(width, width)
        self.stem = dense(size, width)
        self.blocks = nn.ModuleList(FiLMPerceptron(width, dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = dense(width, outputs * size, scale=NEAR_ZERO)
        self.classes = None if num_classes is None else ClassEmbedding(num_classes, width)

    def forward(self, x: Tensor, label: Tensor, classes: Tensor | None = None) -> Tensor:
        """Map scaled data, float [B, *shape], and time labels, float [B], to raw outputs.

        These are of shape [B, outputs * D], or [B, outputs * C, H, W] for images. Classes, int64 [B], are for networks
        that were made with `num_classes`; None is the null class.
        """
        embedding = self.time(label)
        embedding = F.silu(embedding if self.classes is None else self.classes(embedding, classes))
        x = x.flatten(1).to(self.stem.weight.dtype)
        with full_precision(x):
            h = self.stem(x)
        for block in self.blocks:
            h = block(h, embedding)
        with full_precision(h):
            raw = self.head(F.silu(self.norm(h.to(self.head.weight.dtype))))
        return raw.reshape(len(x), -1, *self.shape[1:])
