"""Inception Score: how confident and how varied a classifier finds images."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric

from blackout.representation import format_arguments

# torch-fidelity's settings
SPLITS = 10  # parts of the samples
SHUFFLE_SEED = 2020


class InceptionScore(Metric):
    """Inception Score: exp of the mean KL divergence between p(class | image) and p(class).

    Mean and standard deviation are over `splits` parts of the shuffled samples. Because the part of
    a sample follows from its index, only the sums of p and of p log p of each part are kept: memory
    does not grow with the number of samples, and sums over processes are exact. Shuffle and parts
    are those of torch-fidelity (`numpy.random.RandomState(seed).permutation(n)`, part s has the
    positions s n / splits to (s + 1) n / splits).

    Args:
        num_samples: n.
        num_classes: K, the width of the logits.
        splits: number of parts, 1 to n.
        seed: of the shuffle.

    References: Salimans et al. 2016, section 4.
    """

    part_of: Tensor
    sizes: Tensor
    probabilities: Tensor
    negative_entropy: Tensor

    __repr__ = format_arguments

    def __init__(
        self, num_samples: int, num_classes: int, splits: int = SPLITS, seed: int = SHUFFLE_SEED
    ) -> None:
        super().__init__()
        sizes = np.diff(np.arange(splits + 1) * num_samples // splits)
        order = np.random.RandomState(seed).permutation(num_samples)
        part_of = np.empty(num_samples, dtype=np.int64)
        part_of[order] = np.repeat(np.arange(splits), sizes)
        self.register_buffer("part_of", torch.from_numpy(part_of), persistent=False)
        self.register_buffer("sizes", torch.from_numpy(sizes).double(), persistent=False)
        zeros = torch.zeros(splits, num_classes, dtype=torch.float64)
        self.add_state("probabilities", zeros, dist_reduce_fx="sum")
        self.add_state("negative_entropy", zeros[:, 0].clone(), dist_reduce_fx="sum")

    def update(self, logits: Tensor, indices: Tensor) -> None:
        """Add the logits [B, K] of samples with indices [B]; see the class."""
        device = self.part_of.device
        log_p = logits.detach().to(device=device, dtype=torch.float64).log_softmax(dim=1)
        p = log_p.exp()
        parts = self.part_of[indices.to(device)]
        self.probabilities.index_add_(0, parts, p)
        self.negative_entropy.index_add_(0, parts, (p * log_p).sum(dim=1))

    def compute(self) -> tuple[float, float]:
        """Return mean and (population) standard deviation over parts.

        Every sample must have been added once.

        References: Salimans et al. 2016, section 4.
        """
        marginal = self.probabilities / self.sizes[:, None]
        marginal_negative_entropy = torch.xlogy(marginal, marginal).sum(dim=1)
        scores = (self.negative_entropy / self.sizes - marginal_negative_entropy).exp()
        return float(scores.mean()), float(scores.std(correction=0))
