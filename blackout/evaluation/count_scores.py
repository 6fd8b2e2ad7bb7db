"""Scores of counts that are no pictures (`metrics=counts`): two-sample tests, distances of marginals and totals, a
classifier, copies of training data.

What tells samples from held-out counts: classifiers, distances, copies.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
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
from blackout.evaluation.baselines import COPULA, MOST_DRAWN, copula_samples
from blackout.protocols import SPLIT_NAMES, Samples, Source, Split

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = npt.NDArray[Any]
_MOST, _ELEMENTS, _NAMED = 1000, 60, 8
"""Samples that are shown at most, elements whose correlations are, and those that are named."""


@component("metrics")
class CountScorer:
    """A comparison of samples with test counts; during training with validation counts.

    Args:
        most: samples of either set that are compared at most.
        baselines: whether those of a fitted model stand beside them.
        seed: of the classifiers.

    Raises:
        UserError: fewer than 10 samples.
    """

    def __init__(self, most: int = 1000, baselines: bool = True, seed: int = 0) -> None:
        refuse(most < _FEWEST, f"metrics.most={most}: at least {_FEWEST} samples are needed")
        self.most, self.baselines, self.seed = most, baselines, seed

    def begin(
        self, source: Source, num_samples: int, device: torch.device | str = "cpu", split: Split = "test"
    ) -> CountScores:
        """Accumulators for `num_samples` samples, compared with test counts, or during training with validation counts.

        Raises:
            UserError: no dataset of counts, or one without validation counts to compare with.
        """
        data = _counts(source)
        size = data.size(split)
        if size == 0:
            told = f"{data.name} has no validation data to compare samples with during training"
            raise UserError(f"{told}: callbacks.scores.every_n_steps=null, or dataset.validation=0.1")
        filled = data.train_observed is not None or data.test_observed is not None
        if source is not data or filled:
            which = "whose missing entries are filled" if filled else "of which nothing is missing"
            warnings.warn(f"compared with {size} {SPLIT_NAMES[split]} samples {which}", stacklevel=2)
        if (fewest := min(num_samples, self.most, size)) < _FEWEST:
            left = "c2st scores are" if fewest >= _PAIR else "c2st scores and correlation_difference are"
            real = f"{SPLIT_NAMES[split]} samples"
            warnings.warn(f"{left} left out: they need {_FEWEST} samples and {real}, not {fewest}", stacklevel=2)
        return CountScores(self, data, num_samples, device, split)

    def held_out(self, source: Source, num_samples: int, device: torch.device | str = "cpu") -> dict[str, Any] | None:
        """The same of as many training counts: what samples that are right would score."""
        data = _counts(source)
        number = min(num_samples, len(data.train))
        chosen = torch.linspace(0, len(data.train) - 1, number).long()
        values = compare(_flat(data.train[chosen]), data, self.most, self.seed)
        values["novelty"] = 1.0  # of training samples it says nothing, and test samples are as new as test samples
        return {"num_samples": number, "values": values}

    def baseline(self, source: Source, num_samples: int, device: torch.device | str = "cpu") -> dict[str, Any] | None:
        """The same of a Gaussian copula."""
        if not self.baselines:
            return None
        data, number = _counts(source), min(num_samples, MOST_DRAWN)
        values = compare(_flat(copula_samples(data.train, number, self.seed)), data, self.most, self.seed)
        return {"name": COPULA, "num_samples": number, "values": values}

    def read(self, path: Path, source: Source) -> Samples:
        """Samples in a file, checked against the source, and their `classes` if it has them.

        Raises:
            UserError: unreadable, or not counts of the source's shape and range.
        """
        return {"samples": read_samples(path, _counts(source)), **read_labels(path)}


class CountScores:
    """Samples until all are there, each in its row whatever process drew it.

    Args:
        scorer: how they are compared.
        data: the dataset of the reference.
        num_samples: over all processes.
        device: where rows are kept.
        split: of the data, with which they are compared.
    """

    def __init__(
        self,
        scorer: CountScorer,
        data: CountData,
        num_samples: int,
        device: torch.device | str,
        split: Split = "test",
    ) -> None:
        self.num_samples, self._scorer, self._data, self._split = num_samples, scorer, data, split
        self._rows = SampleRows((num_samples, *data.shape), count_dtype(data.max_count), device)
        self._compared = torch.zeros(num_samples, *data.shape)

    def update(self, samples: Samples, indices: Tensor) -> None:
        """Add samples [b, *shape] with their numbers, int64 [b]."""
        self._rows.update(samples["samples"], indices)

    def compute(self) -> dict[str, float]:
        """All scores by name; every process must call it, and all get the same."""
        self._compared = self._rows.gather().cpu()
        return compare(_flat(self._compared), self._data, self._scorer.most, self._scorer.seed, self._split)

    def figure(self) -> Figure:
        """The samples that were compared last next to the real counts that they were compared with."""
        data, classes = self._data, list[str]()
        counts, labels = getattr(data, self._split), getattr(data, f"{self._split}_labels")
        real = counts if isinstance(counts, Tensor) else counts[:_MOST]
        if labels is not None:
            sizes = [len(values) for values in data.covariates.values()]
            of = decode_labels(labels[: len(real)], sizes)[0].tolist()
            classes = [str(data.class_names[k] if data.class_names else k) for k in of]
        return count_figure(_flat(self._compared), _flat(real), data.features, classes)

    def reset(self) -> None:
        """Forget all samples."""
        self._rows.reset()

    def provenance(self) -> dict[str, Any]:
        """How the scores are made."""
        data, scorer = self._data, self._scorer
        under = {"condition": dict(data.condition)} if data.condition else {}
        split = self._split
        made = {
            "scores_of": "counts", "num_samples": self.num_samples, "most": scorer.most, "seed": scorer.seed,
            "reference": {"split": split, "size": data.size(split), "sha256": data.fingerprint(split), **under},
        }  # fmt: skip
        return {"metrics": made}


def _counts(source: Source) -> CountData:
    if not isinstance(source, CountData):
        raise UserError(f"{source.name}: metrics=counts needs a dataset of counts, not a {type(source).__name__}")
    return source.without_missing() or source


def _flat(counts: Tensor | DiskCounts) -> Array:
    return load_samples(counts).flatten(1).cpu().numpy().astype(np.int64)


def compare(samples: Array, data: CountData, most: int, seed: int, split: Split = "test") -> dict[str, float]:
    """Scores of samples compared with the held-out counts of a dataset.

    The choice is ours; the law is that held-out counts score as right samples do (`tests/evaluation`).

    Args:
        samples: counts [n, D].
        data: the dataset, D elements.
        most: samples of either set that classifiers and `novelty` compare, evenly spaced. From few held-out ones
            classifiers tell several parts of the samples, `most` in all, which halves the deviation of their mean.
        seed: of the classifiers.
        split: the held-out counts: "test", or "val" during training.

    Returns:
        c2st_auc, c2st_accuracy, c2st_linear_auc: classifiers of samples against held-out counts, 0.5 is perfect, in the
            mean over parts of the samples.
        c2st_auc_error: deviation of the first among samples that are right, as of independent numbers [Mann 1947];
            forests that are cross-validated vary a little more.
        ks_mean, ks_total: Kolmogorov-Smirnov distances, mean over elements, and of totals.
        mean_ratio, variance_ratio: medians over elements of samples' over held-out; 1 is perfect.
        zeros_difference: of the share of zeros. largest_ratio: of the largest counts.
        correlation_difference: mean absolute difference of correlations of log counts.
        equal_difference, excess_difference: see `relations`.
        novelty: median distance to the nearest training counts over that of
        held-out ones; far below 1 for samples that are copies.
    """
    from scipy.stats import ks_2samp
    from sklearn.metrics import pairwise_distances_argmin_min

    def spaced(rows: Any, number: int) -> Any:
        return rows[np.linspace(0, len(rows) - 1, min(len(rows), number)).astype(int)]

    real = _flat(getattr(data, split))
    number = min(len(samples), len(real), most)
    a, b = spaced(samples, number), spaced(real, number)
    known = np.log1p(_flat(spaced(load_samples(data.train), 10 * most)))
    to_known = [float(np.median(pairwise_distances_argmin_min(np.log1p(x), known)[1])) for x in (a, b)]
    del known  # of many elements half a gigabyte
    varying, scores = real.var(0) > 0, dict[str, float]()
    if number >= _FEWEST:
        share = max(min(len(samples), most) // number, 1)
        parts = [spaced(samples, share * number)[k::share] for k in range(share)]
        names, trees = ("c2st_auc", "c2st_accuracy", "c2st_linear_auc"), TREES // min(share, FOLDS)
        told = [(*classifier_test(x, b, False, seed, trees), classifier_test(x, b, True, seed)[0]) for x in parts]
        scores |= dict(zip(names, np.mean(told, axis=0).tolist(), strict=True))
        scores["c2st_auc_error"] = ((1 + share + 1 / number) / (12 * share * number)) ** 0.5
    scores |= {
        "ks_mean": float(ks_2samp(samples, real, method="asymp").statistic.mean()),
        "ks_total": float(ks_2samp(samples.sum(1), real.sum(1), method="asymp").statistic),
        "mean_ratio": _median_ratio(samples.mean(0)[varying], real.mean(0)[varying]),
        "variance_ratio": _median_ratio(samples.var(0)[varying], real.var(0)[varying]),
        "zeros_difference": float((samples == 0).mean() - (real == 0).mean()),
        "largest_ratio": float(samples.max() / max(real.max(), 1)),
        "novelty": to_known[0] / max(to_known[1], 1e-12),
    }
    if number >= _PAIR:
        scores["correlation_difference"] = _correlation_difference(samples, real)
        scores |= relations(a, b)
    return scores


def _median_ratio(samples: Array, real: Array) -> float:
    """The median over elements of samples' over held-out ones, [D] each: a number, 1 without any; see `compare`."""
    return float(np.median(samples / real)) if len(real) else 1.0


