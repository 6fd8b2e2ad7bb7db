"""Time-conditioned transformer with rotary positions, for sequences and small images.

Tokens are the elements of a sequence or the square patches of an image, whose states are embedded
or read as numbers. The time embedding modulates every block.

References: Peebles and Xie 2023, section 3.2; Lou et al. 2024, appendix C.2.
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
)
from blackout.networks.space_to_depth import depth_to_space, space_to_depth, space_to_depth_shape

MAX_PATCHES = 64  # patches of an image whose patch size is chosen automatically


def rotary_angles(grid: Sequence[int], size: int, base: float = 10_000.0) -> Tensor:
    """Return the rotation angle of every pair of features at every position.

    The pairs of features are divided equally among the axes of the grid.

    Args:
        grid: number of positions along each axis.
        size: features of a head, a multiple of twice the number of axes.
        base: ratio of the largest to the smallest frequency.

    Returns:
        float32 [positions, size / 2].

    References: Su et al. 2024, eq. 15.
    """
    num_pairs = size // (2 * len(grid))
    frequencies = base ** (-torch.arange(num_pairs, dtype=torch.float64) / num_pairs)
    positions = torch.cartesian_prod(*map(torch.arange, grid)).view(-1, len(grid))
    return (positions[..., None] * frequencies).flatten(1).float()


def apply_rotary(x: Tensor, angles: Tensor) -> Tensor:
    """Rotate the pairs (k, k + size / 2) of features by the angles of their position.

    Dot products of two positions then depend only on the difference of the positions.

    Args:
        x: features, [..., positions, size].
        angles: [positions, size / 2].

    Returns:
        [..., positions, size].

    References: Su et al. 2024, eq. 15.
    """
    x1, x2 = x.chunk(2, -1)
    cos = angles.cos().to(x.dtype)
    sin = angles.sin().to(x.dtype)
    return torch.cat([x1 * cos - x2 * sin, x1 * sin + x2 * cos], -1)


class DiTBlock(nn.Module):
    """Transformer block with adaLN-Zero: the time embedding shifts, scales and gates both parts.

    Args:
        width: features of a token.
        heads: of attention.
        expansion: hidden features of the MLP divided by `width`.
        features: of the time embedding.
        dropout: probability after attention and MLP.

    References: Peebles and Xie 2023, section 3.2.
    """

    def __init__(
        self, width: int, heads: int, expansion: int, features: int, dropout: float
    ) -> None:
        super().__init__()
        self.heads = heads
        self.film = dense(features, 6 * width, NEAR_ZERO)
        self.norm0 = LayerNorm(width, elementwise_affine=False)
        self.norm1 = LayerNorm(width, elementwise_affine=False)
        self.qkv = dense(width, 3 * width)
        self.out = dense(width, width)
        self.dense0 = dense(width, expansion * width)
        self.dense1 = dense(expansion * width, width)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, embedding: Tensor, angles: Tensor) -> Tensor:
        """Transform tokens.

        Args:
            x: [B, n, width].
            embedding: of the times, [B, features].
            angles: of the positions, see `rotary_angles`.

        Returns:
            [B, n, width].
        """
        film = self.film(embedding)[:, None]
        shift0, scale0, gate0, shift1, scale1, gate1 = film.chunk(6, -1)

        h = torch.addcmul(shift0, self.norm0(x), 1 + scale0)
        q, k, v = self.qkv(h).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q = apply_rotary(q, angles)
        k = apply_rotary(k, angles)
        h = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + gate0 * self.dropout(self.out(h))

        h = torch.addcmul(shift1, self.norm1(x), 1 + scale1)
        h = self.dense1(F.gelu(self.dense0(h), approximate="tanh"))
        return x + gate1 * self.dropout(h)


@component("body")
class Transformer(nn.Module):
    """Transformer over all tokens, with rotary and learned positions.

    Args:
        shape: of one sample: (L,), (C, L), (C, H, W) or (C, D, H, W).
        outputs: number of outputs per element of the data.
        levels: number of states, which are embedded; None for numbers on a scale.
        patch: elements along a side of a patch, which is one token. None for 1 in sequences, and
            in images the smallest power of two that leaves 64 patches or fewer.
        width: features of a token, a multiple of twice the heads and the axes.
        depth: number of blocks.
        heads: of attention.
        expansion: hidden features of the MLPs divided by `width`.
        dropout: probability after attention and MLP.
        conditioning: features of the time embedding; None for `width`. SEDD has 128.
        num_classes: number of classes of a conditional network; None for an unconditional one.
        covariate_levels: number of levels of each covariate, see `ClassEmbedding`.

    Raises:
        ValueError: sides that are no multiples of the patch, or a size that is out of range.

    Example:
        >>> network = Transformer((1, 8, 8), patch=2, width=16, depth=1, heads=2)
        >>> network(torch.zeros(3, 1, 8, 8), torch.tensor([0.0, 10.0, 999.0])).shape
        torch.Size([3, 1, 8, 8])

    References: Peebles and Xie 2023, section 3.2; Lou et al. 2024, appendix C.2; Su et al. 2024.
    """

    angles: Tensor

    def __init__(  # noqa: PLR0913 - built from YAML
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
        conditioning: int | None = None,
        num_classes: int | None = None,
        covariate_levels: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        # 1. Check the sizes.
        conditioning = width if conditioning is None else conditioning
        check_sizes(
            "transformer",
            outputs=outputs,
            depth=depth,
            heads=heads,
            expansion=expansion,
            conditioning=conditioning,
            shape=min(shape),
        )
        self.shape = tuple(shape)
        self.levels = levels
        self.patch = choose_patch(shape) if patch is None else patch
        check_sizes("transformer", patch=self.patch)
        patch_size, *grid = space_to_depth_shape(shape, self.patch, "patch")
        factor = 2 * heads * len(grid)
        if width % factor:
            raise ValueError(
                f"the width of this transformer must be a multiple of {factor}, not {width}"
            )

        # 2. Embeddings of time, tokens and positions.
        self.time = TimeEmbedding(width, conditioning)
        if levels is None:
            self.stem: nn.Module = dense(patch_size, width)
        else:
            self.stem = nn.Embedding(patch_size * levels, width)
        self.position = nn.Parameter(torch.zeros(math.prod(grid), width))
        self.register_buffer("angles", rotary_angles(grid, width // heads), persistent=False)

        # 3. Blocks and output.
        self.layers = nn.ModuleList(
            DiTBlock(width, heads, expansion, conditioning, dropout) for _ in range(depth)
        )
        self.norm = LayerNorm(width, elementwise_affine=False)
        self.film = dense(conditioning, 2 * width, NEAR_ZERO)
        self.head = dense(width, outputs * patch_size, NEAR_ZERO)
        self.classes: ClassEmbedding | None = None
        if num_classes is not None:
            self.classes = ClassEmbedding(num_classes, conditioning, covariate_levels)

    def forward(self, x: Tensor, time_index: Tensor, classes: Tensor | None = None) -> Tensor:
        """Map states or scaled data and time indices to raw outputs.

        Args:
            x: states or scaled data, float [B, *shape].
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

        # 2. Embed the patches.
        sides = self.shape[-max(1, len(self.shape) - 1) :]
        x = space_to_depth(x.reshape(len(x), -1, *sides), self.patch)
        grid = x.shape[2:]
        with full_precision(x):
            h = self._embed_patches(x.flatten(2).transpose(1, 2)) + self.position

        # 3. Apply the blocks.
        for layer in self.layers:
            h = layer(h, embedding, self.angles)

        # 4. Map tokens to outputs.
        with full_precision(h):
            film = self.film(embedding.to(self.position.dtype))[:, None]
            shift, scale = film.chunk(2, -1)
            h = self.norm(h.to(self.position.dtype))
            raw = self.head(torch.addcmul(shift, h, 1 + scale))
        raw = depth_to_space(raw.transpose(1, 2).unflatten(2, grid), self.patch)
        return raw.reshape(len(x), -1, *self.shape[1:])

    def _embed_patches(self, patches: Tensor) -> Tensor:
        """Embed patches [B, n, elements] to tokens [B, n, width].

        Numbers are mapped linearly. The embedding of states is the sum over the elements of a
        vector for each element and state, which is a linear map of their one-hot encoding.
        """
        if self.levels is None:
            return self.stem(patches.to(self.position.dtype))
        offsets = self.levels * torch.arange(patches.shape[-1], device=patches.device)
        return self.stem(patches.long() + offsets).sum(2)


def choose_patch(shape: Sequence[int]) -> int:
    """Return the smallest power of two that divides an image into at most 64 patches.

    Where no such power divides all sides, the largest power that does is returned; 1 for sequences.

    References: this project; checked in tests/networks/test_small_networks.py.
    """
    sides = shape[1:]
    patch = 1
    if len(sides) < 2:
        return patch
    while math.prod(side // patch for side in sides) > MAX_PATCHES:
        if any(side % (2 * patch) for side in sides):
            break
        patch *= 2
    return patch
