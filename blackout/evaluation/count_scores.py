"""Scores of counts that are no pictures: `metrics=counts`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from blackout.counts import count_dtype
from blackout.data import CountData
from blackout.distributed import sum_over_processes
from blackout.errors import UserError
from blackout.evaluation.count_baselines import baseline_bits
from blackout.evaluation.count_figure import count_figure
from blackout.evaluation.report import library_versions
from blackout.evaluation.sources import read_samples
from blackout.evaluation.two_samples import classifier_test, kolmogorov_smirnov, mean_discrepancy, nearest
from blackout.family import Samples, Source

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = npt.NDArray[Any]
_FEWEST, _PAIR = 10, 2
"""Samples of either set for classifiers, and for anything that compares pairs; with fewer these scores are left out."""
_CORRELATED = 200
"""Elements whose correlations are compared, those with the largest variance of log counts."""


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
