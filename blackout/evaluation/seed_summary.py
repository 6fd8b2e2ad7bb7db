"""Scores of several runs: mean, standard deviation and standard error over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence


def summarise_seeds(values: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return mean, standard deviation and standard error of every score over seeds.

    Args:
        values: scores of each run, all with the same names; at least two runs.

    Returns:
        `mean`, `std` (n - 1) and `standard_error` by score.

    References: definitions; checked in tests/evaluation/test_image_scores.py.
    """
    summary = {}
    for name in values[0]:
        scores = [run[name] for run in values]
        std = statistics.stdev(scores)
        summary[name] = {
            "mean": statistics.fmean(scores),
            "std": std,
            "standard_error": std / len(values) ** 0.5,
        }
    return summary
