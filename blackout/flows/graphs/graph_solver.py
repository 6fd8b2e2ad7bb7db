"""Solutions of problems on graphs without a network: exact, by simulated annealing, or greedy.

Table and arrays are those of a trained flow.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from blackout.errors import UserError, refuse
from blackout.files import save_arrays, write_json, write_table
from blackout.flows.graphs.draw import (
    collect_references,
    describe_values,
    plot_graphs,
    write_solution_table,
)
from blackout.flows.graphs.files import read_graphs
from blackout.flows.graphs.graphs import Graph
from blackout.flows.graphs.reductions import Array, Problem, reduce_problem
from blackout.flows.graphs.solvers import (
    EXACT_SOLVERS,
    Solution,
    greedy,
    objective_value,
    simulated_annealing,
    solve_exactly,
)
from blackout.flows.graphs.target import GraphTarget
from blackout.pictures import save_picture
from blackout.training.loading import load_model

MAX_CHAINS = 1 << 20
MAX_COLOURS = 255  # colours are uint8
METHODS = (*EXACT_SOLVERS, "anneal", "greedy")


@dataclass(frozen=True)
class GraphSolver:
    """A method for problems on graphs.

    Args:
        method: one of `METHODS`.
        oracle: an exact method with whose values the results are compared; None for none.
        chains: of annealing, and tries of the greedy method, for every graph.
        sweeps: of annealing, at most.
        seconds: of processor time for every graph, at most.
        seed: of all random numbers.

    Raises:
        UserError: a number out of range.
    """

    method: str = "milp"
    oracle: str | None = None
    chains: int = 16
    sweeps: int = 1000
    seconds: float = 60.0
    seed: int = 0

    def __post_init__(self) -> None:
        refuse(self.sweeps < 1, f"sweeps must be at least 1, not {self.sweeps}")
        refuse(not self.seconds > 0, f"seconds must be positive, not {self.seconds}")
        refuse(
            not 1 <= self.chains <= MAX_CHAINS,
            f"chains must be from 1 to {MAX_CHAINS:,}, not {self.chains}",
        )

    def solutions(self, problems: Sequence[Problem]) -> list[Solutions]:
        """Return solutions of the base of every problem.

        Raises:
            UserError: the method's package is not installed, or does not accept such weights.
        """
        base = problems[0].base
        graphs = [problem.base_graph for problem in problems]
        if self.method in EXACT_SOLVERS:
            exact = solve_exactly(self.method, base, graphs, self.seconds)
            return [Solutions(part.x[None], part.proved, part.seconds) for part in exact]
        start = time.process_time()
        if self.method == "anneal":
            seconds = self.seconds * len(graphs)
            states = simulated_annealing(base, graphs, self.chains, self.sweeps, seconds, self.seed)
        else:
            states = [greedy(base, graph, self.chains, math.inf, self.seed) for graph in graphs]
        seconds_per_graph = (time.process_time() - start) / len(graphs)
        return [Solutions(x, False, seconds_per_graph) for x in states]

    def run(self, problems: Sequence[Problem], folder: Path) -> GraphResult:
        """Solve, and write solutions.npz, table.csv, best.csv, metrics.json and graphs.png.

        best.csv has the names of nodes that their file gives them.

        Raises:
            UserError: the method's package is not installed, or does not accept such weights.
        """
        # 1. Solve, and find the best solution of every graph.
        base = problems[0].base
        sign = problems[0].sign
        solutions = self.solutions(problems)
        states: list[Array] = []
        values: list[Array] = []
        best_rows: list[int] = []
        for problem, solution in zip(problems, solutions, strict=True):
            states.append(problem.decode(solution.x))
            values.append(
                problem.from_base_value(objective_value(base, problem.base_graph, solution.x))
            )
            best_rows.append(int((sign * values[-1]).argmax()))
        best = [x[row] for x, row in zip(states, best_rows, strict=True)]
        best_values = [value[row] for value, row in zip(values, best_rows, strict=True)]

        # 2. The optimum is the oracle's, or what the method itself has proved.
        optima: list[Solution | None] = [
            Solution(x, float(value), True, 0.0) if solution.proved else None
            for x, value, solution in zip(best, best_values, solutions, strict=True)
        ]
        if self.oracle is not None:
            graphs = [problem.base_graph for problem in problems]
            oracle = solve_exactly(self.oracle, base, graphs, self.seconds)
            pairs = zip(problems, oracle, strict=True)
            optima = [problem.from_base_solution(optimum) for problem, optimum in pairs]

        # 3. Write tables, arrays and a picture.
        seconds = [solution.seconds for solution in solutions]
        table = folder / "table.csv"
        means = write_solution_table(table, problems, values, seconds, optima)
        rows = (
            {"graph": problem.graph.name, "node": node, "value": value}
            for problem, x in zip(problems, best, strict=True)
            for node, value in zip(
                problem.graph.labels or range(problem.graph.num_nodes),
                x.tolist(),
                strict=True,
            )
        )
        write_table(["graph", "node", "value"], rows, folder / "best.csv")
        padded = np.zeros((len(states), len(values[0]), max(map(len, best))), np.uint8)
        for row, x in zip(padded, states, strict=True):
            row[:, : x.shape[1]] = x
        padded_best = padded[np.arange(len(states)), best_rows]
        save_arrays(
            folder / "solutions.npz",
            solutions=padded,
            value=np.stack(values),
            best=padded_best,
            best_value=np.array(best_values),
        )
        proved = sum(solution.proved for solution in solutions)
        content = {
            "values": means,
            "references": collect_references(means, []),
            "metric_descriptions": describe_values(means, sign),
            "method": self.method,
            "problem": problems[0].name,
            "proved": proved,
            "graphs": len(best),
            "seed": self.seed,
        }
        write_json(content, folder / "metrics.json")
        samples = {
            "solutions": torch.from_numpy(padded_best),
            "value": torch.tensor(np.array(best_values)),
            "graph": torch.arange(len(best)),
        }
        get_graph = {k: problem.graph for k, problem in enumerate(problems)}.__getitem__
        picture = plot_graphs(get_graph, problems[0].name, samples, sign)
        save_picture(picture, folder / "graphs.png")
        return GraphResult(means, proved, len(best))


@dataclass(frozen=True)
class Solutions:
    """Solutions of one graph.

    Args:
        x: solutions of the base, uint8 [chains, n'].
        proved: whether nothing is better.
        seconds: of processor time.
    """

    x: Array
    proved: bool
    seconds: float


@dataclass(frozen=True)
class GraphResult:
    """The result of `GraphSolver.run`.

    Args:
        values: means over graphs by name.
        proved: number of graphs with proved optima.
        graphs: number of graphs.
    """

    values: Mapping[str, float]
    proved: int
    graphs: int


def load_problems(
    name: str,
    graphs: Path | None,
    ckpt: Path | None,
    colours: int,
    unit_weights: bool,
) -> list[Problem]:
    """Return a problem on the graphs in files, or on the test graphs of a trained flow.

    Args:
        name: of the problem, see `reduce_problem`.
        graphs: a file or folder of graphs; None with `ckpt`.
        ckpt: a trained flow for this problem; None with `graphs`.
        colours: of colouring.
        unit_weights: take all weights as 1.

    Raises:
        UserError: unreadable graphs, weights that the problem does not accept, or another model.
    """
    if not 1 <= colours <= MAX_COLOURS:
        raise UserError(f"colours must be from 1 to {MAX_COLOURS}, not {colours}")
    loaded = _load_graphs(name, graphs, ckpt)
    return [reduce_problem(name, graph, colours, unit_weights=unit_weights) for graph in loaded]


def _load_graphs(name: str, graphs: Path | None, ckpt: Path | None) -> list[Graph]:
    if ckpt is None:
        if graphs is None:
            raise UserError("give a file or folder of graphs, or --ckpt of a trained flow")
        return read_graphs(graphs)
    refuse(graphs is not None, f"--ckpt brings its own graphs, so that {graphs} is not used")
    target = getattr(load_model(ckpt), "target", None)
    if not isinstance(target, GraphTarget) or target.problem != name:
        raise UserError(f"--ckpt {ckpt} is not a flow on graphs for {name}")
    return [target.graph(number) for number in target.test_instances.tolist()]
