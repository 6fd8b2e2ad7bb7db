"""What is made of solutions: the best of every graph, a table beside an oracle, pictures."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from blackout.family import Samples
from blackout.files import replacing
from blackout.flows.graphs.graphs import Graph
from blackout.flows.graphs.problems import GraphTarget
from blackout.flows.graphs.solvers import Solution, solver
from blackout.flows.outputs import add_array

_LIMIT = 20.0
"""Seconds that an oracle may take for a graph."""


class Solver(Protocol):
    """A draw of solutions."""

    target: GraphTarget
    numbers: Tensor
    each: int
    oracle: str | None
    seconds: float


@dataclass(frozen=True)
class Row:
    """A line of table.csv.

    Args:
        graph, nodes, edges: which, and how large.
        mean, best: value of the samples.
        optimum: the oracle's value, or None without one.
        proved: whether the oracle proved it.
        seconds: of processor time for all samples of the graph.
        oracle_seconds: likewise of the oracle.
    """

    graph: str
    nodes: int
    edges: int
    mean: float
    best: int
    optimum: int | None
    proved: bool
    seconds: float
    oracle_seconds: float

    @property
    def drops(self) -> tuple[float, float]:
        """Of mean and best from the optimum, as shares."""
        assert self.optimum is not None
        return 1 - self.mean / max(1, self.optimum), 1 - self.best / max(1, self.optimum)


class GraphOutputs:
    """Takes samples in order, and writes the arrays `best`, `best_value` and table.csv.

    Args:
        draw: where they come from.
        seed: of the samples.
    """

    def __init__(self, draw: Solver, seed: int) -> None:
        self._draw, self._seed = draw, seed
        self._taken: list[Samples] = []

    def update(self, samples: Samples, indices: Tensor) -> None:
        """Keep a batch."""
        self._taken.append(samples)

    def write(self, directory: Path) -> dict[str, Any]:
        """Add arrays to solutions.npz, write table.csv; returns drops from the oracle's values."""
        draw = self._draw
        arrays = {name: torch.cat([part[name] for part in self._taken]) for name in self._taken[0]}
        graphs, values = arrays["graph"], arrays["value"]
        chosen = [number for number in draw.numbers.tolist() if bool((graphs == number).any())]
        best = torch.stack(
            [arrays["solutions"][graphs == number][values[graphs == number].argmax()] for number in chosen]
        )
        if (file := directory / "solutions.npz").exists():
            add_array(file, "best", best)
            add_array(file, "best_value", torch.stack([values[graphs == number].max() for number in chosen]))
        found = self._oracle(chosen)
        share = draw.seconds / max(1, len(chosen))
        rows = [self._row(number, values[graphs == number], found.get(number), share) for number in chosen]
        write_table(rows, directory / "table.csv")
        said: dict[str, Any] = {"values": means(rows, draw.target.problem), "samples_per_graph": draw.each}
        if found:
            said["oracle"] = {"method": draw.oracle, "proved": sum(s.proved for s in found.values()), "of": len(found)}
        return said

    def _oracle(self, chosen: list[int]) -> dict[int, Solution]:
        draw = self._draw
        if draw.oracle is None:
            return {}
        solve = solver(draw.oracle)
        return {number: solve(draw.target.problem, draw.target.graph(number), _LIMIT) for number in chosen}

    def _row(self, number: int, values: Tensor, found: Solution | None, seconds: float) -> Row:
        graph = self._draw.target.graph(number)
        known = (None, False, 0.0) if found is None else (found.value, found.proved, found.seconds)
        mean, best = float(values.double().mean()), int(values.max())
        return Row(graph.name, graph.nodes, len(graph.edges), mean, best, known[0], known[1], seconds, known[2])


def write_table(rows: list[Row], path: Path) -> None:
    """One line for each graph."""
    names = ["graph", "nodes", "edges", "mean", "best", "optimum", "proved", "drop_mean", "drop_best", "seconds"]
    with replacing(path) as part, part.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*names, "oracle_seconds"])
        for row in rows:
            known = ["", ""] if row.optimum is None else [f"{drop:.6g}" for drop in row.drops]
            optimum = "" if row.optimum is None else row.optimum
            size = [row.graph, row.nodes, row.edges, f"{row.mean:.6g}", row.best]
            writer.writerow([*size, optimum, row.proved, *known, f"{row.seconds:.4g}", f"{row.oracle_seconds:.4g}"])


def means(rows: list[Row], problem: str) -> dict[str, float]:
    """Means over graphs, and drops of means from the mean optimum (as the paper's tables have them)."""
    values = {
        "mean_value": float(np.mean([row.mean for row in rows])),
        "best_value": float(np.mean([row.best for row in rows])),
        "seconds_per_graph": float(np.mean([row.seconds for row in rows])),
    }
    known = [row for row in rows if row.optimum is not None]
    if known:
        optimum: NDArray[Any] = np.array([row.optimum for row in known], float)
        values["optimum"] = float(optimum.mean())
        values["drop_mean"] = 1 - float(np.mean([row.mean for row in known])) / max(1e-9, float(optimum.mean()))
        values["drop_best"] = 1 - float(np.mean([row.best for row in known])) / max(1e-9, float(optimum.mean()))
    return values


# --- Graphs with their solutions: chosen nodes dark, cut edges thick.

_SHOWN, _ROUNDS = 8, 200


def layout(graph: Graph) -> NDArray[np.float64]:
    """Places of the nodes by springs (Fruchterman and Reingold 1991), float64 [nodes, 2]; the same every time."""
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
    """The first graphs among the samples, each with the best of its solutions here."""
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
        _draw(axes, graph, samples["solutions"][best].cpu().numpy()[: graph.nodes], target.problem == "maxcut")
        axes.set_title(f"graph {graph.name}: {int(values[best])} {target.unit}", fontsize=9)
    for axes in figure.axes:
        axes.axis("off")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=80)
    return Image.open(buffer).convert("RGB")


def _draw(axes: Any, graph: Graph, x: NDArray[Any], cut: bool) -> None:
    place = layout(graph)
    for i, j in graph.edges:
        crosses = bool(cut and x[i] != x[j])
        axes.plot(*place[[i, j]].T, color="C3" if crosses else "0.75", linewidth=1.4 if crosses else 0.8, zorder=1)
    axes.scatter(*place.T, c=np.where(x > 0, "C0", "white"), edgecolors="black", s=55, zorder=2)
    axes.set_aspect("equal")
