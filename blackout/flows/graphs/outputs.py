"""What is shown of solutions: a table beside an oracle, and pictures of graphs."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy.sparse.csgraph import shortest_path

from blackout.family import Samples
from blackout.files import write_table
from blackout.flows.graphs.graphs import Graph
from blackout.flows.graphs.solvers import Solution

_SHOWN, _LARGEST = 8, 300
"""Graphs in a picture, and nodes of the largest of them."""


class Row(NamedTuple):
    """A line of table.csv.

    Args:
        graph: which.
        values: of its samples.
        seconds: of processor time for all of them.
        known: an oracle's solution, or None without one.
        sign: -1 if values are to be small.
        rivals: best values of other methods in as many seconds.
    """

    graph: Graph
    values: Sequence[float]
    seconds: float
    known: Solution | None
    sign: int = 1
    rivals: Mapping[str, float] = {}

    @property
    def mean_and_best(self) -> tuple[float, float]:
        """Values."""
        return float(np.mean(self.values)), self.sign * max(self.sign * value for value in self.values)


def _drop(value: float, known: float, sign: int) -> float:
    return sign * (known - value) / (abs(known) or 1.0)


def write_rows(rows: list[Row], path: Path) -> None:
    """One line for each graph."""
    names = ["graph", "nodes", "edges", "mean", "best", "optimum", "proved", "drop_mean", "drop_best", "seconds"]
    lines = list[dict[str, Any]]()
    for row in rows:
        graph, known, own = row.graph, row.known, dict(zip(("mean", "best"), row.mean_and_best, strict=True))
        line = {"graph": graph.name, "nodes": graph.nodes, "edges": len(graph.edges), "proved": False}
        line |= {name: f"{value:.15g}" for name, value in (own | dict(row.rivals)).items()}
        line |= {"seconds": f"{row.seconds:.4g}", "oracle_seconds": f"{0.0 if known is None else known.seconds:.4g}"}
        if known is not None:
            line |= {"optimum": f"{known.value:.15g}", "proved": known.proved}
            line |= {f"drop_{name}": f"{_drop(value, known.value, row.sign):.6g}" for name, value in own.items()}
        lines.append(line)
    write_table([*names, "oracle_seconds", *rows[0].rivals], lines, path)


def means(rows: list[Row]) -> dict[str, float]:
    """Means over graphs, and drops of means from the mean optimum [Ou 2025, tables 1 and 5]."""
    values = {name: [row.mean_and_best[k] for row in rows] for k, name in enumerate(("mean", "best"))}
    values |= {name: [row.rivals[name] for row in rows] for name in rows[0].rivals}
    found = {f"{name}_value": float(np.mean(part)) for name, part in values.items()}
    found["seconds_per_graph"] = float(np.mean([row.seconds for row in rows]))
    told = [k for k, row in enumerate(rows) if row.known is not None]
    if told:
        found["optimum"] = float(np.mean([row.known.value for row in rows if row.known is not None]))
        for name, part in values.items():
            found[f"drop_{name}"] = _drop(float(np.mean([part[k] for k in told])), found["optimum"], rows[0].sign)
    return found


def beside_means(rows: list[Row]) -> dict[str, dict[str, float]]:
    """The optimum, where it is known, and what other methods find in as many seconds, beside the values of `means`."""
    found, others = means(rows), list(rows[0].rivals)
    best = {"optimum": found["optimum"]} if "optimum" in found else {}
    beside = {f"{name}_value": best | {rival: found[f"{rival}_value"] for rival in others} for name in ("mean", "best")}
    drops = {rival: found[f"drop_{rival}"] for rival in others if f"drop_{rival}" in found}
    return beside | {f"drop_{name}": drops for name in ("mean", "best") if drops}


def layout(graph: Graph) -> NDArray[np.float64]:
    """Places of the nodes, as far apart as the shortest paths between them are long, float64 [nodes, 2].

    [Kamada and Kawai 1989], by stress majorisation from a circle; the same every time.
    """
    from sklearn.manifold import smacof  # only here: importing it takes a second

    angle = 2 * np.pi * np.arange(graph.nodes) / graph.nodes
    circle = np.stack([np.cos(angle), np.sin(angle)], 1)
    if graph.nodes < 3:
        return circle
    hops = shortest_path(graph.matrix() != 0, unweighted=True)
    hops[np.isinf(hops)] = 1 + hops[np.isfinite(hops)].max()  # parts that are not connected
    return np.asarray(smacof(hops, init=circle, n_init=1)[0])


def graphs_picture(graph_of: Callable[[int], Graph], problem: str, samples: Samples, sign: int = 1) -> Any:
    """The first graphs among the samples with their best solutions here, as a PIL image; None if all are too large.

    Chosen nodes are dark, those of a colouring coloured, and cut edges thick.
    """
    from matplotlib.figure import Figure  # only here: importing it takes a second

    graphs, values = samples["graph"].cpu(), samples["value"].cpu()
    shown = [k for k in dict.fromkeys(graphs.tolist()) if graph_of(k).nodes <= _LARGEST][:_SHOWN]
    if not shown:
        return None
    columns = min(4, len(shown))
    rows = -(-len(shown) // columns)
    figure = Figure(figsize=(3 * columns, 3.2 * rows), layout="constrained")
    for axes, number in zip(figure.subplots(rows, columns, squeeze=False).flatten(), shown, strict=False):
        mine = torch.nonzero(graphs == number).flatten()
        best = mine[(sign * values[mine]).argmax()]
        graph = graph_of(number)
        x, place = samples["solutions"][best].cpu().numpy()[: graph.nodes], layout(graph)
        for i, j in graph.edges:
            color, width = ("C3", 1.4) if problem == "maxcut" and x[i] != x[j] else ("0.75", 0.8)
            axes.plot(*place[[i, j]].T, color=color, linewidth=width, zorder=1)
        axes.scatter(*place.T, c=[f"C{k - 1}" if k else "white" for k in x], edgecolors="black", s=55, zorder=2)
        axes.set_aspect("equal")
        axes.set_title(f"graph {graph.name}: {float(values[best]):.12g}", fontsize=9)
    for axes in figure.axes:
        axes.axis("off")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=80)
    return Image.open(buffer).convert("RGB")
