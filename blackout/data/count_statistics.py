"""Statistics of counts, in memory or on the disk: sums, Fano factor of totals, covariances, narrowness."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from blackout.data.on_disk import Rows

CHUNK = 4096  # samples widened to int64 or float64 at a time, so that a pass over CIFAR-10 needs no gigabyte
_AT_ONCE = 1 << 24  # elements widened at a time
_LOADED = 1 << 26  # elements of counts on the disk that are compared with others
_PAIRED = 1024  # samples whose pairs estimate the excess: 1 % off on CIFAR-10, in a third of a second

_FEWEST_PLACES = 16  # of a series
_MOST_NUMBERS, _MOST_LEVELS, _OFTEN, _CERTAIN = 1 << 22, 4096, 100, 5.0
"""Counts that are looked at, those whose frequencies are compared, how often each must be there, and standard errors
that are no chance."""


@dataclass(frozen=True)
class Sums:
    """What one pass over counts [N, *shape] gives.

    Attributes:
        element: sum over samples, int64 [*shape].
        square: sum of squares over samples, float64 [*shape].
        sample: total of every sample, float64 [N].
    """

    element: Tensor
    square: Tensor
    sample: Tensor

    @property
    def variance(self) -> Tensor:
        """Of every element, float64 [*shape]: the mean of squares less the square of the mean.

        Ours (tests/verification/test_end_laws.py).
        """
        return self.square / len(self.sample) - (self.element.double() / len(self.sample)).square()


def sums(counts: Tensor | Rows) -> Sums:
    """One pass over counts, integers [N, *shape]: see `Sums`. Ours (tests/verification/test_end_laws.py)."""
    known = counts.sparse_sums(CHUNK) if isinstance(counts, Rows) else None
    if known is not None:
        return Sums(*known)
    element, square = torch.zeros(counts.shape[1:], dtype=torch.int64), torch.zeros(counts.shape[1:]).double()
    sample = []
    for _, part in parts(counts):
        wide = part.double()
        element += part.sum(0, dtype=torch.int64)
        square += wide.square().sum(0)
        sample.append(wide.flatten(1).sum(1))
    return Sums(element, square, torch.cat(sample))


def parts(counts: Tensor | Rows) -> Iterator[tuple[int, Tensor]]:
    """(first sample, samples) of counts [N, ...], few enough at a time to be widened."""
    rows = max(1, min(CHUNK, _AT_ONCE // max(1, math.prod(counts.shape[1:]))))
    for first in range(0, len(counts), rows):
        yield first, counts[first : first + rows]


def loaded(counts: Tensor | Rows, most: int = _LOADED) -> Tensor:
    """Counts as a tensor [n, *shape]; of those on the disk evenly spaced samples, of at most so many elements in
    all.
    """
    if not isinstance(counts, Rows):
        return counts
    number = min(len(counts), max(2, most // math.prod(counts.shape[1:])))
    return counts[torch.arange(number) * len(counts) // number]


def total_dispersion(counts: Tensor | Rows, known: Sums | None = None) -> float:
    """D = Var(sum X) / E(sum X) of the total count of a sample, float64; 1 for Poisson counts, 0 for constant ones.

    Ours (tests/verification/test_end_laws.py).

    Args:
        counts: integers [N, *shape].
        known: their sums, where they were taken before.
    """
    totals = (known or sums(counts)).sample
    mean = float(totals.mean())
    return float(totals.var(correction=0)) / mean if mean > 0 else 0.0


def covariance_excess(counts: Tensor | Rows, known: Sums | None = None) -> float:
    """||M^-1/2 (Cov X - M) M^-1/2||_F, M = diag E[X]: 0 for independent Poisson counts.

    From the squared products of all pairs among at most 1,024 evenly spaced samples, without the bias that the square
    of an estimated covariance has. Ours, with its law in `tests/verification/test_end_laws.py`.

    Args:
        counts: integers [N, *shape].
        known: their sums, where they were taken before.
    """
    n = len(counts)
    total = (known or sums(counts)).element.double().flatten()
    mean, scale = total / n, (total + 1) / (n + 1)  # as where sampling starts: never 0
    chosen = _some(counts).flatten(1).double()
    whitened = (chosen - mean) / scale.sqrt()
    products = (whitened @ whitened.T).square()
    pairs = len(chosen) * (len(chosen) - 1)
    square = float(products.sum() - products.diagonal().sum()) / max(pairs, 1)
    poisson, variance = mean / scale, whitened.square().mean(0)
    excess = square - 2 * float(poisson @ variance) + float(poisson.square().sum())
    return math.sqrt(max(excess, 0.0))


def neighbour_correlation(counts: Tensor | Rows) -> float:
    """Median correlation of neighbours in a vector, beyond the mean of all pairs, of square roots of counts.

    About 0 for elements in no order, such as genes, also where a few that go together were put side by side, as sorting
    by frequency does; positive for bins of time or energy. Ours, with its law in `tests/data/test_missing.py`.

    Args:
        counts: integers [N, D].
    """
    roots, size = _some(counts).double().sqrt(), counts.shape[1]
    if size < _FEWEST_PLACES:
        return 0.0
    z = (roots - roots.mean(0)) / roots.std(0, correction=0).clamp(min=1e-12)
    adjacent = (z[:, 1:] * z[:, :-1]).mean(0).median()
    overall = (z.sum(1).square() - z.square().sum(1)).mean() / (size * (size - 1))
    return float(adjacent - overall)


def narrow(counts: Tensor | Rows) -> bool:
    """Whether the lower half of an image's counts has a smaller spread than Poisson counts of any varying mean.

    Of a mixture of Poisson counts k! p_k is log-convex, by Cauchy and Schwarz: (k + 1) p_k+1 p_k-1 >= k p_k^2. A
    camera's readings around its offset are not. Of at most 4 million counts, evenly spaced. Ours, with its law in
    `tests/data/test_findings.py`.

    Args:
        counts: integers [N, *shape].
    """
    some = counts[torch.arange(0, len(counts), -(-counts.numel() // _MOST_NUMBERS) or 1)].flatten().long()
    times = some[some < _MOST_LEVELS].bincount(minlength=3).double().numpy()
    k = 1 + np.flatnonzero(np.minimum(np.minimum(times[:-2], times[1:-1]), times[2:]) >= _OFTEN)
    k = k[np.cumsum(times)[k] < times.sum() / 2]
    excess = np.log((k + 1) * times[k + 1] * times[k - 1] / (k * times[k] ** 2))
    error = np.sqrt(4 / times[k] + 1 / times[k - 1] + 1 / times[k + 1])
    return counts.ndim == 4 and bool((excess < -_CERTAIN * error).any())


def _some(counts: Tensor | Rows) -> Tensor:
    """At most 1,024 samples, evenly spaced, of [N, *shape]."""
    return counts[torch.arange(0, len(counts), -(-len(counts) // _PAIRED))]
