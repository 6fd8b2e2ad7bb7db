"""Solutions of graphs: some chains for each of them, optionally with moves inside the path, beside an oracle's.

What is shown of solutions: a table, and pictures of graphs.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from blackout.errors import refuse
from blackout.files import write_table
from blackout.flows.draw import ChainDraw, requested_chains
from blackout.flows.graphs.files import read_graphs
from blackout.flows.graphs.graphs import Graph
from blackout.flows.graphs.problems import GraphTarget, Problem, problem_of, problem_on
from blackout.flows.graphs.solvers import Solution, annealed, greedy, solved
from blackout.flows.model import GraphFlow, ended
from blackout.flows.plots import Collected, add_array
from blackout.flows.refinement import Refinement
from blackout.flows.simulation import Simulation
from blackout.protocols import Drawn, OutputNames, Outputs, Samples, Watch, refuse_unknown

_BATCH = 512
_CLOSING, _EACH = 4, 16
"""Graphs, and solutions of each, at the end of a run."""
_SHOWN, _LARGEST = 8, 300
"""Graphs in a picture, and nodes of the largest of them."""
_LIMIT, _TRIES = 20.0, 1 << 40
"""Seconds that an oracle may take for a graph, and tries or sweeps of rivals, which end with the seconds."""


@dataclass
class GraphDraw(ChainDraw):
    """Samples k of graph g are rows g * each + k.

    Args:
        model: in eval mode.
        target: the problem on the graphs to be solved.
        numbers: of these graphs in `target`, int64 [G].
        each: samples of every graph.
        simulation: of the chain.
        refine: moves after every step; None for none.
        oracle: solver of every graph, to compare with; None for none.
        description: of all this as plain values.
    """

    model: GraphFlow
    target: GraphTarget
    numbers: Tensor
    each: int
    simulation: Simulation
    refine: Refinement | None = None
    oracle: str | None = None
    description: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    references = replace(
        ChainDraw.references,
        ideal={**ChainDraw.references.ideal, "drop_mean": 0.0, "drop_best": 0.0},
    )
    batch_size: int = _BATCH
    names = OutputNames(folder="solutions", file="solutions", picture="graphs")

    def rows(self, num_samples: int) -> int:
        """So many of every graph, a number."""
        return num_samples * len(self.numbers)

    def batches(self, indices: Tensor, seed: int, batch_size: int | None = None, watch: Watch | None = None) -> Drawn:
        """(indices [b], samples and solutions uint8 [b, d], graph and nodes int64 [b], value, log_weights [b])."""
        self.target.to(self.model.device)
        for part in indices.split(batch_size or self.batch_size) if len(indices) else ():
            began = time.process_time()
            graph = self.numbers[(part // self.each) % len(self.numbers)]
            on, model = self.target.of(graph.to(self.model.device)), self.model
            paths = self.simulation.run(on, model.rates(), part.to(model.device), seed, self.refine, watch)
            found = ended(paths, graph)
            self.seconds += time.process_time() - began
            yield part, found

    def outputs(self, seed: int) -> Outputs | None:
        return GraphOutputs(self, seed)

    def picture(self, samples: Samples, columns: int | None = None) -> Image.Image | None:
        """The first graphs, each with the best of its solutions here; None for states on their way, without graphs."""
        graph, problem, sign = self.target.graph, self.target.problem, self.target.sign
        return graphs_picture(graph, problem, samples, sign) if "graph" in samples else None


class GraphOutputs(Collected):
    """The best solution of every graph of a `GraphDraw`, and table.csv."""

    draw: GraphDraw

    def write(self, directory: Path) -> dict[str, Any]:
        """Add `best` and `best_value` to solutions.npz, write table.csv; returns drops from the oracle's values.

        Beside them stands what greedy and annealing find in the processor time of the draw.
        """
        draw, target, arrays = self.draw, self.draw.target, self.arrays()
        drawn = arrays["graph"].unique().tolist()
        chosen = {number: torch.nonzero(arrays["graph"] == number).flatten() for number in drawn}
        values = [arrays["value"][rows].tolist() for rows in chosen.values()]
        problems = [problem_of(target.problem, target.graph(number)) for number in chosen]
        base, sign, graphs = problems[0].base, target.sign, [problem.graph for problem in problems]
        if (file := directory / "solutions.npz").exists():
            first = torch.stack([rows[(sign * arrays["value"][rows]).argmax()] for rows in chosen.values()])
            add_array(file, "best", arrays["solutions"][first])
            add_array(file, "best_value", arrays["value"][first])
        oracle = solved(draw.oracle, base, graphs, _LIMIT) if draw.oracle is not None else [None] * len(graphs)
        known = [own and problem.solution(own) for problem, own in zip(problems, oracle, strict=True)]
        seconds = draw.seconds / max(1, len(chosen))
        others = {
            "greedy": [greedy(base, graph, _TRIES, seconds, 0) for graph in graphs],
            "anneal": annealed(base, graphs, draw.each, _TRIES, max(draw.seconds, 1e-3), 0),
        }
        rivals = {name: [p.best_of(x) for p, x in zip(problems, found, strict=True)] for name, found in others.items()}
        means = tabulated(problems, values, [seconds] * len(values), known, directory / "table.csv", rivals)
        optimum = {"optimum": means["optimum"]} if "optimum" in means else {}
        references: dict[str, dict[str, float]] = {}
        for name in ("mean", "best"):
            baselines = {baseline: means[f"{baseline}_value"] for baseline in rivals}
            references[f"{name}_value"] = optimum | baselines
            if optimum:
                references[f"drop_{name}"] = {baseline: means[f"drop_{baseline}"] for baseline in rivals}
        said: dict[str, Any] = {"values": means, "references": references, "samples_per_graph": draw.each}
        if draw.oracle is not None:
            proved = sum(own is not None and own.proved for own in known)
            said["oracle"] = {"method": draw.oracle, "proved": proved, "of": len(known)}
        return said


def requested_graphs(model: GraphFlow, request: Mapping[str, Any]) -> GraphDraw:
    """The draw that the settings of `sample.py` ask for.

    Args:
        request: `simulation` (a description, or fields that replace the model's own), `refine`, `target` (`path` of
            other graphs), `oracle`, `num_samples` of every graph.

    Raises:
        UserError: another option, or a wrong value.
    """
    refuse_unknown(request, "simulation", "refine", "target", "oracle")
    simulation, moves, description = requested_chains(model, request)
    refuse(simulation.resample_below is not None, "simulation.resample_below is for targets of one law, not for graphs")
    where = {name: value for name, value in (request.get("target") or {}).items() if value is not None}
    if (oracle := request.get("oracle")) is not None:
        solved(oracle, "mis", [], 0)  # whether it is there
    refuse(set(where) - {"path"}, "target: a trained model keeps its problem; target.path=... gives it other graphs")
    target = model.target
    if where:
        target = problem_on(target.problem, read_graphs(where["path"]), 0, target.inverse_temperature)
    numbers, each = target.numbers, int(request.get("num_samples", _EACH))
    description |= {"graphs": len(numbers), "problem": target.problem}
    return GraphDraw(model, target, numbers, each, simulation, moves, oracle, description)


def preview_graphs(model: GraphFlow) -> GraphDraw:
    """The draw of pictures during and after training."""
    held_out, numbers = {"graphs": "held out"}, model.target.numbers[:_CLOSING]
    return GraphDraw(model, model.target, numbers, _EACH, model.simulation, oracle="milp", description=held_out)


def _drop(value: float, known: float, sign: int) -> float:
    """How far a value is below the known one, as a share of it: floats [Ou 2025, table 1]."""
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

    Floats, of as many values [G] of each column as there are graphs.

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
    """Places of the nodes by springs along the edges [Fruchterman 1991], float64 [nodes, 2]; the same every time."""
    import networkx as nx  # only here: importing it takes a while

    drawn = nx.empty_graph(graph.nodes)
    drawn.add_edges_from(graph.edges.tolist())
    return np.array([*nx.spring_layout(drawn, seed=0).values()])


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
