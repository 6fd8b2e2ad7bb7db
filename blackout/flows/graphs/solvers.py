"""Independent sets and cuts without a network: exact solvers, greedy, and simulated annealing.

Greedy and annealing use sparse matrices; annealing runs many chains of many graphs together.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from blackout.errors import ensure, refuse
from blackout.flows.graphs.graphs import Graph
from blackout.flows.targets.base import greedy_colouring
from blackout.version import install_command

Array = NDArray[Any]
BaseProblem: TypeAlias = Literal["mis", "maxcut"]

# First and last temperature of the annealing, in units of the mean weight of a node (mis), or of
# the root of a node's mean sum of squared edge weights (maxcut).
INITIAL_TEMPERATURE = {"mis": 1.0, "maxcut": 0.6}
FINAL_TEMPERATURE = {"mis": 0.2, "maxcut": 0.04}
TIE_BREAKING = 1e-9  # relative size of the random numbers that break ties of the greedy solver
ROUNDING = 1e-9  # gains below it, relative to the unit of the temperature, are rounding
INTEGER_GAP = 0.999  # whole values less than this below a bound are optimal
WEIGHT_SCALES = (1, 2, 10, 100, 1000, 10**6)  # factors by which CP-SAT's weights become integers
TINY = 1e-300  # smallest weight that is divided by


@dataclass(frozen=True)
class Solution:
    """A solution of one graph.

    Args:
        x: selected nodes, uint8 [n].
        value: of the objective.
        proved: whether it is proved to be optimal.
        seconds: of processor time.
    """

    x: NDArray[np.uint8]
    value: float
    proved: bool
    seconds: float


class IntegerProgram(NamedTuple):
    """Maximise objective . z subject to matrix @ z <= upper_bounds, z in [0, 1]^m.

    The first n entries of z are the nodes and integers. The largest coefficient of the objective
    is 1, because the tolerances of solvers are absolute.
    """

    objective: NDArray[np.float64]  # [m]
    matrix: Any  # SciPy's CSR matrix [k, m]
    upper_bounds: NDArray[np.float64]  # [k]


def make_integer_program(problem: BaseProblem, graph: Graph) -> IntegerProgram:
    """Formulate a problem as a mixed-integer linear program.

    A cut has one more variable for each edge, and at most two edges of a triangle are cut.

    References: Barahona and Mahjoub 1986.
    """
    from scipy.sparse import coo_array  # slow to import

    n = graph.num_nodes
    m = len(graph.edges)
    if problem == "mis":
        # one constraint per edge: at most one end is selected
        objective = graph.node_weights_or_ones
        columns = graph.edges
        values = np.ones((m, 2))
        upper_bounds = np.ones(m)
    else:
        # 1. Two constraints per edge z. With a positive weight z <= x_i + x_j <= 2 - z, with a
        #    negative one z >= |x_i - x_j|.
        edge_variables = n + np.arange(m)
        objective = np.concatenate([np.zeros(n), graph.edge_weights_or_ones])
        positive = graph.edge_weights_or_ones[:, None] > 0
        edge_columns = np.repeat(np.column_stack([edge_variables, graph.edges]), 2, 0)
        positive_signs = ([1.0, -1.0, -1.0], [1.0, 1.0, 1.0])
        negative_signs = ([-1.0, 1.0, -1.0], [-1.0, -1.0, 1.0])
        signs = np.where(positive[..., None], positive_signs, negative_signs).reshape(-1, 3)
        edge_bounds = np.where(positive, (0.0, 2.0), 0.0).ravel()

        # 2. One constraint per triangle.
        triangles = n + np.array(_find_triangles(graph.edges), np.int64).reshape(-1, 3)
        columns = np.concatenate([edge_columns, triangles])
        values = np.concatenate([signs, np.ones((len(triangles), 3))])
        upper_bounds = np.concatenate([edge_bounds, np.full(len(triangles), 2.0)])
    rows = np.repeat(np.arange(len(columns)), columns.shape[1])
    shape = (len(columns), len(objective))
    matrix = coo_array((values.ravel(), (rows, columns.ravel())), shape=shape).tocsr()
    largest = max(np.abs(objective).max(initial=0), TINY)
    return IntegerProgram(objective / largest, matrix, upper_bounds)


def _find_triangles(edges: NDArray[np.int64]) -> list[list[int]]:
    """Return the three edge numbers of every triangle, of edges [m, 2]."""
    import networkx as nx  # slow to import

    number = {frozenset(edge): k for k, edge in enumerate(edges.tolist())}
    graph = nx.Graph(edges.tolist())
    triangles = []
    for nodes in nx.all_triangles(graph):
        triangles.append([number[frozenset(pair)] for pair in combinations(nodes, 2)])
    return triangles


def solve_milp(problem: BaseProblem, graph: Graph, seconds: float) -> Solution:
    """Solve the integer program of a graph by SciPy's HiGHS in at most `seconds`.

    Without a solution in time no node is selected.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp  # slow to import

    start = time.process_time()
    program = make_integer_program(problem, graph)
    integrality = np.zeros(len(program.objective))
    integrality[: graph.num_nodes] = 1
    upper = np.ones(len(program.objective))
    if problem == "maxcut":
        upper[0] = 0  # the two sides of a cut are interchangeable
    constraints = ()
    if len(program.upper_bounds):
        constraints = LinearConstraint(program.matrix, ub=program.upper_bounds)
    result = milp(
        -program.objective,
        integrality=integrality,
        bounds=Bounds(0, upper),
        constraints=constraints,
        options={"time_limit": seconds, "mip_rel_gap": 0.0},
    )
    bound = None
    if result.status == 0 and result.mip_dual_bound is not None:
        bound = -result.mip_dual_bound
    return _make_solution(problem, graph, result.x, bound, start)


