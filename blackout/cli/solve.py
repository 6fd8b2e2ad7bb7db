"""Solve a jigsaw, or a problem on graphs, without a trained model.

  blackout solve PICTURE grid=4    put a shuffled picture, or a folder of pieces, together
  blackout solve mis GRAPHS        solve a problem on graphs, see blackout solve mis --help

Pieces keep their orientation and are rectangles of one size. They are arranged by their borders
alone. The solution is written next to the picture, and the probability of every piece is printed:
its share among the arrangements that the beam search found.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

from blackout.cli.families import load_family
from blackout.cli.output_folders import folders_of_target
from blackout.errors import CommandParser, UserError, escaped, refuse, run_command
from blackout.files import new_file
from blackout.pictures import save_picture
from blackout.results_folders import request_key, results_folder

GRAPH_DESCRIPTION = """Solve a problem on graphs exactly, by simulated annealing or greedily.

Table and arrays are those of sample.py for a trained flow: solutions.npz and table.csv.
best.csv has the best solutions, with the names of nodes that their file gives them.
"""
GRAPH_DEFAULTS = {"colours": 3, "chains": 16, "sweeps": 1000, "seconds": 60.0, "seed": 0}
PICTURE_SETTINGS = {"grid", "top", "out"}


def main(words: list[str] | None = None) -> None:
    """Run the command line; the first word decides between graphs and jigsaws."""
    words = sys.argv[1:] if words is None else words
    flows = load_family("flow")
    if words and words[0] in flows.graph_problems:
        run_command(lambda options: _solve_graphs(flows, options), _graph_parser(flows), words)
        return
    parser = CommandParser(
        prog="blackout solve",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("picture", type=Path, help="a picture that is cut, or a folder of pieces")
    parser.add_argument(
        "settings",
        nargs="*",
        help="grid=4 or grid=3x5; top=3, the number of arrangements to print; out=solved.png",
    )
    run_command(_solve_picture, parser, words)


def _graph_parser(flows: Any) -> CommandParser:
    parser = CommandParser(prog="blackout solve", description=GRAPH_DESCRIPTION)
    parser.add_argument("problem", choices=flows.graph_problems)
    parser.add_argument("graphs", nargs="?", type=Path, help="a file or folder of graphs")
    parser.add_argument(
        "--ckpt", type=Path, help="a trained flow, whose held-out graphs are solved"
    )
    parser.add_argument(
        "--method", choices=flows.graph_methods, default="milp", help="default: %(default)s"
    )
    parser.add_argument(
        "--oracle",
        choices=flows.exact_graph_methods,
        help="an exact method with which the results are compared",
    )
    parser.add_argument(
        "--colours",
        type=int,
        default=GRAPH_DEFAULTS["colours"],
        help="of colouring, which colours as many nodes as it can (default: %(default)s)",
    )
    parser.add_argument("--unit-weights", action="store_true", help="take all weights as 1")
    parser.add_argument(
        "--chains",
        type=int,
        default=GRAPH_DEFAULTS["chains"],
        help="chains of anneal, or tries of greedy, for every graph (default: %(default)s)",
    )
    parser.add_argument(
        "--sweeps",
        type=int,
        default=GRAPH_DEFAULTS["sweeps"],
        help="largest number of sweeps of anneal (default: %(default)s)",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=GRAPH_DEFAULTS["seconds"],
        help="largest processor time for every graph (default: %(default)s)",
    )
    parser.add_argument(
        "--seed", type=int, default=GRAPH_DEFAULTS["seed"], help="default: %(default)s"
    )
    parser.add_argument(
        "--out", type=Path, help="a folder (default: solve in the run of --ckpt, else in runs)"
    )
    return parser


def _solve_graphs(flows: Any, options: argparse.Namespace) -> None:
    _refuse_unused_options(options)
    solver = flows.graph_solver(
        method=options.method,
        oracle=options.oracle,
        chains=options.chains,
        sweeps=options.sweeps,
        seconds=options.seconds,
        seed=options.seed,
    )
    problems = flows.load_graph_problems(
        options.problem, options.graphs, options.ckpt, options.colours, options.unit_weights
    )
    folders = [options.out] if options.out else folders_of_target(options.ckpt, "solve")
    with results_folder(folders, request_key(vars(options) | {"out": None})) as folder:
        result = solver.run(problems, folder)
    values = "  ".join(f"{name} {value:.8g}" for name, value in result.values.items())
    print(f"{values}  proved {result.proved} of {result.graphs}; results in {escaped(folder)}")


def _refuse_unused_options(options: argparse.Namespace) -> None:
    """Refuse options that the method, or the problem, does not use.

    Raises:
        UserError: names the first that differs from its default.
    """
    is_random = options.method in ("anneal", "greedy")
    used = {
        "chains": is_random,
        "seed": is_random,
        "sweeps": options.method == "anneal",
        "seconds": options.method != "greedy" or options.oracle is not None,
    }
    for name, is_used in used.items():
        is_given = getattr(options, name) != GRAPH_DEFAULTS[name]
        refuse(is_given and not is_used, f"--{name} is not used by --method {options.method}")
    is_given = options.colours != GRAPH_DEFAULTS["colours"]
    refuse(
        is_given and options.problem != "colouring",
        f"--colours is for colouring, not for {options.problem}",
    )


def _solve_picture(options: argparse.Namespace) -> None:
    # 1. Read the settings and the pieces.
    settings = _parse_settings(options.settings)
    number = settings.get("top", "1")
    if not re.fullmatch(r"[1-9][0-9]{0,4}", number):
        raise UserError(f"top must be a whole number of at least 1, not {number}")
    picture = options.picture.expanduser()
    refuse(not picture.exists(), f"{picture}: no such file or folder")
    family = load_family("shuffle")
    pieces, columns = family.read_pieces(picture, settings.get("grid"))
    if "out" in settings:
        path = new_file(Path(settings["out"]).expanduser(), is_fixed=True)
    else:
        name = picture.name if picture.is_dir() else picture.stem
        path = new_file(picture.parent / f"{name}-solved.png", is_fixed=False)

    # 2. Arrange the pieces, write the picture and print probabilities.
    arrangements = family.arrange_pieces(pieces, columns)
    best = arrangements.orders[0]
    save_picture(family.join_pieces(pieces[best], columns), path, is_new=True)
    height, width = pieces.shape[2:]
    print(f"pieces:  {len(pieces) // columns} rows of {columns}, {width}x{height} pixels each")
    orders = arrangements.orders[: int(number)].tolist()
    for order, probability in zip(orders, arrangements.probabilities.tolist(), strict=False):
        print(f"order:   {' '.join(map(str, order))} (probability {probability:.3f})")
    print("piece at every place, numbered from 0 row by row, and its probability:")
    probabilities = arrangements.places.gather(1, best.unsqueeze(1)).squeeze(1)
    cells = [
        f"{piece:>4} {probability:.3f}"
        for piece, probability in zip(best.tolist(), probabilities.tolist(), strict=True)
    ]
    for first in range(0, len(cells), columns):
        print("  ".join(cells[first : first + columns]))
    print(f"solved:  {escaped(path)}")


def _parse_settings(words: list[str]) -> dict[str, str]:
    """Return the settings of a jigsaw by name.

    Raises:
        UserError: a word that is not a setting.
    """
    settings = dict(word.split("=", 1) for word in words if "=" in word)
    if len(settings) < len(words) or settings.keys() - PICTURE_SETTINGS:
        raise UserError(f"settings are grid=, top= and out=, not {' '.join(words)}")
    return settings


if __name__ == "__main__":
    main()
