"""Encoders of pieces and strips of images as published, with batch normalisation and pooling.

Those of `item_encoders.py` are smaller, and have no batch statistics.

References: Zhang et al. 2025, appendix G.5, Tables 8 and 10.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from blackout.component import component
from blackout.networks.item_encoders import Scaling, image_shape
from blackout.networks.layers import check_sizes, dense, init_weights


class ConvolutionBlock(nn.Module):
    """A convolution, batch normalisation, ReLU, and pooling over 2x2 pixels.

    Sides of one pixel are not pooled.

    Args:
        in_channels: C.
        channels: of the result.
        kernel: side of the convolution's window, odd.

    References: Zhang et al. 2025, Tables 8 and 10.
    """

    def __init__(self, in_channels: int, channels: int, kernel: int) -> None:
        super().__init__()
        self.convolution = init_weights(
            nn.Conv2d(in_channels, channels, kernel, padding=kernel // 2)
        )
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Map float [B, C, h, w] to [B, channels, h // 2, w // 2]."""
        h = F.relu(self.norm(self.convolution(x)))
        return F.max_pool2d(h, (min(2, h.shape[2]), min(2, h.shape[3])))


def pooled_side(side: int) -> int:
    """Return the side that pooling by `ConvolutionBlock` leaves."""
    return max(1, side // 2)


@component("encoder")
class PublishedPieceEncoder(nn.Module):
    """Encoder of image pieces as published: one convolution and an MLP.

    Args:
        item_shape: (C, h, w).
        features: of the result.
        channels: of the convolution.
        mean: of the pixels of the data.
        std: of the pixels of the data.

    Raises:
        ValueError: `item_shape` is not that of an image, or a size is below 1.

    References: Zhang et al. 2025, Table 8.
    """

    def __init__(
        self,
        item_shape: Sequence[int],
        features: int = 128,
        channels: int = 32,
        mean: float = 0.0,
        std: float = 1.0,
    ) -> None:
        super().__init__()
        in_channels, height, width = image_shape(item_shape, "piece encoder")
        check_sizes("piece encoder", features=features, channels=channels)
        self.features = features
        self.scaling = Scaling(mean, std)
        self.block = ConvolutionBlock(in_channels, channels, 3)
        size = channels * pooled_side(height) * pooled_side(width)
        self.hidden = dense(size, (size + features) // 2)
        self.out = dense((size + features) // 2, features)

    def forward(self, items: Tensor) -> Tensor:
        """Encode float [B, n, C, h, w]; returns [B, n, features]."""
        h = self.block(self.scaling(items).flatten(0, 1))
        return self.out(F.relu(self.hidden(h.flatten(1)))).unflatten(0, items.shape[:2])


@component("encoder")
class PublishedStripEncoder(nn.Module):
    """Encoder of strips of digits as published: two convolutions over the whole strip.

    Args:
        item_shape: (C, h, w).
        features: of the result.
        channels: of the first convolution; the second has twice as many.
        hidden: whether the convolutions are followed by an MLP with a hidden layer of half their
            features, as in the published table: 80 million weights for four digits. The published
            code has a single linear map.
        mean: of the pixels of the data.
        std: of the pixels of the data.

    Raises:
        ValueError: `item_shape` is not that of an image, or a size is below 1.

    References: Zhang et al. 2025, Table 10, and the published code.
    """

    def __init__(
        self,
        item_shape: Sequence[int],
        features: int = 128,
        channels: int = 32,
        hidden: bool = False,
        mean: float = 0.0,
        std: float = 1.0,
    ) -> None:
        super().__init__()
        in_channels, height, width = image_shape(item_shape, "strip encoder")
        check_sizes("strip encoder", features=features, channels=channels)
        self.features = features
        self.scaling = Scaling(mean, std)
        self.first = ConvolutionBlock(in_channels, channels, 5)
        self.second = ConvolutionBlock(channels, 2 * channels, 5)
        size = 2 * channels * pooled_side(pooled_side(height)) * pooled_side(pooled_side(width))
        self.hidden = dense(size, (size + features) // 2) if hidden else None
        self.out = dense((size + features) // 2 if hidden else size, features)

    def forward(self, items: Tensor) -> Tensor:
        """Encode float [B, n, C, h, w]; returns [B, n, features]."""
        h = self.second(self.first(self.scaling(items).flatten(0, 1))).flatten(1)
        if self.hidden is not None:
            h = F.relu(self.hidden(h))
        return self.out(h).unflatten(0, items.shape[:2])
