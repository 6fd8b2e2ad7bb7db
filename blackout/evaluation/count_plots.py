"""Pictures of samples of counts next to real counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from blackout.evaluation.count_arrays import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# the figure
MAX_FIGURE_SAMPLES = 1000
MAX_FIGURE_ELEMENTS = 60  # whose correlations are shown
MAX_NAMED_ELEMENTS = 8
MAX_NAME_LENGTH = 16
MIN_LOG_COUNT = 1e-3  # smallest mean and variance on logarithmic axes


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