def classifier_test(a: Array, b: Array, linear: bool = False, seed: int = 0, trees: int = 300) -> tuple[float, float]:
    """Area under the ROC curve and accuracy of a classifier of `a` against `b` [Lopez-Paz 2017, section 3].

    The classifier is cross-validated; 0.5 is perfect for both.

    Args:
        a, b: counts [n, D] each, equally many.
        linear: logistic regression of standardised log counts, in place of a random forest.
        seed: of folds and trees.
        trees: of the forest.
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
        classifier = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=300))
    else:
        classifier = RandomForestClassifier(trees, random_state=seed)
    folds = StratifiedKFold(min(FOLDS, len(a)), shuffle=True, random_state=seed)
    p = cross_val_predict(classifier, x, y, cv=folds, method="predict_proba")[:, 1]
    return float(roc_auc_score(y, p)), float(((p > 0.5) == y).mean())


def relations(a: Array, b: Array) -> dict[str, float]:
    """How far relations between pairs of elements differ, which means and correlations do not show.

    Of at most 200 elements, those of the largest variance of log counts in `b`. The choice is ours
    (tests/evaluation/test_count_scores.py).

    Args:
        a, b: counts [n, D] and [m, D].

    Returns:
        equal_difference: largest difference, over pairs, of the share of samples where both are equal and not 0.
        excess_difference: root mean square difference, over pairs, of P(both > 0) - P(one > 0) P(other > 0).
    """
    chosen = np.sort(np.argsort(-np.log1p(b).var(0), kind="stable")[:_CORRELATED])
    equal, excess = [], []
    for rows in (a[:, chosen], b[:, chosen]):
        there = (rows > 0).astype(np.float64)
        equal.append(np.stack([((rows == column[:, None]) & (rows > 0)).mean(0) for column in rows.T]))
        excess.append(there.T @ there / len(rows) - np.outer(there.mean(0), there.mean(0)))
    pairs = ~np.eye(len(chosen), dtype=bool)
    apart, beyond = np.abs(equal[0] - equal[1])[pairs], (excess[0] - excess[1])[pairs]
    return {
        "equal_difference": float(apart.max(initial=0)),
        "excess_difference": float(np.sqrt(np.square(beyond).mean())) if beyond.size else 0.0,
    }


def _correlation_difference(samples: Array, real: Array) -> float:
    """Mean absolute difference of correlations of log counts [n, D] and [m, D], a number, as in `compare`.

    Of the 200 elements that vary most, each at least once in both; 0 for fewer than two.
    """
    a, b = np.log1p(samples), np.log1p(real)
    spread = b.var(0)
    usable = np.flatnonzero((a.var(0) > 0) & (spread > 0))
    chosen = usable[np.argsort(-spread[usable], kind="stable")[:_CORRELATED]]
    if len(chosen) < 2:
        return 0.0
    above = np.triu_indices(len(chosen), 1)
    return float(np.abs(np.corrcoef(a[:, chosen].T) - np.corrcoef(b[:, chosen].T))[above].mean())


def count_figure(samples: Array, real: Array, names: Sequence[str] = (), classes: Sequence[str] = ()) -> Figure:
    """Six panels: variance against mean, ranks, totals, correlations of both, and two principal components.

    Principal components are those of held-out log counts.

    Args:
        samples, real: counts [n, D] and [m, D].
        names: of the D elements, genes for instance; those that vary most are written beside their points.
        classes: m of the held-out counts, a colour each among the principal components.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 8), layout="constrained")
    spread, ranks, totals, components, *correlations = figure.subplots(2, 3).flat
    edges = np.histogram_bin_edges(np.log10(1 + real.sum(1)), 30).tolist()
    logs = np.log1p(real[:_MOST])
    directions = np.linalg.svd(logs - logs.mean(0), full_matrices=False)[2][:2]
    chosen = np.sort(np.argsort(-np.log1p(real).var(0), kind="stable")[:_ELEMENTS])
    sets = ((real[:_MOST], "test data", "tab:gray"), (samples[:_MOST], "samples", "tab:orange"))
    for (counts, label, colour), panel in zip(sets, correlations, strict=True):
        style: dict[str, Any] = {"color": colour, "label": label}
        mean, variance = counts.mean(0), counts.var(0)
        spread.loglog(mean[mean > 0], variance[mean > 0].clip(1e-3), ".", alpha=0.5, **style)
        ordered = np.sort(counts, axis=None)[::-1]
        rank = np.unique(np.geomspace(1, ordered.size, 300).astype(int))
        ranks.loglog(rank / ordered.size, ordered[rank - 1].clip(0.5), **style)
        totals.hist(np.log10(1 + counts.sum(1)), bins=edges, density=True, alpha=0.5, **style)
        placed = (np.log1p(counts) - logs.mean(0)) @ directions.T
        if classes and label == "test data":
            words, of = np.unique(classes[: len(placed)], return_inverse=True)
            components.scatter(placed[:, 0], placed[:, -1], 9, of, cmap="tab20", alpha=0.6, label="test data, by class")
            for k, word in enumerate(words):
                components.annotate(word[:16], placed[of == k][:, [0, -1]].mean(0), fontsize=8, ha="center")
        else:
            components.plot(placed[:, 0], placed[:, -1], ".", alpha=0.5, **style)
        varying = np.log1p(counts[:, chosen]) + 1e-9 * np.arange(len(counts))[:, None]
        shown = panel.imshow(np.atleast_2d(np.corrcoef(varying.T)), vmin=-1, vmax=1, cmap="RdBu_r")
        panel.set_title(f"correlations of log counts, {label}")
        figure.colorbar(shown, ax=panel)
    if len(names) == real.shape[1]:
        mean, variance = real[:_MOST].mean(0), real[:_MOST].var(0).clip(1e-3)
        for k in np.argsort(-variance / mean.clip(1e-3), kind="stable")[:_NAMED]:
            spread.annotate(str(names[k])[:16], (mean[k].clip(1e-3), variance[k]), fontsize=7)
    spread.set(title="every element", xlabel="mean", ylabel="variance")
    if np.ptp(np.log10(real.mean(0).clip(1e-9))) < 1:  # a decade, without which a logarithmic axis has no number
        spread.set(xscale="linear", yscale="linear")
    ranks.set(title="largest counts", xlabel="rank, as a share of all counts", ylabel="count")
    totals.set(title="totals of samples", xlabel="log10(1 + total)")
    components.set(title="principal components of log counts", xlabel="first", ylabel="second")
    for panel in (spread, ranks, totals, components):
        panel.legend()
    return figure


FOLDS, TREES = 5, 300
_FEWEST, _PAIR = 10, 2
"""Samples of either set for classifiers, and for anything that compares pairs; with fewer these scores are left out."""
_CORRELATED = 200
"""Elements whose correlations are compared, those with the largest variance of log counts."""
