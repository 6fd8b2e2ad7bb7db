"""Classifier two-sample tests: can a classifier tell samples from held-out counts?"""

from __future__ import annotations

import math

import numpy as np

from blackout.evaluation.count_arrays import Array, select_evenly

MIN_CLASSIFIER_SAMPLES = 10  # of either set; with fewer the tests are left out
FOLDS = 5  # of cross-validation
TREES = 300  # of the random forest
INVERSE_REGULARISATION = 0.01  # of the logistic regression
MAX_ITERATIONS = 300


def classifier_scores(samples: Array, real: Array, max_samples: int, seed: int) -> dict[str, float]:
    """Return means of classifier tests over parts of the samples; see `compare_counts`.

    Args:
        samples: counts [n, D].
        real: held-out counts [m, D], m <= n.
        max_samples: in all parts together.
        seed: of the classifiers.
    """
    number = len(real)
    num_parts = max(min(len(samples), max_samples) // number, 1)
    selected = select_evenly(samples, num_parts * number)
    trees = TREES // min(num_parts, FOLDS)
    results = []
    for k in range(num_parts):
        part = selected[k::num_parts]
        auc, accuracy = classifier_test(part, real, linear=False, seed=seed, trees=trees)
        linear_auc, _ = classifier_test(part, real, linear=True, seed=seed)
        results.append((auc, accuracy, linear_auc))
    auc, accuracy, linear_auc = np.mean(results, axis=0).tolist()
    error = null_auc_error(number, num_parts)
    return {
        "c2st_auc": auc,
        "c2st_accuracy": accuracy,
        "c2st_linear_auc": linear_auc,
        "c2st_auc_error": error,
        "c2st_linear_auc_error": error,
    }


def classifier_test(
    a: Array, b: Array, linear: bool = False, seed: int = 0, trees: int = 300
) -> tuple[float, float]:
    """Return area under the ROC curve and accuracy of a cross-validated classifier of a and b.

    0.5 is perfect for both.

    Args:
        a: counts [n, D].
        b: counts [n, D].
        linear: logistic regression of standardised log counts, instead of a random forest.
        seed: of folds and trees.
        trees: of the forest.

    References: Lopez-Paz and Oquab 2017, section 3.
    """
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x = np.log1p(np.concatenate([a, b]).astype(np.float32))
    y = np.repeat([0, 1], [len(a), len(b)])
    if linear:
        regression = LogisticRegression(C=INVERSE_REGULARISATION, max_iter=MAX_ITERATIONS)
        classifier = make_pipeline(StandardScaler(), regression)
    else:
        classifier = RandomForestClassifier(trees, random_state=seed)
    folds = StratifiedKFold(min(FOLDS, len(a)), shuffle=True, random_state=seed)
    p = cross_val_predict(classifier, x, y, cv=folds, method="predict_proba")[:, 1]
    return float(roc_auc_score(y, p)), float(((p > 0.5) == y).mean())


def null_auc_error(number: int, num_parts: int = 1) -> float:
    """Return the standard error of a cross-validated AUC if both sets have the same distribution.

    The variance of an AUC whose classifier saw neither set is (2 + 1 / n) / 12 n. In
    cross-validation every pair of folds is used twice, once to train and once to test, with the
    same sign: what two folds have in common by chance counts for both. This doubles the variance.
    All parts share the held-out counts, which cause a quarter of the variance of a single part:

        (1 + 1 / 2 n) (3 + parts) / (12 parts n).

    Args:
        number: n, of either set.
        num_parts: of samples, each compared with the same held-out counts.

    References: Mann and Whitney 1947 (a single classifier); the factor: this project, checked in
        tests/evaluation/test_classifier_tests.py and measured by `benchmarks.classifier_errors`.

    Example:
        >>> round(null_auc_error(61), 3)
        0.074
    """
    return math.sqrt((1 + 0.5 / number) * (3 + num_parts) / (12 * num_parts * number))
