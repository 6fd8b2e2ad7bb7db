"""Graphs from files: edge lists, and whatever networkx reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from blackout.errors import UserError
from blackout.flows.graphs.collection import Graph
from blackout.flows.graphs.problems import MOST_NODES

_LISTS = (".txt", ".edges", ".edgelist", ".csv", ".tsv")
_BY_NETWORKX = {
    ".gml": "read_gml", ".graphml": "read_graphml", ".gexf": "read_gexf", ".adjlist": "read_adjlist",
    ".g6": "read_graph6", ".s6": "read_sparse6", ".net": "read_pajek",
}  # fmt: skip
SUFFIXES = (*_LISTS, *_BY_NETWORKX)


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
    if file.suffix in _LISTS:
        return _edge_list(file)
    if file.suffix in _BY_NETWORKX:
        return _by_networkx(file)
    raise UserError(f"target.path: {file} is no graph: its name ends in none of {', '.join(SUFFIXES)}")


def _edge_list(file: Path) -> Graph:
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"target.path: {file} cannot be read: {error}") from None
    least, pairs = 0, []
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].replace(",", " ").split()
        said = line.partition("#")[2].strip()
        if said.startswith("nodes:") and said.removeprefix("nodes:").strip().isdecimal():
            least = int(said.removeprefix("nodes:"))
        if not words:
            continue
        if len(words) != 2 or not all(word.isdecimal() for word in words):
            raise UserError(f"target.path: {file}:{number}: an edge is two node numbers from 0 on, not {line[:60]!r}")
        pairs.append((int(words[0]), int(words[1])))
    return _checked(file, max([least, *(max(pair) + 1 for pair in pairs)]), pairs)


def _by_networkx(file: Path) -> Graph:
    import networkx as nx  # only here: importing it takes a while

    try:
        found: Any = getattr(nx, _BY_NETWORKX[file.suffix])(file)
    except Exception as error:  # every format has errors of its own
        raise UserError(f"target.path: {file} is no such graph: {str(error).splitlines()[0][:200]}") from None
    if isinstance(found, list) or found.is_directed() or found.is_multigraph():
        raise UserError(f"target.path: {file} must hold one undirected graph without multiple edges")
    number = {node: k for k, node in enumerate(found)}
    return _checked(file, len(number), [(number[i], number[j]) for i, j in found.edges])


def _checked(file: Path, nodes: int, pairs: list[tuple[int, int]]) -> Graph:
    """A graph of 1 to `MOST_NODES` nodes without loops or repeated edges."""
    if nodes < 1:
        raise UserError(f"target.path: {file} is empty: a graph has at least one node")
    if nodes > MOST_NODES:
        raise UserError(f"target.path: {file} has {nodes} nodes; at most {MOST_NODES} are possible")
    loops = [i for i, j in pairs if i == j]
    if loops:
        raise UserError(f"target.path: {file}: node {loops[0]} has an edge to itself")
    given, once = set(pairs), {(min(pair), max(pair)) for pair in pairs}
    if any((j, i) in given for i, j in given):
        raise UserError(f"target.path: {file} is directed: an edge stands in it both ways; give each edge once")
    return Graph(file.stem, nodes, np.array(sorted(once), dtype=np.int64).reshape(-1, 2))


def save_graph(graph: Graph, file: Path) -> None:
    """Write an edge list that `read_graphs` reads."""
    lines = [f"# nodes: {graph.nodes}", *(f"{i} {j}" for i, j in graph.edges)]
    file.write_text("\n".join(lines) + "\n")
