"""Settings of the scores of counts that are no images (`metrics=counts`)."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch

from blackout.component import component
from blackout.data import CountData
from blackout.data.sample_files import read_labels, read_samples
from blackout.errors import UserError, refuse
from blackout.evaluation.baselines import COPULA_NAME, MAX_COPULA_SAMPLES, copula_samples
from blackout.evaluation.classifier_tests import MIN_CLASSIFIER_SAMPLES
from blackout.evaluation.count_arrays import flatten_counts
from blackout.evaluation.count_comparison import compare_counts
from blackout.evaluation.count_pairs import MIN_PAIR_SAMPLES
from blackout.evaluation.count_scores import CountScores
from blackout.protocols import SPLIT_NAMES, Samples, Source, Split
from blackout.representation import format_arguments


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
            f"metrics.max_samples={max_samples} must be at least {MIN_CLASSIFIER_SAMPLES}: "
            "leave it out for 1,000",
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
        return CountScores(data, num_samples, self.max_samples, self.seed, device, split)

    def held_out(
        self, source: Source, num_samples: int, device: torch.device | str = "cpu"
    ) -> dict[str, Any] | None:
        """Return the scores of as many training counts, which are those of perfect samples."""
        data = _check_counts(source)
        number = min(num_samples, len(data.train))
        rows = torch.linspace(0, len(data.train) - 1, number).long()
        values = compare_counts(flatten_counts(data.train[rows]), data, self.max_samples, self.seed)
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
        samples = flatten_counts(copula_samples(data.train, number, self.seed))
        values = compare_counts(samples, data, self.max_samples, self.seed)
        return {"name": COPULA_NAME, "num_samples": number, "values": values}

    def read(self, path: Path, source: Source) -> Samples:
        """Return `samples` in a file, and their `classes` if it has them.

        Raises:
            UserError: unreadable, or not counts of the source's shape and range.
        """
        samples = read_samples(path, _check_counts(source))
        return {"samples": samples, **read_labels(path, len(samples))}


def _check_counts(source: Source) -> CountData:
    """Return a source of counts, without its incomplete samples if it has missing entries."""
    if not isinstance(source, CountData):
        raise UserError(
            f"{source.name}: metrics=counts needs a dataset of counts, not a "
            f"{type(source).__name__}"
        )
    return source.without_missing() or source
