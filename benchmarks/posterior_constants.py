"""What settings of posterior samplers do on exact posteriors: `python -m
benchmarks.posterior_constants`.

Every row is a value of one setting, with the others at their defaults. `distances` are the total
variations between the samples of 100 measurements, 20 of each, and the mean of the exact
posteriors, one for each problem; `distance` is their mean, and `perfect` that of as many exact
draws.

The command writes benchmarks/results/posterior_constants.json; `--only` replaces the rows of one
table.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from benchmarks.posterior_accuracy import (
    NUM_EVALUATIONS,
    fit_evaluations,
    num_polishing_moves,
)
from blackout.posterior import (
    SMC,
    Auto,
    InverseProblem,
    Matrix,
    Method,
    NoiseDenoise,
    Poisson,
    Prior,
    SplitGibbs,
)
from blackout.posterior.noise_denoise import POLISHING_LEVELS

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "posterior_constants.json"
PROBLEMS = (
    "thinning, rough",
    "sum of photons, rough",
    "blurred photons, smooth",
    "normal noise, rough",
)
NUM_MOVES = 20  # after sweeps, as of `posterior=auto`
NUM_COUNTS = 6  # of the toys whose sums are measured
SUM_LEVELS = 3  # of each of these counts

# default of each setting, as rows write it
DEFAULTS = {
    "first_level": "3.0",
    "last_level": "0.2",
    "levels of moves": str(POLISHING_LEVELS),
    "share of moves": "0.4",
    "look_ahead of smc": "0.5",
}
DEFAULT_METHOD = "sgdd and moves"  # of sums

Row = dict[str, Any]
Choose = Callable[[Prior, InverseProblem], Method]


@dataclass(frozen=True)
class Size:
    """How many measurements, and samples of each."""

    measurements: int
    samples: int


def distance(exact: ExactProblem, choose: Choose, size: Size) -> tuple[float, float, float]:
    """Return the distance of a method's samples, that of perfect ones, and evaluations."""
    problem = exact.measure(exact.truths(size.measurements, 1), 2)
    posteriors = exact.posteriors(problem)
    prior = exact.prior()
    method = choose(prior, problem).resolve(prior, problem)
    result = method.sample(prior, problem, size.measurements * size.samples)
    return (
        pooled_total_variation(result.samples, posteriors, exact.toy.levels),
        floor_of_draws(posteriors, size.samples),
        sum(sweep["network_evaluations"] for sweep in result.trace),
    )


