"""Solutions of graphs: some chains for each of them, optionally with moves inside the path, beside an oracle's."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from blackout.errors import refuse
from blackout.family import Drawn, OutputNames, Outputs, Samples, Watch, refuse_unknown
from blackout.flows.draw import ChainDraw, requested_chains
from blackout.flows.graphs import solvers
from blackout.flows.graphs.files import read_graphs
from blackout.flows.graphs.model import GraphFlow, solved
from blackout.flows.graphs.outputs import graphs_picture, tabulated
from blackout.flows.graphs.problems import GraphTarget, problem_of, problem_on
from blackout.flows.graphs.searches import annealed, greedy
from blackout.flows.plots import Collected, add_array
from blackout.flows.refinement import Refinement
from blackout.flows.simulation import Simulation

if TYPE_CHECKING:
    from PIL import Image

_BATCH = 512
_CLOSING, _EACH = 4, 16
"""Graphs, and solutions of each, at the end of a run."""
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

    batch_size: int = _BATCH
    names = OutputNames(folder="solutions", file="solutions", picture="graphs")

    def rows(self, num_samples: int) -> int:
        """So many of every graph."""
        return num_samples * len(self.numbers)

    def batches(self, indices: Tensor, seed: int, batch_size: int | None = None, watch: Watch | None = None) -> Drawn:
        """(indices [b], samples and solutions uint8 [b, d], graph and nodes int64 [b], value, log_weights [b])."""
        self.target.to(self.model.device)
        for part in indices.split(batch_size or self.batch_size) if len(indices) else ():
            began = time.process_time()
            graph = self.numbers[(part // self.each) % len(self.numbers)]
            on, model = self.target.of(graph.to(self.model.device)), self.model
            paths = self.simulation.run(on, model.rates(), part.to(model.device), seed, self.refine, watch)
            found = solved(paths, graph)
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
        oracle = solvers.solved(draw.oracle, base, graphs, _LIMIT) if draw.oracle is not None else [None] * len(graphs)
        known = [own and problem.solution(own) for problem, own in zip(problems, oracle, strict=True)]
        seconds = draw.seconds / max(1, len(chosen))
        others = {
            "greedy": [greedy(base, graph, _TRIES, seconds, 0) for graph in graphs],
            "anneal": annealed(base, graphs, draw.each, _TRIES, max(draw.seconds, 1e-3), 0),
        }
        rivals = {name: [p.best_of(x) for p, x in zip(problems, found, strict=True)] for name, found in others.items()}
        means = tabulated(problems, values, [seconds] * len(values), known, directory / "table.csv", rivals)
        best, beside = {name: means[name] for name in ("optimum",) if name in means}, dict[str, dict[str, float]]()
        for name in ("mean", "best"):
            beside[f"{name}_value"] = best | {rival: means[f"{rival}_value"] for rival in rivals}
            beside |= {f"drop_{name}": {rival: means[f"drop_{rival}"] for rival in rivals}} if best else {}
        said: dict[str, Any] = {"values": means, "beside": beside, "samples_per_graph": draw.each}
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
        solvers.solved(oracle, "mis", [], 0)  # whether it is there
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
