"""Scores of counts that are no images (`metrics=counts`).

They compare samples with held-out counts: classifier two-sample tests, distances of marginals and
totals, correlations, and copies of training data.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from blackout.component import component
from blackout.counts import count_dtype
from blackout.data import CountData
from blackout.data.count_statistics import load_samples
from blackout.data.labels import decode_labels
from blackout.data.on_disk import DiskCounts
from blackout.data.sample_files import read_labels, read_samples
from blackout.distributed import SampleRows
from blackout.errors import UserError, refuse
from blackout.evaluation.baselines import COPULA_NAME, MAX_COPULA_SAMPLES, copula_samples
from blackout.protocols import SPLIT_NAMES, MetricDescription, Samples, Source, Split
from blackout.representation import format_arguments

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = npt.NDArray[Any]

DESCRIPTIONS = {
    "c2st_auc": MetricDescription("0.5 is perfect", "reference"),
    "c2st_accuracy": MetricDescription("0.5 is perfect", "reference"),
    "c2st_linear_auc": MetricDescription("0.5 is perfect", "reference"),
    "ks_mean": MetricDescription("distance of distributions", "lower"),
    "ks_total": MetricDescription("distance of distributions", "lower"),
    "mean_ratio": MetricDescription("samples over data", "reference"),
    "variance_ratio": MetricDescription("samples over data", "reference"),
    "max_ratio": MetricDescription("samples over data", "reference"),
    "zeros_difference": MetricDescription("share of zeros", "reference"),
    "share_zero": MetricDescription("of all counts", "reference"),
    "share_low": MetricDescription("of all counts", "reference"),
    "share_high": MetricDescription("of all counts", "reference"),
    "share_max": MetricDescription("of all counts", "reference"),
    "correlation_difference": MetricDescription(better="lower"),
    "equality_difference": MetricDescription("share of samples", "lower"),
    "co_occurrence_difference": MetricDescription("probability", "lower"),
    "novelty": MetricDescription("samples over data", "reference"),
}

# classifier two-sample tests
FOLDS = 5  # of cross-validation
TREES = 300  # of the random forest
INVERSE_REGULARISATION = 0.01  # of the logistic regression
MAX_ITERATIONS = 300

# sizes
MIN_CLASSIFIER_SAMPLES = 10  # of either set; with fewer the tests are left out
MIN_PAIR_SAMPLES = 2  # of either set; with fewer, scores of pairs of elements are left out
MAX_PAIR_ELEMENTS = 200  # elements whose pairs are compared: those that vary most
TRAINING_SAMPLES_RATIO = 10  # training samples that are searched for copies, over `max_samples`
MIN_DISTANCE = 1e-12

# ends of the range of counts
LARGEST_LOW = 10  # low counts are 1 to here
HIGH_WIDTH = 5  # high counts are so many below the largest possible one, and above the low ones

# the figure
MAX_FIGURE_SAMPLES = 1000
MAX_FIGURE_ELEMENTS = 60  # whose correlations are shown
MAX_NAMED_ELEMENTS = 8
MAX_NAME_LENGTH = 16
MIN_LOG_COUNT = 1e-3  # smallest mean and variance on logarithmic axes


@component("metrics")
class CountScorer:
    """A comparison of samples with test counts, and during training with validation counts.

    Args:
        max_samples: samples of either set that are compared.
        baselines: whether a Gaussian copula is scored too.
        seed: of the classifiers.

    Raises:
        UserError: fewer than 10 samples.
    """

    __repr__ = format_arguments

    def __init__(self, max_samples: int = 1000, baselines: bool = True, seed: int = 0) -> None:
        refuse(
            max_samples < MIN_CLASSIFIER_SAMPLES,
            f"metrics.max_samples={max_samples} must be at least {MIN_CLASSIFIER_SAMPLES}",
        )
        self.max_samples = max_samples
        self.baselines = baselines
        self.seed = seed

    def begin(
        self,
        source: Source,
        num_samples: int,
        device: torch.device | str = "cpu",
        split: Split = "test",
    ) -> CountScores:
        """Return accumulators for samples that are compared with a split of a source.

        Raises:
            UserError: no dataset of counts, or one without validation counts to compare with.
        """
        data = _check_counts(source)
        size = data.size(split)
        if size == 0:
            raise UserError(
                f"{data.name} has no validation data to compare samples with during training: "
                "add dataset.validation=0.1, or callbacks.scores.every_n_steps=null"
            )
        is_filled = data.train_observed is not None or data.test_observed is not None
        if source is not data or is_filled:
            treatment = "with filled missing entries" if is_filled else "without missing entries"
            warnings.warn(
                f"compared with {size} {SPLIT_NAMES[split]} samples {treatment}", stacklevel=2
            )
        num_compared = min(num_samples, self.max_samples, size)
        if num_compared < MIN_CLASSIFIER_SAMPLES:
            names = "c2st scores are"
            if num_compared < MIN_PAIR_SAMPLES:
                names = "c2st scores and correlation_difference are"
            warnings.warn(
                f"{names} left out: they compare at least {MIN_CLASSIFIER_SAMPLES} samples with as "
                f"many {SPLIT_NAMES[split]} samples, and there are {num_compared}",
                stacklevel=2,
            )
        return CountScores(self, data, num_samples, device, split)

    def held_out(
        self, source: Source, num_samples: int, device: torch.device | str = "cpu"
    ) -> dict[str, Any] | None:
        """Return the scores of as many training counts, which are those of perfect samples."""
        data = _check_counts(source)
        number = min(num_samples, len(data.train))
        rows = torch.linspace(0, len(data.train) - 1, number).long()
        values = compare_counts(_flatten(data.train[rows]), data, self.max_samples, self.seed)
        values["novelty"] = 1.0  # by definition; training samples would be copies of themselves
        return {"num_samples": number, "values": values}

    def baseline(
        self, source: Source, num_samples: int, device: torch.device | str = "cpu"
    ) -> dict[str, Any] | None:
        """Return the scores of a Gaussian copula, or None if baselines are switched off."""
        if not self.baselines:
            return None
        data = _check_counts(source)
        number = min(num_samples, MAX_COPULA_SAMPLES)
        samples = _flatten(copula_samples(data.train, number, self.seed))
        values = compare_counts(samples, data, self.max_samples, self.seed)
        return {"name": COPULA_NAME, "num_samples": number, "values": values}

    def read(self, path: Path, source: Source) -> Samples:
        """Return `samples` in a file, and their `classes` if it has them.

        Raises:
            UserError: unreadable, or not counts of the source's shape and range.
        """
        return {"samples": read_samples(path, _check_counts(source)), **read_labels(path)}


class CountScores:
    """Samples of all processes, each in its row, until all can be compared.

    Args:
        scorer: settings of the comparison.
        data: dataset of the reference.
        num_samples: over all processes.
        device: where rows are kept.
        split: of the dataset.
    """

    __repr__ = format_arguments

    def __init__(
        self,
        scorer: CountScorer,
        data: CountData,
        num_samples: int,
        device: torch.device | str,
        split: Split = "test",
    ) -> None:
        self.num_samples = num_samples
        self._scorer = scorer
        self._data = data
        self._split = split
        self._rows = SampleRows((num_samples, *data.shape), count_dtype(data.max_count), device)
        self._compared = torch.zeros(num_samples, *data.shape)

    def update(self, samples: Samples, indices: Tensor) -> None:
        """Add samples [b, *shape] with their numbers, int64 [b]."""
        self._rows.update(samples["samples"], indices)

    def compute(self) -> dict[str, float]:
        """Return all scores by name, the same on every process; every process must call it."""
        self._compared = self._rows.gather().cpu()
        return compare_counts(
            _flatten(self._compared),
            self._data,
            self._scorer.max_samples,
            self._scorer.seed,
            self._split,
        )

    def figure(self) -> Figure:
        """Return a figure of the samples that were compared last, and of real counts."""
        data = self._data
        counts = getattr(data, self._split)
        labels = getattr(data, f"{self._split}_labels")
        real = counts if isinstance(counts, Tensor) else counts[:MAX_FIGURE_SAMPLES]
        classes: list[str] = []
        if labels is not None:
            covariate_sizes = [len(values) for values in data.covariates.values()]
            class_index = decode_labels(labels[: len(real)], covariate_sizes)[0].tolist()
            names = data.class_names
            classes = [str(names[k] if names else k) for k in class_index]
        return plot_counts(_flatten(self._compared), _flatten(real), data.features, classes)

    def reset(self) -> None:
        """Remove all samples."""
        self._rows.reset()

    def provenance(self) -> dict[str, Any]:
        """Return how the scores are made, as plain values."""
        data = self._data
        reference: dict[str, Any] = {
            "split": self._split,
            "size": data.size(self._split),
            "sha256": data.fingerprint(self._split),
        }
        if data.condition:
            reference["condition"] = dict(data.condition)
        return {
            "metrics": {
                "scores_of": "counts",
                "num_samples": self.num_samples,
                "max_samples": self._scorer.max_samples,
                "seed": self._scorer.seed,
                "reference": reference,
            },
            "metric_descriptions": {name: asdict(score) for name, score in DESCRIPTIONS.items()},
        }


def _check_counts(source: Source) -> CountData:
    """Return a source of counts, without its incomplete samples if it has missing entries."""
    if not isinstance(source, CountData):
        raise UserError(
            f"{source.name}: metrics=counts needs a dataset of counts, not a "
            f"{type(source).__name__}"
        )
    return source.without_missing() or source


def _flatten(counts: Tensor | DiskCounts) -> Array:
    """Return counts as int64 [n, D]."""
    return load_samples(counts).flatten(1).cpu().numpy().astype(np.int64)


def _select_evenly(rows: Any, number: int) -> Any:
    """Return at most `number` evenly spaced rows."""
    return rows[np.linspace(0, len(rows) - 1, min(len(rows), number)).astype(int)]


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
    real = _flatten(getattr(data, split))
    number = min(len(samples), len(real), max_samples)
    compared = _select_evenly(samples, number)
    compared_real = _select_evenly(real, number)

    # 2. Distances to the nearest training counts.
    novelty = _novelty(compared, compared_real, load_samples(data.train), max_samples)

    # 3. Classifiers.
    scores: dict[str, float] = {}
    if number >= MIN_CLASSIFIER_SAMPLES:
        scores |= _classifier_scores(samples, compared_real, max_samples, seed)

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
        scores["correlation_difference"] = _correlation_difference(samples, real)
        scores |= compare_pairs(compared, compared_real)
    return scores


def shares_at_ends(counts: Array, max_count: int) -> dict[str, float]:
    """Return the shares of counts near both ends of the range, without ranges that are empty.

    Where a process or a sampler is cut off, its errors gather there. The same shares of real counts
    are among the scores of `CountScorer.held_out`.

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
    log_train = np.log1p(_flatten(_select_evenly(train, num_train)))
    medians = []
    for counts in (samples, real):
        _, distances = pairwise_distances_argmin_min(np.log1p(counts), log_train)
        medians.append(float(np.median(distances)))
    return medians[0] / max(medians[1], MIN_DISTANCE)


