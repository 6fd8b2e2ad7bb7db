"""Graph files are read as their formats specify, or refused in one line."""

from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from benchmarks.graph_methods import save_graph
from blackout.errors import UserError
from blackout.flows.graphs.files import read_graphs
from blackout.flows.graphs.graphs import Graph
from blackout.flows.graphs.reductions import reduce_problem

CYCLE = [(k, k % 5 + 1) for k in range(1, 6)]
FIVE = "".join(f"{i} {j}\n" for i, j in CYCLE)
GML = (
    'graph [ node [ id 1 ] node [ id 2 label "7" ] node [ id 3 ] '
    "edge [ source 1 target 2 %s ] edge [ source 2 target 3 %s ] ]"
)
GRAPHML = (
    '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">'
    '<key id="w" for="edge" attr.name="weight" attr.type="double"><default>7</default></key>'
    '<graph edgedefault="undirected"><node id="a"/><node id="b"/><node id="c"/>'
    '<edge source="a" target="b"><data key="w">3</data></edge>'
    '<edge source="b" target="c"/></graph></graphml>'
)
MTX = "%%MatrixMarket matrix coordinate "
BQM = {
    "type": "BinaryQuadraticModel",
    "version": {"bqm_schema": "3.0.0"},
    "use_bytes": False,
    "index_type": "int32",
    "bias_type": "float64",
    "num_variables": 2,
    "num_interactions": 1,
    "variable_labels": ["a", "b"],
    "variable_type": "SPIN",
    "offset": 0.5,
    "info": {},
    "linear_biases": [1.0, -1.5],
    "quadratic_biases": [2.0],
    "quadratic_head": [0],
    "quadratic_tail": [1],
}

# file: content, number of nodes, edges with weights, node weights
VALID_FILES = {
    "weights.gml": (GML % ("weight 1", "weight 100"), 3, {(0, 1): 1, (1, 2): 100}, None),
    "node_weights.gml": (
        "graph [ node [ id 0 weight 50 ] node [ id 1 weight 1 ] edge [ source 0 target 1 ] ]",
        2,
        {(0, 1): 1},
        [50, 1],
    ),
    "cycle.edges": (FIVE, 5, {(0, 1): 1, (1, 2): 1, (2, 3): 1, (3, 4): 1, (0, 4): 1}, None),
    "isolated.edges": ("# nodes: 3\n1 2\n", 3, {(1, 2): 1}, None),
    "all_of_them.edges": ("# nodes: 2\n1 2\n", 2, {(0, 1): 1}, None),
    "said.edges": ("# first: 0, nodes: 3\n1 2\n", 3, {(1, 2): 1}, None),
    "three.csv": ("source,target,weight\n0,1,2.5\n1,2,-3\n", 3, {(0, 1): 2.5, (1, 2): -3}, None),
    "of_networkx.edgelist": ("0 1 {}\n1 2 {}\n", 3, {(0, 1): 1, (1, 2): 1}, None),
    "weighted.edgelist": (
        "0 1 {'weight': 2.5}\n1 2 {'weight': 4}\n",
        3,
        {(0, 1): 2.5, (1, 2): 4},
        None,
    ),
    "rudy.txt": ("3 2\n1 2 5\n2 3 6\n", 3, {(0, 1): 5, (1, 2): 6}, None),
    "G7": ("4 2\n1 2 1\n2 3 -1\n", 4, {(0, 1): 1, (1, 2): -1}, None),
    "plain.gset": ("3 2\n1 2\n2 3\n", 3, {(0, 1): 1, (1, 2): 1}, None),
    "col.col": (
        "c 9 9\np edge 4 2\nn 1 8\ne 1 2\ne 2 3\n",
        4,
        {(0, 1): 1, (1, 2): 1},
        [8, 1, 1, 1],
    ),
    "both.col": ("p col 3 4\ne 1 2\ne 2 1\ne 2 3\ne 3 2\n", 3, {(0, 1): 1, (1, 2): 1}, None),
    "metis.graph": (
        "% c\n4 3 11\n5 2 7\n6 1 7 3 8\n7 2 8 4 9\n8 3 9\n",
        4,
        {(0, 1): 7, (1, 2): 8, (2, 3): 9},
        [5, 6, 7, 8],
    ),
    "lone.graph": ("3 1\n2\n1\n\n", 3, {(0, 1): 1}, None),
    "m.mtx": (
        MTX + "real symmetric\n% c\n3 3 2\n2 1 4\n3 2 -5\n",
        3,
        {(0, 1): 4, (1, 2): -5},
        None,
    ),
    "general.mtx": (MTX + "pattern general\n3 3 2\n2 1\n1 2\n", 3, {(0, 1): 1}, None),
    "defaults.graphml": (GRAPHML, 3, {(0, 1): 3, (1, 2): 7}, None),
    "spin.coo": ("# vartype=SPIN\n3 3 1\n3 8 2e0\n", 2, {(0, 1): 8}, [-2, -4]),
    "bqm.json": (json.dumps(BQM), 2, {(0, 1): 8}, [-2, -7]),
}


