"""Small extractors for tests, importable by spawned processes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from blackout.data import CountData
from blackout.evaluation.extractors import ModuleExtractor

FEATURES = 24
CLASSES = 10


class TinyNet(nn.Module):
    """uint8 [B, 3, H, W] -> features [B, 24] and logits [B, 10], with random weights."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.conv = nn.Conv2d(3, FEATURES, 3, stride=2)
        self.head = nn.Linear(FEATURES, CLASSES)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.5, generator=generator)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.conv(images.float() / 64 - 2).relu().mean(dim=(2, 3))
        return features, self.head(features)


def tiny_extractor(seed: int = 0) -> ModuleExtractor:
    """Return an extractor with a tiny network."""
    return ModuleExtractor(TinyNet(seed), "tiny", FEATURES, CLASSES)


def images(count: int, seed: int, spread: float = 1.0, size: int = 8) -> Tensor:
    """Return random uint8 images [count, 3, size, size] of varying brightness and colour."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.rand(count, 3, size, size, generator=generator)
    tint = torch.rand(count, 3, 1, 1, generator=generator) ** spread
    return (256 * noise * tint).clamp(0, 255).to(torch.uint8)


def colour_data(train: int = 150, test: int = 60) -> CountData:
    """Return a small dataset of colour images."""
    return CountData("colours", images(train, 1), images(test, 2), 255, val=images(40, 3))
