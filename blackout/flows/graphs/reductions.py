"""Reductions of problems on a graph to an independent set or a cut on another graph.

References: Barahona et al. 1989.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from blackout.errors import UserError, refuse
from blackout.flows.graphs.graphs import Graph
from blackout.flows.graphs.solvers import BaseProblem, Solution, objective_value

Array = NDArray[Any]

MAX_REDUCED_EDGES = 20_000_000  # of a graph to which a problem is reduced
# fields of a `Graph` that a problem uses
ACCEPTED_WEIGHTS: dict[str, tuple[str, ...]] = {
    "mis": ("node_weights",),
    "maxcut": ("edge_weights",),
    "clique": ("node_weights",),
    "vertex_cover": ("node_weights",),
    "colouring": (),
    "qubo": ("node_weights", "edge_weights", "offset"),
}


def _identity(x: Array) -> Array:
    return x


class Problem(NamedTuple):
    """A problem on a graph, and its reduction to a base problem on another graph.

    References: this project; checked in tests/flows/graphs/test_problems.py.

    Args:
        name: of the problem.
        graph: of the problem.
        base: "mis" or "maxcut".
        base_graph: graph of the base problem.
        decode: solutions of the base problem, uint8 [..., n'], to those of the problem, [..., n].
        sign: -1 if the problem is a minimisation.
        offset: the value is offset + sign * value of the base problem.
    """

    name: str
    graph: Graph
    base: BaseProblem
    base_graph: Graph
    decode: Callable[[Array], Array] = _identity
    sign: int = 1
    offset: float = 0.0

    def from_base_value(self, base_value: Any) -> Any:
        """Return the problem's value from that of the base problem, a number or an array."""
        return self.offset + self.sign * base_value

    def from_base_solution(self, base_solution: Solution) -> Solution:
        """Return the solution of the base problem as one of the problem, with its value."""
        return replace(base_solution, value=self.from_base_value(base_solution.value))

    def best_value(self, x: Array) -> float:
        """Return the best value of solutions of the base problem, uint8 [k, n']."""
        return float(self.from_base_value(objective_value(self.base, self.base_graph, x).max()))


def reduce_problem(
    name: str,
    graph: Graph,
    colours: int = 3,
    *,
    unit_weights: bool = False,
) -> Problem:
    """Reduce a problem on a graph to "mis" or "maxcut".

    References: Barahona et al. 1989 (qubo); the others are elementary, checked in
    tests/flows/graphs/test_problems.py.

    Args:
        name: "mis" or "clique" (of largest weight), "maxcut", "vertex_cover" (of smallest weight),
            "colouring" (of as many nodes as possible) or "qubo" (of lowest energy).
        graph: with the weights that the problem accepts.
        colours: number of colours of "colouring".
        unit_weights: replace all weights by 1.

    Raises:
        UserError: an unknown problem, weights that it does not accept, no quadratic model for
            "qubo", or too large a reduction.

    Example:
        >>> path = Graph("path", 3, np.array([[0, 1], [1, 2]]))
        >>> reduce_problem("vertex_cover", path).from_base_value(2)
        1.0
    """
    refuse(
        name not in ACCEPTED_WEIGHTS,
        f"there is no problem {name!r}: choose one of {', '.join(ACCEPTED_WEIGHTS)}",
    )
    if unit_weights and graph.offset is None:
        graph = replace(graph, edge_weights=None, node_weights=None)
    if name == "qubo" and graph.offset is None:
        raise UserError(f"{graph.name} is a graph; qubo needs a quadratic model")
    if name != "qubo" and graph.offset is not None:
        raise UserError(f"{graph.name} is a quadratic model; use qubo")
    for elements, attribute in (("nodes", "node_weights"), ("edges", "edge_weights")):
        if getattr(graph, attribute) is not None and attribute not in ACCEPTED_WEIGHTS[name]:
            raise UserError(
                f"{graph.name}: {name} accepts no weights of {elements}; "
                "blackout solve --unit-weights replaces them by 1"
            )
    if name == "mis":
        return Problem(name, graph, "mis", graph)
    if name == "clique":
        return Problem(name, graph, "mis", _complement(graph))
    if name == "vertex_cover":
        total_weight = float(graph.node_weights_or_ones.sum())
        return Problem(name, graph, "mis", graph, _complement_set, -1, total_weight)
    if name == "colouring":
        return _reduce_colouring(graph, colours)
    if name == "qubo":
        return _reduce_qubo(graph)
    return Problem(name, graph, "maxcut", graph)


def _complement_set(x: Array) -> Array:
    """Return the nodes that are not selected, of [..., n]."""
    return np.asarray(1 - x)


def _complement(graph: Graph) -> Graph:
    """Return the complement of a graph, whose independent sets are the graph's cliques."""
    n = graph.num_nodes
    _check_num_edges(graph, n * (n - 1) // 2)
    adjacent = np.triu(np.ones((n, n), bool), 1)
    adjacent[graph.edges.min(1), graph.edges.max(1)] = False
    return replace(graph, edges=np.argwhere(adjacent))


def _reduce_colouring(graph: Graph, colours: int) -> Problem:
    """Reduce a colouring to an independent set: node i * colours + c is node i with colour c."""
    _check_num_edges(graph, colours * (len(graph.edges) + graph.num_nodes * (colours - 1) // 2))
    # neighbours have different colours
    conflicts = [graph.edges * colours + colour for colour in range(colours)]
    # a node has at most one colour
    first, second = np.triu_indices(colours, 1)
    node = np.arange(graph.num_nodes)[:, None, None]
    same_node = node * colours + np.stack([first, second], 1)
    edges = np.concatenate([*conflicts, same_node.reshape(-1, 2)])
    base_graph = Graph(graph.name, graph.num_nodes * colours, edges)
    numbers = np.arange(1, colours + 1, dtype=np.uint8)

    def decode(x: Array) -> Array:
        """Return the colour of each node, 1, 2, ..., or 0 for none, [..., n]."""
        is_colour = x.reshape(*x.shape[:-1], -1, colours)
        return np.asarray((is_colour * numbers).sum(-1, dtype=np.uint8))

    return Problem("colouring", graph, "mis", base_graph, decode)


def _reduce_qubo(graph: Graph) -> Problem:
    """Reduce a quadratic model to a cut with one more node, whose side is that of zeros.

    References: Barahona et al. 1989.
    """
    n = graph.num_nodes
    fields = graph.node_weights_or_ones.copy()
    for ends in graph.edges.T:
        np.add.at(fields, ends, graph.edge_weights_or_ones / 2)
    extra_edges = np.stack([np.arange(n), np.full(n, n)], 1)
    edges = np.concatenate([graph.edges, extra_edges])
    weights = np.concatenate([graph.edge_weights_or_ones / 2, -fields])
    base_graph = Graph(graph.name, n + 1, edges, weights)

    def decode(x: Array) -> Array:
        """Return whether nodes are on the other side than the extra node, [..., n]."""
        return np.asarray(x[..., :-1] ^ x[..., -1:])

    return Problem("qubo", graph, "maxcut", base_graph, decode, -1, graph.offset or 0.0)


def _check_num_edges(graph: Graph, num_edges: int) -> None:
    refuse(
        num_edges > MAX_REDUCED_EDGES,
        f"{graph.name}: the problem reduces to a graph of {num_edges:,} edges; "
        f"at most {MAX_REDUCED_EDGES:,} are supported",
    )
