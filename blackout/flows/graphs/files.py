"""Readers of graphs and quadratic models in files of the user.

A reader refuses what it does not understand and never ignores a part of a file. Edge lists, DIMACS,
Gset (rudy), METIS, MatrixMarket and dimod's two text formats are parsed here, GML, GraphML and GEXF
by networkx.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from blackout.data.formats.contents import NUMBER
from blackout.errors import UserError, refuse, summary
from blackout.flows.graphs.graphs import Graph
from blackout.safe_reading import check_size, open_regular, read_text, stored_bytes

MAX_BYTES = 1 << 30  # of a file
MAX_NODES = 10_000_000  # of a graph
MAX_WORD_LENGTH = 40  # characters of a line that an error message shows
MAX_DIGITS = 18  # of an integer that fits into 64 bits
NUM_LISTED_FILES = 5  # names in the message about files that are not read
# numeric attributes of nodes and edges that are not weights
NON_WEIGHT_ATTRIBUTES = {"id", "label", "key", "name", "x", "y", "z"}
# settings in comments of an edge list, such as `nodes: 12`
COMMENT_SETTING = re.compile(r"\b(nodes|vertices|edges|first|vartype)\s*[:=]\s*(\w+)", re.I)
COMMENT_SIZE = re.compile(r"\b(\d+)\s+(nodes|vertices|edges)\b", re.I)  # such as `5 edges`

# the number of a line, and its words
Row: TypeAlias = tuple[int, list[str]]
# ends of an edge
Pair: TypeAlias = tuple[int, int]


def read_graphs(path: str | Path) -> list[Graph]:
    """Read the graphs in a file, or in all files of a folder with a known suffix, by name.

    A message on stderr names files that are not read, and graphs whose nodes are numbered from 1.

    Raises:
        UserError: there are no graphs, or a file is not understood.
    """
    suffixes = ", ".join(filter(None, READERS))
    files = _list_files(Path(path))
    refuse(not files, f"target.path: no graphs at {path}; known suffixes are {suffixes}")
    graphs = []
    for file in files:
        try:
            suffix = file.suffix.lower()
            size = file.stat().st_size
            refuse(suffix not in READERS, f"its suffix must be one of {suffixes}")
            refuse(size > MAX_BYTES, "it is larger than 1 GiB")
            check_size(file, size, stored_bytes(file))
            graphs.append(replace(READERS[suffix](file), name=file.stem))
        except (UserError, OSError) as error:
            reason = getattr(error, "strerror", error)
            raise UserError(f"target.path: {file}: {reason}") from None
    one_based = [graph for graph in graphs if graph.labels and str(graph.labels[0]) == "1"]
    if one_based:
        more = f" and {len(one_based) - 1} more" if len(one_based) > 1 else ""
        print(
            f"nodes of {one_based[0].name}{more} are numbered from 1: node 1 comes first",
            file=sys.stderr,
        )
    return graphs


def _list_files(path: Path) -> list[Path]:
    """Return the file itself, or the files of a folder with a known suffix."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        return []
    files = [file for file in sorted(path.iterdir()) if file.is_file()]
    visible = [file for file in files if not file.name.startswith(".")]
    readable = [file for file in visible if file.suffix.lower() in READERS]
    skipped = [file.name for file in visible if file not in readable]
    if skipped:
        listed = ", ".join(skipped[:NUM_LISTED_FILES])
        print(
            f"{path}: files with other suffixes are not read: {listed}, {len(skipped)} in all",
            file=sys.stderr,
        )
    return readable


