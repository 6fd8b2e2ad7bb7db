"""Solutions by others' solvers, and by heat bath alone: what a flow on graphs is measured by."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

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


class Program(NamedTuple):
    """Maximise gain . z where rows @ z <= limits and z is in [0, 1], the first n of z, the nodes, whole numbers."""

    gain: NDArray[np.float64]
    rows: Any
    limits: NDArray[np.float64]


def program(problem: str, graph: Graph) -> Program:
    """The problem as a mixed-integer linear program.

    The first variables are the nodes. Of a cut there is one more for each edge; of a triangle at most two edges are cut
    [Barahona and Mahjoub 1986].
    """
    from scipy.sparse import coo_array  # only here: importing it takes a second

    n, m, edges = graph.nodes, len(graph.edges), graph.edges
    if problem == "mis":
        gain, columns, values, limits = np.ones(n), edges, np.ones((m, 2)), np.ones(m)
    else:  # an edge counts if one end is chosen, and not both
        triangles = n + np.array(_triangles(edges), np.int64).reshape(-1, 3)
        gain = np.concatenate([np.zeros(n), np.ones(m)])
        columns = np.concatenate([np.repeat(np.column_stack([n + np.arange(m), edges]), 2, 0), triangles])
        signs = np.tile([[1.0, -1.0, -1.0], [1.0, 1.0, 1.0]], (m, 1))
        values = np.concatenate([signs, np.ones((len(triangles), 3))])
        limits = np.concatenate([np.tile([0.0, 2.0], m), np.full(len(triangles), 2.0)])
    rows = np.repeat(np.arange(len(columns)), columns.shape[1])
    matrix = coo_array((values.ravel(), (rows, columns.ravel())), shape=(len(columns), len(gain))).tocsr()
    return Program(gain, matrix, limits)


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

    began, (gain, rows, limits) = time.process_time(), program(problem, graph)
    whole, upper = np.zeros(len(gain)), np.ones(len(gain))
    whole[: graph.nodes] = 1
    if problem == "maxcut":
        upper[0] = 0  # both sides are alike
    constraints = LinearConstraint(rows, ub=limits) if len(limits) else ()
    options = {"time_limit": limit}
    solved = milp(-gain, integrality=whole, bounds=Bounds(0, upper), constraints=constraints, options=options)
    return _solution(problem, graph, solved.x, solved.status == 0, began)


def by_gurobi(problem: str, graph: Graph, limit: float) -> Solution:
    """Gurobi on the same program, if gurobipy and a licence for it are there."""
    import gurobipy

    began, (gain, rows, limits) = time.process_time(), program(problem, graph)
    model = gurobipy.Model(env=gurobipy.Env(params={"OutputFlag": 0}))
    model.Params.TimeLimit = limit
    kinds = ["B"] * graph.nodes + ["C"] * (len(gain) - graph.nodes)
    z = model.addMVar(len(gain), lb=0.0, ub=1.0, vtype=np.array(kinds))
    model.setObjective(gain @ z, gurobipy.GRB.MAXIMIZE)
    model.addConstr(rows @ z <= limits)
    model.optimize()
    proved = model.Status == gurobipy.GRB.OPTIMAL
    return _solution(problem, graph, z.X if model.SolCount else None, proved, began)


def by_cpsat(problem: str, graph: Graph, limit: float) -> Solution:
    """OR-tools' CP-SAT on the same program."""
    from ortools.sat.python import cp_model

    began, (gain, rows, limits) = time.process_time(), program(problem, graph)
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
    return _solution(problem, graph, found, status == cp_model.OPTIMAL, began)


def by_local_search(problem: str, graph: Graph, limit: float) -> Solution:
    """networkx: a maximal independent set at random, or one-exchange for the cut; the better of sixteen."""
    import networkx as nx  # only here: importing it takes a while

    began, tries = time.process_time(), np.zeros((16, graph.nodes), np.uint8)
    network = nx.empty_graph(graph.nodes)
    network.add_edges_from(graph.edges.tolist())
    for seed, z in enumerate(tries):
        if problem == "mis":
            side = nx.maximal_independent_set(network, seed=seed)
        else:
            side = nx.algorithms.approximation.one_exchange(network, seed=seed)[1][0]
        z[list(side)] = 1
    values = tuple(value_of(problem, graph, z) for z in tries)
    return Solution(tries[int(np.argmax(values))], max(values), False, time.process_time() - began, values)


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


def solved(method: str, target: GraphTarget, numbers: Iterable[int], limit: float) -> list[Solution]:
    """Solutions of the graphs with these numbers, each in at most `limit` seconds.

    Raises:
        UserError: there is no such solver, or its package is not installed.
    """
    solve = solver(method)
    return [solve(target.problem, target.graph(number), limit) for number in numbers]


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
    """Annealed heat bath from uniform states to p_1 [Kirkpatrick 1983], every graph with as many chains; no network.

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
    found, values = on.solutions(anneal(on, chains * len(numbers), sweeps, seed).states.x)
    return found.view(len(numbers), chains, -1), values.view(len(numbers), chains), time.process_time() - began
