"""What is shown of solutions: a table beside an oracle, and pictures of graphs."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from blackout.family import Samples
from blackout.files import replacing
from blackout.flows.graphs.graphs import Graph
from blackout.flows.graphs.problems import GraphTarget
from blackout.flows.graphs.solvers import Solution

_SHOWN, _ROUNDS = 8, 200
"""Graphs in a picture, and rounds of moving their nodes apart."""


class Row(NamedTuple):
    """A line of table.csv.

    Args:
        graph: which.
        values: of its samples.
        seconds: of processor time for all of them.
        known: an oracle's solution, or None without one.
    """

    graph: Graph
    values: Sequence[int]
    seconds: float
    known: Solution | None


def write_table(rows: list[Row], path: Path) -> None:
    """One line for each graph."""
    names = ["graph", "nodes", "edges", "mean", "best", "optimum", "proved", "drop_mean", "drop_best", "seconds"]
    with replacing(path) as part, part.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*names, "oracle_seconds"])
        for graph, values, seconds, known in rows:
            mean, best = float(np.mean(values)), max(values)
            said: list[Any] = [None, False, None, None]
            if known is not None:
                said = [known.value, known.proved]
                said += [f"{1 - value / max(1, known.value):.6g}" for value in (mean, best)]
            said += [f"{spent:.4g}" for spent in (seconds, 0.0 if known is None else known.seconds)]
            writer.writerow([graph.name, graph.nodes, len(graph.edges), f"{mean:.6g}", best, *said])


def means(rows: list[Row]) -> dict[str, float]:
    """Means over graphs, and drops of means from the mean optimum [Ou 2025, tables 1 and 5]."""

    def averaged(values: list[Sequence[int]]) -> tuple[float, float]:
        return float(np.mean([np.mean(part) for part in values])), float(np.mean([max(part) for part in values]))

    mean, best = averaged([row.values for row in rows])
    seconds = float(np.mean([row.seconds for row in rows]))
    found = {"mean_value": mean, "best_value": best, "seconds_per_graph": seconds}
    if optima := [row.known.value for row in rows if row.known is not None]:
        found["optimum"] = float(np.mean(optima))
        drawn = averaged([row.values for row in rows if row.known is not None])
        for name, value in zip(("drop_mean", "drop_best"), drawn, strict=True):
            found[name] = 1 - value / max(1e-9, found["optimum"])
    return found


def layout(graph: Graph) -> NDArray[np.float64]:
    """Places of the nodes by springs [Fruchterman and Reingold 1991], float64 [nodes, 2]; the same every time."""
    angle = 2 * np.pi * np.arange(graph.nodes) / graph.nodes
    place = np.stack([np.cos(angle), np.sin(angle)], 1)
    adjacent = graph.adjacency().numpy().astype(float)
    ideal = 1 / np.sqrt(graph.nodes)
    for k in range(_ROUNDS):
        apart = place[:, None] - place[None]
        distance = np.maximum(np.linalg.norm(apart, axis=-1), 1e-3)
        force = ideal**2 / distance - adjacent * distance**2 / ideal
        step = (apart / distance[..., None] * force[..., None]).sum(1) - 0.5 * place * ideal
        length = np.maximum(np.linalg.norm(step, axis=1, keepdims=True), 1e-9)
        place = place + step / length * np.minimum(length, 0.1 * (1 - k / _ROUNDS))
    return place


def graphs_picture(target: GraphTarget, samples: Samples) -> Image.Image:
    """The first graphs among the samples with their best solutions here: chosen nodes dark, cut edges thick."""
    from matplotlib.figure import Figure  # only here: importing it takes a second

    graphs, values = samples["graph"].cpu(), samples["value"].cpu()
    shown = list(dict.fromkeys(graphs.tolist()))[:_SHOWN]
    columns = min(4, len(shown))
    rows = -(-len(shown) // columns)
    figure = Figure(figsize=(3 * columns, 3.2 * rows), layout="constrained")
    for axes, number in zip(figure.subplots(rows, columns, squeeze=False).flatten(), shown, strict=False):
        mine = torch.nonzero(graphs == number).flatten()
        best = mine[values[mine].argmax()]
        graph = target.graph(number)
        x, place = samples["solutions"][best].cpu().numpy()[: graph.nodes], layout(graph)
        for i, j in graph.edges:
            color, width = ("C3", 1.4) if target.problem == "maxcut" and x[i] != x[j] else ("0.75", 0.8)
            axes.plot(*place[[i, j]].T, color=color, linewidth=width, zorder=1)
        axes.scatter(*place.T, c=np.where(x > 0, "C0", "white"), edgecolors="black", s=55, zorder=2)
        axes.set_aspect("equal")
        axes.set_title(f"graph {graph.name}: {int(values[best])} {target.unit}", fontsize=9)
    for axes in figure.axes:
        axes.axis("off")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=80)
    return Image.open(buffer).convert("RGB")
