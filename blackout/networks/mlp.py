"""Networks for vectors: residual MLPs for counts, and dilated convolutions for sequences.

The time embedding scales and shifts the normalised features of every block.

References: Perez et al. 2018.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blackout.component import component
from blackout.networks.dropout import Dropout
from blackout.networks.layers import (
    NEAR_ZERO,
    ClassEmbedding,
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
    """Residual two-layer MLP whose normalised input is modulated by the time embedding.

    Args:
        width: of input, hidden layer and output.
        dropout: probability after the hidden layer.

    References: Perez et al. 2018, eq. 2.
    """

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = LayerNorm(width)
        self.film = dense(width, 2 * width)
        self.dense0 = dense(width, width)
        self.dropout = Dropout(dropout)
        self.dense1 = dense(width, width, scale=NEAR_ZERO)

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """Map features [B, width] and an embedding, [B, width] or [1, width], to [B, width]."""
        h = modulate(self.norm(x), self.film(embedding))
        h = F.silu(self.dense0(h))
        return x + self.dense1(self.dropout(h))


@component("body")
class ResidualMLP(nn.Module):
    """Residual MLP on the flattened data, without a notion of neighbourhood.

    With `knots`, every element also has a curve of its own count (`ElementCurves`). An MLP alone
    would have to pass the curves of all elements through hidden units that the elements share.

    Args:
        shape: of one sample, (D,) or (C, H, W).
        outputs: number of outputs per element of the data.
        width: features of the residual stream, an even number of at least 4.
        depth: number of residual blocks.
        dropout: probability in the blocks.
        num_classes: number of classes of a conditional network; None for an unconditional one.
        covariate_levels: number of levels of each covariate, see `ClassEmbedding`.
        knots: number of knots of every element's curve; 0 for no curves.

    Raises:
        ValueError: a size is out of range.

    Example:
        >>> network = ResidualMLP((5,), outputs=2, width=8, depth=1)
        >>> network(torch.zeros(3, 5), torch.tensor([0.0, 10.0, 999.0])).shape
        torch.Size([3, 10])

    References: this project; checked in tests/networks/test_small_networks.py.
    """

    def __init__(  # noqa: PLR0913 - built from YAML
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
        self.reads_counts = knots > 0  # see `CountNetwork`
        size = math.prod(shape)
        self.time = TimeEmbedding(width, width)
        self.stem = dense(size, width)
        self.blocks = nn.ModuleList(FiLMPerceptron(width, dropout) for _ in range(depth))
        self.norm = LayerNorm(width)
        self.head = dense(width, outputs * size, scale=NEAR_ZERO)
        self.classes: ClassEmbedding | None = None
        if num_classes is not None:
            self.classes = ClassEmbedding(num_classes, width, covariate_levels)
        self.curves = ElementCurves(size, outputs, knots) if knots else None

    def forward(
        self,
        x: Tensor,
        time_index: Tensor,
        classes: Tensor | None = None,
        counts: Tensor | None = None,
    ) -> Tensor:
        """Map scaled data and time indices to raw outputs.

        Args:
            x: scaled data, float [B, *shape].
            time_index: time indices, float [B].
            classes: int64 [B], of a network with `num_classes`; None for the null class.
            counts: the unscaled data [B, *shape], for `knots`; None leaves the curves out.

        Returns:
            [B, outputs * D], or [B, outputs * C, H, W] for images.
        """
        if self.classes is None:
            time_index = shared_time(time_index)
        embedding = self.time(time_index)
        if self.classes is not None:
            embedding = self.classes(embedding, classes)
        embedding = F.silu(embedding)

        x = x.flatten(1).to(self.stem.weight.dtype)
        with full_precision(x):
            h = self.stem(x)
        for block in self.blocks:
            h = block(h, embedding)
        with full_precision(h):
            raw = self.head(F.silu(self.norm(h.to(self.head.weight.dtype))))
            if self.curves is not None and counts is not None:
                raw = raw + self.curves(counts.flatten(1), time_index)
        return raw.reshape(len(x), -1, *self.shape[1:])


def shared_time(time_index: Tensor) -> Tensor:
    """Return a single time index, [1], if all of a batch on the CPU are equal; else all, [B].

    In sampling, all elements of a batch have one time, and half of the work of a perceptron depends
    on time alone. Other devices would have to wait for the comparison.
    """
    if time_index.device.type != "cpu" or torch.compiler.is_compiling():
        return time_index
    is_shared = bool((time_index == time_index[:1]).all())
    return time_index[:1] if is_shared else time_index


class ElementCurves(nn.Module):
    """Learned function of each element's own count and the time: a piecewise linear curve.

    The curves are piecewise linear in log2(1 + count) between knots at counts of 0, 1, 3, 7, ...,
    and constant beyond the last: the steps from 0 to 1 and from 1 to 2 are often not smooth. A
    curve that all elements share is added; it is learned long before the individual ones.

    Args:
        size: number of elements D.
        outputs: number of outputs per element.
        knots: of every curve, at least 2.
        features: of the time embedding, an even number of at least 4.

    References: this project; checked in tests/networks/test_elements.py.
    """

    def __init__(self, size: int, outputs: int, knots: int = 9, features: int = 16) -> None:
        super().__init__()
        self.outputs = outputs
        self.knots = knots
        self.time = TimeEmbedding(features, features)
        self.individual = dense(features, outputs * size * knots, scale=NEAR_ZERO)
        self.shared = dense(features, outputs * knots, scale=NEAR_ZERO)

    def forward(self, counts: Tensor, time_index: Tensor) -> Tensor:
        """Evaluate the curves at counts [B, D] and times [B] or [1]; returns [B, outputs * D]."""
        # 1. Heights of the curves at the knots, [B, outputs, D, knots].
        embedding = F.silu(self.time(time_index))
        shape = (len(embedding), self.outputs, -1, self.knots)
        heights = self.individual(embedding).view(shape) + self.shared(embedding).view(shape)
        heights = heights.expand(len(counts), -1, -1, -1)

        # 2. Linear interpolation between the two neighbouring knots.
        position = torch.log2(1 + counts.float()).clamp(max=self.knots - 1)
        left = position.long().clamp(max=self.knots - 2)
        neighbours = torch.stack([left, left + 1], -1)[:, None].expand(-1, self.outputs, -1, -1)
        left_height, right_height = heights.gather(3, neighbours).unbind(3)
        return torch.lerp(left_height, right_height, (position - left)[:, None]).flatten(1)


class DilatedBlock(nn.Module):
    """Residual block of two convolutions, the first dilated, modulated in between.

    Args:
        width: channels of input and output.
        features: of the time embedding.
        kernel: size of the first convolution, an odd number.
        dilation: of the first convolution.
        dropout: probability before the second convolution.

    References: Oord et al. 2016; Perez et al. 2018, eq. 2.
    """

    def __init__(
        self, width: int, features: int, kernel: int, dilation: int, dropout: float
    ) -> None:
        super().__init__()
        self.norm0 = group_norm(width)
        self.norm1 = group_norm(width)
        padding = dilation * (kernel - 1) // 2
        self.conv0 = nn.Conv1d(width, width, kernel, padding=padding, dilation=dilation)
        self.film = dense(features, 2 * width)
        self.dropout = Dropout(dropout)
        self.conv1 = nn.Conv1d(width, width, 1)
        nn.init.xavier_uniform_(self.conv1.weight, gain=NEAR_ZERO**0.5)

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """Map features [B, width, L] and an embedding [B, features] to [B, width, L]."""
        h = self.conv0(F.silu(self.norm0(x)))
        h = F.silu(modulate(self.norm1(h), self.film(embedding)))
        return x.to(h.dtype) + self.conv1(self.dropout(h))


@component("body")
class SequenceConvolution(nn.Module):
    """Dilated convolutions along a sequence, of unordered levels (which are embedded) or counts.

    Every position has a learned embedding. With enough blocks the receptive field is the whole
    sequence.

    Args:
        shape: of one sample, (L,).
        outputs: number of outputs per position.
        levels: number of states, which are embedded; None for numbers on a scale.
        width: features per position, an even number of at least 4.
        depth: number of residual blocks; their dilations are 1, 2, 4, ... up to the length, then 1
            again.
        kernel: size of the dilated convolutions, an odd number.
        dropout: probability in the blocks.
        num_classes: number of classes of a conditional network; None for an unconditional one.
        covariate_levels: number of levels of each covariate, see `ClassEmbedding`.

    Raises:
        ValueError: `shape` is no sequence, the kernel is even, or a size is out of range.

    Example:
        >>> network = SequenceConvolution((6,), levels=4, width=8, depth=2)
        >>> network(torch.tensor([[0.0, 1.0, 2.0, 3.0, 0.0, 1.0]]), torch.tensor([10.0])).shape
        torch.Size([1, 6])

    References: Oord et al. 2016.
    """

    def __init__(  # noqa: PLR0913 - built from YAML
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
            raise ValueError(
                "the sequence network needs sequences of shape [L] and an odd kernel, "
                f"not shape {list(shape)} and kernel={kernel}"
            )
        length = shape[0]
        features = 2 * width
        self.levels = levels
        self.time = TimeEmbedding(width, features)
        self.stem = dense(1, width) if levels is None else nn.Embedding(levels, width)
        self.position = nn.Parameter(torch.zeros(1, width, length))
        num_dilations = max(1, (length - 1).bit_length() - 1)
        self.blocks = nn.ModuleList(
            DilatedBlock(width, features, kernel, 2 ** (k % num_dilations), dropout)
            for k in range(depth)
        )
        self.norm = group_norm(width)
        self.head = init_weights(nn.Linear(width, outputs), NEAR_ZERO)
        self.classes: ClassEmbedding | None = None
        if num_classes is not None:
            self.classes = ClassEmbedding(num_classes, features, covariate_levels)

    def forward(self, x: Tensor, time_index: Tensor, classes: Tensor | None = None) -> Tensor:
        """Map states or scaled data and time indices to raw outputs.

        Args:
            x: states or scaled data, float [B, L].
            time_index: time indices, float [B].
            classes: int64 [B], of a network with `num_classes`; None for the null class.

        Returns:
            [B, outputs * L].
        """
        embedding = self.time(time_index)
        if self.classes is not None:
            embedding = self.classes(embedding, classes)
        embedding = F.silu(embedding)

        with full_precision(x):
            tokens = x[:, :, None].to(self.stem.weight.dtype) if self.levels is None else x.long()
            h = self.stem(tokens).transpose(1, 2) + self.position
        for block in self.blocks:
            h = block(h, embedding)
        with full_precision(h):
            h = F.silu(self.norm(h.to(self.head.weight.dtype)))
            return self.head(h.transpose(1, 2)).transpose(1, 2).flatten(1)
