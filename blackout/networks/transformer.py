"""A time-conditioned transformer for sequences and small images: rotary positions, blocks modulated by time.

As in SEDD [Lou 2024, appendix C.2] and DiT [Peebles 2023, section 3.2]. Places are the elements of a sequence, or
square patches of an image, whose states are embedded or read as numbers.
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
)
from blackout.networks.unet import folded, folded_shape, unfolded

_PLACES = 64
"""Most places of an image whose patches are left to its size."""


def rotary_angles(grid: Sequence[int], size: int, base: float = 10_000.0) -> Tensor:
    """By how much each pair of features is turned at each place [Su 2024, eq. 15]; all axes have a share of the pairs.

    Args:
        grid: places along each axis.
        size: features of a head, a multiple of twice the number of axes.
        base: of the frequencies.

    Returns:
        float32 [places, size / 2].
    """
    pairs = size // (2 * len(grid))
    frequencies = base ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
    places = torch.cartesian_prod(*map(torch.arange, grid)).view(-1, len(grid))
    return (places[..., None] * frequencies).flatten(1).float()


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    """Features [..., places, size] turned in pairs (k, k + size / 2) by angles [places, size / 2] [Su 2024].

    Products of two places then depend on their difference alone (tests/networks/test_small_networks.py).
    """
    one, other = x.chunk(2, -1)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.cat([one * cos - other * sin, one * sin + other * cos], -1)


class ModulatedLayer(nn.Module):
    """Attention and a perceptron, each shifted, scaled and gated by the time embedding [Peebles 2023, adaLN-Zero]."""

    def __init__(self, width: int, heads: int, expansion: int, features: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.film = heads, dense(features, 6 * width, NEAR_ZERO)
        self.norm0, self.norm1 = (LayerNorm(width, elementwise_affine=False) for _ in range(2))
        self.qkv, self.out = dense(width, 3 * width), dense(width, width)
        self.dense0, self.dense1 = dense(width, expansion * width), dense(expansion * width, width)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, embedding: Tensor, angles: Tensor) -> Tensor:
        """Places [B, n, width] and an embedding [B, features] -> [B, n, width] [Peebles 2023, adaLN-Zero]."""
        film = self.film(embedding)[:, None].chunk(6, -1)
        h = torch.addcmul(film[0], self.norm0(x), 1 + film[1])
        q, k, v = self.qkv(h).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        h = F.scaled_dot_product_attention(rotated(q, angles), rotated(k, angles), v)
        x = x + film[2] * self.dropout(self.out(h.transpose(1, 2).flatten(2)))
        h = torch.addcmul(film[3], self.norm1(x), 1 + film[4])
        return x + film[5] * self.dropout(self.dense1(F.gelu(self.dense0(h), approximate="tanh")))


@component("body")
class Transformer(nn.Module):
    """Attention among all places, told by rotation how far apart they are [Su 2024], and by a learned vector where they
    are [Lou 2024, appendix C.2; Peebles 2023, section 3.2].

    Args:
        shape: of the data: (L,), (C, L), (C, H, W) or a volume's.
        outputs: number of output groups per element of the data.
        levels: states there can be, which are embedded; None for numbers on a scale.
        patch: elements along a side of a place; None for 1 in sequences, in images the least power of two that leaves
            64 places or fewer.
        width: features per place, a multiple of twice the heads and the axes.
        depth: number of layers.
        heads: of attention.
        expansion: hidden features of the perceptrons over `width`.
        dropout: probability behind attention and perceptrons.
        num_classes: number of classes of a conditional network; None for an unconditional one.
        covariate_levels: levels of each covariate, see `ClassEmbedding`.

    Raises:
        ValueError: sides that are no multiples of the patch, or another number out of its range.
    """

    angles: Tensor

    def __init__(
        self,
        shape: Sequence[int],
        outputs: int = 1,
        levels: int | None = None,
        patch: int | None = None,
        width: int = 128,
        depth: int = 4,
        heads: int = 4,
        expansion: int = 4,
        dropout: float = 0.0,
        num_classes: int | None = None,
        covariate_levels: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        check_sizes("transformer", outputs=outputs, depth=depth, heads=heads, expansion=expansion, shape=min(shape))
        self.shape, self.levels = tuple(shape), levels
        self.patch = _patch(shape) if patch is None else patch
        check_sizes("transformer", patch=self.patch)
        size, *grid = folded_shape(shape, self.patch)
        if width % (step := 2 * heads * len(grid)):
            raise ValueError(f"the width of this transformer must be a multiple of {step}, not {width}")
        self.time = TimeEmbedding(width, width)
        self.stem = dense(size, width) if levels is None else nn.Embedding(size * levels, width)
        self.position = nn.Parameter(torch.zeros(math.prod(grid), width))
        self.register_buffer("angles", rotary_angles(grid, width // heads), persistent=False)
        self.layers = nn.ModuleList(ModulatedLayer(width, heads, expansion, width, dropout) for _ in range(depth))
        self.norm, self.film = LayerNorm(width, elementwise_affine=False), dense(width, 2 * width, NEAR_ZERO)
        self.head = dense(width, outputs * size, NEAR_ZERO)
        self.classes = None if num_classes is None else ClassEmbedding(num_classes, width, covariate_levels)

    def forward(self, x: Tensor, label: Tensor, classes: Tensor | None = None) -> Tensor:
        """Map states or scaled data, float [B, *shape], and time labels, float [B], to raw [B, outputs * C, *sides].

        [Peebles 2023, section 3.2], as in the class.

        Classes, int64 [B], are for networks that were made with `num_classes`; None is the null class.
        """
        embedding = self.time(label)
        embedding = F.silu(embedding if self.classes is None else self.classes(embedding, classes))
        x = folded(x.reshape(len(x), -1, *self.shape[-max(1, len(self.shape) - 1) :]), self.patch)
        grid, tokens = x.shape[2:], x.flatten(2).transpose(1, 2)
        with full_precision(x):
            h = self._read(tokens) + self.position
        for layer in self.layers:
            h = layer(h, embedding, self.angles)
        with full_precision(h):
            shift, scale = self.film(embedding.to(self.position.dtype))[:, None].chunk(2, -1)
            raw = self.head(torch.addcmul(shift, self.norm(h.to(self.position.dtype)), 1 + scale))
        raw = raw.transpose(1, 2).unflatten(2, grid)
        return unfolded(raw, self.patch).reshape(len(x), -1, *self.shape[1:])

    def _read(self, tokens: Tensor) -> Tensor:
        """Numbers or states [B, n, elements] of every place -> [B, n, width]: a linear map, or the sum of embeddings.

        Ours (tests/networks/test_small_networks.py).
        """
        if self.levels is None:
            return self.stem(tokens.to(self.position.dtype))
        own = self.levels * torch.arange(tokens.shape[-1], device=tokens.device)
        return self.stem(tokens.long() + own).sum(2)


def _patch(shape: Sequence[int]) -> int:
    """A power of two that divides all sides, and with which there are at most `_PLACES` places, if there is one.

    A number; ours (tests/networks/test_small_networks.py).
    """
    sides, patch = shape[1:], 1
    if len(sides) > 1:
        while math.prod(side // patch for side in sides) > _PLACES and all(side % (2 * patch) == 0 for side in sides):
            patch *= 2
    return patch
