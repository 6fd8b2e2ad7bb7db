"""Undirected graphs as lists of edges with weights, and random ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blackout.errors import ensure

Edges = NDArray[np.int64]


@dataclass(frozen=True)
class Graph:
    """An undirected graph without loops, or a quadratic model offset + sum a_i x_i + sum b_ij x_i x_j on one.

    Args:
        name: for tables.
        nodes: number of nodes, which are 0, 1, ... here.
        edges: int64 [m, 2], each edge once.
        weights: of the edges (b), float64 [m]; None where all are 1.
        node_weights: of the nodes (a), float64 [n]; None where all are 1.
        labels: what a file calls the nodes; None for their numbers here.
        offset: of a quadratic model; None for a graph.
    """

    name: str
    nodes: int
    edges: Edges
    weights: NDArray[np.float64] | None = None
    node_weights: NDArray[np.float64] | None = None
    labels: Sequence[Any] | None = None
    offset: float | None = None

    @property
    def of_edges(self) -> NDArray[np.float64]:
        """Weights of the edges, float64 [m]."""
        return np.ones(len(self.edges)) if self.weights is None else self.weights

    @property
    def of_nodes(self) -> NDArray[np.float64]:
        """Weights of the nodes, float64 [n]."""
        return np.ones(self.nodes) if self.node_weights is None else self.node_weights

    def matrix(self) -> Any:
        """SciPy's CSR matrix of the weights of its edges, float64 [n, n], symmetric."""
        from scipy.sparse import coo_array  # only here: importing it takes a second

        (i, j), w = self.edges.T, self.of_edges
        pairs = np.concatenate([i, j]), np.concatenate([j, i])
        return coo_array((np.concatenate([w, w]), pairs), shape=(self.nodes, self.nodes)).tocsr()


def erdos_renyi(nodes: int, p: float, rng: np.random.Generator) -> Edges:
    """Every pair of nodes is an edge with probability p [Gilbert 1959]: int64 [m, 2]."""
    first, second = np.triu_indices(nodes, 1)
    chosen = rng.random(len(first)) < p
    return np.stack([first[chosen], second[chosen]], 1).astype(np.int64)


def barabasi_albert(nodes: int, m: float, rng: np.random.Generator) -> Edges:
    """Preferential attachment: nodes come one by one with m edges to earlier ones in proportion to their degree.

    [Barabasi and Albert 1999]; it starts from a star of m + 1 nodes. Edges are int64 [edges, 2].
    """
    m = int(m)
    edges = [(0, k) for k in range(1, m + 1)]
    ends = [node for edge in edges for node in edge]
    for node in range(m + 1, nodes):
        chosen: set[int] = set()
        while len(chosen) < m:
            chosen.add(ends[int(rng.integers(len(ends)))])
        edges += [(other, node) for other in sorted(chosen)]
        ends += [*sorted(chosen), *[node] * m]
    return np.array(edges, dtype=np.int64).reshape(-1, 2)


_KINDS: dict[str, Callable[[int, float, np.random.Generator], Edges]] = {"er": erdos_renyi, "ba": barabasi_albert}


def random_graphs(kind: str, nodes: Sequence[int], parameter: float, number: int, seed: int) -> list[Graph]:
    """Random graphs, each a function of (seed, its number).

    Args:
        kind: `er` (Erdos and Renyi) or `ba` (Barabasi and Albert).
        nodes: least and largest number of nodes, between which it is uniform.
        parameter: probability of an edge, or edges of a new node.
        number: of graphs.
        seed: of all.

    Raises:
        ValueError: no such kind, or numbers out of range.
    """
    ensure(kind in _KINDS, f"graphs are er or ba, not {kind!r}")
    if len(nodes) != 2 or not 1 <= nodes[0] <= nodes[1] or number < 1:
        raise ValueError(f"nodes must be [least, most] with 1 <= least <= most and number positive, not {list(nodes)}")
    ensure(kind != "er" or 0 <= parameter <= 1, f"the probability of an edge must be in [0, 1], not {parameter}")
    if kind == "ba" and not (parameter == int(parameter) and 1 <= parameter < nodes[0]):
        raise ValueError(f"a new node has a whole number of edges from 1 to the least nodes - 1, not {parameter}")
    graphs = []
    for k in range(number):
        rng = np.random.default_rng([seed, k])
        size = int(rng.integers(nodes[0], nodes[1] + 1))
        graphs.append(Graph(f"{kind}{k}", size, _KINDS[kind](size, parameter, rng)))
    return graphs
