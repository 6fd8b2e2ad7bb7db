"""Shares of classes among samples, by a classifier."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric

from blackout.representation import format_arguments

CONFIDENCE_THRESHOLD = 0.8  # class probability above which a sample counts as confident


class ClassShares(Metric):
    """The share of samples with a class probability above 0.8, and the share of each class.

    Args:
        num_classes: K, the width of the logits.

    References: this project; checked in tests/evaluation/test_image_scores.py.
    """

    num_confident: Tensor
    per_class: Tensor

    __repr__ = format_arguments

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        zero = torch.zeros((), dtype=torch.int64)
        self.add_state("num_confident", zero, dist_reduce_fx="sum")
        zeros = torch.zeros(num_classes, dtype=torch.int64)
        self.add_state("per_class", zeros, dist_reduce_fx="sum")

    def update(self, logits: Tensor) -> None:
        """Add logits [B, K]; see the class."""
        p = logits.detach().to(self.num_confident.device).softmax(dim=1)
        largest, label = p.max(dim=1)
        self.num_confident += (largest > CONFIDENCE_THRESHOLD).sum()
        self.per_class += torch.bincount(label, minlength=len(self.per_class))

    def compute(self) -> Tensor:
        """Return shares over all processes, float64 [1 + K]: confident samples, then every class.

        See the class.
        """
        counts = torch.cat([self.num_confident[None], self.per_class])
        return counts.double() / self.per_class.sum()
