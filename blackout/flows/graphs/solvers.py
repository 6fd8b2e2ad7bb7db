"""Independent sets and cuts without a network: by others' exact solvers, greedily, and by annealing.

Greedy and annealing are sparse, and take many chains of many graphs at once.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blackout.errors import ensure, refuse
from blackout.flows.graphs.graphs import Graph
from blackout.flows.targets.base import coloured

Array = NDArray[Any]
_HOT, _COLD = {"mis": 1.0, "maxcut": 0.6}, {"mis": 0.2, "maxcut": 0.04}
"""Temperatures: over the mean weight of a node (mis), or the root of its mean sum of squared edges (maxcut)."""


@dataclass(frozen=True)
class Solution:
    """A solution of one graph.

    Args:
        x: uint8 [nodes].
        value: of it.
        proved: whether nothing is better.
        seconds: of processor time.
    """

    x: NDArray[np.uint8]
    value: float
    proved: bool
    seconds: float


def program(problem: str, graph: Graph) -> tuple[NDArray[np.float64], Any, NDArray[np.float64]]:
    """The problem as a mixed-integer linear program: maximise gain . z where rows @ z <= limits and z is in [0, 1].

    The first n of z, whole numbers, are the nodes. Of a cut there is one more for each edge; of a triangle at most two
    edges are cut [Barahona and Mahjoub 1986]. The greatest gain is 1, as solvers' tolerances are absolute ones.

    Returns:
        Gain float64 [m], rows as SciPy's CSR matrix [k, m], and limits float64 [k].
    """
    from scipy.sparse import coo_array  # only here: importing it takes a second

    n, m, edges = graph.nodes, len(graph.edges), graph.edges
    if problem == "mis":
        gain, columns, values, limits = graph.of_nodes, edges, np.ones((m, 2)), np.ones(m)
    else:  # an edge counts if one end is chosen, and not both; one of negative weight at least then
        triangles = n + np.array(_triangles(edges), np.int64).reshape(-1, 3)
        gain, positive = np.concatenate([np.zeros(n), graph.of_edges]), graph.of_edges[:, None] > 0
        columns = np.concatenate([np.repeat(np.column_stack([n + np.arange(m), edges]), 2, 0), triangles])
        most, least = ([1.0, -1.0, -1.0], [1.0, 1.0, 1.0]), ([-1.0, 1.0, -1.0], [-1.0, -1.0, 1.0])
        signs = np.where(positive[..., None], most, least).reshape(-1, 3)
        values = np.concatenate([signs, np.ones((len(triangles), 3))])
        limits = np.concatenate([np.where(positive, (0.0, 2.0), 0.0).ravel(), np.full(len(triangles), 2.0)])
    rows = np.repeat(np.arange(len(columns)), columns.shape[1])
    matrix = coo_array((values.ravel(), (rows, columns.ravel())), shape=(len(columns), len(gain))).tocsr()
    return gain / max(np.abs(gain).max(initial=0), 1e-300), matrix, limits


def _triangles(edges: NDArray[np.int64]) -> list[list[int]]:
    """Numbers of the edges, int64 [m, 2], of every triangle, three each."""
    import networkx as nx  # only here: importing it takes a while

    number, graph = {frozenset(edge): k for k, edge in enumerate(edges.tolist())}, nx.Graph(edges.tolist())
    return [[number[frozenset(pair)] for pair in combinations(found, 2)] for found in nx.all_triangles(graph)]


def by_milp(problem: str, graph: Graph, limit: float) -> Solution:
    """SciPy's HiGHS on the `program` of a graph, for at most `limit` seconds; without a solution in time, none of
    the nodes.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp  # only here: importing it takes a second

    began, (gain, rows, limits) = time.process_time(), program(problem, graph)
    whole, upper = np.zeros(len(gain)), np.ones(len(gain))
    whole[: graph.nodes] = 1
    if problem == "maxcut":
        upper[0] = 0  # both sides are alike
    constraints = LinearConstraint(rows, ub=limits) if len(limits) else ()
    options = {"time_limit": limit, "mip_rel_gap": 0.0}
    solved = milp(-gain, integrality=whole, bounds=Bounds(0, upper), constraints=constraints, options=options)
    bound = None if solved.mip_dual_bound is None else -solved.mip_dual_bound
    return _solution(problem, graph, solved.x, bound if solved.status == 0 else None, began)


