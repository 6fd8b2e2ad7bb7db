"""A network body: scaled counts and time labels in, numbers for the head out."""

import torch
from torch import Tensor, nn


class TwoLayers(nn.Module):
    """Two linear layers.

    Args:
        shape: of a sample; given by the data.
        outputs: numbers per element that the head reads; given by the head.
        width: of the hidden layer.
    """

    def __init__(self, shape: list[int], outputs: int, width: int = 64) -> None:
        super().__init__()
        self.shape = shape
        self.outputs = outputs
        size = torch.Size(shape).numel()
        self.layers = nn.Sequential(
            nn.Linear(size + 1, width), nn.SiLU(), nn.Linear(width, outputs * size)
        )

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        """Return [B, outputs * C, ...] for scaled counts [B, C, ...] and time labels [B]."""
        raw = self.layers(torch.cat([x.flatten(1), label[:, None] / 1000], dim=1))
        return raw.view(len(x), self.outputs * self.shape[0], *self.shape[1:])
