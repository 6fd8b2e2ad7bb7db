"""Undirected graphs: as lists of edges, at random, and padded to one size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Edges = NDArray[np.int64]


@dataclass(frozen=True)
class Graph:
    """An undirected graph without loops.

    Args:
        name: for tables.
        nodes: number of nodes, which are called 0, 1, ...
        edges: int64 [m, 2], each edge once.
    """

    name: str
    nodes: int
    edges: Edges

    def adjacency(self, width: int | None = None) -> Tensor:
        """uint8 [width, width], symmetric; nodes from `nodes` on have no edges."""
        d = self.nodes if width is None else width
        adjacent = torch.zeros(d, d, dtype=torch.uint8)
        edges = torch.from_numpy(self.edges)
        adjacent[edges[:, 0], edges[:, 1]] = 1
        adjacent[edges[:, 1], edges[:, 0]] = 1
        return adjacent


def padded(graphs: Sequence[Graph], width: int | None = None) -> tuple[Tensor, Tensor]:
    """Adjacency, uint8 [G, width, width], and numbers of nodes, int64 [G]; `width` is by default the largest number."""
    d = max(graph.nodes for graph in graphs) if width is None else width
    nodes = torch.tensor([graph.nodes for graph in graphs])
    return torch.stack([graph.adjacency(d) for graph in graphs]), nodes


def erdos_renyi(nodes: int, p: float, rng: np.random.Generator) -> Edges:
    """Every pair of nodes is an edge with probability p."""
    first, second = np.triu_indices(nodes, 1)
    chosen = rng.random(len(first)) < p
    return np.stack([first[chosen], second[chosen]], 1).astype(np.int64)


def barabasi_albert(nodes: int, m: int, rng: np.random.Generator) -> Edges:
    """Preferential attachment: nodes come one by one with m edges to earlier ones in proportion to their degree.

    It starts from a star of m + 1 nodes.
    """
    edges = [(0, k) for k in range(1, m + 1)]
    ends = [node for edge in edges for node in edge]
    for node in range(m + 1, nodes):
        chosen: set[int] = set()
        while len(chosen) < m:
            chosen.add(ends[int(rng.integers(len(ends)))])
        edges += [(other, node) for other in sorted(chosen)]
        ends += [*sorted(chosen), *[node] * m]
    return np.array(edges, dtype=np.int64).reshape(-1, 2)


_KINDS: dict[str, Callable[[int, float, np.random.Generator], Edges]] = {
    "er": erdos_renyi,
    "ba": lambda nodes, m, rng: barabasi_albert(nodes, int(m), rng),
}


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
    _check(kind, nodes, parameter, number)
    graphs = []
    for k in range(number):
        rng = np.random.default_rng([seed, k])
        size = int(rng.integers(nodes[0], nodes[1] + 1))
        graphs.append(Graph(f"{kind}{k}", size, _KINDS[kind](size, parameter, rng)))
    return graphs


def _check(kind: str, nodes: Sequence[int], parameter: float, number: int) -> None:
    if kind not in _KINDS:
        raise ValueError(f"graphs are er or ba, not {kind!r}")
    if len(nodes) != 2 or not 1 <= nodes[0] <= nodes[1] or number < 1:
        raise ValueError(f"nodes must be [least, most] with 1 <= least <= most and number positive, not {list(nodes)}")
    if kind == "er" and not 0 <= parameter <= 1:
        raise ValueError(f"the probability of an edge must be in [0, 1], not {parameter}")
    if kind == "ba" and not (parameter == int(parameter) and 1 <= parameter < nodes[0]):
        raise ValueError(f"a new node has a whole number of edges from 1 to the least nodes - 1, not {parameter}")
