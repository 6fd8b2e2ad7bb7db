"""Accumulators of samples: float64 moments of their features for Gaussian statistics, or rows of every sample.

All are put together over processes, so that any number of processes gives the single-process result.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric

from blackout.distributed import sum_over_processes, world_size
from blackout.errors import UserError


class Moments(NamedTuple):
    """Mean `mu` [F], unbiased covariance `sigma` [F, F] (both float64) and number of samples `n`."""

    mu: Tensor
    sigma: Tensor
    n: int


class SumMetric(Metric):
    """A metric whose states are sums over samples, and so over processes."""

    is_differentiable = False
    higher_is_better: bool | None = None
    full_state_update = False


class FeatureStatistics(SumMetric):
    """Mean and covariance of features, accumulated in float64 and put together over processes.

    The states are n, the mean and the sum of outer products about it, 8 F^2 bytes (32 MiB for 2048 features), updated
    and merged pairwise [Chan 1983]: raw sums lose the digits of features whose mean is large beside their spread.

    Args:
        num_features: F, the width of the features.
    """

    count: Tensor
    mean: Tensor
    outer: Tensor

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.num_features = num_features
        zeros = torch.zeros(num_features, num_features, dtype=torch.float64)
        # over processes they are stacked, for `compute` to merge
        self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx=None)
        self.add_state("mean", zeros[0].clone(), dist_reduce_fx=None)
        self.add_state("outer", zeros, dist_reduce_fx=None)

    def update(self, features: Tensor) -> None:
        """Add a batch of features [B, F].

        Raises:
            ValueError: not a finite float tensor of this shape.
        """
        if features.dim() != 2 or features.shape[1] != self.num_features:
            raise ValueError(f"features must be [B, {self.num_features}], but their shape is {tuple(features.shape)}")
        if not features.dtype.is_floating_point:
            raise ValueError(f"features must be floating-point numbers, not {features.dtype}")
        if not bool(torch.isfinite(features).all()):
            raise ValueError("features contain NaN or infinity")
        if not len(features):
            return
        wide = features.detach().to(device=self.mean.device, dtype=torch.float64)
        mean = wide.mean(dim=0)
        share = len(wide) / (int(self.count) + len(wide))
        apart, centred = mean - self.mean, wide - mean
        self.outer.addmm_(centred.T, centred).addr_(apart, apart, alpha=share * float(self.count))
        self.mean += share * apart
        self.count += len(wide)

    def compute(self) -> Moments:
        """Statistics over all processes.

        Raises:
            ValueError: fewer than two samples were added.
        """
        n = int(self.count.sum())
        if n < 2:
            raise ValueError(f"a covariance needs at least 2 samples, but {n} were added")
        counts, means = self.count.reshape(-1, 1).double(), self.mean.view(-1, self.num_features)
        mu = means[0] + (counts * (means - means[0])).sum(0) / n
        apart = means - mu
        sigma = (self.outer.view(-1, *self.outer.shape[-2:]).sum(0) + apart.T @ (counts * apart)) / (n - 1)
        return Moments(mu, (sigma + sigma.T) / 2, n)


class SampleLedger:
    """Checks that each of `num_samples` samples is scored exactly once, over all processes."""

    def __init__(self, num_samples: int) -> None:
        self._seen = torch.zeros(num_samples, dtype=torch.int32)

    def update(self, indices: Tensor) -> None:
        """Mark the samples with these indices, int64 [B], as scored.

        Raises:
            UserError: an index outside 0..num_samples-1.
        """
        low, high = (int(v) for v in torch.aminmax(indices))
        if low < 0 or high >= len(self._seen):
            raise UserError(f"sample indices lie in {low}..{high}, but must be in 0..{len(self._seen) - 1}")
        self._seen += torch.bincount(indices.cpu(), minlength=len(self._seen))

    def check(self) -> None:
        """Check that every sample was scored once; every process must call it.

        Raises:
            UserError: a sample is missing, or was scored more than once.
        """
        seen = sum_over_processes(self._seen.clone())
        present = int((seen > 0).sum())
        if present < len(seen):
            missing = f"only {present} were scored (the first missing one has index {int((seen == 0).nonzero()[0])})"
            raise UserError(f"{len(seen)} samples were asked for, but {missing}")
        if int(seen.max()) > 1:
            first = int((seen > 1).nonzero()[0])
            raise UserError(f"sample {first} was scored {int(seen[first])} times; each sample counts once")

    def reset(self) -> None:
        """Forget all samples."""
        self._seen.zero_()


class SampleRows:
    """One row for every sample, such as its features, in the order of the sample indices.

    The buffer is allocated at once (400 MB for 2048 features of 50,000 samples). Rows of other processes stay zero
    until `gather`.

    Args:
        shape: n, the number of samples, and the shape of a row.
        dtype: of the rows.
        device: where they are.
    """

    def __init__(
        self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> None:
        self._rows = torch.zeros(shape, dtype=dtype, device=device)

    def update(self, rows: Tensor, indices: Tensor) -> None:
        """Store rows [B, ...] as those with the numbers `indices`, int64 [B]."""
        self._rows[indices.to(self._rows.device)] = rows.detach().to(self._rows)

    def gather(self) -> Tensor:
        """All rows [n, ...], on every process; leaves the own rows as they are."""
        return sum_over_processes(self._rows.clone()) if world_size() > 1 else self._rows

    def reset(self) -> None:
        """Forget all samples."""
        self._rows.zero_()


def check_pair(samples: Tensor, reference: Tensor, least: int, score: str) -> None:
    """Check features [n, F] and [m, F] that a score compares.

    Raises:
        ValueError: the widths differ, or a set has fewer than `least` rows.
    """
    if samples.shape[1] != reference.shape[1]:
        raise ValueError(f"samples have {samples.shape[1]} features and the reference {reference.shape[1]}")
    if min(len(samples), len(reference)) < least:
        sizes = f"{len(samples)} samples and {len(reference)} reference images"
        raise ValueError(f"{score} needs at least {least} of each, but there are {sizes}")
