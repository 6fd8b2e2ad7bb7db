"""95 % confidence intervals of means, of few draws and of skewed ones: 2.5 % on either side."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

_NEIGHBOURS = 10
"""Draws whose places are close, in whose groups the spread is told."""


def spread(x: Tensor, place: Tensor | None = None) -> float:
    """Standard deviation of x [n]. Groups along the grid are ours (tests/test_confidence_intervals.py).

    Args:
        place: float64 [n], where on an even grid each was drawn, or None. What changes along the grid is no error of
            the mean, so that only what differs within ten neighbours counts.
    """
    rest, freedom = _rest(x, place)
    return math.sqrt(float(rest.square().sum()) / freedom)


def _rest(x: Tensor, place: Tensor | None) -> tuple[Tensor, int]:
    """What differs from the mean of all, or of neighbours [groups, size of a group], and its degrees of freedom.

    Of x [n], as `spread` says. Ours (tests/test_confidence_intervals.py).
    """
    size = len(x) if place is None or len(x) < 2 * _NEIGHBOURS else _NEIGHBOURS
    groups = (x if place is None else x[place.argsort()])[: len(x) // size * size].view(-1, size)
    return groups - groups.mean(1, keepdim=True), groups.numel() - len(groups)


def interval(x: Tensor, place: Tensor | None = None) -> tuple[float, float]:
    """The ends of a 95 % interval for the mean of what x [n] are draws of; infinite for fewer than three.

    Bits of images and weights of chains have a long tail upwards, so that 1.96 standard errors miss what is above them
    several times as often as what is below. Student's t is taken of the mean transformed by its skewness g as in
    [Hall 1992], whose inverse is

        W = 3 / g [(1 + g (t / sqrt(n) - g / 6n))^(1/3) - 1],    the ends being mean - std W at t of 97.5 and 2.5 %.

    Of two values the number of the larger one is binomial, and a lattice that no smooth law is near where it is small:
    the ends are those of the mid-p test, P(X < k) + P(X <= k) = 1.95 and .05 [Lancaster 1961].

    A variance that one of n draws may have made is worth fewer of them: with the excess kurtosis k, t has n / (1 + k -
    g^2) degrees of freedom, half of what [Satterthwaite 1946] takes of draws whose k is known.
    The law: tests/test_confidence_intervals.py.

    Args:
        place: as for `spread`.
    """
    from scipy.special import bdtr, stdtrit  # which nothing but scores needs

    if (n := len(x)) < 3:
        return -math.inf, math.inf
    mean, std, (rest, freedom) = float(x.mean()), spread(x, place), _rest(x, place)
    if std == 0:
        return mean, mean
    values = x.unique()
    if len(values) == 2 and place is None:
        from scipy.optimize import brentq

        k, (least, most) = int((x == values[1]).sum()), values.tolist()
        low, high = (brentq(lambda p, q: bdtr(k - 1, n, p) + bdtr(k, n, p) - q, 0, 1, q) for q in (1.95, 0.05))
        return least + (most - least) * low, least + (most - least) * high
    z, size = rest / std, rest.shape[1]
    skewness = float((z**3).mean()) * size**2 / ((size - 1) * (size - 2))
    beyond = max(0.0, float((z**4).mean()) - 3 - skewness**2)
    quantile = float(stdtrit(min(float(freedom), max(2.0, n / (1 + beyond))), 0.975))
    ends = []
    for t in (quantile, -quantile):
        w = t / math.sqrt(n) - skewness / (6 * n)
        if abs(skewness) > 1e-6:
            w = 3 / skewness * (np.cbrt(1 + skewness * w) - 1)
        ends.append(mean - std * float(w))
    return ends[0], ends[1]
