"""Graphs and quadratic models in users' files. What is not understood is refused; nothing is left out.

Edge lists, DIMACS, Gset (rudy), METIS, MatrixMarket and dimod's two text formats are read here, the rest by networkx.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from blackout.errors import UserError, refuse, summary
from blackout.files import check_size, opened, read_text, stored_bytes
from blackout.flows.graphs.graphs import Graph

_MOST_BYTES, _MOST_NODES = 1 << 30, 10_000_000
"""Of a file, and of a graph."""
_NOT_WEIGHTS = {"id", "label", "key", "name", "x", "y", "z"}
"""Attributes of nodes and edges whose numbers are no weights."""
_LIST_SAYS = re.compile(r"(nodes|first|vartype)\s*[:=]\s*(\w+)")


def read_graphs(path: str | Path) -> list[Graph]:
    """The graphs in a file, or in all files of a folder with a known suffix, by name.

    How the nodes of edge lists are numbered is said on stderr where it is not from 0, as are files that are left out.

    Raises:
        UserError: there are none, or one of them is not understood.
    """
    folder, known = Path(path), ", ".join(filter(None, READERS))
    files = [folder] if folder.is_file() else []
    if folder.is_dir():
        there = sorted(file for file in folder.iterdir() if file.is_file() and not file.name.startswith("."))
        files = [file for file in there if file.suffix.lower() in READERS]
        if left := [file.name for file in there if file not in files]:
            print(f"{path}: not read, for their suffixes: {', '.join(left[:5])}, {len(left)} in all", file=sys.stderr)
    refuse(not files, f"target.path: there are no graphs at {path} (files {known})")
    graphs = []
    for file in files:
        try:
            refuse(file.suffix.lower() not in READERS, f"its name ends in none of {known}")
            refuse(file.stat().st_size > _MOST_BYTES, "it is larger than 1 GiB")
            check_size(file, file.stat().st_size, stored_bytes(file))
            graphs.append(replace(READERS[file.suffix.lower()](file), name=file.stem))
        except (UserError, OSError) as error:
            raise UserError(f"target.path: {file}: {getattr(error, 'strerror', error)}") from None
    if shifted := [graph for graph in graphs if graph.labels and str(graph.labels[0]) == "1"]:
        said = f"nodes of {shifted[0].name}" + (f" and {len(shifted) - 1} more" if shifted[1:] else "")
        print(f"{said} are numbered from 1: node 1 comes first in solutions", file=sys.stderr)
    return graphs


def _graph(nodes: int, pairs: Any, weights: Any = (), of_nodes: Any = None, first: int = 0, **more: Any) -> Graph:
    """A graph of at least one node, without loops, repeated edges and weights that are not finite.

    Args:
        nodes: how many.
        pairs, weights: ends of the edges, [m, 2], and weights [m]; empty where all are 1.
        of_nodes: their weights, [n]; None where all are 1.
        first: what the ends call the first node, 0 or 1.
        more: `labels` of the nodes, and the `offset` of a quadratic model: see `Graph`.
    """
    refuse(not 1 <= nodes <= _MOST_NODES, f"it has {nodes} nodes, and a graph has 1 to {_MOST_NODES:,}")
    labels = range(1, nodes + 1) if first else more.pop("labels", None)
    ends = np.array(pairs, np.int64).reshape(-1, 2) - first
    if len(loops := ends[ends[:, 0] == ends[:, 1], 0]):
        raise UserError(f"node {labels[loops[0]] if labels else loops[0]} has an edge to itself")
    edges, order = np.unique(np.sort(ends, 1), axis=0, return_index=True)
    refuse(len(edges) < len(ends), "it is directed, or an edge stands in it twice: give each edge once, one way")
    told = np.array(weights, float)[order] if len(weights) else None, None if of_nodes is None else np.array(of_nodes)
    refuse(any(w is not None and not np.isfinite(w).all() for w in told), "a weight is not finite")
    of_edges, of_nodes = (None if w is None or ("offset" not in more and (w == 1).all()) else w for w in told)
    return Graph("", nodes, edges, of_edges, of_nodes, labels, **more)


_Row: TypeAlias = tuple[int, list[str]]
"""The number of a line, and its words."""


def _rows(file: Path, comment: str = "", blank: bool = False) -> list[_Row]:
    """Lines that are no comments, and blank ones only if they mean something."""
    lines = enumerate(read_text(file, most=_MOST_BYTES).splitlines(), 1)
    kept = [(k, line.split()) for k, line in lines if not comment or not line.lstrip().startswith(comment)]
    return kept if blank else [(k, words) for k, words in kept if words]


def _whole(word: str, least: int, most: int, line: int) -> int:
    if not (word.isascii() and word.isdecimal() and len(word) < 19) or not least <= int(word) <= most:
        raise UserError(f"line {line}: {word[:40]!r} is no whole number from {least} to {most}")
    return int(word)


def _number(word: Any, line: int | str) -> float:
    try:
        number = float(word)
    except (TypeError, ValueError):  # no number at all: refused below, as infinities are
        number = math.nan
    if not math.isfinite(number):
        place = f"line {line}" if isinstance(line, int) else line
        raise UserError(f"{place}: {str(word)[:40]!r} is no finite number")
    return number


def _sizes(row: _Row) -> list[int]:
    """The numbers of a header."""
    return [_whole(word, 0, _MOST_BYTES, row[0]) for word in row[1]]


def _edges(rows: Sequence[_Row], least: int, most: int) -> tuple[list[tuple[int, int]], list[float]]:
    """Pairs of nodes called `least` to `most`, and weights if they have some, of rows `node node [weight]`."""
    for line, words in rows:
        if len(words) not in (2, 3) or len(words) != len(rows[0][1]):
            shown = " ".join(words)[:40]
            raise UserError(f"line {line}: an edge is two node numbers, all with a weight or none, not {shown!r}")
    pairs = [(_whole(a, least, most, line), _whole(b, least, most, line)) for line, (a, b, *_) in rows]
    return pairs, [_number(words[2], line) for line, words in rows if words[2:]]


def _counted(pairs: Sequence[Any], said: int) -> None:
    refuse(len(pairs) != said, f"its header says {said} edges, and there are {len(pairs)}")


def _one_way(pairs: Sequence[tuple[int, int]], weights: Sequence[float]) -> tuple[list[tuple[int, int]], list[float]]:
    """Once every edge of a file that has it from both ends."""
    there = dict(zip(pairs, weights or [1.0] * len(pairs), strict=True))
    refuse(len(there) < len(pairs), "an entry stands in it twice")
    if any(there.get((j, i)) != w for (i, j), w in there.items()):
        raise UserError("it is not symmetric: it must hold each edge from both ends")
    once = {pair: w for pair, w in there.items() if pair[0] <= pair[1]}
    return list(once), list(once.values())


def _edge_list(file: Path) -> Graph:
    """Lines `node node [weight]`; `#` begins a comment, which may say `nodes: 12`, `first: 0` or `vartype=SPIN`."""
    said: dict[str, str] = {}
    rows: list[_Row] = []
    for number, line in enumerate(read_text(file, most=_MOST_BYTES).splitlines(), 1):
        edge, _, comment = line.partition("#")
        said |= dict(_LIST_SAYS.findall(comment))
        edge = re.sub(r"\{(?:'weight': ([^,{}]*))?\}$", r"\1", edge.rstrip())  # as networkx writes them
        if words := edge.replace(",", " ").split():
            rows.append((number, words))
    if rows and [word.lower() for word in rows[0][1]] in (["source", "target"], ["source", "target", "weight"]):
        del rows[0]
    if rows and len(rows[0][1]) == 2 and {len(words) for _, words in rows[1:]} == {3} and not said:
        return _gset(file)
    pairs, weights = _edges(rows, 0, _MOST_NODES)
    if "vartype" in said or (any(i == j for i, j in pairs) and weights):
        return _coo(pairs, weights, said.get("vartype"))
    headed = pairs and len(pairs) - 1 == pairs[0][1] and max(map(max, pairs[1:]), default=0) <= pairs[0][0]
    advice = "a file with one is named .gset; in one without a comment `# nodes: N` says how many there are"
    refuse(headed and not said and not weights, f"its first line reads as a header: {advice}")
    used = {node for pair in pairs for node in pair}
    least, most = (min(used), max(used)) if used else (0, -1)
    nodes = _whole(said["nodes"], 1, _MOST_NODES, 1) if "nodes" in said else None
    first = _whole(said["first"], 0, 1, 1) if "first" in said else int(least > 0 and nodes in (None, most))
    count = most + 1 - first if nodes is None else nodes
    strange = least < first or most >= first + count or (nodes is None and len(used) < count)
    advice = "`# nodes: N, first: 0` in a comment says how many there are and what the first is called (0 or 1)"
    refuse(strange, f"{len(used)} nodes with numbers {least} to {most} are in edges: {advice}")
    return _graph(count, pairs, weights, first=first)


def _coo(pairs: Sequence[tuple[int, int]], biases: Sequence[float], vartype: str | None) -> Graph:
    """dimod's coordinate list: linear biases on the diagonal; the variables are those that it names."""
    names = sorted({node for pair in pairs for node in pair})
    place = {name: k for k, name in enumerate(names)}
    linear = {i: bias for (i, j), bias in zip(pairs, biases, strict=False) if i == j}
    quadratic = {(place[i], place[j]): bias for (i, j), bias in zip(pairs, biases, strict=False) if i != j}
    refuse(len(linear) + len(quadratic) < len(pairs), "a bias stands in it twice, or is missing")
    of_each = [linear.get(name, 0.0) for name in names]
    return _quadratic([str(name) for name in names], of_each, list(quadratic), list(quadratic.values()), 0.0, vartype)