@pytest.mark.parametrize("name", VALID_FILES)
def test_files_are_read_as_their_format_specifies(name: str, tmp_path: Path) -> None:
    content, nodes, edges, node_weights = VALID_FILES[name]
    (tmp_path / name).write_text(content)
    (graph,) = read_graphs(tmp_path / name)
    assert graph.num_nodes == nodes and graph.node_weights_or_ones.tolist() == (
        node_weights or [1] * nodes
    )
    assert (
        dict(
            zip(map(tuple, graph.edges.tolist()), graph.edge_weights_or_ones.tolist(), strict=True)
        )
        == edges
    )


INVALID_FILES = {
    "header.edges": ("5 5\n" + FIVE, "header"),
    "header4.txt": ("4 3\n1 2\n2 3\n3 4\n", "header"),
    "gap.edges": ("0 1\n4 5\n", "nodes: N"),
    "far.edges": ("17 18\n", "nodes: N"),
    "few.edges": ("# nodes: 2\n0 4\n", "nodes"),
    "twice.edges": ("0 1\n0 1\n", "repeats an edge"),
    "some.edges": ("0 1 2\n1 2\n", "line 2"),
    "four.edges": ("0 1 2 3\n", "line 1"),
    "nan.edges": ("0 1 nan\n", "finite"),
    "loop.mtx": (MTX + "real symmetric\n2 2 2\n1 1 3\n2 1 1\n", "itself"),
    "directed.mtx": (MTX + "real general\n3 3 1\n2 1 4\n", "symmetric"),
    "wide.mtx": (MTX + "real general\n2 3 1\n2 1 4\n", "2 x 3"),
    "short.mtx": (MTX + "real symmetric\n3 3 3\n2 1 4\n", "3 entries"),
    "complex.mtx": (MTX + "complex symmetric\n2 2 1\n2 1 4 1\n", "real"),
    "short.col": ("p edge 3 3\ne 1 2\ne 2 3\n", "header"),
    "arcs.col": ("p sp 2 1\na 1 2 5\n", "line 1"),
    "beyond.col": ("p edge 2 1\ne 1 3\n", "from 1 to 2"),
    "no_p.col": ("e 1 2\n", "must be an integer"),
    "sizes.graph": ("2 1 100\n1 2\n1 1\n", "METIS"),
    "one_way.graph": ("2 1\n2\n\n", "both ends"),
    "lines.graph": ("3 1\n2\n1\n", "nodes"),
    "short.gset": ("3 3\n1 2 1\n", "header announces 3"),
    "zero.gset": ("2 1\n0 1 1\n", "from 1"),
    "point.edges": ("0 0\n", "header"),
    "words.graph": ("a b\n", "must be an integer"),
    "banner.mtx": ("%%MatrixMarket matrix array real general\n1 1\n1\n", "coordinate"),
    "twice.mtx": (MTX + "real general\n2 2 2\n2 1 4\n2 1 4\n", "repeats an entry"),
    "noise": ("a b\nc\n", "Gset"),
    "loose.coo": ("0 0 -1\n0 1 2\n", "vartype"),
    "twice.coo": ("# vartype=BINARY\n0 0 1\n0 0 2\n", "repeats a bias"),
    "bytes.json": (json.dumps(BQM | {"use_bytes": True}), "use_bytes"),
    "list.json": ("[1]", "dimod"),
    "value.gml": (GML % ("value 1", "value 100"), "'value'"),
    "part.gml": (GML % ("weight 1", ""), "weight"),
    "directed.gml": ("graph [ directed 1 node [ id 0 ] ]", "directed"),
    "parallel.gml": (
        "graph [ multigraph 1"
        + 2 * " edge [ source 0 target 1 ]"
        + " node [ id 0 ] node [ id 1 ] ]",
        "repeats an edge",
    ),
    "data.edgelist": ("0 1 {'cost': 3}\n", "line 1"),
    "graph.gpickle": ("x", "suffix must be one of"),
    "words.edges": ("a b\n", "must be an integer"),
    "binary.txt": (b"\xff\xfe\x00", "not UTF-8 text"),
}


