"""Other problems on graphs as an independent set or a cut of another graph, with the way back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from blackout.errors import UserError
from blackout.flows.graphs.graphs import Graph

_MOST_PAIRS = 20_000_000
"""Edges of a graph that a reduction makes."""

Array = NDArray[Any]


class Problem(NamedTuple):
    """What is asked of a graph, as what is solved.

    Args:
        name: of the problem.
        given: the graph as it was given.
        base: `mis` or `maxcut`.
        graph: on which that is solved.
        back: solutions of the base, uint8 [..., n'], as those of the problem, uint8 [..., n].
        sign: -1 if the problem's value is to be small.
        offset: its value is offset + sign * value of the base.
    """

    name: str
    given: Graph
    base: str
    graph: Graph
    back: Callable[[Array], Array] = lambda x: x
    sign: int = 1
    offset: float = 0.0

    def value(self, of_base: Any) -> Any:
        """The problem's value of the base's."""
        return self.offset + self.sign * of_base


TAKES = {
    "mis": ("nodes",), "maxcut": ("edges",), "clique": ("nodes",), "vertex_cover": ("nodes",), "colouring": (),
    "qubo": ("nodes", "edges", "model"),
}  # fmt: skip
"""Problem -> what its weights are of."""


def problem_of(name: str, graph: Graph, colours: int = 3, unit_weights: bool = False) -> Problem:
    """A problem on a graph.

    Args:
        name: `mis` (of greatest weight), `maxcut`, `clique` (of greatest weight), `vertex_cover` (of least weight),
            `colouring` (of as many nodes as possible) or `qubo` (of least energy).
        graph: with the weights that the problem takes.
        colours: of `colouring`.
        unit_weights: take all weights as 1.

    Raises:
        UserError: weights that the problem does not take, no model for `qubo`, or too large a reduction.
    """
    if unit_weights and graph.offset is None:
        graph = replace(graph, weights=None, node_weights=None)
    has = {"nodes": graph.node_weights, "edges": graph.weights, "model": graph.offset}
    if (name == "qubo") != (graph.offset is not None):
        raise UserError(f"{graph.name} is {'no' if name == 'qubo' else 'a'} quadratic model, which qubo is for")
    if strange := [what for what, weights in has.items() if weights is not None and what not in TAKES[name]]:
        raise UserError(
            f"{graph.name} has weights of {strange[0]}, which {name} does not take; --unit-weights takes all as 1"
        )
    if name == "clique":  # an independent set of the graph of all other pairs
        _refuse_many(graph, graph.nodes * (graph.nodes - 1) // 2)
        other = np.triu(np.ones((graph.nodes, graph.nodes), bool), 1)
        other[graph.edges.min(1), graph.edges.max(1)] = False
        return Problem(name, graph, "mis", replace(graph, edges=np.argwhere(other)))
    if name == "vertex_cover":  # what an independent set leaves
        return Problem(name, graph, "mis", graph, lambda x: 1 - x, -1, float(graph.of_nodes.sum()))
    if name == "colouring":  # node i with colour c is node i * colours + c: one colour each, another one's neighbours
        _refuse_many(graph, colours * (len(graph.edges) + graph.nodes * (colours - 1) // 2))
        both = [graph.edges * colours + colour for colour in range(colours)]
        first, second = np.triu_indices(colours, 1)
        same = np.arange(graph.nodes)[:, None, None] * colours + np.stack([first, second], 1)
        edges = np.concatenate([*both, same.reshape(-1, 2)])
        numbers = np.arange(1, colours + 1, dtype=np.uint8)
        return Problem(
            name, graph, "mis", Graph(graph.name, graph.nodes * colours, edges),
            lambda x: (x.reshape(*x.shape[:-1], -1, colours) * numbers).sum(-1, dtype=np.uint8),
        )  # fmt: skip
    if name == "qubo":  # a cut with one node more, whose side is that of zeros [Barahona 1989]
        fields = graph.of_nodes.copy()
        for ends in graph.edges.T:
            np.add.at(fields, ends, graph.of_edges / 2)
        ghost = np.stack([np.arange(graph.nodes), np.full(graph.nodes, graph.nodes)], 1)
        weights = np.concatenate([graph.of_edges / 2, -fields])
        cut = Graph(graph.name, graph.nodes + 1, np.concatenate([graph.edges, ghost]), weights)
        return Problem(name, graph, "maxcut", cut, lambda x: x[..., :-1] ^ x[..., -1:], -1, graph.offset or 0.0)
    return Problem(name, graph, name, graph)


def _refuse_many(graph: Graph, pairs: int) -> None:
    if pairs > _MOST_PAIRS:
        raise UserError(f"{graph.name}: the problem has {pairs:,} pairs of nodes; at most {_MOST_PAIRS:,} are possible")
