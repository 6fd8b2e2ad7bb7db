"""Kernel distance between two sets of features: with Inception features, the Kernel Inception Distance."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from blackout.evaluation.inception_score import MeanAndSpread

F64 = torch.float64


def kernel_distance(
    samples: Tensor,
    reference: Tensor,
    subsets: int = 100,
    subset_size: int = 1000,
    seed: int = 2020,
    device: torch.device | str = "cpu",
) -> MeanAndSpread:
    """Unbiased squared maximum mean discrepancy [Gretton 2012, eq. 3] with the kernel (x.y / F + 1)^3.

    This is the KID of [Binkowski 2018, section 4]. Mean and standard deviation over random subsets, drawn as
    torch-fidelity draws them. Being unbiased, the mean can be slightly negative. Kernels are float32 like the features,
    their sums float64.

    Args:
        samples: features [n, F] of the generated images.
        reference: features [m, F] of the reference images.
        subsets: number of random subsets.
        subset_size: samples in each subset, drawn without replacement from either set.
        seed: seed of the draws.
        device: where the kernels are computed.

    Raises:
        ValueError: a set is smaller than a subset.
    """
    rng = np.random.RandomState(seed)
    values = []
    for _ in range(subsets):
        x, y = (
            features[torch.from_numpy(rng.choice(len(features), subset_size, replace=False))].to(device)
            for features in (samples, reference)
        )
        within = sum(float(k.sum(dtype=F64) - k.diagonal().sum(dtype=F64)) for k in (_kernel(x, x), _kernel(y, y)))
        across = float(_kernel(x, y).sum(dtype=F64))
        values.append(within / (subset_size * (subset_size - 1)) - 2 * across / subset_size**2)
    return MeanAndSpread(float(np.mean(values)), float(np.std(values)))


def _kernel(x: Tensor, y: Tensor) -> Tensor:
    """[n, F] and [m, F] -> [n, m]."""
    return (x @ y.T / x.shape[1] + 1) ** 3
