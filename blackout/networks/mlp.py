"""Networks for vectors: residual multilayer perceptrons for counts, and dilated convolutions for sequences.

Time shifts and scales what blocks have normalised [Perez 2018].
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blackout.component import component
from blackout.networks.layers import (
    NEAR_ZERO,
    ClassEmbedding,
    Dropout,
    LayerNorm,
    TimeEmbedding,
    check_sizes,
    dense,
    full_precision,
    group_norm,
    init_weights,
    modulate,
)


class FiLMPerceptron(nn.Module):
    """Residual two-layer perceptron whose normalised input is modulated by the time embedding [Perez 2018].

    Maps [B, width] and an embedding [B, width] to [B, width].
    """

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = LayerNorm(width)
        self.film = dense(width, 2 * width)
        self.dense0 = dense(width, width)
        self.dropout = Dropout(dropout)
        self.dense1 = dense(width, width, scale=NEAR_ZERO)

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """[B, width] and an embedding [B, width] -> [B, width], `modulate` [Perez 2018, eq. 2]."""
        h = F.silu(self.dense0(modulate(self.norm(x), self.film(embedding))))
        return x + self.dense1(self.dropout(h))


@component("body")
class ResidualMLP(nn.Module):
    """Residual perceptrons on the flattened data: no notion of neighbourhood, any shape.

    Ours (tests/networks/test_small_networks.py).

    They say what elements say of each other; beside them stands, where there are `knots`, what each says of itself. In
    a perceptron alone every element's own curve must pass through hidden units that all elements share.

    Args:
        shape: of the data, (D,) or (C, H, W).
        outputs: number of output groups per element of the data.
        width: features of the residual stream, an even number of at least 4.
        depth: number of residual perceptrons.
        dropout: probability within them.
        num_classes: number of classes of a conditional network; None for an unconditional one.
        covariate_levels: levels of each covariate, see `ClassEmbedding`.
        knots: of every element's own curve, for counts; 0 for none.

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
        knots: int = 0,
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
        self.own = OwnFunctions(size, outputs, knots) if knots else None
        self.reads_counts = knots > 0

    def forward(self, x: Tensor, label: Tensor, classes: Tensor | None = None, counts: Tensor | None = None) -> Tensor:
        """Map scaled data, float [B, *shape], and time labels, float [B], to raw outputs, as in the class.

        These are of shape [B, outputs * D], or [B, outputs * C, H, W] for images. Classes, int64 [B], are for networks
        that were made with `num_classes`; None is the null class. `counts` are those that were scaled, for `knots`.
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
            raw = raw if self.own is None or counts is None else raw + self.own(counts.flatten(1), label)
        return raw.reshape(len(x), -1, *self.shape[1:])


class OwnFunctions(nn.Module):
    """A curve of every element by itself, which changes with time: what its count says of it.

    Ours (tests/networks/test_elements.py).

    Piecewise linear in log2(1 + count) between knots at counts of 0, 1, 3, 7, ..., constant beyond the last: what sets
    0 apart from 1, and 1 from more, is no smooth function of either. A curve that all elements share is added, which is
    known long before every element's own is.

    Args:
        size: number of elements D.
        outputs: numbers per element.
        knots: of every curve, at least 2.
        features: of the time embedding, an even number of at least 4.
    """

    def __init__(self, size: int, outputs: int, knots: int = 9, features: int = 16) -> None:
        super().__init__()
        self.outputs, self.knots = outputs, knots
        self.time = TimeEmbedding(features, features)
        self.own = dense(features, outputs * size * knots, scale=NEAR_ZERO)
        self.shared = dense(features, outputs * knots, scale=NEAR_ZERO)

    def forward(self, counts: Tensor, label: Tensor) -> Tensor:
        """[B, D] and time labels [B] -> [B, outputs * D]: linear interpolation between knots, as in the class."""
        embedding = F.silu(self.time(label))
        sides = len(counts), self.outputs, -1, self.knots
        own, shared = self.own(embedding).view(sides), self.shared(embedding).view(sides)
        place = torch.log2(1 + counts.float()).clamp(max=self.knots - 1)
        left = place.long().clamp(max=self.knots - 2)
        ends = torch.stack([left, left + 1], -1)[:, None].expand(-1, self.outputs, -1, -1)
        low, high = (own + shared).gather(3, ends).unbind(3)
        return torch.lerp(low, high, (place - left)[:, None]).flatten(1)


class DilatedBlock(nn.Module):
    """Residual block of two convolutions, the first dilated [Oord 2016], modulated by the time embedding between them.

    Maps [B, width, L] and an embedding [B, features] to [B, width, L].
    """

    def __init__(self, width: int, features: int, kernel: int, dilation: int, dropout: float) -> None:
        super().__init__()
        self.norm0, self.norm1 = group_norm(width), group_norm(width)
        self.conv0 = nn.Conv1d(width, width, kernel, padding=dilation * (kernel - 1) // 2, dilation=dilation)
        self.film = dense(features, 2 * width)
        self.dropout = Dropout(dropout)
        self.conv1 = nn.Conv1d(width, width, 1)
        nn.init.xavier_uniform_(self.conv1.weight, gain=NEAR_ZERO**0.5)

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """[B, width, L] and an embedding [B, features] -> [B, width, L], `modulate` [Oord 2016; Perez 2018, eq. 2]."""
        h = self.conv0(F.silu(self.norm0(x)))
        h = F.silu(modulate(self.norm1(h), self.film(embedding)))
        return x.to(h.dtype) + self.conv1(self.dropout(h))


@component("body")
class SequenceConvolution(nn.Module):
    """Dilated convolutions along a sequence [Oord 2016], for levels without an order, which are embedded, or counts.

    Every place is told what it is; its surroundings reach as far as the whole sequence.

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
        self.head = init_weights(nn.Linear(width, outputs), NEAR_ZERO)
        self.classes = None if num_classes is None else ClassEmbedding(num_classes, features, covariate_levels)

    def forward(self, x: Tensor, label: Tensor, classes: Tensor | None = None) -> Tensor:
        """Map states or scaled data, float [B, L], and time labels, float [B], to raw outputs [B, outputs * L].

        As in the class [Oord 2016].

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
