"""Undirected graphs as edge lists with weights, and random graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from blackout.errors import ensure

Edges = NDArray[np.int64]


@dataclass(frozen=True)
class Graph:
    """An undirected graph without self-loops, or a quadratic model on one.

    A quadratic model is offset + sum_i a_i x_i + sum_ij b_ij x_i x_j with x in {0, 1}^n.

    Args:
        name: for tables.
        num_nodes: number n of nodes, which are 0, ..., n - 1 here.
        edges: int64 [m, 2], each edge once.
        edge_weights: b, float64 [m]; None if all are 1.
        node_weights: a, float64 [n]; None if all are 1.
        labels: names of the nodes in the file; None for 0, ..., n - 1.
        offset: of a quadratic model; None for a graph.
    """

    name: str
    num_nodes: int
    edges: Edges
    edge_weights: NDArray[np.float64] | None = None
    node_weights: NDArray[np.float64] | None = None
    labels: Sequence[Any] | None = None
    offset: float | None = None

    @property
    def edge_weights_or_ones(self) -> NDArray[np.float64]:
        """Weights of the edges, float64 [m]; ones in an unweighted graph."""
        return np.ones(len(self.edges)) if self.edge_weights is None else self.edge_weights

    @property
    def node_weights_or_ones(self) -> NDArray[np.float64]:
        """Weights of the nodes, float64 [n]; ones in an unweighted graph."""
        return np.ones(self.num_nodes) if self.node_weights is None else self.node_weights

    def adjacency_matrix(self) -> Any:
        """Return SciPy's symmetric CSR matrix of the edge weights, float64 [n, n]."""
        from scipy.sparse import coo_array  # slow to import

        i, j = self.edges.T
        weights = self.edge_weights_or_ones
        rows = np.concatenate([i, j])
        columns = np.concatenate([j, i])
        values = np.concatenate([weights, weights])
        return coo_array((values, (rows, columns)), shape=(self.num_nodes, self.num_nodes)).tocsr()


def erdos_renyi(n: int, p: float, rng: np.random.Generator) -> Edges:
    """Return the edges of G(n, p), int64 [m, 2]: every pair with probability p.

    References: Gilbert 1959.
    """
    first, second = np.triu_indices(n, 1)
    is_edge = rng.random(len(first)) < p
    return np.stack([first[is_edge], second[is_edge]], 1).astype(np.int64)


def barabasi_albert(n: int, m: int, rng: np.random.Generator) -> Edges:
    """Return the edges of a preferential attachment graph of n nodes, int64 [edges, 2].

    It starts from a star of m + 1 nodes. Every further node has m edges to earlier nodes, chosen
    with probability proportional to their degree.

    References: Barabasi and Albert 1999.
    """
    edges = [(0, k) for k in range(1, m + 1)]
    # every node once per edge, so that a uniform choice is proportional to the degree
    endpoints = [node for edge in edges for node in edge]
    for node in range(m + 1, n):
        neighbours: set[int] = set()
        while len(neighbours) < m:
            neighbours.add(endpoints[int(rng.integers(len(endpoints)))])
        edges += [(neighbour, node) for neighbour in sorted(neighbours)]
        endpoints += [*sorted(neighbours), *[node] * m]
    return np.array(edges, dtype=np.int64).reshape(-1, 2)


def random_graphs(
    kind: Literal["er", "ba"],
    nodes: Sequence[int],
    num_graphs: int,
    seed: int,
    *,
    p: float = 0.19,
    m: int = 4,
) -> list[Graph]:
    """Generate random graphs; graph k is a function of (seed, k).

    Args:
        kind: "er" for Erdos-Renyi or "ba" for Barabasi-Albert graphs.
        nodes: smallest and largest number of nodes; the number is uniform in between.
        num_graphs: number of graphs.
        seed: of all graphs.
        p: probability of an edge in an Erdos-Renyi graph.
        m: edges of a new node in a Barabasi-Albert graph.

    Raises:
        ValueError: another kind, or a number out of range.

    Example:
        >>> [graph.num_nodes for graph in random_graphs("er", [4, 4], num_graphs=2, seed=0)]
        [4, 4]
    """
    ensure(kind in ("er", "ba"), f"kind must be er or ba, not {kind!r}")
    if len(nodes) != 2 or not 1 <= nodes[0] <= nodes[1]:
        raise ValueError(f"nodes must be [min, max] with 1 <= min <= max, not {list(nodes)}")
    ensure(num_graphs >= 1, f"the number of graphs must be at least 1, not {num_graphs}")
    if kind == "er":
        ensure(0 <= p <= 1, f"p, the probability of an edge, must be in [0, 1], not {p}")
    elif not (m == int(m) and 1 <= m < nodes[0]):
        raise ValueError(
            f"m, the edges of a new node, must be a whole number from 1 to {nodes[0] - 1}, "
            f"one less than the smallest number of nodes, not {m}"
        )
    graphs = []
    for k in range(num_graphs):
        rng = np.random.default_rng([seed, k])
        num_nodes = int(rng.integers(nodes[0], nodes[1] + 1))
        is_er = kind == "er"
        edges = erdos_renyi(num_nodes, p, rng) if is_er else barabasi_albert(num_nodes, int(m), rng)
        graphs.append(Graph(f"{kind}{k}", num_nodes, edges))
    return graphs
