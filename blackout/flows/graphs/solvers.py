"""Solutions by others' solvers, and by heat bath alone: what a flow on graphs is measured by."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from blackout.errors import UserError
from blackout.flows.annealing import anneal
from blackout.flows.graphs.graphs import Graph
from blackout.flows.graphs.problems import GraphTarget


@dataclass(frozen=True)
class Solution:
    """A solution of one graph.

    Args:
        x: uint8 [nodes].
        value: of it.
        proved: whether nothing is better.
        seconds: of processor time.
        values: of all solutions that were found on the way, if there were several.
    """

    x: NDArray[np.uint8]
    value: int
    proved: bool
    seconds: float
    values: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Program:
    """maximise c'z, rows z <= limits, z in [0, 1], the first n of them whole numbers."""

    gain: NDArray[np.float64]
    rows: Any
    limits: NDArray[np.float64]


def program(problem: str, graph: Graph) -> _Program:
    """The problem as a mixed-integer linear program; its first variables are the nodes."""
    n, m, edges = graph.nodes, len(graph.edges), graph.edges
    if problem == "mis":
        entries = [(row, int(node), 1.0) for row, edge in enumerate(edges) for node in edge]
        return _Program(np.ones(n), _matrix(entries, m, n), np.ones(m))
    entries = []
    limits: list[float] = []
    for k, (i, j) in enumerate(edges):  # an edge counts if one end is chosen, and not both
        for sign, limit in ((-1.0, 0.0), (1.0, 2.0)):
            row = len(limits)
            entries += [(row, n + k, 1.0), (row, int(i), sign), (row, int(j), sign)]
            limits.append(limit)
    for triangle in _triangles(edges):  # of three edges at most two are cut
        entries += [(len(limits), n + k, 1.0) for k in triangle]
        limits.append(2.0)
    gain = np.concatenate([np.zeros(n), np.ones(m)])
    return _Program(gain, _matrix(entries, len(limits), n + m), np.array(limits))


def _matrix(entries: list[tuple[int, int, float]], rows: int, columns: int) -> Any:
    from scipy.sparse import coo_array

    row, column, value = zip(*entries, strict=True) if entries else ((), (), ())
    return coo_array((value, (row, column)), shape=(rows, columns)).tocsr()


def _triangles(edges: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """Numbers of the edges of every triangle."""
    number = {(int(min(edge)), int(max(edge))): k for k, edge in enumerate(edges)}
    beside: dict[int, set[int]] = {}
    for i, j in number:
        beside.setdefault(i, set()).add(j)
    return [
        (number[i, j], number[j, k], number[i, k])
        for i, j in number
        for k in beside.get(j, set()) & beside.get(i, set())
    ]


def by_milp(problem: str, graph: Graph, limit: float) -> Solution:
    """SciPy's HiGHS, for at most `limit` seconds; without a solution in time, none of the nodes."""
    from scipy.optimize import Bounds, LinearConstraint, milp  # only here: importing it takes a second

    began, asked = time.process_time(), program(problem, graph)
    whole = np.zeros(len(asked.gain))
    whole[: graph.nodes] = 1
    upper = np.ones(len(asked.gain))
    if problem == "maxcut":
        upper[0] = 0  # both sides are alike
    constraints = LinearConstraint(asked.rows, ub=asked.limits) if len(asked.limits) else ()
    found = milp(-asked.gain, integrality=whole, bounds=Bounds(0, upper), constraints=constraints,
                 options={"time_limit": limit})  # fmt: skip
    return _solution(problem, graph, found.x, found.status == 0, began)


def by_gurobi(problem: str, graph: Graph, limit: float) -> Solution:
    """Gurobi on the same program, if gurobipy and a licence for it are there."""
    import gurobipy

    began, asked = time.process_time(), program(problem, graph)
    model = gurobipy.Model(env=gurobipy.Env(params={"OutputFlag": 0}))
    model.Params.TimeLimit = limit
    kinds = ["B"] * graph.nodes + ["C"] * (len(asked.gain) - graph.nodes)
    z = model.addMVar(len(asked.gain), lb=0.0, ub=1.0, vtype=np.array(kinds))
    model.setObjective(asked.gain @ z, gurobipy.GRB.MAXIMIZE)
    model.addConstr(asked.rows @ z <= asked.limits)
    model.optimize()
    proved = model.Status == gurobipy.GRB.OPTIMAL
    return _solution(problem, graph, z.X if model.SolCount else None, proved, began)


def by_cpsat(problem: str, graph: Graph, limit: float) -> Solution:
    """OR-tools' CP-SAT on the same program."""
    from ortools.sat.python import cp_model

    began, asked = time.process_time(), program(problem, graph)
    model = cp_model.CpModel()
    z = [model.NewBoolVar(str(k)) for k in range(len(asked.gain))]
    rows = asked.rows.tocsr()
    for k, upper in enumerate(asked.limits):
        part = slice(rows.indptr[k], rows.indptr[k + 1])
        terms = zip(rows.indices[part], rows.data[part], strict=True)
        model.Add(sum(int(value) * z[column] for column, value in terms) <= int(upper))
    model.Maximize(sum(int(gain) * variable for gain, variable in zip(asked.gain, z, strict=True)))
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds, solver.parameters.num_workers = limit, 1
    status = solver.Solve(model)
    found = [solver.Value(v) for v in z] if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) else None
    return _solution(problem, graph, found, status == cp_model.OPTIMAL, began)


