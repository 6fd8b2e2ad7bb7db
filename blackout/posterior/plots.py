"""Pictures of a posterior draw: reconstructions, and the calibration of its samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy import stats

from blackout.diffusion.plots import grid
from blackout.posterior import diagnostics
from blackout.posterior.gathered_samples import GatheredSamples

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_ROWS = 8  # measurements of reconstruction.png
MAX_SAMPLE_COLUMNS = 6
MIN_PICTURE_ELEMENTS = 3
RANK_HISTOGRAMS = ("total", "hidden total", "log_likelihood", "projection 0")
RANK_BAND = (0.005, 0.995)  # quantiles of the counts of a bin


def plot_reconstruction(samples: GatheredSamples) -> Figure | None:
    """Plot a row for every measurement, of at most eight.

    Columns are truth and estimate from y, where they exist, mean, standard deviation, and
    samples (black where there are fewer). White is the largest count of a sample, and the
    largest standard deviation. None for vectors of one or two elements.
    """
    if math.prod(samples.shape) < MIN_PICTURE_ELEMENTS:
        return None
    from matplotlib.figure import Figure

    # 1. The columns.
    max_count = max(int(samples.x.max()), 1)
    max_std = max(float(samples.std[:MAX_ROWS].max()), 1e-12)
    columns = {}
    if samples.truths is not None:
        columns["truth"] = samples.truths
    estimate = samples.problem.estimate(len(samples.all_y), samples.shape)
    if estimate is not None:
        columns["estimate from y"] = estimate[samples.measurement_ids]
    columns["mean"] = samples.mean
    columns[f"deviation, to {max_std:.3g}"] = samples.std * (max_count / max_std)
    black = torch.zeros_like(samples.x[0])
    for k in range(min(MAX_SAMPLE_COLUMNS, max(map(len, samples.rows)))):
        kth_samples = [
            samples.x[rows[k]] if k < len(rows) else black for rows in samples.rows[:MAX_ROWS]
        ]
        columns[f"sample {k}"] = torch.stack(kth_samples)

    # 2. The figure.
    num_rows = min(MAX_ROWS, len(samples.rows))
    size = (1.1 * len(columns) + 0.3, 1.1 * num_rows + 0.3)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(1, len(columns))
    for axis, (title, values) in zip(axes, columns.items(), strict=True):
        images = values[:num_rows].double().clamp(0, max_count)
        strip = np.asarray(grid(images, max_count, 1))
        axis.imshow(strip, aspect="auto", interpolation="nearest")
        axis.set_title(title, fontsize=7)
        axis.set(xticks=[], yticks=[])
    numbers = samples.numbers[:num_rows].tolist()
    row_centres = (np.arange(num_rows) + 0.5) * len(strip) / num_rows
    axes[0].set_yticks(row_centres, [f"{m}" for m in numbers], fontsize=7)
    axes[0].set_ylabel("measurement", fontsize=7)
    return figure


def plot_calibration(ranks: dict[str, np.ndarray], element_ranks: np.ndarray) -> Figure:
    """Plot histograms of the ranks of truths among samples, and the coverage of intervals.

    A band has 99 % of the bars of calibrated samples.

    Args:
        ranks: normalised ranks [M] by statistic.
        element_ranks: normalised ranks of elements [M, D].
    """
    from matplotlib.figure import Figure

    # 1. Histograms of ranks.
    names = [name for name in RANK_HISTOGRAMS if name in ranks]
    figure = Figure(figsize=(3 * (len(names) + 1), 2.6), layout="constrained")
    axes: Sequence[Any] = figure.subplots(1, len(names) + 1)
    for axis, name in zip(axes, names, strict=False):
        num_ranks = len(ranks[name])
        num_bins = max(2, min(diagnostics.MAX_RANK_BINS, num_ranks // 5))
        axis.hist(ranks[name], num_bins, (0, 1))
        axis.axhline(num_ranks / num_bins, color="black", linewidth=1)
        band = stats.binom.ppf(RANK_BAND, num_ranks, 1 / num_bins)
        axis.axhspan(*band, color="black", alpha=0.15)
        axis.set_title(f"rank of the true {name.replace('_', ' ')}", fontsize=8)

    # 2. Coverage.
    levels = np.linspace(0.02, 0.98, 49)
    axes[-1].plot(levels, [diagnostics.coverage(element_ranks, level) for level in levels])
    axes[-1].plot((0, 1), (0, 1), color="black", linewidth=1)
    axes[-1].set_title("coverage of intervals by their level", fontsize=8)
    return figure
