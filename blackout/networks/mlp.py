"""A residual multilayer perceptron, for counts that are not images."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blackout.networks.layers import NEAR_ZERO, ClassEmbedding, TimeEmbedding, check_sizes, dense
from blackout.networks.precision import LayerNorm, full_precision


class FiLMPerceptron(nn.Module):
    """Residual two-layer perceptron whose normalised input is scaled and shifted by the time embedding.

    Maps [B, width] and an embedding [B, width] to [B, width].
    """

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = LayerNorm(width)
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
        covariate_levels: levels of each covariate, see `ClassEmbedding`.

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
        covariate_levels: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        check_sizes("perceptron", outputs=outputs, depth=depth, shape=min(shape))
        self.shape = tuple(shape)
        size = math.prod(shape)
        self.time = TimeEmbedding(width, width)
        self.stem = dense(size, width)
        self.blocks = nn.ModuleList(FiLMPerceptron(width, dropout) for _ in range(depth))
        self.norm = LayerNorm(width)
        self.head = dense(width, outputs * size, scale=NEAR_ZERO)
        self.classes = None if num_classes is None else ClassEmbedding(num_classes, width, covariate_levels)

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


class OwnFunctions(nn.Module):
    """A small perceptron of every element by itself, whose weights change with time: what its own count says of it.

    Args:
        size: number of elements D.
        outputs: numbers per element.
        units: hidden units per element.
        features: of the time embedding, an even number of at least 4.
    """

    def __init__(self, size: int, outputs: int, units: int = 8, features: int = 16) -> None:
        super().__init__()
        self.size, self.outputs, self.units = size, outputs, units
        self.time = TimeEmbedding(features, features)
        self.slope = nn.Parameter(torch.randn(size, units))
        self.shift = dense(features, size * units)
        self.weight = dense(features, outputs * size * units, scale=NEAR_ZERO)

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        """[B, D] and time labels [B] -> [B, outputs * D]."""
        embedding = F.silu(self.time(label))
        shift = self.shift(embedding).view(len(x), self.size, self.units)
        hidden = torch.tanh(torch.addcmul(shift, x[:, :, None], self.slope))
        weight = self.weight(embedding).view(len(x), self.outputs, self.size, self.units)
        return (weight * hidden[:, None]).sum(-1).flatten(1)


class ElementwiseMLP(ResidualMLP):
    """`ResidualMLP`, which says what elements say of each other, plus what each says of itself.

    In a perceptron alone every element's own curve must pass through hidden units that all elements share.

    Args:
        shape, outputs, width, depth, dropout, num_classes, covariate_levels: as for `ResidualMLP`.
        units: hidden units of every element's own perceptron.
    """

    def __init__(
        self,
        shape: Sequence[int],
        outputs: int = 1,
        width: int = 256,
        depth: int = 4,
        dropout: float = 0.0,
        num_classes: int | None = None,
        units: int = 8,
        covariate_levels: Sequence[int] | None = None,
    ) -> None:
        super().__init__(shape, outputs, width, depth, dropout, num_classes, covariate_levels)
        check_sizes("perceptron", units=units)
        self.own = OwnFunctions(math.prod(shape), outputs, units)

    def forward(self, x: Tensor, label: Tensor, classes: Tensor | None = None) -> Tensor:
        """As `ResidualMLP.forward`."""
        raw = super().forward(x, label, classes)
        with full_precision(raw):
            return raw + self.own(x.flatten(1).to(raw.dtype), label).view_as(raw)
