"""Undirected graphs as lists of edges: at random, or from files, those of ours and whatever networkx reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blackout.errors import UserError

Edges = NDArray[np.int64]
MOST_NODES = 1024
"""Of a graph: distances of all pairs are kept."""
_LISTS = (".txt", ".edges", ".edgelist", ".csv", ".tsv")
_BY_NETWORKX = {
    ".gml": "read_gml", ".graphml": "read_graphml", ".gexf": "read_gexf", ".adjlist": "read_adjlist",
    ".g6": "read_graph6", ".s6": "read_sparse6", ".net": "read_pajek",
}  # fmt: skip
SUFFIXES = (*_LISTS, *_BY_NETWORKX)


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
        """uint8 [width, width], symmetric; nodes from `nodes` on, where there are any, have no edges."""
        adjacent = torch.zeros([width or self.nodes] * 2, dtype=torch.uint8)
        edges = torch.from_numpy(self.edges)
        adjacent[edges[:, 0], edges[:, 1]] = 1
        adjacent[edges[:, 1], edges[:, 0]] = 1
        return adjacent


def erdos_renyi(nodes: int, p: float, rng: np.random.Generator) -> Edges:
    """Every pair of nodes is an edge with probability p [Gilbert 1959]."""
    first, second = np.triu_indices(nodes, 1)
    chosen = rng.random(len(first)) < p
    return np.stack([first[chosen], second[chosen]], 1).astype(np.int64)


def barabasi_albert(nodes: int, m: float, rng: np.random.Generator) -> Edges:
    """Preferential attachment: nodes come one by one with m edges to earlier ones in proportion to their degree.

    [Barabasi and Albert 1999]; it starts from a star of m + 1 nodes.
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
    if kind not in _KINDS:
        raise ValueError(f"graphs are er or ba, not {kind!r}")
    if len(nodes) != 2 or not 1 <= nodes[0] <= nodes[1] or number < 1:
        raise ValueError(f"nodes must be [least, most] with 1 <= least <= most and number positive, not {list(nodes)}")
    if kind == "er" and not 0 <= parameter <= 1:
        raise ValueError(f"the probability of an edge must be in [0, 1], not {parameter}")
    if kind == "ba" and not (parameter == int(parameter) and 1 <= parameter < nodes[0]):
        raise ValueError(f"a new node has a whole number of edges from 1 to the least nodes - 1, not {parameter}")
    graphs = []
    for k in range(number):
        rng = np.random.default_rng([seed, k])
        size = int(rng.integers(nodes[0], nodes[1] + 1))
        graphs.append(Graph(f"{kind}{k}", size, _KINDS[kind](size, parameter, rng)))
    return graphs


def read_graphs(path: str | Path) -> list[Graph]:
    """The graphs in a file, or in all files of a folder with a known suffix, by name.

    An edge list has two node numbers a line, from 0 on, separated by spaces, tabs or a comma; `#` begins a comment, and
    `# nodes: 12` says how many nodes there are where the last ones have no edges.

    Raises:
        UserError: there are none, or one is not such a graph.
    """
    folder = Path(path)
    if folder.is_dir():
        files = sorted(file for file in folder.iterdir() if file.suffix in SUFFIXES and file.is_file())
    else:
        files = [folder] if folder.is_file() else []
    if not files:
        raise UserError(f"target.path: there are no graphs at {path} (files {', '.join(SUFFIXES)})")
    return [_read(file) for file in files]


def _read(file: Path) -> Graph:
    """A graph of 1 to `MOST_NODES` nodes without loops or repeated edges."""
    if file.suffix not in SUFFIXES:
        raise UserError(f"target.path: {file} is no graph: its name ends in none of {', '.join(SUFFIXES)}")
    nodes, pairs = (_edge_list if file.suffix in _LISTS else _by_networkx)(file)
    if nodes < 1:
        raise UserError(f"target.path: {file} is empty: a graph has at least one node")
    if nodes > MOST_NODES:
        raise UserError(f"target.path: {file} has {nodes} nodes; at most {MOST_NODES} are possible")
    if loops := [i for i, j in pairs if i == j]:
        raise UserError(f"target.path: {file}: node {loops[0]} has an edge to itself")
    given, once = set(pairs), {(min(pair), max(pair)) for pair in pairs}
    if any((j, i) in given for i, j in given):
        raise UserError(f"target.path: {file} is directed: an edge stands in it both ways; give each edge once")
    return Graph(file.stem, nodes, np.array(sorted(once), dtype=np.int64).reshape(-1, 2))


def _edge_list(file: Path) -> tuple[int, list[tuple[int, int]]]:
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"target.path: {file} cannot be read: {error}") from None
    nodes, pairs = 0, []
    for number, line in enumerate(lines, 1):
        edge, _, said = line.partition("#")
        said = said.strip()
        if said.startswith("nodes:") and said.removeprefix("nodes:").strip().isdecimal():
            nodes = int(said.removeprefix("nodes:"))
        words = edge.replace(",", " ").split()
        if words and (len(words) != 2 or not all(word.isdecimal() for word in words)):
            raise UserError(f"target.path: {file}:{number}: an edge is two node numbers from 0 on, not {line[:60]!r}")
        if words:
            pairs.append((int(words[0]), int(words[1])))
    return max([nodes, *(max(pair) + 1 for pair in pairs)]), pairs


def _by_networkx(file: Path) -> tuple[int, list[tuple[int, int]]]:
    import networkx as nx  # only here: importing it takes a while

    try:
        found: Any = getattr(nx, _BY_NETWORKX[file.suffix])(file)
    except Exception as error:  # every format has errors of its own
        raise UserError(f"target.path: {file} is no such graph: {str(error).splitlines()[0][:200]}") from None
    if isinstance(found, list) or found.is_directed() or found.is_multigraph():
        raise UserError(f"target.path: {file} must hold one undirected graph without multiple edges")
    return len(found), list(nx.convert_node_labels_to_integers(found).edges)


def save_graph(graph: Graph, file: Path) -> None:
    """Write an edge list that `read_graphs` reads."""
    lines = [f"# nodes: {graph.nodes}", *(f"{i} {j}" for i, j in graph.edges)]
    file.write_text("\n".join(lines) + "\n")
