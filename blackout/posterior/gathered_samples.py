"""Samples of a posterior draw, grouped by measurement, with means, deviations and quantiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from blackout.posterior import diagnostics
from blackout.posterior.problem import InverseProblem
from blackout.protocols import Samples

# columns of the cost of every sweep of a sample; its seconds are a share of those of its batch
COST_COLUMNS = ("sweep", "level", "network_evaluations", "likelihood_evaluations", "seconds")


@dataclass(frozen=True, eq=False)
class GatheredSamples:
    """The n samples that were drawn so far; they belong to M of the measurements of the draw.

    Attributes:
        draw: the `PosteriorDraw` of the samples.
        seed: seed of the samples.
        arrays: arrays of all samples by name, [n, ...].
        measurement_index: measurement that each sample belongs to, int64 [n].
        measurement_ids: the measurements that have samples, int64 [M], increasing.
        group_index: place of each sample's measurement in `measurement_ids`, int64 [n].
        rows: samples of each of the M measurements, M tensors of int64.
        problem: problem of all measurements of the draw, also of those without samples here.
        all_y: all measurements of the draw, float64 [number, *measurement].
        all_truths: their truths, counts [number, *shape], or None where they are unknown.
        mean: mean of the samples of each measurement, float64 [M, *shape].
        std: their standard deviation, float64 [M, *shape].
        quantiles: their quantiles, float64 [M, Q, *shape]; see `predictive_quantiles`.
    """

    draw: Any
    seed: int
    arrays: dict[str, Tensor]
    measurement_index: Tensor
    measurement_ids: Tensor
    group_index: Tensor
    rows: list[Tensor]
    problem: InverseProblem
    all_y: Tensor
    all_truths: Tensor | None
    mean: Tensor
    std: Tensor
    quantiles: Tensor

    @property
    def x(self) -> Tensor:
        """All samples, counts [n, *shape]."""
        return self.arrays["samples"]

    @property
    def log_likelihood(self) -> Tensor:
        """The log-likelihood of each sample, float64 [n]."""
        return self.arrays["log_likelihood"]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.x.shape[1:])

    @property
    def y(self) -> Tensor:
        """The M measurements, float64 [M, *measurement]."""
        return self.all_y[self.measurement_ids]

    @property
    def truths(self) -> Tensor | None:
        """The truths of the M measurements, counts [M, *shape]; None if unknown."""
        return None if self.all_truths is None else self.all_truths[self.measurement_ids]

    @property
    def numbers(self) -> Tensor:
        """The numbers of the M measurements in their split or file, int64 [M]."""
        numbers: Tensor = self.draw.measurements.numbers[self.measurement_ids]
        return numbers


def gather_samples(
    draw: Any, seed: int, batches: Sequence[tuple[Tensor, Samples]]
) -> GatheredSamples:
    """Concatenate batches, and compute means, deviations and quantiles by measurement.

    Args:
        draw: the `PosteriorDraw` of the samples.
        seed: seed of the samples.
        batches: (rows of the draw, int64 [b]; arrays of the batch by name, [b, ...]).
    """
    # 1. All samples.
    names = batches[0][1]
    arrays = {name: torch.cat([samples[name] for _, samples in batches]) for name in names}

    # 2. Their measurements, and the rows of each.
    indices = torch.cat([indices for indices, _ in batches])
    measurement_index = indices // draw.num_samples
    measurement_ids, group_index = measurement_index.unique(return_inverse=True)
    rows = [(measurement_index == m).nonzero()[:, 0] for m in measurement_ids]
    y, truths = draw.measurements.simulate(seed)

    # 3. Estimates.
    groups = [arrays["samples"][group_rows].double() for group_rows in rows]
    return GatheredSamples(
        draw,
        seed,
        arrays,
        measurement_index,
        measurement_ids,
        group_index,
        rows,
        draw.measurements.problem(seed),
        y,
        truths,
        mean=torch.stack([group.mean(0) for group in groups]),
        std=torch.stack([standard_deviation(group) for group in groups]),
        quantiles=torch.stack([diagnostics.predictive_quantiles(group) for group in groups]),
    )


def standard_deviation(x: Tensor) -> Tensor:
    """Return the standard deviation over samples [S, ...], with divisor S - 1; 0 for one sample."""
    return x.std(0) if len(x) > 1 else torch.zeros_like(x[0])
