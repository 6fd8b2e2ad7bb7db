"""Simulation-based calibration of posterior samplers: `python -m benchmarks.calibration`.

Truths x are drawn from an exact prior, measurements y from p(y | x), and samples from p(x | y) by a
method. If the method is right, the rank of a statistic of x among those of the samples is uniform
[Talts 2018, theorem 1]. Chi-square tests compare the ranks of every count, of the total and of
log p(y | x) with the uniform distribution; counts have ties, which are broken at random. The
control `exact` draws from the enumerated posteriors.

The command writes benchmarks/results/calibration.json.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from benchmarks.exact_posteriors import ExactProblem, exact_problems
from benchmarks.measure import arguments, report
from blackout.posterior import SMC, Auto, Direct, InverseProblem, Method, SplitGibbs
from blackout.posterior.auto import conjugate_state
from blackout.posterior.diagnostics import coverage, normalised_ranks

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "calibration.json"

NUM_TRUTHS = 400
NUM_HIDDEN_TRUTHS = 200  # with hidden elements, where `auto` has 64 particles of 80 steps
TRUTHS_PER_BATCH = 100  # sampled together, 19 samples and up to 64 particles of each
NUM_SAMPLES = 19  # of each measurement; ranks are 0 to 19
NUM_BINS = 10  # of the ranks, two ranks each
SIGNIFICANCE = 0.001  # p-values below it are marked in the table
METHODS = ("exact", "auto", "direct", "sgdd", "smc")

# seeds
TRUTHS_SEED = 3
MEASUREMENTS_SEED = 4
SAMPLES_SEED = 5
TIES_SEED = 6

Row = dict[str, Any]


def rank_p_values(ranks: Mapping[str, np.ndarray], num_bins: int = NUM_BINS) -> dict[str, float]:
    """Return the p-value of a chi-square test of uniform ranks [M] for every statistic."""
    p_values = {}
    for name, values in ranks.items():
        counts = np.histogram(values, num_bins, (0, 1))[0]
        p_values[name] = float(f"{stats.chisquare(counts).pvalue:.3g}")
    return p_values


def ranks_of_truths(
    truths: np.ndarray,
    log_likelihood_of_truths: np.ndarray,
    samples: np.ndarray,
    log_likelihood: np.ndarray,
) -> dict[str, np.ndarray]:
    """Return ranks in (0, 1), [M] each, of every count, of the total and of log p(y | x).

    Args:
        truths: [M, D].
        log_likelihood_of_truths: [M].
        samples: [S, M, D], S of every measurement.
        log_likelihood: of the samples, [S, M].
    """
    rng = np.random.default_rng(TIES_SEED)
    ranks = {}
    for element in range(truths.shape[1]):
        ranks[f"count {element}"] = normalised_ranks(samples[..., element], truths[:, element], rng)
    ranks["total"] = normalised_ranks(samples.sum(-1), truths.sum(-1), rng)
    # sums of floating-point terms of equal data may differ by rounding
    ranks["log-likelihood"] = normalised_ranks(
        log_likelihood.round(9), log_likelihood_of_truths.round(9), rng
    )
    return ranks


def exact_draws(
    exact: ExactProblem, problem: InverseProblem, num_samples: int, seed: int
) -> Tensor:
    """Draw from the enumerated posterior of every measurement, int64 [S M, D]."""
    rng = np.random.default_rng(seed)
    posteriors = exact.posteriors(problem)
    columns = [rng.choice(len(p), num_samples, p=p) for p in posteriors]
    return exact.states[np.stack(columns, 1).ravel()]


def draw_posterior(
    method: Method, exact: ExactProblem, problem: InverseProblem, num_samples: int
) -> tuple[Tensor, float]:
    """Return samples [S M, D], sample s of measurement m in row s M + m, and their evaluations."""
    prior = exact.prior()
    batches = []
    evaluations = 0.0
    for batch, y in enumerate(problem.measurement.split(TRUTHS_PER_BATCH)):
        part = InverseProblem(problem.operator, problem.noise, y)
        result = method.sample(prior, part, len(y) * num_samples, SAMPLES_SEED + batch)
        evaluations = sum(sweep["network_evaluations"] for sweep in result.trace)
        batches.append(result.samples.view(num_samples, len(y), -1))
    return torch.cat(batches, 1).flatten(0, 1), evaluations


def calibrate(
    exact: ExactProblem, problem: InverseProblem, truths: Tensor, samples: Tensor
) -> tuple[dict[str, float], float]:
    """Return p-values of all statistics, and the coverage of central 90 % intervals of counts.

    Args:
        exact: the problem with its prior.
        problem: one measurement of each truth.
        truths: int64 [M, D].
        samples: [S M, D], sample s of measurement m in row s M + m.
    """
    num_truths = len(truths)
    log_likelihood = problem.log_likelihood(samples.double()).view(-1, num_truths).numpy()
    of_truths = problem.log_likelihood(truths.double()).numpy()
    x = samples.long().view(-1, *truths.shape).numpy()
    ranks = ranks_of_truths(truths.numpy(), of_truths, x, log_likelihood)
    counts = np.stack([values for name, values in ranks.items() if name.startswith("count")])
    return rank_p_values(ranks), coverage(counts, 0.9)


def calibration_rows(
    problems: Iterable[ExactProblem], num_truths: int, num_samples: int
) -> list[Row]:
    """Return a row for each problem and method, all at their defaults."""
    rows = []
    for exact in problems:
        number = num_truths
        if exact.kind == "hidden elements":
            number = min(num_truths, NUM_HIDDEN_TRUTHS)
        truths = exact.truths(number, TRUTHS_SEED)
        problem = exact.measure(truths, MEASUREMENTS_SEED)
        prior = exact.prior()
        methods: dict[str, Method | None] = {"exact": None, "auto": Auto()}
        if conjugate_state(prior.process, problem, prior.shape) is not None:
            methods["direct"] = Direct()
        methods["sgdd"] = SplitGibbs()
        methods["smc"] = SMC()
        for name, method in methods.items():
            start = time.perf_counter()
            evaluations = 0.0
            if method is None:
                samples = exact_draws(exact, problem, num_samples, SAMPLES_SEED)
            else:
                resolved = method.resolve(prior, problem)
                samples, evaluations = draw_posterior(resolved, exact, problem, num_samples)
            p_values, covered = calibrate(exact, problem, truths, samples)
            worst = min(p_values, key=lambda statistic: p_values[statistic])
            rows.append({
                "problem": exact.name,
                "method": name,
                "truths": number,
                "samples": num_samples,
                "p": min(1.0, len(p_values) * p_values[worst]),
                "worst statistic": worst,
                "coverage 90": covered,
                "network evaluations": evaluations,
                "seconds": time.perf_counter() - start,
                "p_values": p_values,
            })  # fmt: skip
            print({key: value for key, value in rows[-1].items() if key != "p_values"}, flush=True)
    return rows


def format_p(value: float) -> str:
    """Return a p-value for the table; bold if it is significant."""
    if value >= SIGNIFICANCE:
        return f"{value:.2g}" if value < 0.1 else f"{value:.2f}"
    exponent = math.floor(math.log10(value)) if value > 0 else -300
    return f"**< 1e{exponent + 1}**" if exponent > -300 else "**0**"


def table(results: Mapping[str, Any]) -> str:
    """Return the p-values: a line for each problem, a column for each method."""
    rows = results["rows"]
    problems = list(dict.fromkeys(row["problem"] for row in rows))
    cells = {(row["problem"], row["method"]): row for row in rows}
    lines = [f"| problem, prior | {' | '.join(METHODS)} |", "|---" * (1 + len(METHODS)) + "|"]
    for problem in problems:
        line = [problem]
        for method in METHODS:
            row = cells.get((problem, method))
            line.append("" if row is None else format_p(row["p"]))
        lines.append(f"| {' | '.join(line)} |")
    return "\n".join(lines)


def summary(results: Mapping[str, Any]) -> str:
    """Return a line for each method over all problems, with a title."""
    rows = results["rows"]
    lines = [
        "| method | problems | not calibrated (p < 0.001) | smallest p | 90 % intervals hold |",
        "|---|---|---|---|---|",
    ]
    for method in METHODS:
        cells = [row for row in rows if row["method"] == method]
        failed = [row["problem"] for row in cells if row["p"] < SIGNIFICANCE]
        covered = [row["coverage 90"] for row in cells]
        smallest = min(row["p"] for row in cells)
        lines.append(
            f"| {method} | {len(cells)} | {'; '.join(failed) or 'none'} | {format_p(smallest)} "
            f"| {100 * min(covered):.0f} to {100 * max(covered):.0f} % |"
        )
    text = "\n".join(lines)
    return f"Ranks of truths among 19 samples.\n\n{text}"


def main(argv: list[str] | None = None) -> None:
    """Compute all rows, and write the results unless `--quick` is given."""
    parser = arguments(__doc__)
    parser.set_defaults(json=RESULTS, threads=1, device="cpu")
    parser.add_argument("--truths", type=int, default=NUM_TRUTHS)
    parser.add_argument("--samples", type=int, default=NUM_SAMPLES, help="of each measurement")
    options = parser.parse_args(argv)
    if options.quick:
        if options.json == RESULTS:
            options.json = None
        options.truths = 20
        options.samples = 4
    torch.set_num_threads(options.threads)
    start = time.perf_counter()
    rows = calibration_rows(exact_problems(), options.truths, options.samples)
    arguments_given = sys.argv[1:] if argv is None else argv
    command = " ".join(["python -m benchmarks.calibration", *arguments_given])
    seconds = round(time.perf_counter() - start)
    report("simulation-based calibration", rows, options, command=command, seconds=seconds)


if __name__ == "__main__":
    main()
