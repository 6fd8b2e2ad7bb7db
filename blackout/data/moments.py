"""Second moments of counts: how much more their totals, and all their sums, vary than Poisson counts would.

A thinned count is nearly Poisson where q D is small, q its survival probability and D = Var(sum X) / E(sum X). Ours;
the laws are in `tests/laws/test_end_laws.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK = 4096  # samples widened to int64 or float64 at a time, so that a pass over CIFAR-10 needs no gigabyte
_AT_ONCE = 1 << 24  # elements widened at a time
_PAIRED = 1024  # samples whose pairs estimate the excess: 1 % off on CIFAR-10, in a third of a second

_FEWEST_PLACES = 16  # of a series


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
        """Of every element, float64 [*shape]."""
        return self.square / len(self.sample) - (self.element.double() / len(self.sample)).square()


def sums(counts: Tensor) -> Sums:
    """One pass over counts, integers [N, *shape]."""
    element, square = torch.zeros(counts.shape[1:], dtype=torch.int64), torch.zeros(counts.shape[1:]).double()
    sample = []
    for _, part in parts(counts):
        wide = part.double()
        element += part.sum(0, dtype=torch.int64)
        square += wide.square().sum(0)
        sample.append(wide.flatten(1).sum(1))
    return Sums(element, square, torch.cat(sample))


def parts(counts: Tensor) -> Iterator[tuple[int, Tensor]]:
    """(first sample, samples) of counts [N, ...], few enough at a time to be widened."""
    rows = max(1, min(CHUNK, _AT_ONCE // max(1, counts[:1].numel())))
    for first in range(0, len(counts), rows):
        yield first, counts[first : first + rows]


def total_dispersion(counts: Tensor, known: Sums | None = None) -> float:
    """D = Var(sum X) / E(sum X) of the total count of a sample, float64; 1 for Poisson counts, 0 for constant ones.

    Args:
        counts: integers [N, *shape].
        known: their sums, where they were taken before.
    """
    totals = (known or sums(counts)).sample
    mean = float(totals.mean())
    return float(totals.var(correction=0)) / mean if mean > 0 else 0.0


def covariance_excess(counts: Tensor, known: Sums | None = None) -> float:
    """||M^-1/2 (Cov X - M) M^-1/2||_F, M = diag E[X]: 0 for independent Poisson counts.

    From the squared products of all pairs among at most 1,024 evenly spaced samples, without the bias that the square
    of an estimated covariance has.

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


def neighbour_correlation(counts: Tensor) -> float:
    """Mean correlation of neighbours in a vector, beyond that of all pairs of elements, of square roots of counts.

    About 0 for elements in no order, such as genes; positive for bins of time or energy. Ours, with its
    law in `tests/data/test_missing.py`.

    Args:
        counts: integers [N, D].
    """
    roots, size = _some(counts).double().sqrt(), counts.shape[1]
    if size < _FEWEST_PLACES:
        return 0.0
    z = (roots - roots.mean(0)) / roots.std(0, correction=0).clamp(min=1e-12)
    adjacent = (z[:, 1:] * z[:, :-1]).mean()
    overall = (z.sum(1).square() - z.square().sum(1)).mean() / (size * (size - 1))
    return float(adjacent - overall)


def _some(counts: Tensor) -> Tensor:
    """At most 1,024 samples, evenly spaced."""
    return counts[torch.arange(0, len(counts), -(-len(counts) // _PAIRED))]
