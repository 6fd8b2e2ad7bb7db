"""A chi-square test of counts against a distribution of SciPy."""

from typing import Any

import numpy as np
from scipy import stats
from torch import Tensor

MIN_EXPECTED = 20  # draws per cell; cells with fewer are joined with the next
MIN_P_VALUE = 1e-4
MAX_STANDARD_ERRORS = 6  # of the mean, where there are too few cells for the test


def assert_distribution(counts: Tensor, distribution: Any) -> None:
    """Assert that counts, of any shape, are draws from a discrete distribution."""
    values = counts.flatten().numpy().astype(np.int64)
    low = int(distribution.ppf(1e-12))
    high = int(distribution.ppf(1 - 1e-12)) + 1
    assert low - 1 <= values.min()
    assert values.max() <= high + 1

    last_values = []
    probabilities = []
    mass = 0.0
    for k in range(low, high + 1):
        mass += distribution.pmf(k)
        if mass * len(values) >= MIN_EXPECTED:
            last_values.append(k)
            probabilities.append(mass)
            mass = 0.0
    if len(probabilities) < 2:
        standard_error = distribution.std() / len(values) ** 0.5
        error = abs(values.mean() - distribution.mean())
        assert error < MAX_STANDARD_ERRORS * standard_error + 1e-12
        return

    probabilities[-1] += 1 - sum(probabilities)  # the upper tail
    cells = np.searchsorted(last_values[:-1], values)
    observed = np.bincount(cells, minlength=len(probabilities))
    expected = np.array(probabilities) * len(values)
    assert stats.chisquare(observed, expected).pvalue > MIN_P_VALUE
