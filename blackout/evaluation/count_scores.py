"""Accumulated samples of counts, and their scores when all samples are there."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from blackout.counts import count_dtype
from blackout.data import CountData
from blackout.data.labels import decode_labels
from blackout.distributed import SampleRows
from blackout.evaluation.count_arrays import flatten_counts
from blackout.evaluation.count_comparison import compare_counts
from blackout.evaluation.count_plots import MAX_FIGURE_SAMPLES, plot_counts
from blackout.protocols import MetricDescription, Samples, Split
from blackout.representation import format_arguments

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    "correlation_difference": MetricDescription("absolute difference", "lower"),
    "equality_difference": MetricDescription("share of samples", "lower"),
    "co_occurrence_difference": MetricDescription("probability", "lower"),
    "novelty": MetricDescription("samples over data", "reference"),
}


class CountScores:
    """Scores of samples of counts, which are kept, each in its row, until all can be compared.

    Args:
        data: dataset of the reference.
        num_samples: over all processes.
        max_samples: samples of either set that are compared; see `compare_counts`.
        seed: of the classifiers.
        device: where rows are kept.
        split: of the dataset.
    """

    __repr__ = format_arguments

    def __init__(
        self,
        data: CountData,
        num_samples: int,
        max_samples: int,
        seed: int,
        device: torch.device | str,
        split: Split = "test",
    ) -> None:
        self.num_samples = num_samples
        self._max_samples = max_samples
        self._seed = seed
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
            flatten_counts(self._compared),
            self._data,
            self._max_samples,
            self._seed,
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
        return plot_counts(
            flatten_counts(self._compared), flatten_counts(real), data.features, classes
        )

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
                "max_samples": self._max_samples,
                "seed": self._seed,
                "reference": reference,
            },
            "metric_descriptions": {name: asdict(score) for name, score in DESCRIPTIONS.items()},
        }