def _make_graph(
    num_nodes: int,
    pairs: Any,
    edge_weights: Any = (),
    node_weights: Any = None,
    *,
    first: int = 0,
    labels: list[str] | None = None,
    offset: float | None = None,
) -> Graph:
    """Build a graph and check it: no self-loops, repeated edges or infinite weights.

    Args:
        num_nodes: number n of nodes.
        pairs: ends of the edges, [m, 2].
        edge_weights: [m]; empty if all are 1.
        node_weights: [n]; None if all are 1.
        first: number of the first node in the file, 0 or 1.
        labels: of the nodes.
        offset: of a quadratic model; None for a graph.
    """
    refuse(
        not 1 <= num_nodes <= MAX_NODES,
        f"it has {num_nodes} nodes; a graph must have 1 to {MAX_NODES:,}",
    )
    names: Sequence[Any] | None = range(1, num_nodes + 1) if first else labels
    ends = np.array(pairs, np.int64).reshape(-1, 2) - first
    loops = ends[ends[:, 0] == ends[:, 1], 0]
    if len(loops):
        node = names[loops[0]] if names else loops[0]
        raise UserError(f"node {node} has an edge to itself; remove it")
    edges, order = np.unique(np.sort(ends, 1), axis=0, return_index=True)
    refuse(
        len(edges) < len(ends),
        "it is directed or repeats an edge; list every edge once, in one direction",
    )
    sorted_edge_weights = np.array(edge_weights, float)[order] if len(edge_weights) else None
    node_array = None if node_weights is None else np.array(node_weights)
    for weights in (sorted_edge_weights, node_array):
        infinite = weights is not None and not np.isfinite(weights).all()
        refuse(infinite, "a weight is not finite")
    if offset is None:
        sorted_edge_weights = _none_if_ones(sorted_edge_weights)
        node_array = _none_if_ones(node_array)
    return Graph("", num_nodes, edges, sorted_edge_weights, node_array, names, offset)


def _none_if_ones(weights: Any) -> Any:
    """Return None for weights that are all 1, as of an unweighted graph."""
    return None if weights is not None and (weights == 1).all() else weights


# --- words and lines


def _read_rows(file: Path, comment: str = "", *, keep_blank: bool = False) -> list[Row]:
    """Return the lines that are no comments; blank ones only on request."""
    rows = []
    for number, line in enumerate(read_text(file, max_bytes=MAX_BYTES).splitlines(), 1):
        if comment and line.lstrip().startswith(comment):
            continue
        words = line.split()
        if words or keep_blank:
            rows.append((number, words))
    return rows


def _parse_integer(word: str, minimum: int, maximum: int, line: int) -> int:
    """Parse a decimal integer in [minimum, maximum]."""
    is_integer = word.isascii() and word.isdecimal() and len(word) <= MAX_DIGITS
    if not is_integer or not minimum <= int(word) <= maximum:
        text = word[:MAX_WORD_LENGTH]
        raise UserError(
            f"line {line}: {text!r} must be an integer from {minimum} to {maximum}",
        )
    return int(word)


def _parse_number(word: Any, place: int | str) -> float:
    """Parse a finite number; the place is a line number or a description for the message."""
    number = math.nan  # refused below, as infinities are
    if not isinstance(word, str) or NUMBER.fullmatch(word):  # Python also reads 1_0 as 10
        with suppress(TypeError, ValueError):
            number = float(word)
    if not math.isfinite(number):
        prefix = f"line {place}" if isinstance(place, int) else place
        raise UserError(f"{prefix}: {str(word)[:MAX_WORD_LENGTH]!r} must be a finite number")
    return number


def _parse_sizes(row: Row) -> list[int]:
    """Parse the integers of a header."""
    line, words = row
    return [_parse_integer(word, 0, MAX_BYTES, line) for word in words]


def _parse_edges(rows: Sequence[Row], first: int, last: int) -> tuple[list[Pair], list[float]]:
    """Parse rows `node node [weight]` with nodes `first` to `last`; no weights are []."""
    for line, words in rows:
        if len(words) not in (2, 3) or len(words) != len(rows[0][1]):
            text = " ".join(words)[:MAX_WORD_LENGTH]
            raise UserError(
                f"line {line}: {text!r} must be two node numbers, and a weight in all or no lines",
            )
    pairs = []
    for line, words in rows:
        i = _parse_integer(words[0], first, last, line)
        j = _parse_integer(words[1], first, last, line)
        pairs.append((i, j))
    return pairs, [_parse_number(words[2], line) for line, words in rows if words[2:]]


def _check_num_edges(pairs: Sequence[Any], expected: int) -> None:
    refuse(
        len(pairs) != expected,
        f"its header announces {expected} edges, but it has {len(pairs)}",
    )


