"""Graphs and quadratic models in users' files. What is not understood is refused; nothing is left out.

Edge lists, DIMACS, Gset (rudy), METIS, MatrixMarket and dimod's two text formats are read here, the rest by networkx.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from blackout.errors import UserError, refuse, summary
from blackout.files import check_size, opened, read_text, stored_bytes
from blackout.flows.graphs.graphs import Graph

_MOST_BYTES, _MOST_NODES = 1 << 30, 10_000_000
"""Of a file, and of a graph."""
_NOT_WEIGHTS = {"id", "label", "key", "name", "x", "y", "z"}
"""Attributes of nodes and edges whose numbers are no weights."""
_LIST_SAYS = re.compile(r"(nodes|first|vartype)\s*[:=]\s*(\w+)")


class _Found(NamedTuple):
    """What a file holds; edges as numbers of nodes from 0 on."""

    nodes: int
    pairs: Sequence[tuple[int, int]]
    weights: Sequence[float] | None = None
    node_weights: Sequence[float] | None = None
    labels: Sequence[Any] | None = None
    offset: float | None = None


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
            graphs.append(_graph(file.stem, READERS[file.suffix.lower()](file)))
        except UserError as error:
            raise UserError(f"target.path: {file}: {error}") from None
        except OSError as error:
            raise UserError(f"target.path: {file} cannot be read: {error.strerror}") from None
    if shifted := [graph for graph in graphs if graph.labels and str(graph.labels[0]) == "1"]:
        said = f"nodes of {shifted[0].name}" + (f" and {len(shifted) - 1} more" if shifted[1:] else "")
        print(f"{said} are numbered from 1: node 1 comes first in solutions", file=sys.stderr)
    return graphs


def _graph(name: str, found: _Found) -> Graph:
    """A graph of at least one node, without loops, repeated edges and weights that are not finite."""
    nodes, pairs, labels = found.nodes, found.pairs, found.labels
    if not 1 <= nodes <= _MOST_NODES:
        raise UserError(f"it has {nodes} nodes: a graph has 1 to {_MOST_NODES:,}" if nodes else "it is empty")
    if loops := [i for i, j in pairs if i == j]:
        raise UserError(f"node {labels[loops[0]] if labels else loops[0]} has an edge to itself")
    once = {(min(pair), max(pair)): k for k, pair in enumerate(pairs)}
    refuse(len(once) < len(pairs), "it is directed, or an edge stands in it twice: give each edge once, one way")
    order = sorted(once)
    of_edges = None if found.weights is None else np.array([found.weights[once[pair]] for pair in order], float)
    of_nodes = None if found.node_weights is None else np.array(found.node_weights, float)
    if any(part is not None and not np.isfinite(part).all() for part in (of_edges, of_nodes)):
        raise UserError("a weight is not finite")
    if found.offset is None:
        of_edges, of_nodes = (None if w is None or (w == 1).all() else w for w in (of_edges, of_nodes))
    edges = np.array(order, dtype=np.int64).reshape(-1, 2)
    return Graph(name, nodes, edges, of_edges, of_nodes, labels, found.offset)


def _lines(file: Path) -> list[str]:
    return read_text(file, most=_MOST_BYTES).splitlines()


def _whole(word: str, least: int, most: int, line: int) -> int:
    if not (word.isascii() and word.isdecimal() and len(word) < 19) or not least <= int(word) <= most:
        raise UserError(f"line {line}: {word[:40]!r} is no whole number from {least} to {most}")
    return int(word)


def _number(word: Any, line: int | str) -> float:
    with suppress(TypeError, ValueError):
        if math.isfinite(number := float(word)):
            return number
    raise UserError(f"{f'line {line}' if isinstance(line, int) else line}: {str(word)[:40]!r} is no finite number")


def _edge_list(file: Path) -> _Found:
    """Lines `node node [weight]`; `#` begins a comment, which may say `nodes: 12`, `first: 0` or `vartype=SPIN`."""
    said: dict[str, str] = {}
    rows: list[tuple[int, list[str]]] = []
    for number, line in enumerate(_lines(file), 1):
        edge, _, comment = line.partition("#")
        said |= dict(_LIST_SAYS.findall(comment))
        edge = re.sub(r"\{(?:'weight': ([^,{}]*))?\}$", r"\1", edge.rstrip())  # as networkx writes them
        if words := edge.replace(",", " ").split():
            rows.append((number, words))
    if rows and [word.lower() for word in rows[0][1]] in (["source", "target"], ["source", "target", "weight"]):
        del rows[0]
    if rows and len(rows[0][1]) == 2 and {len(words) for _, words in rows[1:]} == {3} and not said:
        return _gset(file)
    for number, words in rows:
        if len(words) not in (2, 3) or len(words) != len(rows[0][1]):
            raise UserError(f"line {number}: an edge is two node numbers, all with a weight or none, not {words}")
    pairs = [(_whole(a, 0, _MOST_NODES, k), _whole(b, 0, _MOST_NODES, k)) for k, (a, b, *_) in rows]
    weights = [_number(words[2], k) for k, words in rows if words[2:]] or None
    if "vartype" in said or (any(i == j for i, j in pairs) and weights):
        return _coo(pairs, weights or [], said.get("vartype"))
    headed = pairs and len(pairs) - 1 == pairs[0][1] and max(map(max, pairs[1:]), default=0) <= pairs[0][0]
    if headed and not said and not weights:
        raise UserError(
            f"line {rows[0][0]} reads as a header of {pairs[0][0]} nodes and {pairs[0][1]} edges: "
            "a file with a header is named .gset, and in one without a comment `# nodes: N` says how many there are"
        )
    used = {node for pair in pairs for node in pair}
    least, most = (min(used), max(used)) if used else (0, -1)
    nodes = _whole(said["nodes"], 1, _MOST_NODES, 1) if "nodes" in said else None
    first = _whole(said["first"], 0, 1, 1) if "first" in said else int(least > 0 and nodes in (None, most))
    count = most + 1 - first if nodes is None else nodes
    if least < first or most >= first + count or (nodes is None and len(used) < count):
        raise UserError(
            f"{len(used)} nodes with numbers {least} to {most} are in edges: `# nodes: N, first: 0` in a comment says "
            "how many there are and what the first is called (0 or 1)"
        )
    labels = range(1, count + 1) if first else None
    return _Found(count, [(i - first, j - first) for i, j in pairs], weights, labels=labels)


def _coo(pairs: Sequence[tuple[int, int]], biases: Sequence[float], vartype: str | None) -> _Found:
    """dimod's coordinate list: linear biases on the diagonal; the variables are those that it names."""
    names = sorted({node for pair in pairs for node in pair})
    place, linear = {name: k for k, name in enumerate(names)}, [0.0] * len(names)
    loops = Counter(i for i, j in pairs if i == j)
    if (loops and max(loops.values()) > 1) or len(biases) < len(pairs):
        raise UserError("a linear bias stands in it twice, or a bias is missing")
    quadratic = [((place[i], place[j]), bias) for (i, j), bias in zip(pairs, biases, strict=True) if i != j]
    for (i, j), bias in zip(pairs, biases, strict=True):
        linear[place[i]] += bias * (i == j)
    return _quadratic([str(name) for name in names], linear, quadratic, 0.0, vartype)


