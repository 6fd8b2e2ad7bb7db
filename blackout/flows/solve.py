"""`python -m blackout.flows.solve mis graphs/ --method milp`: graph problems by other solvers, or by heat bath alone.

The same table and arrays as `sample.py` writes for a trained flow: solutions.npz and table.csv.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from blackout.errors import UserError
from blackout.files import save_picture, write_json
from blackout.flows.graphs.graphs import read_graphs, save_graph
from blackout.flows.graphs.outputs import Row, graphs_picture, means, write_table
from blackout.flows.graphs.problems import PROBLEMS, GraphTarget, problem_on
from blackout.flows.graphs.solvers import EXACT, Solution, by_heat_bath, solved
from blackout.flows.outputs import made_folder, run_command, save_arrays
from blackout.training.export import load_model

_METHODS = (*EXACT, "anneal", "random")


def solutions(
    target: GraphTarget, given: argparse.Namespace
) -> tuple[list[Solution], NDArray[np.uint8], NDArray[np.int64]]:
    """The best of every graph, all solutions uint8 [G, chains, d] and their values [G, chains].

    Raises:
        UserError: the method's package is not installed.
    """
    numbers = torch.arange(len(target.nodes))
    if given.method in ("anneal", "random"):
        sweeps = given.sweeps if given.method == "anneal" else 0
        found, values, seconds = by_heat_bath(target, numbers, given.chains, sweeps, given.seed)
        share, best = seconds / len(numbers), values.argmax(1)
        chosen = [
            Solution(found[g, k].numpy(), int(values[g, k]), False, share, tuple(values[g].tolist()))
            for g, k in enumerate(best.tolist())
        ]
        return chosen, found.numpy(), values.numpy()
    chosen = solved(given.method, target, numbers.tolist(), given.seconds)
    every = np.zeros((len(chosen), 1, target.sites), np.uint8)
    for g, solution in enumerate(chosen):
        every[g, 0, : len(solution.x)] = solution.x
    return chosen, every, np.array([[solution.value] for solution in chosen])


def run(given: argparse.Namespace) -> None:
    """Solve, and write solutions.npz, table.csv, metrics.json and graphs.png.

    Raises:
        UserError: numbers out of range, unreadable graphs, a solver that is missing.
    """
    if given.chains < 1 or given.sweeps < 1 or not given.seconds > 0:
        raise UserError("--chains and --sweeps must be at least 1, and --seconds positive")
    target, out = _target(given), made_folder(given.out)
    chosen, every, values = solutions(target, given)
    # the optimum is the oracle's, or what the method itself has proved
    known: Sequence[Solution | None] = [replace(own, seconds=0.0) if own.proved else None for own in chosen]
    if given.oracle:
        known = solved(given.oracle, target, range(len(chosen)), given.seconds)
    table = [
        Row(target.graph(g), own.values or (own.value,), own.seconds, best)
        for g, (own, best) in enumerate(zip(chosen, known, strict=True))
    ]
    write_table(table, out / "table.csv")
    best = every[np.arange(len(chosen)), values.argmax(1)]
    save_arrays(out / "solutions.npz", solutions=every, value=values, best=best, best_value=values.max(1))
    said = means(table)
    how = {"method": given.method, "problem": target.problem, "proved": sum(s.proved for s in chosen)}
    write_json({"values": said, **how, "graphs": len(chosen), "seed": given.seed}, out / "metrics.json")
    first = {"graph": torch.arange(len(chosen)), "solutions": torch.from_numpy(best)}
    save_picture(graphs_picture(target, first | {"value": torch.from_numpy(values.max(1))}), out / "graphs.png")
    print("  ".join(f"{name} {value:.5g}" for name, value in said.items()), f"proved {how['proved']} of {len(chosen)}")


def _target(given: argparse.Namespace) -> GraphTarget:
    """The problem on graphs in files, or on those that a trained flow held out."""
    if given.ckpt is None:
        if given.graphs is None:
            raise UserError(
                "give a file or folder of graphs, or --ckpt of a trained flow, whose held-out graphs are taken"
            )
        return problem_on(given.problem, read_graphs(given.graphs))
    target = getattr(load_model(given.ckpt), "target", None)
    if not isinstance(target, GraphTarget) or target.problem != given.problem:
        raise UserError(f"--ckpt {given.ckpt} is no flow on graphs for {given.problem}")
    graphs = [target.graph(number) for number in target.numbers.tolist()]
    if given.save_graphs is not None:
        given.save_graphs.mkdir(parents=True, exist_ok=True)
        for graph in graphs:
            save_graph(graph, given.save_graphs / f"{int(graph.name):06d}.edges")
    return target.with_graphs(graphs)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m blackout.flows.solve", description=(__doc__ or "").split(": ")[1])
    parser.add_argument("problem", choices=PROBLEMS)
    parser.add_argument("graphs", nargs="?", help="a file or folder of graphs")
    parser.add_argument("--ckpt", help="a trained flow: the graphs it held out")
    parser.add_argument("--save-graphs", type=Path, help="with --ckpt: write them to this folder as edge lists")
    parser.add_argument("--method", choices=_METHODS, default="milp")
    parser.add_argument("--oracle", choices=EXACT, help="another method, whose values drops are counted from")
    parser.add_argument("--chains", type=int, default=16, help="of anneal and random, for every graph")
    parser.add_argument("--sweeps", type=int, default=32, help="of anneal")
    parser.add_argument("--seconds", type=float, default=60.0, help="given to an exact solver for every graph")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/solve"))
    run_command(run, parser)


if __name__ == "__main__":
    main()