def by_local_search(problem: str, graph: Graph, limit: float) -> Solution:
    """networkx: a maximal independent set at random, or one-exchange for the cut; the better of sixteen."""
    import networkx as nx

    began = time.process_time()
    network = nx.Graph()
    network.add_nodes_from(range(graph.nodes))
    network.add_edges_from(graph.edges.tolist())
    tries = []
    for seed in range(16):
        if problem == "mis":
            side = nx.maximal_independent_set(network, seed=seed)
        else:
            side = nx.algorithms.approximation.one_exchange(network, seed=seed)[1][0]
        z = np.zeros(graph.nodes, dtype=np.uint8)
        z[list(side)] = 1
        tries.append(z)
    values = tuple(value_of(problem, graph, z) for z in tries)
    best = tries[int(np.argmax(values))]
    return Solution(best, max(values), False, time.process_time() - began, values)


EXACT: dict[str, tuple[Callable[[str, Graph, float], Solution], str | None]] = {
    "milp": (by_milp, None),
    "gurobi": (by_gurobi, "gurobipy"),
    "cpsat": (by_cpsat, "ortools"),
    "local_search": (by_local_search, None),
}
"""Method -> (solver of one graph, the package it needs besides this one's own)."""


def solver(method: str) -> Callable[[str, Graph, float], Solution]:
    """The solver of that name.

    Raises:
        UserError: there is none, or its package is not installed.
    """
    if method not in EXACT:
        raise UserError(f"{method}: no such solver; one of {', '.join(EXACT)}")
    solve, package = EXACT[method]
    if package is not None and importlib.util.find_spec(package) is None:
        raise UserError(f"{method} needs {package}, which is not installed: pip install 'blackout[solvers]'")
    return solve


def value_of(problem: str, graph: Graph, x: NDArray[Any]) -> int:
    """Size of an independent set, or of a cut.

    Raises:
        ValueError: the nodes are not independent.
    """
    ends = x[graph.edges].astype(int)
    if problem == "maxcut":
        return int((ends[:, 0] != ends[:, 1]).sum())
    if bool((ends.sum(1) == 2).any()):
        raise ValueError(f"{graph.name}: two neighbours are selected")
    return int(x.astype(int).sum())


def _solution(problem: str, graph: Graph, found: Any, proved: bool, began: float) -> Solution:
    x = np.zeros(graph.nodes, np.uint8) if found is None else np.round(found[: graph.nodes]).astype(np.uint8)
    value = value_of(problem, graph, x)
    return Solution(x, value, proved and found is not None, time.process_time() - began)


def by_heat_bath(
    target: GraphTarget, numbers: Tensor, chains: int, sweeps: int, seed: int
) -> tuple[Tensor, Tensor, float]:
    """Annealed heat bath from uniform states to p_1, every graph with as many chains; no network.

    Args:
        target: the problem.
        numbers: of graphs, int64 [G].
        chains: of each.
        sweeps: of each chain; with 0 the states are uniform, and only repaired.
        seed: of all draws.

    Returns:
        Solutions uint8 [G, chains, d], their values int64 [G, chains], and seconds of processor time.
    """
    began, on = time.process_time(), target.of(numbers.repeat_interleave(chains))
    states = anneal(on, chains * len(numbers), sweeps, seed).states
    found, values = on.solutions(states.x)
    return found.view(len(numbers), chains, -1), values.view(len(numbers), chains), time.process_time() - began
