"""Versions and spreads in reports of scores."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from importlib.metadata import version

from blackout.version import __version__

LIBRARIES = ("torch", "torchvision", "torch-fidelity", "torchmetrics", "numpy")


def library_versions() -> dict[str, str]:
    """Versions of the libraries that can affect a score."""
    return {"blackout": __version__, **{name: version(name) for name in LIBRARIES}}


def over_seeds(values: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Mean, standard deviation (n - 1) and standard error of every score over runs with different seeds.

    Args:
        values: the scores of each run, all with the same names; at least two runs.

    Raises:
        ValueError: fewer than two runs, or runs with different scores.
    """
    if len(values) < 2:
        raise ValueError(f"a spread needs at least 2 runs, not {len(values)}")
    names = list(values[0])
    if any(set(run) != set(names) for run in values):
        raise ValueError("the runs have different scores")
    spread = {}
    for name in names:
        column = [run[name] for run in values]
        deviation = statistics.stdev(column)
        spread[name] = {
            "mean": statistics.fmean(column),
            "std": deviation,
            "standard_error": deviation / len(values) ** 0.5,
        }
    return spread
