"""Samples beside held-out counts in one figure: how they vary, how large they get, and how they go together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = npt.NDArray[Any]
_MOST, _ELEMENTS = 1000, 60
"""Samples that are shown at most, and elements whose correlations are."""


def count_figure(samples: Array, real: Array) -> Figure:
    """Six panels: variance against mean, ranks, totals, correlations of both, and two principal components.

    Principal components are those of held-out log counts.

    Args:
        samples, real: counts [n, D] and [m, D].
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 8), layout="constrained")
    spread, ranks, totals, components, *correlations = figure.subplots(2, 3).flat
    edges = np.histogram_bin_edges(np.log10(1 + real.sum(1)), 30).tolist()
    logs = np.log1p(real[:_MOST])
    directions = np.linalg.svd(logs - logs.mean(0), full_matrices=False)[2][:2]
    chosen = np.sort(np.argsort(-np.log1p(real).var(0), kind="stable")[:_ELEMENTS])
    sets = ((real[:_MOST], "held out", "tab:gray"), (samples[:_MOST], "samples", "tab:orange"))
    for (counts, label, colour), panel in zip(sets, correlations, strict=True):
        style: dict[str, Any] = {"color": colour, "label": label}
        mean, variance = counts.mean(0), counts.var(0)
        spread.loglog(mean[mean > 0], variance[mean > 0].clip(1e-3), ".", alpha=0.5, **style)
        ordered = np.sort(counts, axis=None)[::-1]
        rank = np.unique(np.geomspace(1, ordered.size, 300).astype(int))
        ranks.loglog(rank / ordered.size, ordered[rank - 1].clip(0.5), **style)
        totals.hist(np.log10(1 + counts.sum(1)), bins=edges, density=True, alpha=0.5, **style)
        placed = (np.log1p(counts) - logs.mean(0)) @ directions.T
        components.plot(placed[:, 0], placed[:, -1], ".", alpha=0.5, **style)
        varying = np.log1p(counts[:, chosen]) + 1e-9 * np.arange(len(counts))[:, None]
        shown = panel.imshow(np.atleast_2d(np.corrcoef(varying.T)), vmin=-1, vmax=1, cmap="RdBu_r")
        panel.set_title(f"correlations of log counts, {label}")
        figure.colorbar(shown, ax=panel)
    spread.set(title="every element", xlabel="mean", ylabel="variance")
    ranks.set(title="largest counts", xlabel="rank, as a share of all counts", ylabel="count")
    totals.set(title="totals of samples", xlabel="log10(1 + total)")
    components.set(title="principal components of log counts", xlabel="first", ylabel="second")
    for panel in (spread, ranks, totals, components):
        panel.legend()
    return figure
