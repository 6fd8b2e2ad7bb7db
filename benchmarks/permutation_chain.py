"""Generalised Plackett-Luce steps that reach any distribution on S_3.

python -m benchmarks.permutation_chain chain.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

from blackout.errors import CommandParser, run_command
from blackout.files import new_file
from blackout.permutations import all_permutations
from blackout.pictures import save_picture
from tests.verification.permutation_claims import chain_distributions

_TARGET = (0.35, 0.1, 0.0, 0.3, 0.05, 0.2)


def plot_chain(target: Tensor, n: int, path: Path) -> None:
    """Plot the distributions of `chain_distributions`, with a row of bars per step."""
    from matplotlib.figure import Figure  # only here: importing it takes a second

    distributions = chain_distributions(target, n)
    names = ["".join(map(str, p)) for p in (all_permutations(n) + 1).tolist()]
    figure = Figure(figsize=(1.3 * len(distributions), 2.2), layout="constrained")
    for step, (axes, distribution) in enumerate(
        zip(
            figure.subplots(1, len(distributions), sharey=True), distributions.tolist(), strict=True
        )
    ):
        axes.bar(
            names, distribution, color="tab:blue" if step + 1 < len(distributions) else "tab:green"
        )
        axes.bar(names, target.tolist(), fill=False, edgecolor="black", linewidth=0.7)
        axes.tick_params("x", rotation=90, labelsize=7)
        axes.set_title("uniform" if step == 0 else f"step {step}", fontsize=9)
    save_picture(figure, path, dpi=110)


def main(argv: list[str] | None = None) -> None:
    """Plot, from the command line."""
    parser = CommandParser(
        prog="python -m benchmarks.permutation_chain",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "out",
        type=Path,
        nargs="?",
        default=Path("results/permutation_chain.png"),
        help="the picture, a .png",
    )
    run_command(_draw, parser, argv)


def _draw(options: argparse.Namespace) -> None:
    options.out.parent.mkdir(parents=True, exist_ok=True)
    plot_chain(torch.tensor(_TARGET, dtype=torch.float64), 3, new_file(options.out, is_fixed=True))


if __name__ == "__main__":
    main()
