"""Encoders of the items of a set: pieces of images, strips, points such as cities, tokens, numbers.

An encoder maps the items of a set [B, n, ...] to features [B, n, features], each from its own
item. The published encoders take 85 MFLOP for a strip of four digits; these are small enough for a
CPU, have no batch statistics, and standardise their input.

References: Zhang et al. 2025, appendix G.5, Tables 8 and 10.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blackout.component import component
from blackout.errors import ensure
from blackout.networks.layers import check_sizes, dense, init_weights

MIN_POOLED_SIDE = 7  # pieces with shorter sides are not pooled
MIN_LARGE_STRIP = 13  # height from which the first convolution of a strip halves it


@component("encoder")
class PieceEncoder(nn.Module):
    """Encoder of image pieces: a convolution, pooled for large pieces, and a linear map of pixels.

    Both are added in the hidden layer of an MLP.

    Args:
        item_shape: (C, h, w).
        features: of the result.
        channels: of the convolution.
        mean: of the pixels of the data.
        std: of the pixels of the data.

    Raises:
        ValueError: `item_shape` is not that of an image, or a size is below 1.

    References: after Zhang et al. 2025, Table 8, which has no map of the pixels; checked in
    tests/permutations/datasets/test_puzzles.py.

    Example:
        >>> PieceEncoder([1, 4, 4], features=8)(torch.zeros(1, 9, 1, 4, 4)).shape
        torch.Size([1, 9, 8])
    """

    def __init__(
        self,
        item_shape: Sequence[int],
        features: int = 96,
        channels: int = 32,
        mean: float = 0.0,
        std: float = 1.0,
    ) -> None:
        super().__init__()
        in_channels, height, width = image_shape(item_shape, "piece encoder")
        check_sizes("piece encoder", features=features, channels=channels)
        self.features = features
        self.scaling = Scaling(mean, std)
        self.stride = 2 if min(height, width) >= MIN_POOLED_SIDE else 1
        self.convolution = init_weights(nn.Conv2d(in_channels, channels, 3, padding=1))
        pooled_size = math.ceil(height / self.stride) * math.ceil(width / self.stride)
        self.pixels = dense(in_channels * height * width, 2 * features)
        self.hidden = dense(channels * pooled_size, 2 * features)
        self.out = dense(2 * features, features)

    def forward(self, items: Tensor) -> Tensor:
        """Encode float [B, n, C, h, w]; returns [B, n, features]."""
        x = self.scaling(items).flatten(0, 1)
        if self.stride == 1:
            h = self.convolution(x)
        else:
            # In channels_last memory pooling takes a third of the time, and the rest a quarter
            h = self.convolution(x.contiguous(memory_format=torch.channels_last))
            h = F.max_pool2d(h, 2, ceil_mode=True)
        h = self.hidden(F.relu(h).flatten(1)) + self.pixels(x.flatten(1))
        return self.out(F.relu(h)).unflatten(0, items.shape[:2])


@component("encoder")
class StripEncoder(nn.Module):
    """Encoder of strips of images: one convolutional encoder for all images of a strip.

    The features of the images are concatenated and mapped linearly.

    Args:
        item_shape: (C, H, parts * W).
        parts: number of images in a strip.
        features: of the result.
        channels: of the first convolution; the second has twice as many.
        mean: of the pixels of the data.
        std: of the pixels of the data.

    Raises:
        ValueError: `item_shape` is not that of an image or cannot be divided, or a size is below 1.

    References: after Zhang et al. 2025, Table 10; checked in
    tests/permutations/datasets/test_puzzles.py.

    Example:
        >>> StripEncoder([1, 28, 112], features=8)(torch.zeros(1, 5, 1, 28, 112)).shape
        torch.Size([1, 5, 8])
    """

    def __init__(
        self,
        item_shape: Sequence[int],
        parts: int = 4,
        features: int = 96,
        channels: int = 16,
        mean: float = 0.0,
        std: float = 1.0,
    ) -> None:
        super().__init__()
        in_channels, height, width = image_shape(item_shape, "strip encoder")
        check_sizes("strip encoder", parts=parts, features=features, channels=channels)
        message = f"a strip of {width} pixels cannot be divided into {parts} parts"
        ensure(width % parts == 0, message)
        self.parts = parts
        self.features = features
        self.scaling = Scaling(mean, std)
        # Both convolutions halve large images, only the second halves small ones.
        is_large = height >= MIN_LARGE_STRIP
        kernel = 5 if is_large else 3
        stride = 2 if is_large else 1
        self.first = init_weights(
            nn.Conv2d(in_channels, channels, kernel, stride, padding=kernel // 2)
        )
        self.second = init_weights(
            nn.Conv2d(channels, 2 * channels, kernel, 2, padding=kernel // 2)
        )
        out_height = math.ceil(math.ceil(height / stride) / 2)
        out_width = math.ceil(math.ceil(width // parts / stride) / 2)
        self.image_projection = dense(2 * channels * out_height * out_width, features)
        self.out = dense(parts * features, features)

    def forward(self, items: Tensor) -> Tensor:
        """Encode float [B, n, C, H, parts * W]; returns [B, n, features]."""
        images = self.scaling(items).unflatten(-1, (self.parts, -1)).movedim(-2, 2)
        h = F.relu(self.first(images.flatten(0, 2)))
        h = F.relu(self.second(h))
        h = F.relu(self.image_projection(h.flatten(1)))
        return self.out(h.view(*images.shape[:2], -1))


@component("encoder")
class PointEncoder(nn.Module):
    """Encoder of points in the plane, relative to their centre and to the first point.

    From coordinates alone a network of this size learns no tours. It needs the angle about the
    centre, counted from that of the first point, the rank of the angle, and harmonics of both.

    Args:
        features: of the result.
        harmonics: number of harmonics of angle and rank.

    Raises:
        ValueError: a size is below 1.

    References: this project; checked in tests/permutations/test_baselines.py.

    Example:
        >>> PointEncoder(features=8)(torch.rand(1, 20, 2)).shape
        torch.Size([1, 20, 8])
    """

    def __init__(self, features: int = 96, harmonics: int = 4) -> None:
        super().__init__()
        check_sizes("point encoder", features=features, harmonics=harmonics)
        self.features = features
        self.harmonics = harmonics
        self.hidden = dense(6 + 4 * harmonics, 2 * features)
        self.out = dense(2 * features, features)

    def forward(self, items: Tensor) -> Tensor:
        """Encode points, float [B, n, 2]; returns [B, n, features]."""
        return self.out(F.relu(self.hidden(self.point_features(items.float()))))

    def point_features(self, points: Tensor) -> Tensor:
        """Compute the input features of points [B, n, 2]; returns [B, n, 6 + 4 harmonics]."""
        # 1. Polar coordinates about the centre; angles are counted from the first point.
        relative = points - points.mean(1, keepdim=True)
        x, y = relative.unbind(-1)
        radius = relative.norm(dim=-1)
        angle = torch.atan2(y, x)
        angle = (angle - angle[:, :1]) % (2 * math.pi)
        angle[:, 0] = 0.0  # rounding could make it a full turn

        # 2. Rank of the angle, as an angle.
        rank = angle.argsort(-1).argsort(-1).to(points.dtype) * (2 * math.pi / points.shape[1])

        # 3. Harmonics of angle and rank, and the distance from the first point.
        orders = torch.arange(1, self.harmonics + 1, device=points.device)
        waves = []
        for phase in (angle, rank):
            multiples = orders * phase.unsqueeze(-1)
            waves.append(torch.sin(multiples))
            waves.append(torch.cos(multiples))
        distance = (points - points[:, :1]).norm(dim=-1, keepdim=True)
        scaled = [
            2 * relative,
            2 * radius.unsqueeze(-1),
            angle.unsqueeze(-1) / math.pi - 1,
            rank.unsqueeze(-1) - 3,
            distance,
        ]
        return torch.cat([*scaled, *waves], -1)


@component("encoder")
class EdgeEncoder(nn.Module):
    """Encoder of points in the plane that also attend to their distances from the n - 1 others.

    This is cross-attention of nodes to incident edges, as in the published network for 20 cities,
    but once and before the transformer. A `PointEncoder` encodes the nodes.

    Args:
        features: of the result, a multiple of `heads`.
        harmonics: number of harmonics of a point's angle and rank.
        waves: number of harmonics of a distance.
        heads: of attention.

    Raises:
        ValueError: a size is below 1, or `features` is no multiple of `heads`.

    References: Zhang et al. 2025, appendix G.5; the features of distances are this project's,
    checked in tests/permutations/test_baselines.py.

    Example:
        >>> EdgeEncoder(features=8)(torch.rand(1, 20, 2)).shape
        torch.Size([1, 20, 8])
    """

    def __init__(
        self, features: int = 96, harmonics: int = 4, waves: int = 8, heads: int = 4
    ) -> None:
        super().__init__()
        check_sizes("edge encoder", features=features, waves=waves, heads=heads)
        message = (
            "features of the edge encoder must be a multiple of heads, "
            f"not features={features} and heads={heads}"
        )
        ensure(features % heads == 0, message)
        self.features = features
        self.waves = waves
        self.heads = heads
        self.points = PointEncoder(features, harmonics)
        self.query = dense(features, features)
        self.edges = dense(2 * waves, 2 * features)
        self.out = dense(features, features)

    def forward(self, items: Tensor) -> Tensor:
        """Encode points, float [B, n, 2]; returns [B, n, features]."""
        points = items.float()
        nodes: Tensor = self.points(points)
        query = self.query(F.relu(nodes)).unflatten(-1, (self.heads, -1))
        edges = self.edges(self.edge_features(points)).unflatten(-1, (2, self.heads, -1))
        key, value = edges.unbind(-3)
        logits = torch.einsum("bihd,bijhd->bhij", query, key) * query.shape[-1] ** -0.5
        is_self = torch.eye(points.shape[1], dtype=torch.bool, device=points.device)
        weights = logits.masked_fill(is_self, -torch.inf).softmax(-1)
        h = torch.einsum("bhij,bijhd->bihd", weights, value)
        return nodes + self.out(h.flatten(2))

    def edge_features(self, points: Tensor) -> Tensor:
        """Compute sines and cosines of the distances between points [B, n, 2].

        The fundamental has half a period over the length sqrt(2), the diagonal of the unit square.

        Returns:
            [B, n, n, 2 waves].
        """
        mode = "donot_use_mm_for_euclid_dist"  # more exact than by a matrix product
        distances = torch.cdist(points, points, compute_mode=mode)
        orders = torch.arange(1, self.waves + 1, device=points.device)
        phase = distances.unsqueeze(-1) * orders * (math.pi / 2**0.5)
        return torch.cat([phase.sin(), phase.cos()], -1)


@component("encoder")
class TokenEncoder(nn.Module):
    """Encoder with a learned vector for every token.

    Args:
        num_tokens: tokens are 0..num_tokens - 1.
        features: of the result.

    Raises:
        ValueError: a size is below 1.

    Example:
        >>> TokenEncoder(5, features=8)(torch.tensor([[3, 1, 4]])).shape
        torch.Size([1, 3, 8])

    References: definition of an embedding.
    """

    def __init__(self, num_tokens: int, features: int = 96) -> None:
        super().__init__()
        check_sizes("token encoder", num_tokens=num_tokens, features=features)
        self.features = features
        self.embedding = nn.Embedding(num_tokens, features)

    def forward(self, items: Tensor) -> Tensor:
        """Encode int64 [B, n]; returns [B, n, features]."""
        return self.embedding(items)


@component("encoder")
class ItemEncoder(nn.Module):
    """Encoder of items of any shape: an MLP with one hidden layer on the flattened item.

    Args:
        item_shape: of one item.
        features: of the result.
        mean: of the data.
        std: of the data.

    Raises:
        ValueError: a size is below 1.

    References: this project; checked in tests/permutations/test_shuffle_diffusion.py.

    Example:
        >>> ItemEncoder([3], features=8)(torch.zeros(1, 5, 3)).shape
        torch.Size([1, 5, 8])
    """

    def __init__(
        self,
        item_shape: Sequence[int],
        features: int = 96,
        mean: float = 0.0,
        std: float = 1.0,
    ) -> None:
        super().__init__()
        size = math.prod(item_shape)
        check_sizes("item encoder", features=features, item_shape=size)
        self.features = features
        self.scaling = Scaling(mean, std)
        self.hidden = dense(size, 2 * features)
        self.out = dense(2 * features, features)

    def forward(self, items: Tensor) -> Tensor:
        """Encode float [B, n, *item_shape]; returns [B, n, features]."""
        x = self.scaling(items).reshape(*items.shape[:2], -1)
        return self.out(F.relu(self.hidden(x)))


class Scaling(nn.Module):
    """Standardisation (x - mean) / std.

    Raises:
        ValueError: a value is not finite, or `std` is not positive.
    """

    def __init__(self, mean: float, std: float) -> None:
        super().__init__()
        if not (math.isfinite(mean) and 0 < std < math.inf):
            raise ValueError(
                f"mean and std must be finite, and std positive, not mean={mean} and std={std}"
            )
        self.mean = mean
        self.std = std

    def forward(self, x: Tensor) -> Tensor:
        """Standardise x of any shape."""
        return (x - self.mean) / self.std


def image_shape(shape: Sequence[int], encoder: str) -> tuple[int, int, int]:
    """Return channels, height and width.

    Raises:
        ValueError: `shape` is not that of an image.
    """
    message = f"the {encoder} needs images of shape (C, h, w), not items of {list(shape)}"
    ensure(len(shape) == 3 and min(shape) > 0, message)
    channels, height, width = shape
    return channels, height, width
