"""Comparison of samples of counts with held-out counts: all scores of `metrics=counts`."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from blackout.data import CountData
from blackout.data.count_statistics import load_samples
from blackout.evaluation.classifier_tests import MIN_CLASSIFIER_SAMPLES, classifier_scores
from blackout.evaluation.count_arrays import Array, flatten_counts, select_evenly
from blackout.evaluation.count_pairs import MIN_PAIR_SAMPLES, compare_pairs, correlation_difference
from blackout.protocols import Split

TRAINING_SAMPLES_RATIO = 10  # training samples that are searched for copies, over `max_samples`
MIN_DISTANCE = 1e-12

# ends of the range of counts
LARGEST_LOW = 10  # low counts are 1 to here
HIGH_WIDTH = 5  # high counts are the five below the largest possible one, without low ones


def compare_counts(
    samples: Array, data: CountData, max_samples: int, seed: int, split: Split = "test"
) -> dict[str, float]:
    """Return scores of samples compared with the held-out counts of a dataset.

    Args:
        samples: counts [n, D].
        data: dataset of D elements.
        max_samples: samples of either set that classifiers and `novelty` compare, evenly spaced.
            If there are fewer held-out counts, they are compared with several parts of the samples,
            `max_samples` in all; this halves the standard deviation of the mean.
        seed: of the classifiers.
        split: held-out counts: "test", or "val" during training.

    Returns:
        c2st_auc, c2st_accuracy: of random forests that tell samples from held-out counts, 0.5 is
            perfect; means over parts of the samples.
        c2st_linear_auc: the same of logistic regressions.
        c2st_auc_error, c2st_linear_auc_error: standard deviations for perfect samples; see
            `null_auc_error`.
        ks_mean, ks_total: Kolmogorov-Smirnov distances, mean over elements, and of totals.
        mean_ratio, variance_ratio: medians over elements, samples over held-out counts; 1 is
            perfect.
        zeros_difference: difference of the shares of zeros; 0 is perfect.
        share_zero, share_low, share_high, share_max: see `shares_at_ends`.
        max_ratio: ratio of the largest counts; 1 is perfect.
        correlation_difference: mean absolute difference of correlations of log counts.
        equality_difference, co_occurrence_difference: see `compare_pairs`.
        novelty: median distance to the nearest training counts, over that of held-out counts; 1 is
            perfect, and far below 1 means copies.

    References: Lopez-Paz and Oquab 2017 (classifier tests); the choice is this project's, checked
        in tests/evaluation/test_count_scores.py.
    """
    from scipy.stats import ks_2samp

    # 1. As many samples as held-out counts.
    real = flatten_counts(getattr(data, split))
    number = min(len(samples), len(real), max_samples)
    subset = select_evenly(samples, number)
    real_subset = select_evenly(real, number)

    # 2. Distances to the nearest training counts.
    novelty = _novelty(subset, real_subset, load_samples(data.train), max_samples)

    # 3. Classifiers.
    scores: dict[str, float] = {}
    if number >= MIN_CLASSIFIER_SAMPLES:
        scores |= classifier_scores(samples, real_subset, max_samples, seed)

    # 4. Marginals, totals, and pairs of elements.
    varying = real.var(0) > 0
    ks_elements = ks_2samp(samples, real, method="asymp").statistic
    ks_total = ks_2samp(samples.sum(1), real.sum(1), method="asymp").statistic
    scores |= {
        "ks_mean": float(ks_elements.mean()),
        "ks_total": float(ks_total),
        "mean_ratio": _median_ratio(samples.mean(0)[varying], real.mean(0)[varying]),
        "variance_ratio": _median_ratio(samples.var(0)[varying], real.var(0)[varying]),
        "zeros_difference": float((samples == 0).mean() - (real == 0).mean()),
        "max_ratio": float(samples.max() / max(real.max(), 1)),
        "novelty": novelty,
    }
    scores |= shares_at_ends(samples, data.max_count)
    if number >= MIN_PAIR_SAMPLES:
        scores["correlation_difference"] = correlation_difference(samples, real)
        scores |= compare_pairs(subset, real_subset)
    return scores


def shares_at_ends(counts: Array, max_count: int) -> dict[str, float]:
    """Return the shares of counts at both ends of the range: 0, low, high and largest counts.

    A range without any possible count is left out. Where a process or a sampler is cut off, its
    errors gather there. The same shares of real counts are among the scores of
    `CountScorer.held_out`.

    Args:
        counts: [n, D].
        max_count: largest possible count.

    Returns:
        share_zero: of 0.
        share_low: of 1..10, below the largest possible count.
        share_high: of the five counts below the largest possible one, above 10.
        share_max: of the largest possible count.

    References: this project; checked in tests/evaluation/test_count_scores.py.
    """
    high_start = max(LARGEST_LOW + 1, max_count - HIGH_WIDTH)
    bands = {
        "share_zero": (0, 0),
        "share_low": (1, min(LARGEST_LOW, max_count - 1)),
        "share_high": (high_start, max_count - 1),
        "share_max": (max_count, max_count),
    }
    return {
        name: float(((counts >= low) & (counts <= high)).mean())
        for name, (low, high) in bands.items()
        if low <= high
    }


def _novelty(samples: Array, real: Array, train: Tensor, max_samples: int) -> float:
    """Return the median distance of samples to training counts, over that of real counts.

    Distances are of log counts, to the nearest of the evenly selected training counts.

    Args:
        samples: counts [n, D].
        real: held-out counts [n, D].
        train: counts [N, *shape].
        max_samples: see `compare_counts`.
    """
    from sklearn.metrics import pairwise_distances_argmin_min

    num_train = TRAINING_SAMPLES_RATIO * max_samples
    log_train = np.log1p(flatten_counts(select_evenly(train, num_train)))
    medians = []
    for counts in (samples, real):
        _, distances = pairwise_distances_argmin_min(np.log1p(counts), log_train)
        medians.append(float(np.median(distances)))
    return medians[0] / max(medians[1], MIN_DISTANCE)


def _median_ratio(samples: Array, real: Array) -> float:
    """Return the median of samples [D] over held-out counts [D]; 1 without elements."""
    return float(np.median(samples / real)) if len(real) else 1.0