_Bias: TypeAlias = tuple[tuple[int, int], float]
"""Two variables, and what their product counts."""


def _quadratic(
    labels: Sequence[str], linear: Sequence[float], quadratic: Sequence[_Bias], offset: float, vartype: str | None
) -> _Found:
    """A quadratic model of numbers 0 and 1; spins are 2x - 1."""
    if vartype not in ("BINARY", "SPIN"):
        raise UserError("it is a quadratic model: `# vartype=BINARY` or `# vartype=SPIN` says of what")
    a, b = list(linear), [bias for _, bias in quadratic]
    if vartype == "SPIN":
        offset += math.fsum(b) - math.fsum(a)
        a, b = [2 * bias for bias in a], [4 * bias for bias in b]
        for (i, j), bias in quadratic:
            a[i], a[j] = a[i] - 2 * bias, a[j] - 2 * bias
    return _Found(len(labels), [pair for pair, _ in quadratic], b, a, labels, offset)


def _json(file: Path) -> _Found:
    """What dimod's `BinaryQuadraticModel.to_serializable()` gives, without bytes."""
    try:
        said = json.loads("\n".join(_lines(file)))
        if said["type"] != "BinaryQuadraticModel" or said["use_bytes"]:
            raise UserError("of JSON, only dimod's BinaryQuadraticModel with use_bytes=False is read")
        ends = list(zip(said["quadratic_head"], said["quadratic_tail"], strict=True))
        biases = [float(bias) for bias in said["quadratic_biases"]]
        linear, labels = [float(bias) for bias in said["linear_biases"]], [str(k) for k in said["variable_labels"]]
        if (said["num_variables"], said["num_interactions"]) != (len(labels), len(ends)) or len(linear) != len(labels):
            raise UserError("its numbers of variables and interactions are not those it says")
        if not all(type(k) is int and 0 <= k < len(labels) for pair in ends for k in pair):
            raise UserError("an interaction is not between its variables")
        quadratic = list(zip(ends, biases, strict=True))
        return _quadratic(labels, linear, quadratic, float(said["offset"]), said["variable_type"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"no BinaryQuadraticModel of dimod ({summary(error)})") from None


def _gset(file: Path) -> _Found:
    """`nodes edges`, then `node node [weight]` from 1 on, as rudy writes them."""
    rows = [(number, words) for number, line in enumerate(_lines(file), 1) if (words := line.split())]
    if not rows or len(rows[0][1]) != 2 or {len(words) for _, words in rows[1:]} not in ({2}, {3}, set()):
        raise UserError("a Gset file says `nodes edges`, then `node node weight` on every line, or no weights")
    nodes, edges = (_whole(word, 0, _MOST_BYTES, rows[0][0]) for word in rows[0][1])
    pairs = [(_whole(a, 1, nodes, line) - 1, _whole(b, 1, nodes, line) - 1) for line, (a, b, *_) in rows[1:]]
    refuse(len(pairs) != edges, f"its header says {edges} edges, and there are {len(pairs)}")
    weights = [_number(w, line) for line, (_, _, *rest) in rows[1:] for w in rest]
    return _Found(nodes, pairs, weights or None, None, range(1, nodes + 1))


def _dimacs(file: Path) -> _Found:
    """`p edge nodes edges`, `e node node [weight]`, `n node weight`, numbered from 1; c is a comment."""
    nodes, said, pairs, weights, of_nodes = 0, -1, [], [], {}
    for line, text in enumerate(_lines(file), 1):
        words = text.split()
        match words:
            case [] | ["c", *_]:
                continue
            case ["p", "edge" | "edges" | "col" | "clq", n, m] if said < 0:
                nodes, said = _whole(n, 1, _MOST_NODES, line), _whole(m, 0, _MOST_BYTES, line)
            case ["e", i, j, *rest] if len(rest) < 2:
                pairs.append((_whole(i, 1, nodes, line) - 1, _whole(j, 1, nodes, line) - 1))
                weights += [_number(w, line) for w in rest]
            case ["n", i, w] if int(_whole(i, 1, nodes, line)) - 1 not in of_nodes:
                of_nodes[int(i) - 1] = _number(w, line)
            case _:
                raise UserError(f"line {line} is none of `p edge N M`, `e I J`, `n I WEIGHT`: {text[:40]!r}")
    refuse(weights and len(weights) != len(pairs), "some edges have a weight and others none")
    if said != len(pairs) and said != len(set(map(frozenset, pairs))):
        raise UserError(f"its header says {said} edges, and there are {len(pairs)}")
    if not weights and set(pairs) == {(j, i) for i, j in pairs}:  # some list every edge both ways
        pairs = [pair for pair in pairs if pair[0] <= pair[1]]
    by_node = [of_nodes.get(k, 1.0) for k in range(nodes)] if of_nodes else None
    return _Found(nodes, pairs, weights or None, by_node, range(1, nodes + 1))


def _metis(file: Path) -> _Found:
    """METIS: a line for each node, with its neighbours from 1 on; `nodes edges [format [1]]` says which weights."""
    lines = [(k, line.split()) for k, line in enumerate(_lines(file), 1) if not line.lstrip().startswith("%")]
    header = lines[0][1] if lines else []
    form = (header[2:3] or ["0"])[0].zfill(3)
    if not 2 <= len(header) <= 4 or form not in ("000", "001", "010", "011") or header[3:] not in ([], ["1"]):
        raise UserError("a METIS file says `nodes edges`, and weights by 1, 10 or 11 as its format")
    nodes, edges = (_whole(word, 0, _MOST_BYTES, lines[0][0]) for word in header[:2])
    by_node, by_edge = form[1] == "1", form[2] == "1"
    if len(lines) <= nodes or any(words for _, words in lines[nodes + 1 :]):
        raise UserError(f"its header says {nodes} nodes, and there are {len(lines) - 1} lines")
    there, of_nodes = {}, []
    for node, (line, words) in enumerate(lines[1 : nodes + 1]):
        of_nodes += [_number(word, line) for word in words[:by_node]]
        rest, step = words[by_node:], 1 + by_edge
        if len(rest) % step or len(of_nodes) < by_node * (node + 1) or len(set(rest[::step])) < len(rest) // step:
            raise UserError(f"line {line}: a weight is missing, or a neighbour stands in it twice")
        for word, weight in zip(rest[::step], rest[1::step] if by_edge else ["1"] * len(rest), strict=True):
            there[node, _whole(word, 1, nodes, line) - 1] = _number(weight, line)
    if len(there) != 2 * edges or any(there.get((j, i)) != w for (i, j), w in there.items()):
        raise UserError(f"its header says {edges} edges, each from both ends, and it does not hold them so")
    pairs = [pair for pair in there if pair[0] < pair[1]]
    return _Found(nodes, pairs, [there[pair] for pair in pairs], of_nodes or None, range(1, nodes + 1))


def _matrix_market(file: Path) -> _Found:
    """`rows columns entries` from 1 on, read here: SciPy's reader ends the process on damaged files."""
    lines = [(k, line.split()) for k, line in enumerate(_lines(file), 1) if k == 1 or not line.startswith("%")]
    (_, banner), *rows = [(k, words) for k, words in lines if words] or [(1, [])]
    match [word.lower() for word in banner]:
        case ["%%matrixmarket", "matrix", "coordinate", "real" | "integer" | "pattern" as field, symmetry] if (
            symmetry in ("symmetric", "general") and rows and len(rows[0][1]) == 3
        ):
            width = 2 if field == "pattern" else 3
        case _:
            raise UserError("of MatrixMarket, real symmetric coordinate matrices are graphs")
    nodes, columns, entries = (_whole(word, 1, _MOST_BYTES, rows[0][0]) for word in rows[0][1])
    if nodes != columns or len(rows) - 1 != entries or any(len(words) != width for _, words in rows[1:]):
        raise UserError(f"its header says {nodes} x {columns} with {entries} entries, and it does not hold them so")
    there = {}
    for line, (i, j, *weight) in rows[1:]:
        pair = _whole(i, 1, nodes, line) - 1, _whole(j, 1, nodes, line) - 1
        if pair in there or (symmetry == "symmetric" and pair[::-1] in there):
            raise UserError(f"line {line}: an entry stands in it twice")
        there[pair] = _number(weight[0], line) if weight else 1.0
    if symmetry == "general" and any(there.get((j, i)) != w for (i, j), w in there.items()):
        raise UserError("its matrix is not symmetric")
    pairs = [pair for pair in there if symmetry == "symmetric" or pair[0] <= pair[1]]
    return _Found(nodes, pairs, [there[pair] for pair in pairs], None, range(1, nodes + 1))


def _by_networkx(name: str, **arguments: Any) -> Callable[[Path], _Found]:
    def read(file: Path) -> _Found:
        try:
            import networkx as nx  # only here: importing it takes a while
        except ImportError:
            raise UserError("it needs networkx, which is missing: pip install 'blackout-diffusion[graphs]'") from None
        try:
            with opened(file) as stream:
                found: Any = getattr(nx, name)(stream, **arguments)
        except (UserError, OSError):
            raise
        except Exception as error:  # every format has errors of its own
            raise UserError(f"it is no such graph: {summary(error)[:200]}") from None
        return _of_networkx(found)

    return read


def _of_networkx(graph: Any) -> _Found:
    refuse(graph.is_directed(), "it is directed; a graph here is undirected")
    place = {node: k for k, node in enumerate(graph)}
    pairs = [(place[i], place[j]) for i, j in graph.edges()]
    # GraphML's defaults stay with the graph
    of_edges = [graph.graph.get("edge_default", {}) | data for *_, data in graph.edges(data=True)]
    of_nodes = [graph.graph.get("node_default", {}) | data for _, data in graph.nodes(data=True)]
    labels = [str(data.get("label", node)) for (node, data) in graph.nodes(data=True)]
    return _Found(len(graph), pairs, _weights("edges", of_edges), _weights("nodes", of_nodes), labels)


def _weights(what: str, attributes: Iterable[Mapping[str, Any]]) -> list[float] | None:
    """Their weights; an attribute that may be another one is refused."""
    rows = list(attributes)
    for name, value in (item for row in rows for item in row.items()):
        if isinstance(value, int | float) and name != "weight" and name.lower() not in _NOT_WEIGHTS:
            raise UserError(f"its {what} have numbers called {name!r}: call them weight, or take them out")
    if not any("weight" in row for row in rows):
        return None
    return [_number(row.get("weight"), f"a weight of its {what}") for row in rows]


READERS: dict[str, Callable[[Path], _Found]] = {
    **dict.fromkeys((".edges", ".edgelist", ".txt", ".csv", ".tsv", ".coo"), _edge_list),
    **dict.fromkeys((".gset", ".mc", ".rud", ""), _gset),
    **dict.fromkeys((".col", ".clq", ".wclq", ".mis", ".dimacs"), _dimacs),
    **dict.fromkeys((".graph", ".metis"), _metis),
    ".mtx": _matrix_market,
    ".json": _json,
    ".gml": _by_networkx("read_gml", label="id"),
    ".graphml": _by_networkx("read_graphml"),
    ".gexf": _by_networkx("read_gexf"),
}
"""What reads a file, by its suffix; no suffix is Gset's."""
