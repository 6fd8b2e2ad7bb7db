"""Samples beside held-out counts in one figure: how they vary, how large they get, and how they go together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = npt.NDArray[Any]
_MOST, _ELEMENTS = 1000, 60
"""Samples that are shown at most, and elements whose correlations are."""
_REAL, _MADE = "tab:gray", "tab:orange"


def count_figure(samples: Array, real: Array) -> Figure:
    """Six panels: variance against mean, ranks, totals, correlations of both, and two principal components.

    Principal components are those of held-out log counts.

    Args:
        samples, real: counts [n, D] and [m, D].
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 8), layout="constrained")
    panels = figure.subplots(2, 3).flat
    sets = ((real[:_MOST], "held out", _REAL), (samples[:_MOST], "samples", _MADE))
    for panel, draw in zip(panels, (_moments, _ranks, _totals, _components), strict=False):
        for counts, label, colour in sets:
            draw(panel, counts.astype(np.float64), real.astype(np.float64), label, colour)
        panel.legend()
    chosen = np.argsort(-np.log1p(real).var(0), kind="stable")[:_ELEMENTS]
    chosen.sort()
    for panel, (counts, label, _) in zip(list(figure.axes)[4:], sets, strict=True):
        varying = np.log1p(counts[:, chosen]) + 1e-9 * np.arange(len(counts))[:, None]
        shown = panel.imshow(np.atleast_2d(np.corrcoef(varying.T)), vmin=-1, vmax=1, cmap="RdBu_r")
        panel.set_title(f"correlations of log counts, {label}")
        figure.colorbar(shown, ax=panel)
    return figure


def _moments(panel: Axes, counts: Array, real: Array, label: str, colour: str) -> None:
    mean, variance = counts.mean(0), counts.var(0)
    panel.loglog(mean[mean > 0], variance[mean > 0].clip(1e-3), ".", color=colour, alpha=0.5, label=label)
    panel.set(title="every element", xlabel="mean", ylabel="variance")


def _ranks(panel: Axes, counts: Array, real: Array, label: str, colour: str) -> None:
    ordered = np.sort(counts, axis=None)[::-1]
    rank = np.unique(np.geomspace(1, ordered.size, 300).astype(int))
    panel.loglog(rank / ordered.size, ordered[rank - 1].clip(0.5), color=colour, label=label)
    panel.set(title="largest counts", xlabel="rank, as a share of all counts", ylabel="count")


def _totals(panel: Axes, counts: Array, real: Array, label: str, colour: str) -> None:
    edges = np.histogram_bin_edges(np.log10(1 + real.sum(1)), 30)
    panel.hist(np.log10(1 + counts.sum(1)), bins=edges.tolist(), density=True, color=colour, alpha=0.5, label=label)
    panel.set(title="totals of samples", xlabel="log10(1 + total)")


def _components(panel: Axes, counts: Array, real: Array, label: str, colour: str) -> None:
    logs = np.log1p(real[:_MOST])
    centre = logs.mean(0)
    directions = np.linalg.svd(logs - centre, full_matrices=False)[2][:2]
    placed = (np.log1p(counts) - centre) @ directions.T
    panel.plot(placed[:, 0], placed[:, -1], ".", color=colour, alpha=0.5, label=label)
    panel.set(title="principal components of log counts", xlabel="first", ylabel="second")