def _quadratic(labels: list[str], linear: Any, pairs: Any, biases: Any, offset: float, vartype: Any) -> Graph:
    """A quadratic model of numbers 0 and 1; spins are 2x - 1.

    Ours, of biases [n] and [m] (tests/flows/graphs/test_files.py compares energies of spins and bits).
    """
    refuse(vartype not in ("BINARY", "SPIN"), "a quadratic model: `# vartype=BINARY` or `# vartype=SPIN` says of what")
    a, b = np.array(linear, float), np.array(biases, float)
    if vartype == "SPIN":
        offset += float(b.sum() - a.sum())
        a, b = 2 * a, 4 * b
        np.subtract.at(a, np.array(pairs, np.int64).reshape(-1, 2), b[:, None] / 2)
    return _graph(len(labels), pairs, b, a, labels=labels, offset=offset)


def _json(file: Path) -> Graph:
    """What dimod's `BinaryQuadraticModel.to_serializable()` gives, without bytes."""
    try:
        said = json.loads(read_text(file, most=_MOST_BYTES))
        if said["type"] != "BinaryQuadraticModel" or said["use_bytes"]:
            raise UserError("of JSON, only dimod's BinaryQuadraticModel with use_bytes=False is read")
        ends = list(zip(said["quadratic_head"], said["quadratic_tail"], strict=True))
        linear, biases = ([float(bias) for bias in said[f"{kind}_biases"]] for kind in ("linear", "quadratic"))
        labels = [str(name) for name in said["variable_labels"]]
        sizes = said["num_variables"], said["num_interactions"]
        if sizes != (len(labels), len(ends)) or sizes != (len(linear), len(biases)):
            raise UserError("its numbers of variables and interactions are not those it says")
        if not all(type(k) is int and 0 <= k < len(labels) for pair in ends for k in pair):
            raise UserError("an interaction is not between its variables")
        return _quadratic(labels, linear, ends, biases, float(said["offset"]), said["variable_type"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise UserError(f"no BinaryQuadraticModel of dimod ({summary(error)})") from None


def _gset(file: Path) -> Graph:
    """`nodes edges`, then `node node [weight]` from 1 on, as rudy writes them."""
    rows = _rows(file)
    if not rows or len(rows[0][1]) != 2 or {len(words) for _, words in rows[1:]} not in ({2}, {3}, set()):
        raise UserError("a Gset file says `nodes edges`, then `node node weight` on every line, or no weights")
    nodes, said = _sizes(rows[0])
    pairs, weights = _edges(rows[1:], 1, nodes)
    _counted(pairs, said)
    return _graph(nodes, pairs, weights, first=1)


def _dimacs(file: Path) -> Graph:
    """`p edge nodes edges`, `e node node [weight]`, `n node weight`, numbered from 1; c is a comment."""
    nodes, said, rows = 0, -1, list[_Row]()
    of_nodes: dict[int, float] = {}
    for line, words in _rows(file):
        match words:
            case ["c", *_]:
                continue
            case ["p", "edge" | "edges" | "col" | "clq", n, m] if said < 0:
                nodes, said = _whole(n, 1, _MOST_NODES, line), _whole(m, 0, _MOST_BYTES, line)
            case ["e", *edge]:
                rows.append((line, edge))
            case ["n", i, w] if _whole(i, 1, nodes, line) not in of_nodes:
                of_nodes[int(i)] = _number(w, line)
            case _:
                raise UserError(f"line {line} is none of `p edge N M`, `e I J`, `n I WEIGHT`: {' '.join(words)[:40]!r}")
    pairs, weights = _edges(rows, 1, nodes)
    if said != len(set(map(frozenset, pairs))):
        _counted(pairs, said)
    if not weights and set(pairs) == {(j, i) for i, j in pairs}:  # some list every edge both ways
        pairs = [pair for pair in pairs if pair[0] <= pair[1]]
    by_node = [of_nodes.get(k, 1.0) for k in range(1, nodes + 1)] if of_nodes else None
    return _graph(nodes, pairs, weights, by_node, first=1)


def _metis(file: Path) -> Graph:
    """METIS: a line for each node, with its neighbours from 1 on; `nodes edges [format [1]]` says which weights."""
    (top, header), *lines = _rows(file, "%", blank=True) or [(1, [])]
    form = (header[2:3] or ["0"])[0].zfill(3)
    if not 2 <= len(header) <= 4 or form not in ("000", "001", "010", "011") or header[3:] not in ([], ["1"]):
        raise UserError("a METIS file says `nodes edges`, and weights by 1, 10 or 11 as its format")
    nodes, said = _sizes((top, header[:2]))
    if len(lines) < nodes or any(words for _, words in lines[nodes:]):
        raise UserError(f"its header says {nodes} nodes, and there are {len(lines)} lines")
    own, step = int(form[1]), 1 + int(form[2])  # words of a node, and of a neighbour
    of_nodes, rows = list[float](), list[_Row]()
    for node, (line, words) in enumerate(lines[:nodes], 1):
        refuse(len(words) < own or (len(words) - own) % step, f"line {line}: a weight is missing")
        of_nodes += [_number(word, line) for word in words[:own]]
        rows += [(line, [str(node), *words[k : k + step]]) for k in range(own, len(words), step)]
    pairs, weights = _one_way(*_edges(rows, 1, nodes))
    _counted(pairs, said)
    return _graph(nodes, pairs, weights, of_nodes or None, first=1)


def _matrix_market(file: Path) -> Graph:
    """`rows columns entries` from 1 on, read here: SciPy's reader ends the process on damaged files."""
    (_, banner), *rows = _rows(file) or [(1, [])]
    form = "%%matrixmarket matrix coordinate (real|integer|pattern) (symmetric|general)"
    found = re.fullmatch(form, " ".join(banner).lower())
    rows = [(line, words) for line, words in rows if not words[0].startswith("%")]
    if not found or not rows or len(rows[0][1]) != 3:
        raise UserError("of MatrixMarket, real symmetric coordinate matrices are graphs")
    nodes, columns, said = _sizes(rows[0])
    pairs, weights = _edges(rows[1:], 1, nodes)
    if nodes != columns or len(pairs) != said or len(weights) != len(pairs) * (found[1] != "pattern"):
        raise UserError(f"its header says {nodes} x {columns} with {said} entries, and it does not hold them so")
    if found[2] == "general":
        pairs, weights = _one_way(pairs, weights)
    return _graph(nodes, pairs, weights, first=1)


def _by_networkx(name: str, file: Path, **arguments: Any) -> Graph:
    import networkx as nx  # only here: importing it takes a while

    try:
        with opened(file) as stream:
            graph: Any = getattr(nx, name)(stream, **arguments)
    except (UserError, OSError):
        raise
    except Exception as error:  # every format has errors of its own
        raise UserError(f"it is no such graph: {summary(error)[:200]}") from None
    refuse(graph.is_directed(), "it is directed; a graph here is undirected")
    place = {node: k for k, node in enumerate(graph)}
    pairs = [(place[i], place[j]) for i, j in graph.edges()]
    # GraphML's defaults stay with the graph
    of_edges = [graph.graph.get("edge_default", {}) | data for *_, data in graph.edges(data=True)]
    of_nodes = [graph.graph.get("node_default", {}) | data for _, data in graph.nodes(data=True)]
    labels = [str(data.get("label", node)) for (node, data) in graph.nodes(data=True)]
    return _graph(len(graph), pairs, _weights("edges", of_edges), _weights("nodes", of_nodes) or None, labels=labels)


def _weights(what: str, rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Their weights, if they have some; an attribute that may be another one is refused."""
    for name, value in (item for row in rows for item in row.items()):
        if isinstance(value, int | float) and name != "weight" and name.lower() not in _NOT_WEIGHTS:
            raise UserError(f"its {what} have numbers called {name!r}: call them weight, or take them out")
    told = any("weight" in row for row in rows)
    return [_number(row.get("weight"), f"a weight of its {what}") for row in rows if told]


READERS: dict[str, Callable[[Path], Graph]] = {
    **dict.fromkeys((".edges", ".edgelist", ".txt", ".csv", ".tsv", ".coo"), _edge_list),
    **dict.fromkeys((".gset", ".mc", ".rud", ""), _gset),
    **dict.fromkeys((".col", ".clq", ".wclq", ".mis", ".dimacs"), _dimacs),
    **dict.fromkeys((".graph", ".metis"), _metis),
    ".mtx": _matrix_market,
    ".json": _json,
    ".gml": partial(_by_networkx, "read_gml", label="id"),
    ".graphml": partial(_by_networkx, "read_graphml"),
    ".gexf": partial(_by_networkx, "read_gexf"),
}
"""What reads a file, by its suffix; no suffix is Gset's."""