def solve_cpsat(problem: BaseProblem, graph: Graph, seconds: float) -> Solution:
    """Solve the integer program of a graph by OR-tools' CP-SAT, with integer weights.

    References: Barahona and Mahjoub 1986.

    Raises:
        UserError: weights with more than six decimals.
    """
    from ortools.sat.python import cp_model

    start = time.process_time()
    program = make_integer_program(problem, graph)

    # 1. Weights as integers.
    weights = _objective_weights(problem, graph)
    scale = next((k for k in WEIGHT_SCALES if _are_integers((weights * k).round(9))), None)
    refuse(
        scale is None,
        f"{graph.name}: cpsat needs weights with at most six decimals; use milp",
    )
    objective = np.round(program.objective * (scale * np.abs(weights).max(initial=0)))

    # 2. The model.
    model = cp_model.CpModel()
    z = [model.NewBoolVar(str(k)) for k in range(len(objective))]
    matrix = program.matrix
    for k, upper_bound in enumerate(program.upper_bounds):
        entries = slice(matrix.indptr[k], matrix.indptr[k + 1])
        terms = zip(matrix.indices[entries], matrix.data[entries], strict=True)
        model.Add(sum(int(value) * z[column] for column, value in terms) <= int(upper_bound))
    objective_terms = zip(objective, z, strict=True)
    model.Maximize(sum(int(value) * variable for value, variable in objective_terms))

    # 3. Its solution.
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = 1
    status = solver.Solve(model)
    values = None
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        values = [solver.Value(variable) for variable in z]
    bound = None
    if status == cp_model.OPTIMAL:
        bound = float(objective @ values)
        if bound:
            bound /= np.abs(objective).max()
    return _make_solution(problem, graph, values, bound, start)


# name -> solver of one graph
EXACT_SOLVERS: dict[str, Callable[[Any, Graph, float], Solution]] = {
    "milp": solve_milp,
    "cpsat": solve_cpsat,
}


def check_solver(name: str) -> None:
    """Refuse an exact solver that does not exist or is not installed.

    Raises:
        UserError: another name, or OR-tools is missing.
    """
    refuse(
        name not in EXACT_SOLVERS,
        f"{name}: no such solver; choose one of {', '.join(EXACT_SOLVERS)}",
    )
    refuse(
        name == "cpsat" and importlib.util.find_spec("ortools") is None,
        f"cpsat needs ortools, which is not installed: {install_command('solvers')}",
    )


def solve_exactly(
    solver: str,
    problem: BaseProblem,
    graphs: Iterable[Graph],
    seconds: float,
) -> list[Solution]:
    """Solve a problem on graphs, each in at most `seconds`.

    Raises:
        UserError: see `check_solver`, or weights that the solver does not accept.

    Example:
        >>> path = Graph("path", 3, np.array([[0, 1], [1, 2]]))
        >>> solve_exactly("milp", "mis", [path], seconds=10)[0].x.tolist()
        [1, 0, 1]
    """
    check_solver(solver)
    return [EXACT_SOLVERS[solver](problem, graph, seconds) for graph in graphs]