def _merge_directions(
    pairs: Sequence[Pair],
    weights: Sequence[float],
) -> tuple[list[Pair], list[float]]:
    """Return every edge once, of a file that must list it from both ends."""
    weight_of = dict(zip(pairs, weights or [1.0] * len(pairs), strict=True))
    refuse(len(weight_of) < len(pairs), "it repeats an entry")
    if any(weight_of.get((j, i)) != weight for (i, j), weight in weight_of.items()):
        raise UserError("it is not symmetric; it must list each edge from both ends")
    unique = {pair: weight for pair, weight in weight_of.items() if pair[0] <= pair[1]}
    return list(unique), list(unique.values())


# --- formats


def _read_edge_list(file: Path) -> Graph:
    """Read lines `node node [weight]`.

    `#` starts a comment, which may contain `nodes: 12`, `edges: 15`, `first: 0` or `vartype=SPIN`
    in capital or small letters; the number of edges is compared.
    """
    # 1. Lines and settings in comments.
    settings: dict[str, str] = {}
    rows: list[Row] = []
    for number, line in enumerate(read_text(file, max_bytes=MAX_BYTES).splitlines(), 1):
        edge, _, comment = line.partition("#")
        _add_comment(settings, comment, number)
        # networkx writes weights as {'weight': 2.0}
        edge = re.sub(r"\{(?:'weight': ([^,{}]*))?\}$", r"\1", edge.rstrip())
        words = edge.replace(",", " ").split()
        if words:
            rows.append((number, words))
    header = [word.lower() for word in rows[0][1]] if rows else []
    if header in (["source", "target"], ["source", "target", "weight"]):
        del rows[0]

    # 2. Other formats with the same suffix.
    if _is_gset(rows) and not settings:
        return _read_gset(file)
    pairs, weights = _parse_edges(rows, 0, MAX_NODES)
    has_diagonal = any(i == j for i, j in pairs)
    if "vartype" in settings or (has_diagonal and weights):
        return _make_coordinate_model(pairs, weights, settings.get("vartype"))
    refuse(
        _has_size_header(pairs) and not settings and not weights,
        "its first line looks like a header `nodes edges`: rename it to .gset if it is one; "
        "otherwise add a comment `# nodes: N` with the number of nodes",
    )

    # 3. Number of edges and nodes, and whether they are numbered from 0 or from 1.
    if "edges" in settings:
        _check_num_edges(pairs, _parse_integer(settings["edges"], 0, MAX_BYTES, 1))
    used = {node for pair in pairs for node in pair}
    smallest = min(used, default=0)
    largest = max(used, default=-1)
    num_nodes = None
    if "nodes" in settings:
        num_nodes = _parse_integer(settings["nodes"], 1, MAX_NODES, 1)
    if "first" in settings:
        first = _parse_integer(settings["first"], 0, 1, 1)
    else:
        first = int(smallest > 0 and num_nodes in (None, largest))
    count = largest + 1 - first if num_nodes is None else num_nodes
    outside = smallest < first or largest >= first + count
    has_gaps = num_nodes is None and len(used) < count
    refuse(
        outside or has_gaps,
        f"its edges have {len(used)} nodes with numbers {smallest} to {largest}: add a comment "
        "`# nodes: N, first: 0` with the number of nodes and the number of the first one (0 or 1)",
    )
    return _make_graph(count, pairs, weights, first=first)


def _add_comment(settings: dict[str, str], comment: str, line: int) -> None:
    """Add what a comment says to the settings of an edge list.

    Raises:
        UserError: another comment says something else.
    """
    pairs = COMMENT_SETTING.findall(comment)
    remainder = COMMENT_SETTING.sub("", comment)
    pairs += [(name, size) for size, name in COMMENT_SIZE.findall(remainder)]
    for name, value in pairs:
        name = name.lower().replace("vertices", "nodes")
        value = value.upper() if name == "vartype" else value
        earlier = settings.setdefault(name, value)
        refuse(earlier != value, f"line {line}: {name} is {value} here, and {earlier} before")


def _is_gset(rows: Sequence[Row]) -> bool:
    """Return whether a line of two words is followed by lines of three, as in a Gset file."""
    if not rows or len(rows[0][1]) != 2:
        return False
    return {len(words) for _, words in rows[1:]} == {3}


