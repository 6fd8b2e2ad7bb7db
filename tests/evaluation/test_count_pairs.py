"""Scores of pairs of elements: relations that correlations do not show."""

from __future__ import annotations

import numpy as np
import pytest

from blackout.evaluation import count_pairs
from blackout.evaluation.count_pairs import compare_pairs


def test_independent_elements_have_no_co_occurrence_difference() -> None:
    grid = np.stack(np.meshgrid(np.arange(2), np.arange(2), indexing="ij"), -1).reshape(-1, 2)
    rare = np.stack(np.meshgrid([0, 0, 3], [0, 0, 0, 5], indexing="ij"), -1).reshape(-1, 2)
    assert compare_pairs(grid, rare)["co_occurrence_difference"] < 1e-12
    together = np.array([[0, 0], [7, 7]])  # P(both > 0) - P(first > 0) P(second > 0) = 1/4
    assert compare_pairs(together, rare)["co_occurrence_difference"] == pytest.approx(0.25)
    assert compare_pairs(together, rare)["equality_difference"] == 0.5
    empty = np.array([[0, 0], [0, 0], [0, 5]])  # equal only where both are 0
    assert compare_pairs(empty, rare)["equality_difference"] == 0


def test_relations_hidden_from_means_and_correlations_are_scored() -> None:
    generator = np.random.default_rng(1)

    def sample_related_counts(number: int) -> np.ndarray:
        """Sample four elements: 2 equals 0 in 88 % of the samples, else 0 plus two; 3 copies 1."""
        first, second = generator.poisson(generator.gamma(2, 20, (2, number)))
        offset = 2 * (generator.random(number) > 0.88)
        return np.stack([first, second, first + offset, second], 1)

    data = sample_related_counts(1000)
    samples = sample_related_counts(1000)
    assert compare_pairs(samples, data)["equality_difference"] < 0.05
    samples[:, 2] += generator.integers(1, 3, 1000)
    assert compare_pairs(samples, data)["equality_difference"] > 0.8
    sparse = (generator.random((1000, 1)) < 0.2) * np.ones((1, 5), int)
    shuffled = generator.permuted(sparse, axis=0)
    assert compare_pairs(sparse, sparse)["co_occurrence_difference"] == 0
    assert compare_pairs(shuffled, sparse)["co_occurrence_difference"] == pytest.approx(
        0.16, abs=0.03
    )


def test_only_the_most_variable_elements_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(count_pairs, "MAX_PAIR_ELEMENTS", 2)
    data = np.array([[1, 9, 1, 0], [1, 0, 1, 9]])
    assert compare_pairs(data, data + [0, 0, 1, 0])["equality_difference"] == 0
    assert compare_pairs(data + [0, 1, 0, 0], data)["co_occurrence_difference"] > 0