def objective_value(problem: BaseProblem, graph: Graph, x: NDArray[Any]) -> NDArray[np.float64]:
    """Return the weight of an independent set, or of a cut.

    References: Ou et al. 2025, eqs. 45 and 48.

    Args:
        problem: "mis" or "maxcut".
        graph: with its weights.
        x: 0 or 1, [..., n].

    Returns:
        Float64 [...].

    Raises:
        ValueError: nodes of "mis" that are not independent.
    """
    ends = x[..., graph.edges].astype(bool)
    if problem == "maxcut":
        return np.asarray((ends[..., 0] != ends[..., 1]) @ graph.edge_weights_or_ones)
    independent = not bool(ends.all(-1).any())
    ensure(independent, f"{graph.name}: two adjacent nodes are selected")
    return np.asarray(x.astype(float) @ graph.node_weights_or_ones)


def _objective_weights(problem: BaseProblem, graph: Graph) -> NDArray[np.float64]:
    return graph.node_weights_or_ones if problem == "mis" else graph.edge_weights_or_ones


def _are_integers(weights: NDArray[np.float64]) -> bool:
    return bool((weights == np.round(weights)).all())


def _make_solution(
    problem: BaseProblem,
    graph: Graph,
    z: Any,
    bound: float | None,
    start: float,
) -> Solution:
    """Build a solution from a solver's variables, and decide whether it is proved.

    References: this project; checked in tests/flows/graphs/test_problems.py.

    Args:
        problem: "mis" or "maxcut".
        graph: with its weights.
        z: numbers [m], the first n of the nodes; None if there is no solution.
        bound: on the value in units of the largest weight; None if the solver has not finished.
        start: processor time at the start.
    """
    nodes = np.zeros(graph.num_nodes) if z is None else z[: graph.num_nodes]
    x = np.round(nodes).astype(np.uint8)
    value = float(objective_value(problem, graph, x))
    proved = False
    if bound is not None and z is not None:
        weights = _objective_weights(problem, graph)
        largest = float(np.abs(weights).max(initial=0))
        tolerance = INTEGER_GAP if _are_integers(weights) else ROUNDING * max(largest, abs(value))
        proved = bound * largest <= value + tolerance
    return Solution(x, value, proved, time.process_time() - start)


def greedy(problem: BaseProblem, graph: Graph, num_tries: int, seconds: float, seed: int) -> Array:
    """Return greedy solutions with ties broken at random, uint8 [tries, n].

    For "mis" the next node is that of the largest weight / (degree + 1) among the remaining
    nodes. For "maxcut" nodes in random order join the side that cuts more.

    References: Sakai et al. 2003 (mis); Sahni and Gonzalez 1976 (maxcut).

    Args:
        problem: "mis" or "maxcut".
        graph: with its weights.
        num_tries: largest number of solutions; at least one is made.
        seconds: of processor time, after which no other try starts.
        seed: of all draws.
    """
    start = time.process_time()
    rng = np.random.default_rng(seed)
    matrix = graph.adjacency_matrix()
    neighbours = np.split(matrix.indices, matrix.indptr[1:-1])
    weights = np.split(matrix.data, matrix.indptr[1:-1])
    solutions: list[Array] = []
    while len(solutions) < num_tries:
        if solutions and time.process_time() - start > seconds:
            break
        if problem == "mis":
            solutions.append(_greedy_independent_set(neighbours, graph.node_weights_or_ones, rng))
            continue
        spins = np.zeros(graph.num_nodes)
        for node in rng.permutation(graph.num_nodes):
            force = -np.sign(weights[node] @ spins[neighbours[node]])
            spins[node] = force or rng.choice([-1.0, 1.0])
        solutions.append((spins > 0).astype(np.uint8))
    return np.stack(solutions)


def _greedy_independent_set(
    neighbours: Sequence[Array],
    weights: Array,
    rng: np.random.Generator,
) -> Array:
    """Return an independent set, uint8 [n], by weight / (degree + 1) in the remaining graph.

    References: Sakai et al. 2003.
    """
    degree = np.array([len(row) for row in neighbours])
    noise = 1 + TIE_BREAKING * rng.random(len(neighbours))
    x = np.zeros(len(neighbours), np.uint8)
    # 0 for nodes that are selected or removed
    score = np.maximum(weights, 0) * noise / (degree + 1)
    while True:
        node = score.argmax()
        if not score[node] > 0:
            return x
        x[node] = 1
        score[node] = 0
        removed = neighbours[node][score[neighbours[node]] > 0]
        score[removed] = 0
        if len(removed):
            affected = np.concatenate([neighbours[neighbour] for neighbour in removed])
            np.subtract.at(degree, affected, 1)
            remaining = affected[score[affected] > 0]
            score[remaining] = weights[remaining] * noise[remaining] / (degree[remaining] + 1)


class _ColourClass(NamedTuple):
    """Nodes without edges between them, which move together."""

    nodes: NDArray[np.int64]
    rows: Any  # of the adjacency matrix, CSR
    columns: Any  # of the adjacency matrix, CSR
    unit: Array  # of the temperature, [n, 1]


