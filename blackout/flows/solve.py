"""`blackout solve mis graphs/ --method anneal`: problems on graphs, exactly, by annealing or greedily.

The same table and arrays as `sample.py` writes for a trained flow: solutions.npz and table.csv; and best.csv, which
calls the nodes what their file does.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import numpy as np
import torch

from blackout.errors import CommandParser, UserError, refuse, run_command
from blackout.files import numbered, request_key, results_folder, save_arrays, save_picture, write_json, write_table
from blackout.flows.graphs.draw import graphs_picture, tabulated
from blackout.flows.graphs.files import read_graphs
from blackout.flows.graphs.graphs import Graph
from blackout.flows.graphs.problems import TAKES, Array, GraphTarget, Problem, problem_of
from blackout.flows.graphs.solvers import EXACT, Solution, annealed, greedy, solved, value_of
from blackout.training.export import load_model

_MOST_CHAINS = 1 << 20


def solutions(problems: list[Problem], given: argparse.Namespace) -> tuple[list[Array], list[bool], list[float]]:
    """Solutions of the bases, uint8 [chains, n'] of each, whether they are proved, and seconds of processor time.

    Raises:
        UserError: the method's package is not installed, or does not take such weights.
    """
    base, graphs = problems[0].base, [problem.graph for problem in problems]
    if given.method in EXACT:
        exact = solved(given.method, base, graphs, given.seconds)
        return [own.x[None] for own in exact], [own.proved for own in exact], [own.seconds for own in exact]
    began = time.process_time()
    if given.method == "anneal":
        found = annealed(base, graphs, given.chains, given.sweeps, given.seconds * len(graphs), given.seed)
    else:
        found = [greedy(base, graph, given.chains, math.inf, given.seed) for graph in graphs]
    share = (time.process_time() - began) / len(graphs)
    return found, [False] * len(graphs), [share] * len(graphs)


def run(given: argparse.Namespace) -> None:
    """Solve, and write solutions.npz, table.csv, best.csv, metrics.json and graphs.png.

    Raises:
        UserError: numbers out of range, unreadable graphs, weights that the problem does not take, a missing solver.
    """
    if given.sweeps < 1 or not given.seconds > 0 or not 1 <= given.colours < 256:
        raise UserError("--sweeps must be at least 1, --seconds positive, and --colours 1 to 255")
    refuse(not 1 <= given.chains <= _MOST_CHAINS, f"--chains must be in 1..{_MOST_CHAINS:,}, not {given.chains}")
    problems = [problem_of(given.problem, graph, given.colours, given.unit_weights) for graph in _graphs(given)]
    folders = [given.out] if given.out else numbered(Path("runs/solve"))
    with results_folder(folders, request_key(vars(given) | {"out": None})) as out:
        _solve(problems, given, out)


def _solve(problems: list[Problem], given: argparse.Namespace, out: Path) -> None:
    base, sign = problems[0].base, problems[0].sign
    found, proved, seconds = solutions(problems, given)
    values = [problem.value(value_of(base, problem.graph, x)) for problem, x in zip(problems, found, strict=True)]
    own = [problem.back(x) for problem, x in zip(problems, found, strict=True)]
    first = [int((sign * part).argmax()) for part in values]
    best, reached = ([part[k] for part, k in zip(parts, first, strict=True)] for parts in (own, values))
    # the optimum is the oracle's, or what the method itself has proved
    known = [
        Solution(x, float(value), True, 0.0) if sure else None
        for x, value, sure in zip(best, reached, proved, strict=True)
    ]
    if given.oracle:
        oracle = solved(given.oracle, base, [problem.graph for problem in problems], given.seconds)
        known = [problem.solution(one) for problem, one in zip(problems, oracle, strict=True)]
    said = tabulated(problems, values, seconds, known, out / "table.csv")
    nodes = (  # under the names that its file gives them
        {"graph": problem.given.name, "node": node, "value": value}
        for problem, x in zip(problems, best, strict=True)
        for node, value in zip(problem.given.labels or range(problem.given.nodes), x.tolist(), strict=True)
    )
    write_table(["graph", "node", "value"], nodes, out / "best.csv")
    every = np.zeros((len(own), len(values[0]), max(map(len, best))), np.uint8)
    for padded, x in zip(every, own, strict=True):
        padded[:, : x.shape[1]] = x
    arrays = {"solutions": every, "value": np.stack(values), "best": every[np.arange(len(own)), first]}
    save_arrays(out / "solutions.npz", **arrays, best_value=np.array(reached))
    how = {"method": given.method, "problem": given.problem, "proved": sum(proved)}
    write_json({"values": said, **how, "graphs": len(best), "seed": given.seed}, out / "metrics.json")
    samples = {"solutions": torch.from_numpy(arrays["best"]), "value": torch.tensor(np.array(reached))}
    samples["graph"] = torch.arange(len(best))
    save_picture(graphs_picture(lambda k: problems[k].given, given.problem, samples, sign), out / "graphs.png")
    shown = "  ".join(f"{name} {value:.8g}" for name, value in said.items())
    print(f"{shown}  proved {sum(proved)} of {len(best)}; all of it in {out}")


def _graphs(given: argparse.Namespace) -> list[Graph]:
    """The graphs in files, or those that a trained flow held out."""
    if given.ckpt is None:
        refuse(given.graphs is None, "give a file or folder of graphs, or --ckpt of a trained flow: those it held out")
        return read_graphs(given.graphs)
    target = getattr(load_model(given.ckpt), "target", None)
    if not isinstance(target, GraphTarget) or target.problem != given.problem:
        raise UserError(f"--ckpt {given.ckpt} is no flow on graphs for {given.problem}")
    return [target.graph(number) for number in target.numbers.tolist()]


def main() -> None:
    parser = CommandParser(prog="blackout solve", description=(__doc__ or "").split(": ")[1])
    parser.add_argument("problem", choices=TAKES)
    parser.add_argument("graphs", nargs="?", type=Path, help="a file or folder of graphs")
    parser.add_argument("--ckpt", type=Path, help="a trained flow: the graphs it held out")
    parser.add_argument("--method", choices=(*EXACT, "anneal", "greedy"), default="milp")
    parser.add_argument("--oracle", choices=EXACT, help="another method, whose values drops are counted from")
    parser.add_argument("--colours", type=int, default=3, help="of colouring, which colours as many nodes as it can")
    parser.add_argument("--unit-weights", action="store_true", help="take all weights as 1")
    parser.add_argument("--chains", type=int, default=16, help="of anneal, and tries of greedy, for every graph")
    parser.add_argument("--sweeps", type=int, default=1000, help="of anneal, at most")
    parser.add_argument("--seconds", type=float, default=60.0, help="of processor time for every graph, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="a folder; runs/solve if it is left out")
    run_command(run, parser)


if __name__ == "__main__":
    main()
