"""Statistics of counts, in memory or on disk: sums, dispersion, covariances, order of elements."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from blackout.data.on_disk import DiskCounts

CHUNK_SAMPLES = 4096  # converted to int64 or float64 at a time: CIFAR-10 needs no gigabyte
CHUNK_ELEMENTS = 1 << 24  # converted at a time
MAX_LOADED_ELEMENTS = 1 << 26  # of counts on disk that are compared with others
MAX_PAIRED_SAMPLES = 1024  # their pairs estimate the covariance excess to 1 % on CIFAR-10
MIN_SERIES_LENGTH = 16

# settings of `is_underdispersed`
MAX_VALUES = 1 << 22  # values that are examined
MAX_LEVELS = 4096  # counts below this are compared
MIN_FREQUENCY = 100  # of each of three neighbouring counts
MIN_STANDARD_ERRORS = 5.0  # below which a difference may be chance


@dataclass(frozen=True)
class Sums:
    """Sums over counts [N, *shape].

    Attributes:
        element: over samples, int64 [*shape].
        square: of squares over samples, float64 [*shape].
        sample: total of every sample, float64 [N].
    """

    element: Tensor
    square: Tensor
    sample: Tensor

    @property
    def variance(self) -> Tensor:
        """Variance of every element, float64 [*shape]."""
        num_samples = len(self.sample)
        return self.square / num_samples - (self.element.double() / num_samples).square()


def compute_sums(counts: Tensor | DiskCounts) -> Sums:
    """Compute the sums of counts, integers [N, *shape], in one pass.

    Example:
        >>> compute_sums(torch.tensor([[1, 2], [3, 4]])).sample.tolist()
        [3.0, 7.0]
    """
    sparse_sums = counts.sparse_sums(CHUNK_SAMPLES) if isinstance(counts, DiskCounts) else None
    if sparse_sums is not None:
        return Sums(*sparse_sums)
    element = torch.zeros(counts.shape[1:], dtype=torch.int64)
    square = torch.zeros(counts.shape[1:], dtype=torch.float64)
    totals = []
    for _, chunk in iterate_chunks(counts):
        values = chunk.double()
        element += chunk.sum(0, dtype=torch.int64)
        square += values.square().sum(0)
        totals.append(values.flatten(1).sum(1))
    return Sums(element, square, torch.cat(totals))


def iterate_chunks(counts: Tensor | DiskCounts) -> Iterator[tuple[int, Tensor]]:
    """Yield (first sample, samples) of counts [N, ...], few enough at a time to convert."""
    sample_elements = max(1, math.prod(counts.shape[1:]))
    num_rows = max(1, min(CHUNK_SAMPLES, CHUNK_ELEMENTS // sample_elements))
    for first in range(0, len(counts), num_rows):
        yield first, counts[first : first + num_rows]


def load_samples(counts: Tensor | DiskCounts, max_elements: int = MAX_LOADED_ELEMENTS) -> Tensor:
    """Return counts as a tensor [n, *shape]; from disk, evenly spaced samples only.

    Args:
        counts: [N, *shape].
        max_elements: that are read from disk; a tensor is returned as it is.
    """
    if not isinstance(counts, DiskCounts):
        return counts
    sample_elements = math.prod(counts.shape[1:])
    num_samples = min(len(counts), max(2, max_elements // sample_elements))
    return counts[torch.arange(num_samples) * len(counts) // num_samples]


def total_dispersion(counts: Tensor | DiskCounts, sums: Sums | None = None) -> float:
    """Return the Fano factor D = Var(sum X) / E(sum X) of the total count of a sample.

    It is 1 for independent Poisson counts and 0 for constant totals.

    Args:
        counts: integers [N, *shape].
        sums: of these counts, if they are available.

    Example:
        >>> total_dispersion(torch.tensor([[0, 1], [2, 3]]))
        1.3333333333333333
    """
    totals = (sums or compute_sums(counts)).sample
    mean = float(totals.mean())
    return float(totals.var(correction=0)) / mean if mean > 0 else 0.0


def covariance_excess(counts: Tensor | DiskCounts, sums: Sums | None = None) -> float:
    """Return ||M^-1/2 (Cov X - M) M^-1/2||_F with M = diag E[X]: 0 for independent Poisson counts.

    The norm is estimated from the squared products of all pairs among at most 1,024 evenly spaced
    samples, without the bias of a squared estimate of the covariance.

    Args:
        counts: integers [N, *shape].
        sums: of these counts, if they are available.

    References: this project; checked in tests/verification/test_time_grid_ends.py.
    """
    num_samples = len(counts)
    element_sums = (sums or compute_sums(counts)).element.double().flatten()
    mean = element_sums / num_samples
    scale = (element_sums + 1) / (num_samples + 1)  # never 0, as where sampling starts
    samples = _spaced_samples(counts).flatten(1).double()
    whitened = (samples - mean) / scale.sqrt()
    products = (whitened @ whitened.T).square()
    num_pairs = max(len(samples) * (len(samples) - 1), 1)
    square_norm = float(products.sum() - products.diagonal().sum()) / num_pairs  # of Cov X
    poisson_variance = mean / scale
    variance = whitened.square().mean(0)
    cross_term = float(poisson_variance @ variance)
    excess = square_norm - 2 * cross_term + float(poisson_variance.square().sum())
    return math.sqrt(max(excess, 0.0))


def neighbour_correlation(counts: Tensor | DiskCounts) -> float:
    """Return how much more neighbouring elements of vectors correlate than all pairs do.

    This is the median correlation of neighbours minus the mean correlation of all pairs, of square
    roots of counts. It is about 0 for elements without order, such as genes, even where a few
    correlated ones stand side by side; it is positive for bins of time or energy.

    Args:
        counts: integers [N, D].

    References: this project; checked in tests/data/test_missing.py.
    """
    num_elements = counts.shape[1]
    if num_elements < MIN_SERIES_LENGTH:
        return 0.0
    roots = _spaced_samples(counts).double().sqrt()
    z = (roots - roots.mean(0)) / roots.std(0, correction=0).clamp(min=1e-12)
    neighbours = (z[:, 1:] * z[:, :-1]).mean(0).median()
    num_pairs = num_elements * (num_elements - 1)
    all_pairs = (z.sum(1).square() - z.square().sum(1)).mean() / num_pairs
    return float(neighbours - all_pairs)


def is_underdispersed(counts: Tensor | DiskCounts) -> bool:
    """Return whether an image's lower counts vary less than mixtures of Poisson counts.

    For a mixture, k! p_k is log-convex by the Cauchy-Schwarz inequality:
    (k + 1) p_{k+1} p_{k-1} >= k p_k^2. The values of a camera around its offset are not. At most
    4 million evenly spaced values are examined.

    Args:
        counts: integers [N, *shape].

    References: this project; checked in tests/data/test_findings.py.
    """
    spacing = -(-counts.numel() // MAX_VALUES) or 1
    values = counts[torch.arange(0, len(counts), spacing)].flatten().long()
    frequency = values[values < MAX_LEVELS].bincount(minlength=3).double().numpy()
    min_frequency = np.minimum(np.minimum(frequency[:-2], frequency[1:-1]), frequency[2:])
    k = 1 + np.flatnonzero(min_frequency >= MIN_FREQUENCY)
    k = k[np.cumsum(frequency)[k] < frequency.sum() / 2]  # the lower half
    ratio = (k + 1) * frequency[k + 1] * frequency[k - 1] / (k * frequency[k] ** 2)
    log_ratio = np.log(ratio)
    standard_error = np.sqrt(4 / frequency[k] + 1 / frequency[k - 1] + 1 / frequency[k + 1])
    is_image = counts.ndim == 4
    return is_image and bool((log_ratio < -MIN_STANDARD_ERRORS * standard_error).any())


def _spaced_samples(counts: Tensor | DiskCounts) -> Tensor:
    """Return at most 1,024 evenly spaced samples of counts [N, *shape]."""
    spacing = -(-len(counts) // MAX_PAIRED_SAMPLES)
    return counts[torch.arange(0, len(counts), spacing)]