def by_cpsat(problem: str, graph: Graph, limit: float) -> Solution:
    """OR-tools' CP-SAT on the same `program` [Barahona and Mahjoub 1986], its gains [m] as whole numbers.

    Raises:
        UserError: weights with more than six decimals.
    """
    from ortools.sat.python import cp_model

    began, (gain, rows, limits) = time.process_time(), program(problem, graph)
    weights = _weights(problem, graph)
    scale = next((k for k in (1, 2, 10, 100, 1000, 10**6) if _whole((weights * k).round(9))), None)
    refuse(scale is None, f"{graph.name}: cpsat takes weights of at most six decimals; milp takes others, too")
    gain = np.round(gain * (scale * np.abs(weights).max(initial=0)))
    model = cp_model.CpModel()
    z = [model.NewBoolVar(str(k)) for k in range(len(gain))]
    for k, upper in enumerate(limits):
        part = slice(rows.indptr[k], rows.indptr[k + 1])
        terms = zip(rows.indices[part], rows.data[part], strict=True)
        model.Add(sum(int(value) * z[column] for column, value in terms) <= int(upper))
    model.Maximize(sum(int(value) * variable for value, variable in zip(gain, z, strict=True)))
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds, solver.parameters.num_workers = limit, 1
    status = solver.Solve(model)
    found = [solver.Value(v) for v in z] if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) else None
    bound = float(gain @ found) if status == cp_model.OPTIMAL else None
    return _solution(problem, graph, found, bound and bound / np.abs(gain).max(), began)


EXACT: dict[str, Callable[[str, Graph, float], Solution]] = {"milp": by_milp, "cpsat": by_cpsat}
"""Method -> solver of one graph."""


def solved(method: str, problem: str, graphs: Iterable[Graph], limit: float) -> list[Solution]:
    """Solutions of `mis` or `maxcut` on these graphs, each in at most `limit` seconds.

    Raises:
        UserError: there is no such solver, its package is not installed, or it does not take such weights.
    """
    refuse(method not in EXACT, f"{method}: no such solver; one of {', '.join(EXACT)}")
    missing = method == "cpsat" and importlib.util.find_spec("ortools") is None
    refuse(missing, "cpsat needs ortools, which is not installed: pip install 'blackout-diffusion[solvers]'")
    return [EXACT[method](problem, graph, limit) for graph in graphs]


def value_of(problem: str, graph: Graph, x: NDArray[Any]) -> NDArray[np.float64]:
    """Weight of an independent set [Ou 2025, eq. 45], or of a cut [Ou 2025, eq. 48].

    Args:
        problem: `mis` or `maxcut`.
        graph: with its weights.
        x: 0 or 1, [..., n].

    Returns:
        Float64 [...].

    Raises:
        ValueError: the nodes are not independent.
    """
    ends = x[..., graph.edges].astype(bool)
    if problem == "maxcut":
        return np.asarray((ends[..., 0] != ends[..., 1]) @ graph.of_edges)
    ensure(not bool(ends.all(-1).any()), f"{graph.name}: two neighbours are selected")
    return np.asarray(x.astype(float) @ graph.of_nodes)


def _weights(problem: str, graph: Graph) -> NDArray[np.float64]:
    return graph.of_nodes if problem == "mis" else graph.of_edges


def _whole(weights: NDArray[np.float64]) -> bool:
    return bool((weights == np.round(weights)).all())


def _solution(problem: str, graph: Graph, found: Any, bound: float | None, began: float) -> Solution:
    """The solution, proved if a whole value is less than 1 below the bound, and another next to it.

    Ours (tests/flows/graphs/test_problems.py): x as uint8 [nodes] from numbers [m], as many or more.

    Args:
        bound: on the value over that of the greatest weight; None if the solver has not ended.
    """
    x = np.zeros(graph.nodes, np.uint8) if found is None else np.round(found[: graph.nodes]).astype(np.uint8)
    value, weights = float(value_of(problem, graph, x)), _weights(problem, graph)
    proved = False
    if bound is not None and found is not None:
        greatest = float(np.abs(weights).max(initial=0))
        proved = bound * greatest <= value + (0.999 if _whole(weights) else 1e-9 * max(greatest, abs(value)))
    return Solution(x, value, proved, time.process_time() - began)


def greedy(problem: str, graph: Graph, tries: int, seconds: float, seed: int) -> Array:
    """The greedy solutions, ties broken at random, of up to so many tries, at least one: uint8 [tries, n].

    For `mis` the node of greatest weight over degree + 1 among those left is next [Sakai 2003]; for `maxcut` nodes go
    in any order to the side that cuts more [Sahni and Gonzalez 1976].
    """
    began, rng, matrix = time.process_time(), np.random.default_rng(seed), graph.matrix()
    rows = np.split(matrix.indices, matrix.indptr[1:-1])
    weights = np.split(matrix.data, matrix.indptr[1:-1])
    found: list[Array] = []
    while len(found) < tries and not (found and time.process_time() - began > seconds):
        if problem == "mis":
            found.append(_least_degree(rows, graph.of_nodes, rng))
            continue
        spins = np.zeros(graph.nodes)
        for node in rng.permutation(graph.nodes):
            spins[node] = -np.sign(weights[node] @ spins[rows[node]]) or rng.choice([-1.0, 1.0])
        found.append((spins > 0).astype(np.uint8))
    return np.stack(found)