def _classifier_scores(
    samples: Array, real: Array, max_samples: int, seed: int
) -> dict[str, float]:
    """Return means of classifier tests over parts of the samples; see `compare_counts`.

    Args:
        samples: counts [n, D].
        real: held-out counts [m, D], m <= n.
        max_samples: in all parts together.
        seed: of the classifiers.
    """
    number = len(real)
    num_parts = max(min(len(samples), max_samples) // number, 1)
    selected = _select_evenly(samples, num_parts * number)
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


def null_auc_error(number: int, num_parts: int = 1) -> float:
    """Return the standard deviation of a mean cross-validated AUC of sets of equal distribution.

    The variance of an AUC whose classifier saw neither set is (2 + 1 / n) / 12 n. In
    cross-validation every pair of folds is used twice, once to train and once to test, with the
    same sign: what two folds have in common by chance counts for both. This doubles the variance.
    All parts share the held-out counts, which cause a quarter of the variance of a single part:

        (1 + 1 / 2 n) (3 + parts) / (12 parts n).

    Args:
        number: n, of either set.
        num_parts: of samples, each compared with the same held-out counts.

    References: Mann and Whitney 1947 (a single classifier); the factor: this project, checked in
        tests/evaluation/test_count_scores.py and measured by `benchmarks.classifier_errors`.

    Example:
        >>> round(null_auc_error(61), 3)
        0.074
    """
    return math.sqrt((1 + 0.5 / number) * (3 + num_parts) / (12 * num_parts * number))


def _median_ratio(samples: Array, real: Array) -> float:
    """Return the median of samples [D] over held-out counts [D]; 1 without elements."""
    return float(np.median(samples / real)) if len(real) else 1.0


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

    References: the choice is this project's, checked in tests/evaluation/test_count_scores.py.
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


def _correlation_difference(samples: Array, real: Array) -> float:
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


def plot_counts(
    samples: Array, real: Array, names: Sequence[str] = (), classes: Sequence[str] = ()
) -> Figure:
    """Plot samples and real counts: variance and mean, ranks, totals, correlations, components.

    The principal components are those of real log counts.

    Args:
        samples: counts [n, D].
        real: held-out counts [m, D].
        names: of the D elements, for instance genes; those that vary most are labelled.
        classes: m of the held-out counts; each has a colour among the principal components.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 8), layout="constrained")
    spread, ranks, totals, components, *correlations = figure.subplots(2, 3).flat
    shown_real = real[:MAX_FIGURE_SAMPLES]

    # 1. What both sets share: bins, principal components, elements.
    total_bins = np.histogram_bin_edges(np.log10(1 + real.sum(1)), 30).tolist()
    log_real = np.log1p(shown_real)
    centre = log_real.mean(0)
    directions = np.linalg.svd(log_real - centre, full_matrices=False)[2][:2]
    by_variance = np.argsort(-np.log1p(real).var(0), kind="stable")
    elements = np.sort(by_variance[:MAX_FIGURE_ELEMENTS])

    # 2. Each set in each panel.
    sets = (
        (shown_real, "test data", "tab:gray"),
        (samples[:MAX_FIGURE_SAMPLES], "samples", "tab:orange"),
    )
    for (counts, label, colour), panel in zip(sets, correlations, strict=True):
        style: dict[str, Any] = {"color": colour, "label": label}
        mean = counts.mean(0)
        variance = counts.var(0)
        has_counts = mean > 0
        clipped = variance[has_counts].clip(MIN_LOG_COUNT)
        spread.loglog(mean[has_counts], clipped, ".", alpha=0.5, **style)

        ordered = np.sort(counts, axis=None)[::-1]
        rank = np.unique(np.geomspace(1, ordered.size, 300).astype(int))
        ranks.loglog(rank / ordered.size, ordered[rank - 1].clip(0.5), **style)

        log_totals = np.log10(1 + counts.sum(1))
        totals.hist(log_totals, bins=total_bins, density=True, alpha=0.5, **style)

        points = (np.log1p(counts) - centre) @ directions.T
        if classes and label == "test data":
            _plot_classes(components, points, classes)
        else:
            components.plot(points[:, 0], points[:, -1], ".", alpha=0.5, **style)

        # constant elements have no correlation: a tiny slope gives them one
        log_counts = np.log1p(counts[:, elements]) + 1e-9 * np.arange(len(counts))[:, None]
        correlation = np.atleast_2d(np.corrcoef(log_counts.T))
        image = panel.imshow(correlation, vmin=-1, vmax=1, cmap="RdBu_r")
        panel.set_title(f"correlations of log counts, {label}")
        figure.colorbar(image, ax=panel)

    # 3. Names, titles and legends.
    if len(names) == real.shape[1]:
        mean = shown_real.mean(0).clip(MIN_LOG_COUNT)
        variance = shown_real.var(0).clip(MIN_LOG_COUNT)
        for k in np.argsort(-variance / mean, kind="stable")[:MAX_NAMED_ELEMENTS]:
            name = str(names[k])[:MAX_NAME_LENGTH]
            spread.annotate(name, (mean[k], variance[k]), fontsize=7)
    spread.set(title="every element", xlabel="mean", ylabel="variance")
    if np.ptp(np.log10(real.mean(0).clip(1e-9))) < 1:  # below a decade, log axes have no numbers
        spread.set(xscale="linear", yscale="linear")
    ranks.set(title="largest counts", xlabel="rank, as a share of all counts", ylabel="count")
    totals.set(title="totals of samples", xlabel="log10(1 + total)")
    components.set(title="principal components of log counts", xlabel="first", ylabel="second")
    for panel in (spread, ranks, totals, components):
        panel.legend()
    return figure


def _plot_classes(axes: Any, points: Array, classes: Sequence[str]) -> None:
    """Plot points [n, 2] in a colour for each class, with the names at their centres."""
    first_last = [0, -1]  # a single component is shown twice
    names, index = np.unique(classes[: len(points)], return_inverse=True)
    axes.scatter(
        points[:, 0],
        points[:, -1],
        9,
        index,
        cmap="tab20",
        alpha=0.6,
        label="test data, by class",
    )
    for k, name in enumerate(names):
        centre = points[index == k][:, first_last].mean(0)
        axes.annotate(name[:MAX_NAME_LENGTH], centre, fontsize=8, ha="center")
