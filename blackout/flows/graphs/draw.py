"""Solutions of graphs: some chains for each of them, optionally with moves inside the path."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from blackout.errors import UserError
from blackout.family import BaseDraw, Names, Outputs, Samples, Watch
from blackout.flows.graphs.graphs import read_graphs
from blackout.flows.graphs.outputs import GraphOutputs, graphs_picture
from blackout.flows.graphs.problems import GraphTarget
from blackout.flows.graphs.solvers import solver
from blackout.flows.refinement import Refinement
from blackout.flows.simulation import Scores, Simulation
from blackout.training.components import make
from blackout.training.model import refuse_unknown

if TYPE_CHECKING:
    from PIL import Image

_BATCH = 512
_CLOSING, _EACH = 4, 16
"""Graphs, and solutions of each, at the end of a run."""


class GraphModel(Protocol):
    """Rates on graphs."""

    target: GraphTarget
    simulation: Simulation
    config: dict[str, Any]

    @property
    def device(self) -> torch.device:
        """Of the weights."""
        ...

    def rates(self, trained: bool = False) -> Scores:
        """The scores as simulations take them."""
        ...


@dataclass
class GraphDraw(BaseDraw):
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

    model: GraphModel
    target: GraphTarget
    numbers: Tensor
    each: int
    simulation: Simulation
    refine: Refinement | None = None
    oracle: str | None = None
    description: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    batch_size: int = _BATCH
    names = Names(folder="solutions", file="solutions", picture="graphs")
    resumable = True

    def rows(self, num_samples: int) -> int:
        """So many of every graph."""
        return num_samples * len(self.numbers)

    @property
    def steps(self) -> int:
        return self.simulation.num_steps

    @property
    def nfe(self) -> int:
        return self.simulation.num_steps

    def batches(
        self, indices: Tensor, seed: int, batch_size: int | None = None, watch: Watch | None = None
    ) -> Iterator[tuple[Tensor, Samples]]:
        """(indices [b], samples and solutions uint8 [b, d], value, graph and nodes int64 [b], log_weights [b])."""
        device = self.model.device
        self.target.to(device)
        for part in indices.split(batch_size or self.batch_size) if len(indices) else ():
            began = time.process_time()
            graph = self.numbers[(part // self.each) % len(self.numbers)]
            on = self.target.of(graph.to(device))
            paths = self.simulation.run(on, self.model.rates(), part.to(device), seed, self.refine, watch)
            solutions, value = on.solutions(paths.states.x)
            self.seconds += time.process_time() - began
            yield (
                part,
                {
                    "samples": paths.states.x,
                    "solutions": solutions,
                    "value": value,
                    "graph": graph,
                    "nodes": on.nodes,
                    "log_weights": paths.log_weights,
                },
            )

    def outputs(self, seed: int) -> Outputs | None:
        return GraphOutputs(self, seed)

    def picture(self, samples: Samples, columns: int | None = None) -> Image.Image | None:
        """The first graphs, each with the best of its solutions here; None for states on their way, without graphs."""
        return graphs_picture(self.target, samples) if "graph" in samples else None


def requested(model: GraphModel, request: Mapping[str, Any]) -> GraphDraw:
    """The draw that the settings of `sample.py` ask for.

    Args:
        request: `simulation` (a description, or fields that replace the model's own), `refine`, `target` (`path` of
            other graphs), `oracle`, `num_samples` of every graph.

    Raises:
        UserError: another option, or a wrong value.
    """
    refuse_unknown(request, "simulation", "refine", "target", "oracle")
    described = dict(model.config.get("model", {}).get("simulation", {}))
    given = {name: value for name, value in (request.get("simulation") or {}).items() if value is not None}
    described = given if "_target_" in given else described | given
    simulation: Simulation = make(described, "simulation") if given else model.simulation
    if simulation.resample_below is not None:
        raise UserError("simulation.resample_below is for targets of one law, not for graphs")
    refine, oracle = request.get("refine"), request.get("oracle")
    if oracle is not None:
        solver(oracle)  # whether it is there
    moves: Refinement | None = make(refine, "refine") if refine else None
    target = _graphs(model.target, request.get("target") or {})
    numbers = target.numbers
    description = {"simulation": described, "refine": refine, "graphs": len(numbers), "problem": target.problem}
    each = int(request.get("num_samples", _EACH))
    return GraphDraw(model, target, numbers, each, simulation, moves, oracle, description)


def _graphs(target: GraphTarget, where: Mapping[str, Any]) -> GraphTarget:
    """The problem on the graphs that are asked for."""
    if set(where) - {"path"}:
        raise UserError("target: a trained model keeps its problem; target.path=... gives it other graphs")
    return target if where.get("path") is None else target.with_graphs(read_graphs(where["path"]))


def previewed(model: GraphModel) -> GraphDraw:
    """The draw of pictures during and after training."""
    numbers = model.target.numbers[:_CLOSING]
    held_out = {"graphs": "held out"}
    return GraphDraw(model, model.target, numbers, _EACH, model.simulation, oracle="milp", description=held_out)
