"""A data set: photons of single stars."""

import torch

from blackout.data import CountData

NUM_IMAGES = 1200
NUM_TRAINING = 900
NUM_VALIDATION = 100


def stars(photons: float = 30.0, size: int = 8, seed: int = 0) -> CountData:
    """Return images of one star each, at a random place, smeared by the telescope.

    Args:
        photons: expected number at the brightest point.
        size: pixels across.
        seed: of the images.
    """
    generator = torch.Generator().manual_seed(seed)
    centre = size * torch.rand(NUM_IMAGES, 2, 1, 1, generator=generator)
    axis = torch.arange(size) + 0.5
    pixels = torch.stack(torch.meshgrid(axis, axis, indexing="ij"))
    rate = photons * torch.exp(-((pixels - centre) ** 2).sum(1, keepdim=True) / 2)
    counts = torch.poisson(rate, generator=generator).long().clamp(max=255)
    num_test = NUM_IMAGES - NUM_TRAINING - NUM_VALIDATION
    train, val, test = counts.split([NUM_TRAINING, NUM_VALIDATION, num_test])
    return CountData("stars", train=train, val=val, test=test, max_count=255)
