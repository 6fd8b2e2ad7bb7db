"""What is made of solutions: the best of every graph, a table beside an oracle, pictures."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blackout.family import Samples
from blackout.files import replacing
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