def _has_size_header(pairs: Sequence[Pair]) -> bool:
    """Return whether the first pair could be the numbers of nodes and edges of the others."""
    if not pairs:
        return False
    num_nodes, num_edges = pairs[0]
    largest = max(map(max, pairs[1:]), default=0)
    return num_edges == len(pairs) - 1 and largest <= num_nodes


def _make_coordinate_model(
    pairs: Sequence[Pair],
    biases: Sequence[float],
    vartype: str | None,
) -> Graph:
    """Build a model from dimod's coordinate list, whose diagonal has the linear biases."""
    labels = sorted({node for pair in pairs for node in pair})
    position = {label: k for k, label in enumerate(labels)}
    linear: dict[int, float] = {}
    quadratic: dict[Pair, float] = {}
    for (i, j), bias in zip(pairs, biases, strict=False):
        if i == j:
            linear[i] = bias
        else:
            quadratic[position[i], position[j]] = bias
    refuse(len(linear) + len(quadratic) < len(pairs), "it repeats a bias, or lacks one")
    return _make_quadratic_model(
        [str(label) for label in labels],
        [linear.get(label, 0.0) for label in labels],
        list(quadratic),
        list(quadratic.values()),
        offset=0.0,
        vartype=vartype,
    )


def _make_quadratic_model(
    labels: list[str], linear: Any, pairs: Any, quadratic: Any, *, offset: float, vartype: Any
) -> Graph:
    """Build a quadratic model of x in {0, 1}^n from binary variables or spins s = 2x - 1.

    References: this project; checked in tests/flows/graphs/test_files.py.

    Args:
        labels: of the variables.
        linear: biases [n].
        pairs: variables of the quadratic biases, [m, 2].
        quadratic: biases [m].
        offset: constant of the energy.
        vartype: BINARY or SPIN.
    """
    refuse(
        vartype not in ("BINARY", "SPIN"),
        "a quadratic model needs a comment `# vartype=BINARY` or `# vartype=SPIN`",
    )
    a = np.array(linear, float)
    b = np.array(quadratic, float)
    if vartype == "SPIN":
        offset += float(b.sum() - a.sum())
        a = 2 * a
        b = 4 * b
        np.subtract.at(a, np.array(pairs, np.int64).reshape(-1, 2), b[:, None] / 2)
    return _make_graph(len(labels), pairs, b, a, labels=labels, offset=offset)


