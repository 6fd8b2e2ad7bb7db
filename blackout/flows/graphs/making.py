"""Graph problems from settings: on graphs of the user's, or on random ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from blackout.errors import UserError
from blackout.flows.graphs.collection import Graph, random_graphs
from blackout.flows.graphs.files import read_graphs
from blackout.flows.graphs.problems import MIS, GraphTarget, MaxCut

PROBLEMS: dict[str, type[GraphTarget]] = {"mis": MIS, "maxcut": MaxCut}
_HELD_OUT, _SHARE = 100, 10
"""Of random graphs; of a user's, one of so many."""


def problem_on(problem: str, graphs: Sequence[Graph], held_out: int = 0, **arguments: float) -> GraphTarget:
    """A problem on given graphs."""
    empty = PROBLEMS[problem](len(graphs), max(graph.nodes for graph in graphs), held_out, **arguments)
    return empty.with_graphs(graphs, held_out)


def graph_problem(
    problem: Literal["mis", "maxcut"],
    path: str | None = None,
    kind: Literal["er", "ba"] = "er",
    nodes: Sequence[int] = (16, 20),
    parameter: float = 0.19,
    number: int = 1000,
    held_out: int | None = None,
    seed: int = 0,
    inverse_temperature: float = 5.0,
) -> GraphTarget:
    """A problem on graphs from files, or on random ones.

    Args:
        problem: `mis` or `maxcut`.
        path: a file or folder, see `read_graphs`; None for random graphs.
        kind: of random graphs, `er` or `ba`.
        nodes: least and largest number of nodes.
        parameter: probability of an edge, or edges of a new node.
        number: of graphs to train on.
        held_out: graphs besides these; of files, how many are not trained on. None for 100, or a tenth of the files.
        seed: of random graphs.
        inverse_temperature: 1 / T.

    Raises:
        UserError: unreadable files, or more held out than there are.
    """
    if path is None:
        extra = _HELD_OUT if held_out is None else held_out
        graphs = random_graphs(kind, nodes, parameter, number + extra, seed)
        return problem_on(problem, graphs, extra, inverse_temperature=inverse_temperature)
    graphs = read_graphs(path)
    extra = len(graphs) // _SHARE if held_out is None else held_out
    if extra >= len(graphs):
        raise UserError(
            f"target.held_out={extra}: there are {len(graphs)} graphs at {path}, and some must be trained on"
        )
    return problem_on(problem, graphs, extra, inverse_temperature=inverse_temperature)
