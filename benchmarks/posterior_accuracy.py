"""Posterior samplers against exact posteriors: `python -m benchmarks.posterior_accuracy --json FILE`.

`methods`: total variation of `posterior=auto` and of each method it may choose, on twelve problems of three to five
counts, at the same number of network evaluations a sample; `growth`: errors of marginals as the number of measured
elements grows; `calibration`: ranks of truths among samples, with p-values; `flags`: how often a warning is given where
nothing is wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from benchmarks.exact_posteriors import (
    ExactProblem,
    exact_problems,
    floor_of_draws,
    mean_total_variation,
)
from benchmarks.measure import arguments, report
from blackout.posterior import (
    SMC,
    Auto,
    Direct,
    InverseProblem,
    Method,
    NoiseDenoise,
    Overwrite,
    Prior,
    SplitGibbs,
)
from blackout.posterior.auto import conjugate_state
from blackout.posterior.noise_denoise import known_mask

Row = dict[str, Any]

NUM_EVALUATIONS = 800  # of the network, a sample
POLISH_SHARE = 0.4  # of the evaluations of a method with moves that its moves take


def methods(quick: bool) -> Iterator[Row]:
    """Total variation on the twelve problems, mean over measurements, at equal evaluations."""
    num_measurements, num_samples, budget = (1, 20, 100) if quick else (4, 1000, NUM_EVALUATIONS)
    for exact in exact_problems():
        problem = exact.measure(exact.truths(num_measurements, 1), 2)
        posteriors = exact.posteriors(problem)
        prior = exact.prior()
        row: Row = {"problem": exact.name, "perfect": floor_of_draws(posteriors, num_samples)}
        auto = Auto().resolve(prior, problem)
        for name, method in {"auto": auto, **equal_methods(prior, problem, budget)}.items():
            began = time.process_time()
            found = method.sample(prior, problem, num_measurements * num_samples)
            row[name] = mean_total_variation(found.samples, posteriors, exact.toy.levels)
            if name == "auto":
                row["auto NFE"] = sum(sweep["network_evaluations"] for sweep in found.trace)
            print(f"{exact.name}: {name} {row[name]:.4f}, {time.process_time() - began:.1f} s", flush=True)
        yield {column: row.get(column, "-") for column in COLUMNS}


COLUMNS = (
    "problem", "perfect", "auto", "auto NFE", "direct", "overwrite", "sgdd", "sgdd and moves", "smc", "smc and moves",
    "noise_denoise",
)  # fmt: skip


def equal_methods(prior: Prior, problem: InverseProblem, budget: int) -> Mapping[str, Method]:
    """Return methods with so many network evaluations a sample, as far as their settings allow."""
    moves = round(POLISH_SHARE * budget)

    def fit(make: Callable[[int], Method], limit: int) -> Method:
        return fit_evaluations(make, prior, problem, limit)

    chain = fit(lambda sweeps: SplitGibbs(sweeps=sweeps).resolve(prior, problem), budget - moves)
    particles = fit(SMC, budget - moves)
    num_moves = num_polishing_moves(prior, problem, moves)
    assert isinstance(chain, SplitGibbs) and isinstance(particles, SMC)
    found: dict[str, Method] = {
        "sgdd": fit(lambda sweeps: SplitGibbs(sweeps=sweeps).resolve(prior, problem), budget),
        "sgdd and moves": SplitGibbs(sweeps=len(chain.levels), polish=num_moves).resolve(prior, problem),
        "smc": fit(SMC, budget),
        "smc and moves": SMC(particles.particles, polish=num_moves),
        "noise_denoise": fit(lambda number: NoiseDenoise((), number).resolve(prior, problem), budget),
    }
    if conjugate_state(prior.process, problem, prior.shape) is not None:
        found["direct"] = Direct()
    if known_mask(prior, problem) is not None:
        found["overwrite"] = fit(Overwrite, budget)
    return found


def num_polishing_moves(prior: Prior, problem: InverseProblem, budget: int) -> int:
    """Return how many moves of `posterior.polish` take so many evaluations."""
    evaluations = count_evaluations(SMC(1, polish=8), prior, problem) - count_evaluations(SMC(1), prior, problem)
    return max(1, round(budget * 8 / evaluations))


def fit_evaluations(make: Callable[[int], Method], prior: Prior, problem: InverseProblem, budget: int) -> Method:
    """Return the method with the number of particles, sweeps or moves whose evaluations are nearest to a budget."""
    number = 8
    for _ in range(3):
        number = max(1, round(number * budget / count_evaluations(make(number), prior, problem)))
    return make(number)


def count_evaluations(method: Method, prior: Prior, problem: InverseProblem) -> float:
    """Return the network evaluations of a sample."""
    num_measurements = len(problem.measurement)
    found = method.sample(prior, problem, num_measurements)
    return sum(sweep["network_evaluations"] for sweep in found.trace)


WHAT: dict[str, Callable[[bool], Iterator[Row]]] = {"methods": methods}


def main(argv: list[str] | None = None) -> None:
    """Print one table, and write it as JSON if asked for."""
    parser = arguments(__doc__)
    parser.add_argument("--what", choices=WHAT, default="methods")
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    rows = list(WHAT[options.what](options.quick))
    report(f"posterior accuracy, {options.what}", rows, options)


if __name__ == "__main__":
    main()