def simulated_annealing(
    problem: BaseProblem,
    graphs: Sequence[Graph],
    num_chains: int,
    num_sweeps: int,
    seconds: float,
    seed: int,
) -> list[Array]:
    """Anneal all graphs together: the best state of each chain, uint8 [num_chains, n] per graph.

    A node joins an independent set and removes its neighbours with probability
    min(1, exp(gain / T)); in place of one node of equal weight that is a swap. Spins of a cut
    flip, and finally only uphill.

    References: Kirkpatrick et al. 1983.

    Args:
        problem: "mis" or "maxcut".
        graphs: with their weights.
        num_chains: of every graph.
        num_sweeps: largest number of sweeps.
        seconds: of processor time for all graphs; the temperature falls with whichever limit is
            reached first.
        seed: of all draws.
    """
    from scipy.sparse import block_diag  # slow to import

    start = time.process_time()
    rng = np.random.default_rng(seed)

    # 1. All graphs as one, with the unit of the temperature of each node.
    sizes = [graph.num_nodes for graph in graphs]
    offsets = np.cumsum([0, *sizes[:-1]])
    matrix = block_diag([graph.adjacency_matrix() for graph in graphs], format="csr")
    groups = greedy_colouring(matrix)
    node_weights = np.concatenate([graph.node_weights_or_ones for graph in graphs])
    if problem == "mis":
        matrix.data[:] = 1
        units = [np.abs(graph.node_weights_or_ones).mean() for graph in graphs]
        unweighted = bool((node_weights == 1).all())
    else:
        squares = [(graph.edge_weights_or_ones**2).sum() for graph in graphs]
        units = [np.sqrt(2 * total / size) for total, size in zip(squares, sizes, strict=True)]
        unweighted = bool((matrix.data == 1).all())
    unit_of_node = np.repeat(units, sizes)
    dtype: Any = np.float32 if unweighted else np.float64  # sums of ones are exact in float32
    matrix = matrix.astype(dtype)
    node_weights = node_weights.astype(dtype)[:, None]

    # 2. Colour classes; nodes of weight 0 or less never help.
    classes = []
    for group in groups:
        nodes = group[node_weights[group, 0] > 0]
        unit = unit_of_node[nodes].astype(dtype)[:, None]
        classes.append(_ColourClass(nodes, matrix[nodes], matrix[:, nodes].tocsr(), unit))

    # 3. Sweeps at a falling temperature.
    shape = (len(node_weights), num_chains)
    x = np.zeros(shape, dtype)  # mis: weight of a selected node, else 0
    if problem == "maxcut":
        x = np.where(rng.random(shape) < 0.5, dtype(-1), dtype(1))  # spins
    best = np.zeros(shape, bool)
    best_value = np.zeros((len(graphs), num_chains))
    hot = INITIAL_TEMPERATURE[problem]
    cold = FINAL_TEMPERATURE[problem]
    sweep = 0
    progress = 0.0
    while progress < 1:
        temperature = hot * (cold / hot) ** progress
        # a fixed order would favour some swaps
        for number in rng.permutation(len(classes)):
            nodes, rows, columns, unit = classes[number]
            gain = node_weights[nodes] - rows @ x if problem == "mis" else x[nodes] * (rows @ x)
            threshold = -rng.standard_exponential(gain.shape, dtype) * (temperature * unit)
            accepted = threshold < gain
            if problem == "mis":
                accepted &= x[nodes] == 0
                x[columns @ accepted.astype(dtype) > 0] = 0
                x[nodes] = np.where(accepted, node_weights[nodes], x[nodes])
            else:
                x[nodes] = np.where(accepted, -x[nodes], x[nodes])
        if problem == "mis":
            value = np.add.reduceat(x, offsets, 0)
            improved = np.repeat(value > best_value, sizes, 0)
            np.copyto(best, x > 0, where=improved)
            np.maximum(best_value, value, out=best_value)
        sweep += 1
        elapsed = time.process_time() - start
        progress = max(sweep / num_sweeps, elapsed / seconds)

    # 4. Cuts: flip spins uphill until nothing changes.
    while problem == "maxcut":
        previous_x = x.copy()
        for nodes, rows, _, unit in classes:
            uphill = x[nodes] * (rows @ x) > ROUNDING * unit
            x[nodes] = np.where(uphill, -x[nodes], x[nodes])
        if (previous_x == x).all():
            best = x > 0
            break
    return [part.T.astype(np.uint8) for part in np.split(best, offsets[1:])]