def make_row(
    setting: str, value: Any, problems: Sequence[ExactProblem], method: Method | Choose, size: Size
) -> Row:
    """Return the row of a value of a setting, with means over problems."""

    def choose(prior: Prior, problem: InverseProblem) -> Method:
        return method if isinstance(method, Method) else method(prior, problem)

    results = np.array([distance(exact, choose, size) for exact in problems])
    means = results.mean(0)
    return {
        "setting": setting,
        "value": str(value),
        "distance": float(means[0]),
        "perfect": float(means[1]),
        "evaluations": float(means[2]),
        "distances": results[:, 0].tolist(),
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


def first_levels(problems: Sequence[ExactProblem], size: Size) -> Iterator[Row]:
    """Yield a row of each first level of the sweeps of `auto`."""
    for first in (1.0, 3.0, 6.0):
        method = SplitGibbs(sweeps=Auto().sweeps, polish=Auto().polish, first_level=first)
        yield make_row("first_level", first, problems, method, size)


def last_levels(problems: Sequence[ExactProblem], size: Size) -> Iterator[Row]:
    """Yield a row of each last level of sweeps, without moves after them."""
    for last in (0.1, 0.2, 0.4):
        yield make_row("last_level", last, problems, SplitGibbs(last_level=last), size)


def moves(problems: Sequence[ExactProblem], size: Size) -> Iterator[Row]:
    """Yield a row of each ladder of moves after sweeps."""
    for ladder in (POLISHING_LEVELS, (1.0,), (0.1,)):
        method = Polished(sweeps=Auto().sweeps, move_levels=ladder)
        yield make_row("levels of moves", ladder, problems, method, size)


def shares(problems: Sequence[ExactProblem], size: Size) -> Iterator[Row]:
    """Yield a row of each share of the network evaluations that moves have, the rest sweeps."""
    for share in (0.0, 0.2, 0.4, 0.7):

        def choose(prior: Prior, problem: InverseProblem, share: float = share) -> Method:
            def sweeps(number: int) -> Method:
                return SplitGibbs(sweeps=number).resolve(prior, problem)

            evaluations_of_moves = share * NUM_EVALUATIONS
            chain = fit_evaluations(
                sweeps, prior, problem, round(NUM_EVALUATIONS - evaluations_of_moves)
            )
            assert isinstance(chain, SplitGibbs)
            polish = 0
            if share:
                polish = num_polishing_moves(prior, problem, round(evaluations_of_moves))
            return SplitGibbs(sweeps=len(chain.levels), polish=polish)

        yield make_row("share of moves", share, problems, choose, size)


def look_ahead(problems: Sequence[ExactProblem], size: Size) -> Iterator[Row]:
    """Yield a row of each power of the likelihood that values states of `smc`."""
    for power in (0.0, 0.25, 0.5, 1.0):
        yield make_row("look_ahead of smc", power, problems, SMC(look_ahead=power), size)


def sums(problems: Sequence[ExactProblem], size: Size) -> Iterator[Row]:
    """Yield rows of methods that measure sums of ever more of six counts, at equal evaluations."""
    toys = [smooth_prior(NUM_COUNTS, SUM_LEVELS)]
    toys += [rough_prior(NUM_COUNTS, SUM_LEVELS, seed) for seed in (0, 1)]

    def particles(prior: Prior, problem: InverseProblem) -> Method:
        return fit_evaluations(SMC, prior, problem, NUM_EVALUATIONS)

    sweeps = SplitGibbs(sweeps=Auto().sweeps, polish=Auto().polish)
    for counts_per_number in (1, 3, 6):
        num_sums = NUM_COUNTS // counts_per_number
        matrix = torch.eye(NUM_COUNTS).view(num_sums, counts_per_number, NUM_COUNTS).sum(1)
        problems = [ExactProblem("sums", toy, Matrix(matrix), Poisson(1.0)) for toy in toys]
        alternatives: dict[str, Method | Choose] = {"smc": particles, DEFAULT_METHOD: sweeps}
        for name, method in alternatives.items():
            yield make_row(f"counts per number: {counts_per_number}", name, problems, method, size)


TABLES = {
    "first_levels": first_levels,
    "last_levels": last_levels,
    "moves": moves,
    "shares": shares,
    "look_ahead": look_ahead,
    "sums": sums,
}


def table(results: Mapping[str, Any]) -> str:
    """Return a line for each setting: the distance at its default, and how others differ from it.

    Differences have a standard error over problems.
    """
    lines = [
        "| setting | default: distance | others: difference to the default | perfect draws |",
        "|---|---|---|---|",
    ]
    for setting in dict.fromkeys(row["setting"] for row in results["rows"]):
        rows = [row for row in results["rows"] if row["setting"] == setting]
        default = next(row for row in rows if row["value"] == DEFAULTS.get(setting, DEFAULT_METHOD))
        cells = []
        for row in rows:
            if row is default:
                continue
            differences = np.subtract(row["distances"], default["distances"])
            error = differences.std(ddof=1) / math.sqrt(len(differences))
            mean = differences.mean().round(3) + 0.0  # not -0
            cells.append(f"{row['value']}: {mean:+.3f} ± {error:.3f}")
        lines.append(
            f"| {setting} | {default['value']}: {default['distance']:.3f} | {'; '.join(cells)} "
            f"| {default['perfect']:.3f} |"
        )
    return "\n".join(lines)


def stored_rows(path: Path | None, name: str) -> list[Row]:
    """Return the rows of a table in a file of results, if it exists."""
    if path is None or not path.exists():
        return []
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return [row for row in rows if row["table"] == name]


def main(argv: list[str] | None = None) -> None:
    """Print the rows, and write them as JSON."""
    parser = arguments(__doc__)
    parser.set_defaults(json=RESULTS, threads=1, device="cpu")
    parser.add_argument("--only", choices=TABLES, action="append", help="tables to compute again")
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    size = Size(100, 20)
    problems = [exact for exact in exact_problems() if exact.name in PROBLEMS]
    if options.quick:
        if options.json == RESULTS:
            options.json = None
        size = Size(4, 2)
        problems = problems[:2]
    rows: list[Row] = []
    for name, make_rows in TABLES.items():
        if options.only and name not in options.only:
            rows += stored_rows(options.json, name)
            continue
        for row in make_rows(problems, size):
            rows.append({"table": name, **row})
            print(rows[-1], flush=True)
    command = "python -m benchmarks.posterior_constants"  # rows of --only are the same
    report("settings of posterior samplers", rows, options, command=command)


if __name__ == "__main__":
    main()
