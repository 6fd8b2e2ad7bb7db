"""Whether two sets of counts come from one distribution: classifiers that try to tell them apart, and distances.

Classifier two-sample tests: Lopez-Paz & Oquab (arXiv:1610.06545). Maximum mean discrepancy: Gretton et al. (2012).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
FOLDS = 5
TREES = 300


def classifier_test(a: Array, b: Array, linear: bool = False, seed: int = 0) -> tuple[float, float]:
    """(area under the ROC curve, accuracy) of a classifier of `a` against `b`, cross-validated; 0.5 is perfect.

    Args:
        a, b: counts [n, D] each, equally many.
        linear: logistic regression of standardised log counts, in place of a random forest.
        seed: of folds and trees.
    """
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    x = np.log1p(np.concatenate([a, b]).astype(np.float32))
    y = np.repeat([0, 1], [len(a), len(b)])
    folds = StratifiedKFold(min(FOLDS, len(a)), shuffle=True, random_state=seed)
    p = cross_val_predict(_linear() if linear else _forest(seed), x, y, cv=folds, method="predict_proba")[:, 1]
    return float(roc_auc_score(y, p)), float(((p > 0.5) == y).mean())


def _forest(seed: int) -> Any:
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(TREES, random_state=seed)


def _linear() -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=300))


def kolmogorov_smirnov(a: Array, b: Array) -> Array:
    """The largest difference of the two empirical distribution functions, of every column: [D]."""
    found = np.empty(a.shape[1])
    for column in range(a.shape[1]):
        points = np.union1d(a[:, column], b[:, column])
        below = [np.searchsorted(np.sort(x[:, column]), points, side="right") / len(x) for x in (a, b)]
        found[column] = np.abs(below[0] - below[1]).max()
    return found


def mean_discrepancy(a: Array, b: Array) -> float:
    """Unbiased MMD^2 with exp(-|sqrt a - sqrt b|^2 / 2 s^2), s the median distance in `b`: about 0 if they are alike.

    The square root makes Poisson counts equally noisy whatever their mean.

    Args:
        a, b: counts [n, D] and [m, D], at least two each.
    """
    root_a, root_b = np.sqrt(a.astype(np.float64)), np.sqrt(b.astype(np.float64))
    within_b = _squares(root_b, root_b)
    scale = float(np.median(within_b[np.triu_indices(len(b), 1)])) or 1.0
    kernels = [np.exp(-square / (2 * scale)) for square in (_squares(root_a, root_a), within_b)]
    same = sum((k.sum() - np.trace(k)) / (len(k) * (len(k) - 1)) for k in kernels)
    return float(same - 2 * np.exp(-_squares(root_a, root_b) / (2 * scale)).mean())


def nearest(points: Array, others: Array) -> Array:
    """Distance in log counts from every point [n, D] to the nearest of the others [m, D]: [n]."""
    a, b = (np.log1p(x.astype(np.float64)) for x in (points, others))
    return np.sqrt(np.concatenate([_squares(part, b).min(1) for part in np.array_split(a, -(-len(a) // 256))]))


def _squares(a: Array, b: Array) -> Array:
    square: Array = (a**2).sum(1)[:, None] + (b**2).sum(1)[None, :] - 2 * a @ b.T
    return np.maximum(square, 0.0)
