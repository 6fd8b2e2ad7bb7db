"""What settings of posterior samplers do on exact posteriors: `python -m
benchmarks.posterior_constants`.

Every row is a value of one setting, with the others at their defaults. `distance` is the total
variation between the samples of 100 measurements and the mean of the exact posteriors, and
`perfect` that of as many exact draws; both are means over problems.

The command writes benchmarks/results/posterior_constants.json.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.exact_posteriors import (
    ExactProblem,
    exact_problems,
    floor_of_draws,
    pooled_total_variation,
    rough_prior,
    smooth_prior,
)
from benchmarks.measure import arguments, report
from blackout.posterior import (
    SMC,
    Auto,
    Matrix,
    Method,
    NoiseDenoise,
    Poisson,
    SplitGibbs,
)
from blackout.posterior.noise_denoise import POLISHING_LEVELS

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "posterior_constants.json"
PROBLEMS = (
    "thinning, rough",
    "sum of photons, rough",
    "blurred photons, smooth",
)
NUM_MOVES = 20  # after sweeps, as of `posterior=auto`

Row = dict[str, Any]


@dataclass(frozen=True)
class Size:
    """How many measurements, and samples of each."""

    measurements: int
    samples: int


def distance(exact: ExactProblem, method: Method, size: Size) -> tuple[float, float, float]:
    """Return the distance of a method's samples, that of perfect ones, and evaluations."""
    problem = exact.measure(exact.truths(size.measurements, 1), 2)
    posteriors = exact.posteriors(problem)
    prior = exact.prior()
    result = method.resolve(prior, problem).sample(prior, problem, size.measurements * size.samples)
    return (
        pooled_total_variation(result.samples, posteriors, exact.toy.levels),
        floor_of_draws(posteriors, size.samples),
        sum(sweep["network_evaluations"] for sweep in result.trace),
    )


def mean_row(
    setting: str, value: Any, problems: Sequence[ExactProblem], method: Method, size: Size
) -> Row:
    """Return the row of a value of a setting, with means over problems."""
    distances = [distance(exact, method, size) for exact in problems]
    means = np.mean(distances, axis=0)
    return {
        "setting": setting,
        "value": str(value),
        "distance": float(means[0]),
        "perfect": float(means[1]),
        "evaluations": float(means[2]),
    }


@dataclass(frozen=True)
class Polished(SplitGibbs):
    """Sweeps, then moves at any levels in turn.

    Args:
        move_levels: of the moves.
    """

    move_levels: tuple[float, ...] = POLISHING_LEVELS
    moves: int = NUM_MOVES

    def num_sweeps(self, prior: Any) -> int:
        return len(self.levels) + self.moves

    def draw(self, run: Any) -> torch.Tensor:
        x = super().draw(run)
        moves = NoiseDenoise(self.move_levels, self.moves)
        return moves.apply_moves(run, x, run.streams.fold_in(3 * len(self.levels)))


def levels(problems: Sequence[ExactProblem], size: Size) -> Iterator[Row]:
    """Yield a row of each last level of sweeps, and of each ladder of moves after sweeps."""
    for last in (0.05, 0.1, 0.2, 0.4):
        yield mean_row("last_level", last, problems, SplitGibbs(last_level=last), size)
    for ladder in (POLISHING_LEVELS, (3.0, 1.0, 0.4), (1.0,), (0.1,)):
        method = Polished(sweeps=Auto().sweeps, move_levels=ladder)
        yield mean_row("polishing levels", ladder, problems, method, size)


def look_ahead(problems: Sequence[ExactProblem], size: Size) -> Iterator[Row]:
    """Yield a row of each power of the likelihood that values states of `smc`."""
    for power in (0.0, 0.25, 0.5, 1.0):
        yield mean_row("look_ahead of smc", power, problems, SMC(look_ahead=power), size)


def sums(problems: Sequence[ExactProblem], size: Size) -> Iterator[Row]:
    """Yield rows of methods that measure sums of ever more of six counts."""
    toys = (smooth_prior(6, 3), rough_prior(6, 3))
    for counts_per_number in (3, 6):
        matrix = torch.eye(6).view(6 // counts_per_number, counts_per_number, 6).sum(1)
        problems = [ExactProblem("sums", toy, Matrix(matrix), Poisson(1.0)) for toy in toys]
        sweeps = SplitGibbs(sweeps=Auto().sweeps, polish=Auto().polish)
        for name, method in (("smc", SMC(particles=32)), ("sgdd and moves", sweeps)):
            yield mean_row(f"{counts_per_number} counts a number", name, problems, method, size)


TABLES = {"levels": levels, "look_ahead": look_ahead, "sums": sums}


def table(results: Mapping[str, Any]) -> str:
    """Return the distance to the exact posterior for each value of a setting."""
    lines = [
        "| setting | value | distance | of perfect draws | evaluations |",
        "|---|---|---|---|---|",
    ]
    for row in results["rows"]:
        distances = f"{row['distance']:.3f} | {row['perfect']:.3f}"
        lines.append(
            f"| {row['setting']} | {row['value']} | {distances} | {row['evaluations']:.0f} |"
        )
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> None:
    """Print the table, and write it as JSON."""
    parser = arguments(__doc__)
    parser.set_defaults(json=RESULTS, threads=1, device="cpu")
    parser.add_argument("--only", choices=TABLES, default=None, help="one of the tables")
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    size = Size(100, 20)
    problems = [exact for exact in exact_problems() if exact.name in PROBLEMS]
    if options.quick:
        if options.json == RESULTS:
            options.json = None
        size = Size(4, 2)
        problems = problems[:1]
    rows = []
    for name, make_rows in TABLES.items():
        if options.only not in (None, name):
            continue
        for row in make_rows(problems, size):
            print(row, flush=True)
            rows.append(row)
    arguments_given = sys.argv[1:] if argv is None else argv
    command = " ".join(["python -m benchmarks.posterior_constants", *arguments_given])
    report("settings of posterior samplers", rows, options, command=command)


if __name__ == "__main__":
    main()
