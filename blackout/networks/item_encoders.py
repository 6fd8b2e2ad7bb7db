"""Encoders of the items of a set: pieces of images, strips, points such as cities, tokens, any numbers.

An encoder reads the items of a set [B, n, ...] and gives features [B, n, features], each from its own item. The
published ones [Zhang 2025, appendix G.5, Tables 8 and 10] take 85 MFLOP for a strip of four digits; these are small
enough for a CPU, have no batch statistics, and scale their input by the data's mean and deviation.
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


@component("encoder")
class PieceEncoder(nn.Module):
    """Pieces of an image: a 3x3 convolution, halved where it is large, and a perceptron that reads the pixels, too.

    Ours (tests/permutations/test_datasets.py), after [Zhang 2025, Table 8], which has no such reading.

    Args:
        item_shape: (C, h, w).
        features: of the result.
        channels: of the convolution.
        mean, std: of the data.

    Raises:
        ValueError: a shape that is no image's, or sizes below 1.
    """

    def __init__(
        self, item_shape: Sequence[int], features: int = 96, channels: int = 32, mean: float = 0.0, std: float = 1.0
    ) -> None:
        super().__init__()
        colours, height, width = _image(item_shape, "piece encoder")
        check_sizes("piece encoder", features=features, channels=channels)
        self.features, self.scaling = features, Scaling(mean, std)
        self.stride = 2 if min(height, width) > 6 else 1
        self.convolution = init_weights(nn.Conv2d(colours, channels, 3, padding=1))
        flat = channels * math.ceil(height / self.stride) * math.ceil(width / self.stride)
        self.pixels = dense(colours * height * width, 2 * features)
        self.hidden, self.out = dense(flat, 2 * features), dense(2 * features, features)

    def forward(self, items: Tensor) -> Tensor:
        """float [B, n, C, h, w] -> [B, n, features], as in the class."""
        x = self.scaling(items).flatten(0, 1)
        if self.stride == 1:
            h = self.convolution(x)
        else:  # pooling takes a third of the time in channels_last memory, and what follows it a quarter
            h = F.max_pool2d(self.convolution(x.contiguous(memory_format=torch.channels_last)), 2, ceil_mode=True)
        h = F.relu(self.hidden(F.relu(h).flatten(1)) + self.pixels(x.flatten(1)))
        return self.out(h).unflatten(0, items.shape[:2])


@component("encoder")
class StripEncoder(nn.Module):
    """Images side by side: one encoder for all of them, its features put together.

    Ours (tests/permutations/test_datasets.py), after [Zhang 2025, Table 10].

    Args:
        item_shape: (C, H, parts * W).
        parts: images in a strip.
        features: of the result.
        channels: of the first convolution; the second has twice as many.
        mean, std: of the data.

    Raises:
        ValueError: a shape that is no image's or cannot be divided, or sizes below 1.
    """

    def __init__(
        self, item_shape: Sequence[int], parts: int = 4, features: int = 96, channels: int = 16,
        mean: float = 0.0, std: float = 1.0,
    ) -> None:  # fmt: skip
        super().__init__()
        colours, height, width = _image(item_shape, "strip encoder")
        # large digits are halved at once, small ones only by the second convolution
        kernel, stride = (5, 2) if height > 12 else (3, 1)
        check_sizes("strip encoder", parts=parts, features=features, channels=channels)
        ensure(width % parts == 0, f"a strip of {width} pixels cannot be divided into {parts} parts")
        self.parts, self.features, self.scaling = parts, features, Scaling(mean, std)
        self.first = init_weights(nn.Conv2d(colours, channels, kernel, stride, kernel // 2))
        self.second = init_weights(nn.Conv2d(channels, 2 * channels, kernel, 2, kernel // 2))
        sides = [math.ceil(math.ceil(side / stride) / 2) for side in (height, width // parts)]
        self.each = dense(2 * channels * math.prod(sides), features)
        self.out = dense(parts * features, features)

    def forward(self, items: Tensor) -> Tensor:
        """float [B, n, C, H, parts * W] -> [B, n, features], as in the class."""
        x = self.scaling(items).unflatten(-1, (self.parts, -1)).movedim(-2, 2)
        h = F.relu(self.second(F.relu(self.first(x.flatten(0, 2)))))
        return self.out(F.relu(self.each(h.flatten(1))).view(*x.shape[:2], -1))


@component("encoder")
class PointEncoder(nn.Module):
    """Points in the plane, seen from their centre and from the first of them.

    Ours (tests/permutations/test_baselines.py).

    From coordinates alone a network of this size learns no tours; what helps is the angle about the centre, counted
    from that of the first point, its rank among the others, and harmonics of both.

    Args:
        features: of the result.
        harmonics: of angle and rank.

    Raises:
        ValueError: sizes below 1.
    """

    def __init__(self, features: int = 96, harmonics: int = 4) -> None:
        super().__init__()
        check_sizes("point encoder", features=features, harmonics=harmonics)
        self.features, self.harmonics = features, harmonics
        self.hidden, self.out = dense(6 + 4 * harmonics, 2 * features), dense(2 * features, features)

    def forward(self, items: Tensor) -> Tensor:
        """float [B, n, 2] -> [B, n, features]; the first point of each set is the one that angles are counted from."""
        return self.out(F.relu(self.hidden(self.describe(items.float()))))

    def describe(self, points: Tensor) -> Tensor:
        """The features that are given, [B, n, 6 + 4 harmonics] of points [B, n, 2]: those that the class names.

        Ours (tests/permutations/test_baselines.py moves and reorders the points of an `EdgeEncoder`, which uses it).
        """
        relative = points - points.mean(1, keepdim=True)
        x, y = relative.unbind(-1)
        radius, angle = relative.norm(dim=-1), torch.atan2(y, x)
        turned = (angle - angle[:, :1]) % (2 * math.pi)
        turned[:, 0] = 0.0  # rounding could make it a full turn
        rank = turned.argsort(-1).argsort(-1).to(points.dtype) * (2 * math.pi / points.shape[1])
        orders = torch.arange(1, self.harmonics + 1, device=points.device)
        waves = [wave(orders * phase.unsqueeze(-1)) for phase in (turned, rank) for wave in (torch.sin, torch.cos)]
        plain = [2 * relative, 2 * radius.unsqueeze(-1), turned.unsqueeze(-1) / math.pi - 1, rank.unsqueeze(-1) - 3]
        first = (points - points[:, :1]).norm(dim=-1, keepdim=True)
        return torch.cat([*plain, first, *waves], -1)


@component("encoder")
class EdgeEncoder(nn.Module):
    """Points in the plane that also attend to their edges: to the n - 1 distances from each to the others.

    Cross-attention of nodes to incident edges, as in the published network for 20 cities [Zhang 2025, G.5], once
    and before the transformer; what a node is by itself comes from a `PointEncoder`.

    Args:
        features: of the result, a multiple of `heads`.
        harmonics: of a point's angle and rank.
        waves: of a distance.
        heads: of attention.

    Raises:
        ValueError: sizes below 1, or features that are no multiple of `heads`.
    """

    def __init__(self, features: int = 96, harmonics: int = 4, waves: int = 8, heads: int = 4) -> None:
        super().__init__()
        check_sizes("edge encoder", features=features, waves=waves, heads=heads)
        ensure(not features % heads, f"the edge encoder's features must be a multiple of heads {heads}, not {features}")
        self.features, self.waves, self.heads = features, waves, heads
        self.points = PointEncoder(features, harmonics)
        self.query, self.edges = dense(features, features), dense(2 * waves, 2 * features)
        self.out = dense(features, features)

    def forward(self, items: Tensor) -> Tensor:
        """float [B, n, 2] -> [B, n, features] [Zhang 2025, appendix G.5]; angles are counted from the first point."""
        points = items.float()
        nodes: Tensor = self.points(points)
        query = self.query(F.relu(nodes)).unflatten(-1, (self.heads, -1))
        key, value = self.edges(self.describe(points)).unflatten(-1, (2, self.heads, -1)).unbind(-3)
        logits = torch.einsum("bihd,bijhd->bhij", query, key) * query.shape[-1] ** -0.5
        itself = torch.eye(points.shape[1], dtype=torch.bool, device=points.device)
        mixed = torch.einsum("bhij,bijhd->bihd", logits.masked_fill(itself, -torch.inf).softmax(-1), value)
        out: Tensor = self.out(mixed.flatten(2))
        return nodes + out

    def describe(self, points: Tensor) -> Tensor:
        """Sines and cosines of the distances, of half a wave and its harmonics over sqrt(2), [B, n, n, 2 waves].

        Of points [B, n, 2]; ours (tests/permutations/test_baselines.py), in place of the published edges.
        """
        distances = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
        phase = distances.unsqueeze(-1) * torch.arange(1, self.waves + 1, device=points.device) * (math.pi / 2**0.5)
        return torch.cat([phase.sin(), phase.cos()], -1)


@component("encoder")
class TokenEncoder(nn.Module):
    """A learned vector for every token.

    Args:
        num_tokens: tokens are 0..num_tokens - 1.
        features: of the result.

    Raises:
        ValueError: sizes below 1.
    """

    def __init__(self, num_tokens: int, features: int = 96) -> None:
        super().__init__()
        check_sizes("token encoder", num_tokens=num_tokens, features=features)
        self.features = features
        self.embedding = nn.Embedding(num_tokens, features)

    def forward(self, items: Tensor) -> Tensor:
        """int64 [B, n] -> [B, n, features]."""
        return self.embedding(items)


@component("encoder")
class ItemEncoder(nn.Module):
    """Any numbers: a perceptron on the flattened item.

    Args:
        item_shape: of one item.
        features: of the result.
        mean, std: of the data.

    Raises:
        ValueError: sizes below 1.
    """

    def __init__(self, item_shape: Sequence[int], features: int = 96, mean: float = 0.0, std: float = 1.0) -> None:
        super().__init__()
        size = math.prod(item_shape)
        check_sizes("item encoder", features=features, item_shape=size)
        self.features, self.scaling = features, Scaling(mean, std)
        self.hidden, self.out = dense(size, 2 * features), dense(2 * features, features)

    def forward(self, items: Tensor) -> Tensor:
        """float [B, n, *item_shape] -> [B, n, features]: a perceptron with one hidden layer."""
        x = self.scaling(items).reshape(*items.shape[:2], -1)
        return self.out(F.relu(self.hidden(x)))


class Scaling(nn.Module):
    """(x - mean) / std: standardisation, by definition.

    Raises:
        ValueError: values that are not finite, or a deviation that is not positive.
    """

    def __init__(self, mean: float, std: float) -> None:
        super().__init__()
        if not (math.isfinite(mean) and 0 < std < math.inf):
            raise ValueError(f"mean and std must be finite and std positive, not {mean} and {std}")
        self.mean, self.std = mean, std

    def forward(self, x: Tensor) -> Tensor:
        """(x - mean) / std of x of any shape, see the class."""
        return (x - self.mean) / self.std


def _image(shape: Sequence[int], encoder: str) -> tuple[int, int, int]:
    """Channels, height and width."""
    ensure(len(shape) == 3 and min(shape) > 0, f"the {encoder} reads images (C, h, w), not items of {list(shape)}")
    return shape[0], shape[1], shape[2]