@pytest.mark.parametrize("name", INVALID_FILES)
def test_invalid_files_are_refused_in_one_line(name: str, tmp_path: Path) -> None:
    content, message = INVALID_FILES[name]
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=name) as error:
        read_graphs(tmp_path / name)
    assert message in str(error.value) and len(str(error.value).splitlines()) == 1


def test_numbering_and_skipped_files_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.edges").write_text(FIVE)
    (tmp_path / "b.edges").write_text("0 1\n")
    (tmp_path / "c.pkl").write_text("x")
    os.mkfifo(tmp_path / "d.edges")
    first, second = read_graphs(tmp_path)
    messages = capsys.readouterr().err
    assert list(first.labels or ()) == [1, 2, 3, 4, 5] and second.labels is None
    assert (
        "numbered from 1" in messages
        and "c.pkl" in messages
        and "2 in all" not in messages.splitlines()[0].replace("1 in all", "")
    )
    assert all(len(line) < 200 for line in messages.splitlines())


def test_saved_graphs_can_be_read(tmp_path: Path) -> None:
    for k, weights in enumerate((None, np.array([0.1, -1e-7]))):
        graph = Graph("g", 4, np.array([[1, 2], [1, 3]]), weights)
        save_graph(graph, tmp_path / f"{k}.edges")
        (graph_read,) = read_graphs(tmp_path / f"{k}.edges")
        assert (
            graph_read.num_nodes == 4
            and (graph_read.edges == graph.edges).all()
            and (graph_read.edge_weights_or_ones == graph.edge_weights_or_ones).all()
        )


def test_energies_match_dimod(tmp_path: Path) -> None:
    dimod = pytest.importorskip("dimod")
    from dimod.serialization import coo

    rng = np.random.default_rng(0)
    pairs = {(i, j): float(rng.integers(-8, 9)) / 4 for i, j in pairwise(range(6))} | {(0, 3): 1.25}
    for vartype in ("SPIN", "BINARY"):
        model = dimod.BinaryQuadraticModel({k: k - 2.5 for k in range(6)}, pairs, 0.0, vartype)
        (tmp_path / "a.coo").write_text(coo.dumps(model, vartype_header=True))
        (tmp_path / "a.json").write_text(json.dumps(model.to_serializable()))
        for file in ("a.coo", "a.json"):
            problem = reduce_problem("qubo", read_graphs(tmp_path / file)[0])
            best = dimod.ExactSolver().sample(model).first
            x = np.array([best.sample[k] > 0 for k in range(6)], np.uint8)
            cut = problem.base_graph
            side = np.append(x, 0)
            value = (side[cut.edges[:, 0]] != side[cut.edges[:, 1]]) @ cut.edge_weights_or_ones
            assert abs(problem.from_base_value(value) - best.energy) < 1e-9


def test_the_energy_of_spins_equals_that_of_bits(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(BQM))
    (graph,) = read_graphs(tmp_path / "a.json")
    for x in np.ndindex(2, 2):
        first, second = (2 * bit - 1 for bit in x)
        energy = (
            graph.offset
            + graph.node_weights_or_ones @ x
            + graph.edge_weights_or_ones[0] * x[0] * x[1]
        )
        assert energy == 0.5 + first - 1.5 * second + 2 * first * second


@pytest.mark.parametrize(
    ("comment", "edges", "message"),
    [
        ("# Nodes: 6 Edges: 5", "0 1\n1 2\n2 3\n3 0\n0 2\n", None),
        ("# 6 nodes, 5 edges", "0 1\n1 2\n2 3\n3 0\n0 2\n", None),
        ("# VERTICES = 6", "0 1\n1 2\n2 3\n3 0\n0 2\n", None),
        ("# Nodes: 6 Edges: 5", "0 1\n1 2\n", "announces 5 edges, but it has 2"),
        ("# nodes: 6\n# 7 nodes", "0 1\n", "nodes is 7 here, and 6 before"),
        ("# nodes: 3", "0 1 1_0\n", "must be a finite number"),
    ],
)
def test_sizes_in_comments_are_compared_with_the_graph(tmp_path, comment, edges, message):
    """SNAP's files write these names with capitals."""
    path = tmp_path / "x.edges"
    path.write_text(f"{comment}\n{edges}")
    if message is None:
        assert read_graphs(path)[0].num_nodes == 6
    else:
        with pytest.raises(UserError, match=message):
            read_graphs(path)