def _least_degree(rows: Sequence[Array], weights: Array, rng: np.random.Generator) -> Array:
    """An independent set, uint8 [n], by weight over degree + 1 of those left [Sakai 2003]: see `greedy`."""
    degree, ties = np.array([len(row) for row in rows]), 1 + 1e-9 * rng.random(len(rows))
    x, score = np.zeros(len(rows), np.uint8), np.maximum(weights, 0) * ties / (degree + 1)
    while score[node := score.argmax()] > 0:
        x[node], score[node] = 1, 0
        gone = rows[node][score[rows[node]] > 0]
        score[gone] = 0
        if len(gone):
            seen = np.concatenate([rows[other] for other in gone])
            np.subtract.at(degree, seen, 1)
            left = seen[score[seen] > 0]
            score[left] = weights[left] * ties[left] / (degree[left] + 1)
    return x


def annealed(problem: str, graphs: Sequence[Graph], chains: int, sweeps: int, seconds: float, seed: int) -> list[Array]:
    """Simulated annealing [Kirkpatrick 1983] of all graphs together: the best state of each chain, uint8 [chains, n].

    Nodes of one colour move together. A node joins an independent set and drives its neighbours out, in proportion to
    exp(gain / T): where it replaces one of equal weight, that is a swap. Spins of a cut flip, and at last only upwards.

    Args:
        problem: `mis` or `maxcut`.
        graphs: each with as many chains.
        chains: of every graph.
        sweeps: at most so many, of all nodes.
        seconds: of processor time, for all graphs; the temperature falls with whichever ends first.
        seed: of all draws.
    """
    from scipy.sparse import block_diag  # only here: importing it takes a second

    began, rng, sizes = time.process_time(), np.random.default_rng(seed), [graph.nodes for graph in graphs]
    matrix = block_diag([graph.matrix() for graph in graphs], format="csr")
    groups = coloured(matrix)
    starts, gain = np.cumsum([0, *sizes[:-1]]), np.concatenate([graph.of_nodes for graph in graphs])
    units = [np.sqrt(2 * (graph.of_edges**2).sum() / graph.nodes) for graph in graphs]
    if problem == "mis":
        matrix.data[:] = 1
        units = [np.abs(graph.of_nodes).mean() for graph in graphs]
    scale = np.repeat(units, sizes)
    exact = bool(((gain if problem == "mis" else matrix.data) == 1).all())
    kind: Any = np.float32 if exact else np.float64
    matrix, gain = matrix.astype(kind), gain.astype(kind)[:, None]
    groups = [group[gain[group, 0] > 0] for group in groups]
    parts = [(group, matrix[group], matrix[:, group].tocsr(), scale[group].astype(kind)[:, None]) for group in groups]
    shape = (len(gain), chains)
    x = np.zeros(shape, kind) if problem == "mis" else np.where(rng.random(shape) < 0.5, kind(-1), kind(1))
    best, value = np.zeros(shape, bool), np.zeros((len(graphs), chains))
    sweep, share = 0, 0.0
    while share < 1:
        warmth = _HOT[problem] * (_COLD[problem] / _HOT[problem]) ** share
        for part in rng.permutation(len(parts)):  # one order would choose among swaps
            group, rows, columns, unit = parts[part]
            gained = gain[group] - rows @ x if problem == "mis" else x[group] * (rows @ x)
            moved = -rng.standard_exponential(gained.shape, kind) * (warmth * unit) < gained
            if problem == "mis":
                moved &= x[group] == 0
                x[columns @ moved.astype(kind) > 0] = 0
                x[group] = np.where(moved, gain[group], x[group])
            else:
                x[group] = np.where(moved, -x[group], x[group])
        if problem == "mis":
            now = np.add.reduceat(x, starts, 0)
            np.copyto(best, x > 0, where=np.repeat(now > value, sizes, 0))
            np.maximum(value, now, out=value)
        sweep += 1
        share = max(sweep / sweeps, (time.process_time() - began) / seconds)
    while problem == "maxcut":
        before = x.copy()
        for group, rows, _, unit in parts:  # gains of rounding are none
            x[group] = np.where(x[group] * (rows @ x) > 1e-9 * unit, -x[group], x[group])
        if (before == x).all():
            best = x > 0
            break
    return [part.T.astype(np.uint8) for part in np.split(best, starts[1:])]
