"""The error of a classifier test is its standard deviation for perfect samples."""

from __future__ import annotations

import numpy as np
import pytest

from blackout.evaluation.classifier_tests import classifier_test, null_auc_error


@pytest.mark.parametrize("number, parts, repeats", [(60, 1, 400), (60, 3, 200), (300, 1, 200)])
def test_the_error_of_an_auc_is_its_standard_deviation_for_perfect_samples(
    number: int, parts: int, repeats: int
) -> None:
    """The classifier is a difference of means, in five folds.

    The standard deviation of Mann and Whitney (1947) is smaller by a factor of sqrt(2).
    """
    rng = np.random.default_rng(0)
    fold = np.arange(number) % 5
    mean_aucs = []
    for _ in range(repeats):
        real = rng.normal(size=(number, 8))
        aucs = []
        for _ in range(parts):
            samples = rng.normal(size=(number, 8))
            scores = np.zeros((2, number))
            for k in range(5):
                direction = samples[fold != k].mean(0) - real[fold != k].mean(0)
                scores[:, fold == k] = samples[fold == k] @ direction, real[fold == k] @ direction
            aucs.append((scores[0][:, None] > scores[1]).mean())
        mean_aucs.append(np.mean(aucs))
    assert np.std(mean_aucs) == pytest.approx(null_auc_error(number, parts), rel=0.2)


@pytest.mark.deep
def test_the_error_of_an_auc_is_that_of_the_logistic_regression() -> None:
    rng = np.random.default_rng(0)
    aucs = [classifier_test(*rng.poisson(3.0, (2, 60, 10)), linear=True)[0] for _ in range(120)]
    assert np.std(aucs) == pytest.approx(null_auc_error(60), rel=0.2)
