"""Posterior samplers against exact posteriors: `python -m benchmarks.posterior_accuracy`.

methods        total variation of `posterior=auto` and of each method it may choose, on twelve
               problems of three to five counts, at equal network evaluations a sample
growth         errors of marginals as the number of measured elements grows

Ranks of truths: `python -m benchmarks.calibration`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.exact_distributions import Chain, noise_of
from benchmarks.exact_posteriors import (
    exact_problems,
    floor_of_draws,
    grid_of_times,
    pooled_total_variation,
)
from benchmarks.measure import arguments, report
from blackout.diffusion.kernels import Trapezoidal
from blackout.diffusion.predictions import CountPrediction
from blackout.diffusion.processes import PureDeath
from blackout.posterior import (
    SMC,
    Auto,
    Direct,
    Identity,
    InverseProblem,
    Method,
    NoiseDenoise,
    Overwrite,
    Poisson,
    Prior,
    SplitGibbs,
)
from blackout.posterior.auto import conjugate_state
from blackout.posterior.noise_denoise import known_mask
from blackout.random import SampleStreams

Row = dict[str, Any]

NUM_EVALUATIONS = 800  # of the network, a sample
GROWTH_LENGTHS = (4, 8, 16, 32)  # of the chain
NUM_CHAIN_LEVELS = 4
NOISE_OF_DIFFERENCES = 0.01  # of two distances, about twice the scatter of perfect draws
# methods that every problem allows, in the order of the table
ALWAYS_POSSIBLE = ("perfect", "sgdd", "sgdd and moves", "smc", "smc and moves", "noise_denoise")
POLISH_SHARE = 0.4  # of the evaluations of a method with moves that its moves take


def methods(quick: bool) -> Iterator[Row]:
    """Total variation of pooled samples of 200 measurements of each problem, at equal evaluations.

    `auto takes` is the column of the method that `posterior=auto` chooses.
    """
    num_measurements, num_samples, budget = (4, 5, 100) if quick else (200, 20, NUM_EVALUATIONS)
    for exact in exact_problems():
        problem = exact.measure(exact.truths(num_measurements, 1), 2)
        posteriors = exact.posteriors(problem)
        prior = exact.prior()
        choice = name_of_choice(Auto().resolve(prior, problem))
        row: Row = {
            "problem": exact.name,
            "auto takes": choice,
            "perfect": floor_of_draws(posteriors, num_samples),
        }
        for name, method in equal_methods(prior, problem, budget).items():
            posterior = method.sample(prior, problem, num_measurements * num_samples)
            row[name] = pooled_total_variation(posterior.samples, posteriors, exact.toy.levels)
        print(row, flush=True)
        yield {column: row.get(column, "-") for column in COLUMNS}


def name_of_choice(method: Method) -> str:
    """Return the column of a method that `posterior=auto` has chosen."""
    if isinstance(method, Direct):
        return "direct"
    if isinstance(method, Overwrite):
        return "overwrite"
    if isinstance(method, SMC):
        return "smc and moves" if method.polish else "smc"
    return "sgdd and moves"


COLUMNS = (
    "problem",
    "auto takes",
    "perfect",
    "direct",
    "overwrite",
    "sgdd",
    "sgdd and moves",
    "smc",
    "smc and moves",
    "noise_denoise",
)


def equal_methods(prior: Prior, problem: InverseProblem, budget: int) -> Mapping[str, Method]:
    """Return methods with so many network evaluations a sample, as far as their settings allow."""
    moves = round(POLISH_SHARE * budget)

    def fit(make: Callable[[int], Method], limit: int) -> Method:
        return fit_evaluations(make, prior, problem, limit)

    chain = fit(lambda sweeps: SplitGibbs(sweeps=sweeps).resolve(prior, problem), budget - moves)
    particles = fit(SMC, budget - moves)
    num_moves = num_polishing_moves(prior, problem, moves)
    assert isinstance(chain, SplitGibbs) and isinstance(particles, SMC)
    methods: dict[str, Method] = {
        "sgdd": fit(lambda sweeps: SplitGibbs(sweeps=sweeps).resolve(prior, problem), budget),
        "sgdd and moves": SplitGibbs(sweeps=len(chain.levels), polish=num_moves).resolve(
            prior, problem
        ),
        "smc": fit(SMC, budget),
        "smc and moves": SMC(particles.particles, polish=num_moves),
        "noise_denoise": fit(
            lambda number: NoiseDenoise((), number).resolve(prior, problem), budget
        ),
    }
    if conjugate_state(prior.process, problem, prior.shape) is not None:
        methods["direct"] = Direct()
    if known_mask(prior, problem) is not None:
        methods["overwrite"] = fit(Overwrite, budget)
    return methods


def num_polishing_moves(prior: Prior, problem: InverseProblem, budget: int) -> int:
    """Return how many moves of `posterior.polish` take so many evaluations."""
    evaluations = count_evaluations(SMC(1, polish=8), prior, problem) - count_evaluations(
        SMC(1), prior, problem
    )
    return max(1, round(budget * 8 / evaluations))


def fit_evaluations(
    make: Callable[[int], Method], prior: Prior, problem: InverseProblem, budget: int
) -> Method:
    """Return the method with as many particles, sweeps or moves as the evaluations allow."""
    number = 8
    for _ in range(2):
        number = max(1, round(number * budget / count_evaluations(make(number), prior, problem)))
    return make(number)


def count_evaluations(method: Method, prior: Prior, problem: InverseProblem) -> float:
    """Return the network evaluations of a sample."""
    first_problem = problem.select(torch.zeros(1, dtype=torch.int64), prior.shape)
    return sum(
        sweep["network_evaluations"] for sweep in method.sample(prior, first_problem, 1).trace
    )


def growth(quick: bool) -> Iterator[Row]:
    """Errors of a Markov chain of counts, seen one by one through photons, as its length grows.

    The statistics are 1 for perfect draws: squared errors of the means of single elements, over
    their expectation for as many perfect draws; and the variance of samples over the exact one.
    """
    num_measurements, num_samples, budget = (2, 3, 100) if quick else (8, 12, NUM_EVALUATIONS)
    for length in (4,) if quick else GROWTH_LENGTHS:
        chain = chain_of_counts(length)
        process = PureDeath(NUM_CHAIN_LEVELS - 1)
        levels = torch.arange(NUM_CHAIN_LEVELS, dtype=torch.float64)
        truths = chain.draw(
            torch.ones(num_measurements, length, NUM_CHAIN_LEVELS, dtype=torch.float64)
        )
        noise = Poisson(1.0)
        y = noise.draw(truths.double(), SampleStreams(2, torch.arange(num_measurements)).step(0))
        problem = InverseProblem(Identity(), noise, y)
        likelihood = noise.log_prob(y[..., None], levels.expand(*y.shape, -1)).exp()
        exact = chain.marginals(likelihood)
        mean = exact @ levels
        variance = exact @ levels**2 - mean**2
        prior = Prior(
            ChainMeans(chain, process), process, (length,), Trapezoidal(), None, grid_of_times()
        )
        for name, method in equal_methods(prior, problem, budget).items():
            x = method.sample(prior, problem, num_measurements * num_samples).samples.double()
            x = x.view(num_samples, num_measurements, length)
            error = (num_samples * (x.mean(0) - mean) ** 2 / variance).mean()
            spread = (x.var(0) / variance).mean()
            print(f"{length} {name}: {float(error):.2f} {float(spread):.2f}", flush=True)
            yield {
                "measured": length,
                "method": name,
                "error of means": float(error),
                "variance": float(spread),
            }


def chain_of_counts(length: int) -> Chain:
    """Return a rough Markov chain: each of four counts is followed by few others."""
    rng = np.random.default_rng(0)
    weight = torch.from_numpy(rng.dirichlet(np.full(NUM_CHAIN_LEVELS, 0.5), NUM_CHAIN_LEVELS))
    return Chain(
        torch.full((NUM_CHAIN_LEVELS,), 1 / NUM_CHAIN_LEVELS, dtype=torch.float64), weight, length
    )


@dataclass(frozen=True)
class ChainMeans:
    """The exact denoiser of a Markov chain under pure death.

    Args:
        chain: p(x), normalised.
        process: forward.
    """

    chain: Chain
    process: PureDeath

    def __call__(self, xt: Tensor, t: Tensor) -> CountPrediction:
        """Return E[X_0 - X_t | X_t] of states [n, D]."""
        marginals = self.chain.marginals(noise_of(self.process, xt, t).double())
        levels = torch.arange(marginals.shape[-1], dtype=torch.float64)
        missing = (marginals @ levels - xt.double()).clamp(min=1e-30)
        return CountPrediction(missing, missing.log())


def table(results: Mapping[str, Any]) -> str:
    """Return the total variation of each method on each problem."""
    rows = results["rows"]
    names = [name for name in rows[0] if name not in ("problem", "auto takes")]
    lines = [
        f"| problem, prior | `auto` takes | {' | '.join(names)} |",
        "|---" * (2 + len(names)) + "|",
    ]
    for row in rows:
        values = ["" if row[name] == "-" else f"{row[name]:.3f}" for name in names]
        lines.append(f"| {row['problem']} | {row['auto takes']} | {' | '.join(values)} |")
    return "\n".join(lines)


def summary(results: Mapping[str, Any]) -> str:
    """Return means over problems of the results of `methods`, with a title.

    Methods are compared with what `auto` takes, by paired differences over problems.
    """
    rows = results["rows"]
    auto = np.array([row[row["auto takes"]] for row in rows])
    lines = [
        "| method | mean distance | minus `auto` | clearly better than `auto` on |",
        "|---|---|---|---|",
        f"| `auto` | {auto.mean():.3f} | | |",
    ]
    for method in ALWAYS_POSSIBLE:
        distances = np.array([row[method] for row in rows])
        differences = distances - auto
        mean_difference = differences.mean().round(3) + 0.0  # not -0
        error = differences.std(ddof=1) / math.sqrt(len(rows))
        better = [
            row["problem"]
            for row, difference in zip(rows, differences, strict=True)
            if difference < -NOISE_OF_DIFFERENCES and method != "perfect"
        ]
        lines.append(
            f"| {method} | {distances.mean():.3f} | {mean_difference:+.3f} ± {error:.3f} "
            f"| {'; '.join(better)} |"
        )
    title = (
        f"Total variation, mean over {len(rows)} problems; errors are over problems. Clearly: by "
        f"more than {NOISE_OF_DIFFERENCES:g}."
    )
    text = "\n".join(lines)
    return f"{title}\n\n{text}"


WHAT: dict[str, Callable[[bool], Iterator[Row]]] = {
    "methods": methods,
    "growth": growth,
}


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
