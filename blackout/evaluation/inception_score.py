"""The Inception Score, summed as class probabilities come."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric


class InceptionScore(Metric):
    """exp of the mean KL divergence between p(class | image) and p(class) [Salimans 2016, section 4].

    Mean and standard deviation over `splits` parts of the shuffled samples. Because a sample's part follows from its
    index, only the sums of p and of p log p of each part are kept: memory does not grow with the number of samples, and
    sums over processes are exact. Shuffle and parts are those of torch-fidelity
    (`numpy.random.RandomState(seed).permutation(n)`, part s = positions sn/splits .. (s+1)n/splits).

    Args:
        num_samples: n.
        num_classes: K, the width of the logits.
        splits: number of parts, 1 to n.
        seed: seed of the shuffle.
    """

    part_of: Tensor
    sizes: Tensor
    probabilities: Tensor
    negative_entropy: Tensor

    def __init__(self, num_samples: int, num_classes: int, splits: int = 10, seed: int = 2020) -> None:
        super().__init__()
        sizes = np.diff(np.arange(splits + 1) * num_samples // splits)
        part_of = np.empty(num_samples, dtype=np.int64)
        part_of[np.random.RandomState(seed).permutation(num_samples)] = np.repeat(np.arange(splits), sizes)
        self.register_buffer("part_of", torch.from_numpy(part_of), persistent=False)
        self.register_buffer("sizes", torch.from_numpy(sizes).double(), persistent=False)
        zeros = torch.zeros(splits, num_classes, dtype=torch.float64)
        self.add_state("probabilities", zeros, dist_reduce_fx="sum")
        self.add_state("negative_entropy", zeros[:, 0].clone(), dist_reduce_fx="sum")

    def update(self, logits: Tensor, indices: Tensor) -> None:
        """Add logits [B, K] of the samples with these indices [B]."""
        device = self.part_of.device
        log_p = logits.detach().to(device=device, dtype=torch.float64).log_softmax(dim=1)
        p = log_p.exp()
        parts = self.part_of[indices.to(device)]
        self.probabilities.index_add_(0, parts, p)
        self.negative_entropy.index_add_(0, parts, (p * log_p).sum(dim=1))

    def compute(self) -> tuple[float, float]:
        """Mean and (population) standard deviation over parts; every sample must have been added once."""
        marginal = self.probabilities / self.sizes[:, None]
        scores = (self.negative_entropy / self.sizes - torch.xlogy(marginal, marginal).sum(dim=1)).exp()
        return float(scores.mean()), float(scores.std(correction=0))
