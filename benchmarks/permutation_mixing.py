"""Distances of shuffled cards from uniform, as a table and a figure.

python -m benchmarks.permutation_mixing 52
"""

from __future__ import annotations

import argparse
from pathlib import Path

from blackout.errors import CommandParser, UserError, run_command
from blackout.files import new_file, replacing
from blackout.permutations.forward_process import MIXED_DISTANCE, denoising_schedule, mixing_time
from blackout.permutations.shuffles import (
    MAX_TRANSPOSED_CARDS,
    RandomInsertion,
    RandomTransposition,
    Riffle,
)

_RIFFLE = Riffle()


def _table(n: int) -> list[str]:
    """Return the text that the command prints."""
    schedule = denoising_schedule(n)
    lines = [f"{n} cards, total variation after t riffles", "   t  to uniform  to t - 1"]
    for t in range(1, schedule[-1] + 1):
        to_uniform = _RIFFLE.total_variation(n, t)
        to_previous = _RIFFLE.total_variation(n, t - 1, t)
        lines.append(f"{t:>4}{to_uniform:>12.4f}{to_previous:>10.4f}")
    lines += [f"schedule {schedule}", "shuffles until the distance from uniform is at most"]
    walks = {"riffle": _RIFFLE, "insertion": RandomInsertion()}
    if n <= MAX_TRANSPOSED_CARDS:
        walks["transposition"] = RandomTransposition()
    targets = (0.5, 0.1, MIXED_DISTANCE)
    lines.append(f"{'':<16}" + "".join(f"{target:>8}" for target in targets))
    for name, walk in walks.items():
        lines.append(
            f"{name:<16}" + "".join(f"{mixing_time(walk, n, target):>8}" for target in targets)
        )
    return lines


def _plot(n: int, path: Path) -> None:
    """Plot the distance from uniform, and between any two numbers of riffles."""
    from matplotlib.figure import Figure

    num_times = denoising_schedule(n)[-1] + 2
    between = [
        [_RIFFLE.total_variation(n, t, s) for s in range(num_times)] for t in range(num_times)
    ]
    figure = Figure(figsize=(9, 4), layout="constrained")
    distance_axis, matrix_axis = figure.subplots(1, 2)
    distance_axis.plot([_RIFFLE.total_variation(n, t) for t in range(num_times)], marker="o")
    distance_axis.set(xlabel="riffles t", ylabel="total variation to uniform", title=f"{n} cards")
    image = matrix_axis.imshow(between, origin="lower", vmin=0, vmax=1)
    matrix_axis.set(
        xlabel="riffles s", ylabel="riffles t", title=f"schedule {denoising_schedule(n)}"
    )
    figure.colorbar(image, ax=matrix_axis, label="total variation of t to s")
    with replacing(path, durably=True) as part:
        figure.savefig(part)


def main(argv: list[str] | None = None) -> None:
    parser = CommandParser(
        prog="python -m benchmarks.permutation_mixing",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("cards", type=int, help="n, at least 2")
    parser.add_argument(
        "--plot", type=Path, default=None, help="where to draw the distances too, a .png"
    )
    run_command(_run, parser, argv)


def _run(options: argparse.Namespace) -> None:
    if options.cards < 2:
        raise UserError(f"cards must be at least 2, not {options.cards}")
    plot = options.plot and new_file(options.plot, is_fixed=True)
    print("\n".join(_table(options.cards)))
    if plot is not None:
        _plot(options.cards, plot)


if __name__ == "__main__":
    main()
