"""Differences of relations between two elements: correlations, equality and co-occurrence."""

from __future__ import annotations

import numpy as np

from blackout.evaluation.count_arrays import Array

MIN_PAIR_SAMPLES = 2  # of either set; with fewer, scores of pairs of elements are left out
MAX_PAIR_ELEMENTS = 200  # elements whose pairs are compared: those that vary most


def compare_pairs(a: Array, b: Array) -> dict[str, float]:
    """Return differences of relations between two elements that correlations do not show.

    They are of at most 200 elements, those with the largest variance of log counts in `b`.

    Args:
        a: counts [n, D].
        b: counts [m, D].

    Returns:
        equality_difference: largest difference, over pairs, of the share of samples in which both
            elements are equal and not 0.
        co_occurrence_difference: root mean square difference, over pairs, of
            P(both > 0) - P(first > 0) P(second > 0).

    References: the choice is this project's, checked in tests/evaluation/test_count_pairs.py.
    """
    elements = np.sort(np.argsort(-np.log1p(b).var(0), kind="stable")[:MAX_PAIR_ELEMENTS])
    equality_a, excess_a = _pair_statistics(a[:, elements])
    equality_b, excess_b = _pair_statistics(b[:, elements])
    is_pair = ~np.eye(len(elements), dtype=bool)
    equality = np.abs(equality_a - equality_b)[is_pair]
    excess = (excess_a - excess_b)[is_pair]
    co_occurrence = float(np.sqrt(np.square(excess).mean())) if excess.size else 0.0
    return {
        "equality_difference": float(equality.max(initial=0)),
        "co_occurrence_difference": co_occurrence,
    }


def _pair_statistics(counts: Array) -> tuple[Array, Array]:
    """Return statistics of all pairs of elements of counts [n, E], float64 [E, E] each.

    They are P(equal and not 0), and P(both > 0) - P(first > 0) P(second > 0).
    """
    is_positive = counts > 0
    rows = []
    for column in counts.T:
        is_equal = (counts == column[:, None]) & is_positive
        rows.append(is_equal.mean(0))
    positive = is_positive.astype(np.float64)
    p_both = positive.T @ positive / len(counts)
    p_positive = positive.mean(0)
    return np.stack(rows), p_both - np.outer(p_positive, p_positive)


def correlation_difference(samples: Array, real: Array) -> float:
    """Return the mean absolute difference of correlations of log counts [n, D] and [m, D].

    It is of the 200 elements that vary most, and vary in both; 0 for fewer than two.
    """
    a = np.log1p(samples)
    b = np.log1p(real)
    variance = b.var(0)
    usable = np.flatnonzero((a.var(0) > 0) & (variance > 0))
    elements = usable[np.argsort(-variance[usable], kind="stable")[:MAX_PAIR_ELEMENTS]]
    if len(elements) < 2:
        return 0.0
    upper = np.triu_indices(len(elements), 1)
    difference = np.corrcoef(a[:, elements].T) - np.corrcoef(b[:, elements].T)
    return float(np.abs(difference)[upper].mean())
