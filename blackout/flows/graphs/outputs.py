"""What is shown of solutions: a table beside an oracle, and pictures of graphs."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy.sparse.csgraph import shortest_path

from blackout.family import Samples
from blackout.files import write_table
from blackout.flows.graphs.graphs import Graph
from blackout.flows.graphs.problems import Problem
from blackout.flows.graphs.solvers import Solution

_SHOWN, _LARGEST = 8, 300
"""Graphs in a picture, and nodes of the largest of them."""


def _drop(value: float, known: float, sign: int) -> float:
    return sign * (known - value) / (abs(known) or 1.0)


def tabulated(
    problems: Sequence[Problem],
    values: Sequence[Any],
    seconds: Sequence[float],
    known: Sequence[Solution | None],
    path: Path,
    rivals: Mapping[str, Sequence[float]] = {},
) -> dict[str, float]:
    """Write a table with a line for each graph; means over graphs, and drops from the mean optimum [Ou 2025, table 1].

    Args:
        problems: on the graphs.
        values: of the samples of each.
        seconds: of processor time for all samples of each.
        known: an oracle's solutions, with the problems' values; None without one.
        path: of the table.
        rivals: best values of other methods in as many seconds.
    """
    sign, told = problems[0].sign, [(k, own.value) for k, own in enumerate(known) if own is not None]
    columns: dict[str, Sequence[float]] = {"mean": [float(np.mean(part)) for part in values]}
    columns |= {"best": [sign * float(np.max(sign * np.asarray(part))) for part in values], **rivals}
    found = {f"{name}_value": float(np.mean(column)) for name, column in columns.items()}
    found["seconds_per_graph"] = float(np.mean(seconds))
    if told:
        found["optimum"] = float(np.mean([value for _, value in told]))
        for name, column in columns.items():
            found[f"drop_{name}"] = _drop(float(np.mean([column[k] for k, _ in told])), found["optimum"], sign)
    lines = list[dict[str, Any]]()
    for k, (problem, own) in enumerate(zip(problems, known, strict=True)):
        graph = problem.given
        line = {"graph": graph.name, "nodes": graph.nodes, "edges": len(graph.edges), "proved": False}
        line |= {name: f"{column[k]:.15g}" for name, column in columns.items()}
        line |= {"seconds": f"{seconds[k]:.4g}", "oracle_seconds": f"{0.0 if own is None else own.seconds:.4g}"}
        if own is not None:
            line |= {"optimum": f"{own.value:.15g}", "proved": own.proved}
            line |= {f"drop_{name}": f"{_drop(columns[name][k], own.value, sign):.6g}" for name in ("mean", "best")}
        lines.append(line)
    names = ["graph", "nodes", "edges", "mean", "best", "optimum", "proved", "drop_mean", "drop_best", "seconds"]
    write_table([*names, "oracle_seconds", *rivals], lines, path)
    return found


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
