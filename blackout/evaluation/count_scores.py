"""Scores of counts that are no pictures: `metrics=counts`."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from blackout.component import component
from blackout.counts import count_dtype
from blackout.data import CountData
from blackout.distributed import sum_over_processes
from blackout.errors import UserError
from blackout.evaluation.count_figure import count_figure
from blackout.evaluation.image_scores import library_versions
from blackout.evaluation.reference import read_samples
from blackout.family import Samples, Source

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# --- Models of independent counts, fitted to every element: what a generative model of counts must at least beat.

Array = npt.NDArray[Any]
LogMass = Callable[[Array], Array]
_MOST_ELEMENTS = 2048
_LEAST_SHAPE, _MOST_SHAPE = 1e-3, 1e6


def baseline_bits(train: Tensor, test: Tensor) -> dict[str, float]:
    """Held-out bits per dimension of independent counts: `poisson`, `negative_binomial`, `zero_inflated`.

    Every element is fitted on its own by maximum likelihood, at most 2,048 evenly spaced ones; the last is a negative
    binomial with more zeros.

    Args:
        train, test: counts [N, *shape] and [M, *shape].
    """
    size = train[0].numel()
    chosen = torch.arange(0, size, -(-size // _MOST_ELEMENTS))
    columns, held_out = _columns(train, chosen), _columns(test, chosen)
    nats = {"poisson": 0.0, "negative_binomial": 0.0, "zero_inflated": 0.0}
    for column, fresh in zip(columns, held_out, strict=True):
        values, times = np.unique(column, return_counts=True)
        seen, of_seen = np.unique(fresh, return_counts=True)
        for name, model in _models(values.astype(float), times.astype(float)).items():
            nats[name] -= float(of_seen @ model(seen.astype(float)))
    number = len(held_out[0]) * len(columns) * math.log(2)
    return {name: total / number for name, total in nats.items()}


def _columns(counts: Tensor, chosen: Tensor) -> Array:
    flat: Array = counts.flatten(1)[:, chosen.to(counts.device)].T.contiguous().cpu().numpy()
    return flat


def _models(values: Array, times: Array) -> dict[str, LogMass]:
    """The three models of one element, from its values and how often each occurred."""
    from scipy.special import gammaln

    number = times.sum()
    mean = float((values @ times + 1) / (number + 1))  # never 0: a count that never occurred is not impossible
    r = _best_shape(values, times, mean)
    return {
        "poisson": lambda x: x * math.log(mean) - mean - gammaln(x + 1),
        "negative_binomial": lambda x: negative_binomial(x, mean, r),
        "zero_inflated": _zero_inflated(values, times, mean, r),
    }


def negative_binomial(x: Array, mean: float, r: float) -> Array:
    """log P(X = x) of mean m and variance m + m^2 / r."""
    from scipy.special import gammaln

    log_mass: Array = gammaln(x + r) - gammaln(r) - gammaln(x + 1) - r * math.log1p(mean / r)
    return log_mass + x * (math.log(mean) - math.log(r + mean))


def _best_shape(values: Array, times: Array, mean: float) -> float:
    from scipy.optimize import minimize_scalar

    def cost(log_r: float) -> float:
        return -float(times @ negative_binomial(values, mean, math.exp(log_r)))

    bounds = (math.log(_LEAST_SHAPE), math.log(_MOST_SHAPE))
    return math.exp(minimize_scalar(cost, bounds=bounds, method="bounded").x)


def _zero_inflated(values: Array, times: Array, mean: float, r: float) -> LogMass:
    """The negative binomial, or with more zeros where those that occurred are more than its own.

    The share of zeros is then the observed one, and what is above follows a negative binomial without zeros.
    """
    from scipy.optimize import minimize

    number, above = times.sum(), values > 0
    zeros = (number - times[above].sum() + 0.5) / (number + 1)
    if above.sum() < 2 or zeros <= math.exp(float(negative_binomial(np.zeros(1), mean, r)[0])):
        return lambda x: negative_binomial(x, mean, r)
    x, weight = values[above], times[above]

    def positive(points: Array, log_mean: float, log_r: float) -> Array:
        m, shape = math.exp(min(log_mean, 30.0)), math.exp(min(max(log_r, -7.0), 14.0))
        none = shape * math.log1p(m / shape)  # -log P(0)
        return negative_binomial(points, m, shape) - math.log(-math.expm1(-max(none, 1e-12)))

    start = [math.log(x @ weight / weight.sum()), math.log(max(r, 0.5))]
    best = minimize(lambda p: -float(weight @ positive(x, *p)), start, method="Nelder-Mead", options={"xatol": 1e-3})

    def log_mass(points: Array) -> Array:
        tail = math.log1p(-zeros) + positive(points, *best.x)
        return np.where(points > 0, tail, math.log(zeros))

    return log_mass


# --- Whether two sets of counts come from one distribution: classifiers that try to tell them apart, and distances.
#
# Classifier two-sample tests: Lopez-Paz & Oquab (arXiv:1610.06545). Maximum mean discrepancy: Gretton et al. (2012).

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


_FEWEST, _PAIR = 10, 2
"""Samples of either set for classifiers, and for anything that compares pairs; with fewer these scores are left out."""
_CORRELATED = 200
"""Elements whose correlations are compared, those with the largest variance of log counts."""


@component("metrics")
class CountScorer:
    """A comparison of samples with held-out counts.

    Args:
        most: samples of either set that are compared at most.
        baselines: whether the provenance holds the held-out bits per dimension of fitted models of independent counts.
        seed: of the classifiers.

    Raises:
        UserError: fewer than 10 samples.
    """

    def __init__(self, most: int = 1000, baselines: bool = True, seed: int = 0) -> None:
        if most < _FEWEST:
            raise UserError(f"metrics.most={most}: at least {_FEWEST} samples are needed")
        self.most, self.baselines, self.seed = most, baselines, seed

    def begin(self, source: Source, num_samples: int, device: torch.device | str = "cpu") -> CountScores:
        """Accumulators for `num_samples` samples, compared with held-out counts.

        Raises:
            UserError: no dataset of counts.
        """
        return CountScores(_counts(source), num_samples, self.most, self.baselines, self.seed, device)

    def held_out(self, source: Source, num_samples: int, device: torch.device | str = "cpu") -> dict[str, Any] | None:
        """The same of as many training counts: what samples that are right would score."""
        data = _counts(source)
        number = min(num_samples, len(data.train))
        chosen = torch.linspace(0, len(data.train) - 1, number).long()
        values = compare(_flat(data.train[chosen]), data, self.most, self.seed)
        del values["novelty"]  # of training samples it says nothing
        return {"num_samples": number, "values": values}

    def read(self, path: Path, source: Source) -> Samples:
        """Samples in a file, checked against the source.

        Raises:
            UserError: unreadable, or not counts of the source's shape and range.
        """
        return {"samples": read_samples(path, _counts(source))}


class CountScores:
    """Samples until all are there, each in its row whatever process drew it.

    Args:
        data: the dataset of the reference.
        num_samples: over all processes.
        most, baselines, seed: of the scorer.
        device: where rows are kept.
    """

    def __init__(
        self, data: CountData, num_samples: int, most: int, baselines: bool, seed: int, device: torch.device | str
    ) -> None:
        self.num_samples = num_samples
        self._data, self._most, self._baselines, self._seed = data, most, baselines, seed
        self._rows = torch.zeros(num_samples, *data.shape, dtype=count_dtype(data.max_count), device=device)
        self._all = self._rows

    def update(self, samples: Samples, indices: torch.Tensor) -> None:
        """Add samples [b, *shape] with their numbers, int64 [b]."""
        self._rows[indices.to(self._rows.device)] = samples["samples"].to(self._rows)

    def compute(self) -> dict[str, float]:
        """All scores by name; every process must call it, and all get the same."""
        self._all = sum_over_processes(self._rows).cpu()
        return compare(_flat(self._all), self._data, self._most, self._seed)

    def figure(self) -> Figure:
        """The samples that were compared last beside held-out counts."""
        return count_figure(_flat(self._all), _flat(self._data.test))

    def reset(self) -> None:
        """Forget all samples."""
        self._rows.zero_()

    def provenance(self) -> dict[str, Any]:
        """How the scores are made, and the baselines."""
        data = self._data
        made = {
            "scores_of": "counts", "num_samples": self.num_samples, "most": self._most, "seed": self._seed,
            "reference": {"split": "test", "size": len(data.test), "sha256": data.fingerprint("test")},
            "versions": library_versions(),
        }  # fmt: skip
        if not self._baselines:
            return {"metrics": made}
        return {"metrics": made, "held_out_bits_of_baselines": baseline_bits(data.train, data.test)}


def compare(samples: Array, data: CountData, most: int, seed: int) -> dict[str, float]:
    """Scores of samples [n, D] beside the held-out counts of a dataset.

    Returns:
        c2st_auc, c2st_accuracy, c2st_linear_auc: classifiers of samples against held-out counts, 0.5 is perfect.
        ks_mean, ks_total: Kolmogorov-Smirnov distances, mean over elements, and of totals.
        mean_ratio, variance_ratio: medians over elements of samples' over held-out; 1 is perfect.
        zeros_difference: of the share of zeros. largest_ratio: of the largest counts.
        correlation_difference: mean absolute difference of correlations of log counts.
        mmd: squared maximum mean discrepancy. novelty: median distance to the nearest training counts over that of
        held-out ones; far below 1 for samples that are copies.
    """
    real = _flat(data.test)
    number = min(len(samples), len(real), most)
    a, b = _some(samples, number), _some(real, number)
    scores = {
        "ks_mean": float(kolmogorov_smirnov(samples, real).mean()),
        "ks_total": float(kolmogorov_smirnov(*(x.sum(1, keepdims=True) for x in (samples, real)))[0]),
        **_ratios(samples, real),
        "zeros_difference": float((samples == 0).mean() - (real == 0).mean()),
        "largest_ratio": float(samples.max() / max(real.max(), 1)),
        "novelty": _novelty(a, b, _flat(data.train[_spaced(len(data.train), 10 * most)])),
    }
    if number >= _PAIR:
        scores |= {"correlation_difference": _correlation_difference(samples, real), "mmd": mean_discrepancy(a, b)}
    if number >= _FEWEST:
        auc, accuracy = classifier_test(a, b, seed=seed)
        linear = classifier_test(a, b, linear=True, seed=seed)[0]
        scores |= {"c2st_auc": auc, "c2st_accuracy": accuracy, "c2st_linear_auc": linear}
    return scores


def _ratios(samples: Array, real: Array) -> dict[str, float]:
    spread = real.var(0) > 0
    if not spread.any():
        return {"mean_ratio": 1.0, "variance_ratio": 1.0}
    return {
        "mean_ratio": float(np.median(samples.mean(0)[spread] / real.mean(0)[spread])),
        "variance_ratio": float(np.median(samples.var(0)[spread] / real.var(0)[spread])),
    }


def _novelty(samples: Array, real: Array, known: Array) -> float:
    distances = [float(np.median(nearest(x, known))) for x in (samples, real)]
    return distances[0] / max(distances[1], 1e-12)


def _correlation_difference(samples: Array, real: Array) -> float:
    a, b = np.log1p(samples.astype(np.float64)), np.log1p(real.astype(np.float64))
    usable = np.flatnonzero((a.var(0) > 0) & (b.var(0) > 0))
    chosen = usable[np.argsort(-b[:, usable].var(0), kind="stable")[:_CORRELATED]]
    if len(chosen) < 2:
        return 0.0
    above = np.triu_indices(len(chosen), 1)
    return float(np.abs(np.corrcoef(a[:, chosen].T) - np.corrcoef(b[:, chosen].T))[above].mean())


def _some(rows: Array, number: int) -> Array:
    """At most so many rows, evenly spaced."""
    return rows if len(rows) <= number else rows[_spaced(len(rows), number)]


def _spaced(size: int, number: int) -> Array:
    """At most so many of the numbers below `size`, evenly spaced."""
    return np.linspace(0, size - 1, min(size, number)).astype(int)


def _flat(counts: torch.Tensor) -> Array:
    rows: Array = counts.flatten(1).cpu().numpy().astype(np.int64)
    return rows


def _counts(source: Source) -> CountData:
    if not isinstance(source, CountData):
        raise UserError(f"{source.name}: metrics=counts needs a dataset of counts, not a {type(source).__name__}")
    return source.complete or source