def _read_json(file: Path) -> Graph:
    """Read what dimod's `BinaryQuadraticModel.to_serializable()` gives, without bytes."""
    try:
        model = json.loads(read_text(file, max_bytes=MAX_BYTES))
        if model["type"] != "BinaryQuadraticModel" or model["use_bytes"]:
            raise UserError("a .json file must be dimod's BinaryQuadraticModel, use_bytes=False")
        pairs = list(zip(model["quadratic_head"], model["quadratic_tail"], strict=True))
        linear = [float(bias) for bias in model["linear_biases"]]
        quadratic = [float(bias) for bias in model["quadratic_biases"]]
        labels = [str(label) for label in model["variable_labels"]]
        sizes = (model["num_variables"], model["num_interactions"])
        if sizes != (len(labels), len(pairs)) or sizes != (len(linear), len(quadratic)):
            raise UserError(
                f"num_variables and num_interactions are {list(sizes)}, but its lists have "
                f"{len(labels)} labels, {len(linear)} linear, {len(quadratic)} quadratic biases, "
                f"and {len(pairs)} pairs"
            )
        if not all(type(k) is int and 0 <= k < len(labels) for pair in pairs for k in pair):
            raise UserError("an interaction is not between its variables")
        offset = float(model["offset"])
        vartype = model["variable_type"]
        return _make_quadratic_model(
            labels,
            linear,
            pairs,
            quadratic,
            offset=offset,
            vartype=vartype,
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        # whatever a damaged file lacks
        raise UserError(f"it is no BinaryQuadraticModel of dimod ({summary(error)})") from None


def _read_gset(file: Path) -> Graph:
    """Read `nodes edges`, then `node node [weight]` from 1 on, as rudy writes them."""
    rows = _read_rows(file)
    row_lengths = {len(words) for _, words in rows[1:]}
    if not rows or len(rows[0][1]) != 2 or row_lengths not in ({2}, {3}, set()):
        raise UserError(
            "a Gset file needs `nodes edges`, then lines `node node weight`, or all without weight",
        )
    num_nodes, num_edges = _parse_sizes(rows[0])
    pairs, weights = _parse_edges(rows[1:], 1, num_nodes)
    _check_num_edges(pairs, num_edges)
    return _make_graph(num_nodes, pairs, weights, first=1)


def _read_dimacs(file: Path) -> Graph:
    """Read `p edge N M`, `e I J [weight]` and `n I weight`, from 1 on; c starts a comment."""
    num_nodes = 0
    num_edges = -1  # no header yet
    rows = list[Row]()
    weight_of_node: dict[int, float] = {}
    for line, words in _read_rows(file):
        match words:
            case ["c", *_]:
                continue
            case ["p", "edge" | "edges" | "col" | "clq", n, m] if num_edges < 0:
                num_nodes = _parse_integer(n, 1, MAX_NODES, line)
                num_edges = _parse_integer(m, 0, MAX_BYTES, line)
            case ["e", *edge]:
                rows.append((line, edge))
            case ["n", i, w] if _parse_integer(i, 1, num_nodes, line) not in weight_of_node:
                weight_of_node[int(i)] = _parse_number(w, line)
            case _:
                text = " ".join(words)[:MAX_WORD_LENGTH]
                raise UserError(
                    f"line {line}: {text!r} must be `p edge N M`, `e I J` or `n I WEIGHT`",
                )
    pairs, weights = _parse_edges(rows, 1, num_nodes)
    if num_edges != len(set(map(frozenset, pairs))):
        _check_num_edges(pairs, num_edges)
    # some files list every edge in both directions
    if not weights and set(pairs) == {(j, i) for i, j in pairs}:
        pairs = [pair for pair in pairs if pair[0] <= pair[1]]
    node_weights = None
    if weight_of_node:
        node_weights = [weight_of_node.get(k, 1.0) for k in range(1, num_nodes + 1)]
    return _make_graph(num_nodes, pairs, weights, node_weights, first=1)


def _read_metis(file: Path) -> Graph:
    """Read METIS: a header `nodes edges [format [1]]`, then the neighbours of each node.

    The second digit of the format says whether nodes have weights, the third whether edges do.
    """
    rows = _read_rows(file, "%", keep_blank=True) or [(1, [])]
    header_line, header = rows[0]
    lines = rows[1:]
    weight_format = (header[2] if header[2:] else "0").zfill(3)
    formats = ("000", "001", "010", "011")
    valid = 2 <= len(header) <= 4 and weight_format in formats and header[3:] in ([], ["1"])
    if not valid:
        raise UserError("a METIS file must start with `nodes edges`, and a format of 1, 10 or 11")
    num_nodes, num_edges = _parse_sizes((header_line, header[:2]))
    if len(lines) < num_nodes or any(words for _, words in lines[num_nodes:]):
        raise UserError(f"its header announces {num_nodes} nodes, but it has {len(lines)} lines")

    num_node_words = int(weight_format[1])
    words_per_neighbour = 1 + int(weight_format[2])
    node_weights = list[float]()
    edge_rows = list[Row]()
    for node, (line, words) in enumerate(lines[:num_nodes], 1):
        num_neighbour_words = len(words) - num_node_words
        refuse(
            num_neighbour_words < 0 or num_neighbour_words % words_per_neighbour,
            f"line {line}: has {len(words)} numbers; it must have {num_node_words} node weights, "
            f"and {words_per_neighbour} numbers for every neighbour",
        )
        node_weights += [_parse_number(word, line) for word in words[:num_node_words]]
        for k in range(num_node_words, len(words), words_per_neighbour):
            edge_rows.append((line, [str(node), *words[k : k + words_per_neighbour]]))
    pairs, weights = _merge_directions(*_parse_edges(edge_rows, 1, num_nodes))
    _check_num_edges(pairs, num_edges)
    return _make_graph(num_nodes, pairs, weights, node_weights or None, first=1)


def _read_matrix_market(file: Path) -> Graph:
    """Read a coordinate matrix, `rows columns entries` and its entries, from 1 on.

    SciPy's reader is not used because it ends the process on damaged files.
    """
    rows = _read_rows(file) or [(1, [])]
    banner = " ".join(rows[0][1]).lower()
    pattern = "%%matrixmarket matrix coordinate (real|integer|pattern) (symmetric|general)"
    match = re.fullmatch(pattern, banner)
    rows = [(line, words) for line, words in rows[1:] if not words[0].startswith("%")]
    if not match or not rows or len(rows[0][1]) != 3:
        raise UserError(
            "a MatrixMarket file must be a coordinate matrix of type real, integer or pattern",
        )
    field, symmetry = match.groups()
    num_rows, num_columns, num_entries = _parse_sizes(rows[0])
    pairs, weights = _parse_edges(rows[1:], 1, num_rows)
    num_weights = 0 if field == "pattern" else len(pairs)
    fits = num_rows == num_columns and len(pairs) == num_entries and len(weights) == num_weights
    if not fits:
        raise UserError(
            f"its header announces {num_rows} x {num_columns} with {num_entries} entries; it must "
            f"be square, and it has {len(pairs)} entries, {len(weights)} with a value"
        )
    if symmetry == "general":
        pairs, weights = _merge_directions(pairs, weights)
    return _make_graph(num_rows, pairs, weights, first=1)


def _read_networkx(reader: str, file: Path, **arguments: Any) -> Graph:
    """Read a file by a function of networkx."""
    import networkx as nx  # slow to import

    try:
        with open_regular(file) as stream:
            graph: Any = getattr(nx, reader)(stream, **arguments)
    except (UserError, OSError):
        raise
    except Exception as error:  # every reader of networkx raises errors of its own
        raise UserError(f"it is not a graph of this format: {summary(error)[:200]}") from None
    refuse(graph.is_directed(), "it is directed; it must be undirected")
    position = {node: k for k, node in enumerate(graph)}
    pairs = [(position[i], position[j]) for i, j in graph.edges()]
    # GraphML's defaults are attributes of the graph
    edge_defaults = graph.graph.get("edge_default", {})
    node_defaults = graph.graph.get("node_default", {})
    edge_attributes = [edge_defaults | data for *_, data in graph.edges(data=True)]
    node_attributes = [node_defaults | data for _, data in graph.nodes(data=True)]
    labels = [str(data.get("label", node)) for node, data in graph.nodes(data=True)]
    edge_weights = _select_weights("edges", edge_attributes)
    node_weights = _select_weights("nodes", node_attributes) or None
    return _make_graph(len(graph), pairs, edge_weights, node_weights, labels=labels)


def _select_weights(elements: str, attributes: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the attributes called `weight`; [] if there are none. Other numbers are refused."""
    for row in attributes:
        for name, value in row.items():
            is_weight = name == "weight" or name.lower() in NON_WEIGHT_ATTRIBUTES
            if isinstance(value, int | float) and not is_weight:
                raise UserError(
                    f"its {elements} have a number {name!r}; rename it to weight, or remove it",
                )
    if not any("weight" in row for row in attributes):
        return []
    return [_parse_number(row.get("weight"), f"a weight of its {elements}") for row in attributes]


# reader of a file by its suffix; Gset files often have none
READERS: dict[str, Callable[[Path], Graph]] = {
    **dict.fromkeys((".edges", ".edgelist", ".txt", ".csv", ".tsv", ".coo"), _read_edge_list),
    **dict.fromkeys((".gset", ".mc", ".rud", ""), _read_gset),
    **dict.fromkeys((".col", ".clq", ".wclq", ".mis", ".dimacs"), _read_dimacs),
    **dict.fromkeys((".graph", ".metis"), _read_metis),
    ".mtx": _read_matrix_market,
    ".json": _read_json,
    ".gml": partial(_read_networkx, "read_gml", label="id"),
    ".graphml": partial(_read_networkx, "read_graphml"),
    ".gexf": partial(_read_networkx, "read_gexf"),
}
