"""Estimates of p(known) when known elements of vectors are inpainted: `python -m
benchmarks.known_probability`.

The mean of exp(log_normaliser) of `sample.py inpaint=` estimates the probability of the known
elements, up to the error of the steps. Here it is compared with sums over all states of exact toys,
whose denoisers are exact. `worst` is the largest relative error among sets of known values, `mean`
the mean one, `noise` the largest standard error of an estimate. `distance` is the total variation
between the samples and the mean of the exact conditional distributions, `perfect` that of as many
exact draws.

The command writes benchmarks/results/known_probability.json.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.exact_posteriors import (
    floor_of_draws,
    pooled_total_variation,
    rough_prior,
    smooth_prior,
)
from benchmarks.measure import arguments, report
from blackout.data.count_statistics import covariance_excess, total_dispersion
from blackout.diffusion.draw import SHORT_VECTOR_INPAINTING, VECTOR_INPAINTING
from blackout.diffusion.grid_ends import add_grid_ends
from blackout.diffusion.inpainting import KnownElements
from blackout.diffusion.kernels import Trapezoidal
from blackout.diffusion.particles import Particles, run_particles
from blackout.diffusion.processes import PureDeath
from blackout.diffusion.sampling import SamplingPlan
from blackout.diffusion.time_grids import choose_logistic_times, logistic_times
from blackout.random import SampleStreams
from blackout.verification.draws import ExactDenoiser
from blackout.verification.toys import Toy

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "known_probability.json"
NUM_CASES = 4  # sets of known values of a toy, drawn from it
NUM_SAMPLES = 1500  # of each
NUM_STATISTICS_DRAWS = 10_000  # from which the ends of the grid follow, as from training data
SCHEDULE_FLOOR = 0.2  # of conf/schedule/counts.yaml
DEFAULTS = {
    (defaults["num_steps"], defaults["inpainting_particles"], 0.5)
    for defaults in (SHORT_VECTOR_INPAINTING, VECTOR_INPAINTING)
}
# steps, particles, look-ahead
SETTINGS = (
    (13, 4, 0.0),
    (13, 4, 0.5),
    (13, 4, 1.0),
    (13, 16, 0.5),
    (25, 4, 0.5),
    (50, 4, 0.5),
    (100, 4, 0.5),
)

# seeds
CASES_SEED = 1
STATISTICS_SEED = 2

Row = dict[str, Any]


def toys() -> list[tuple[Toy, int]]:
    """Return toys, and how many of their elements are known."""
    sparse = rough_prior(3, 8, seed=1)
    return [
        (Toy("rough, 4 counts to 3", rough_prior(4, 4).p0.reshape([4] * 4)), 2),
        (Toy("rough, 3 counts to 7", sparse.p0.reshape([8] * 3)), 1),
        (Toy("smooth, 4 counts to 3", smooth_prior(4, 4).p0.reshape([4] * 4)), 2),
    ]


def grid_of_model(toy: Toy, num_steps: int) -> Tensor:
    """Return the times that a model of such counts has by default, float64 [T + 1]."""
    rng = np.random.default_rng(STATISTICS_SEED)
    draws = toy.states[rng.choice(len(toy.p0), NUM_STATISTICS_DRAWS, p=toy.p0)]
    counts = torch.from_numpy(np.ascontiguousarray(draws))
    facts = {
        "total_dispersion": total_dispersion(counts),
        "covariance_excess": covariance_excess(counts),
        "max_count": toy.max_count,
        "mean": float(counts.double().mean()),
        "std": float(counts.double().std()),
    }
    names = ("first", "last", "location", "scale")
    settings = choose_logistic_times(dict.fromkeys(names), add_grid_ends(facts))
    return logistic_times(num_steps, floor=SCHEDULE_FLOOR, **settings)


def known_cases(toy: Toy, num_known: int, number: int) -> tuple[Tensor, np.ndarray, np.ndarray]:
    """Return data [number, D] whose first elements are known, p(known), and p(x | known).

    The probabilities are sums over all states: [number] and [number, S].
    """
    rng = np.random.default_rng(CASES_SEED)
    truths = toy.states[rng.choice(len(toy.p0), number, p=toy.p0)]
    agrees = (toy.states[None, :, :num_known] == truths[:, None, :num_known]).all(2)
    joint = agrees * toy.p0
    probability = joint.sum(1)
    data = torch.from_numpy(np.ascontiguousarray(truths))
    return data, probability, joint / probability[:, None]


def estimate(
    toy: Toy,
    num_known: int,
    num_steps: int,
    particles: Particles,
    num_cases: int,
    num_samples: int,
) -> Row:
    """Return errors of p(known), and of samples, for some steps and particles."""
    data, probability, conditionals = known_cases(toy, num_known, num_cases)
    x0 = data.repeat(num_samples, 1).to(torch.uint8)
    mask = (torch.arange(toy.elements) < num_known).expand(x0.shape)
    plan = SamplingPlan(
        ExactDenoiser(toy),
        PureDeath(toy.max_count),
        grid_of_model(toy, num_steps),
        Trapezoidal(),
        data_mean=torch.from_numpy(toy.mean),
        known_elements=KnownElements(x0, mask),
    )
    start = time.perf_counter()
    streams = SampleStreams(0, torch.arange(len(x0)))
    result = run_particles(plan, tuple(x0.shape), streams, particles)
    seconds = time.perf_counter() - start
    ratios = result.log_normaliser.exp().view(num_samples, num_cases).numpy() / probability
    errors = np.abs(ratios.mean(0) - 1)
    noise = ratios.std(0, ddof=1) / math.sqrt(num_samples)
    return {
        "toy": toy.name,
        "steps": num_steps,
        "particles": particles.number,
        "look-ahead": particles.look_ahead,
        "evaluations": particles.number * (2 * num_steps - 1),
        "worst": float(errors.max()),
        "noise": float(noise.max()),
        "mean": float(errors.mean()),
        "distance": pooled_total_variation(result.samples, conditionals, toy.levels),
        "perfect": floor_of_draws(conditionals, num_samples),
        "seconds": seconds,
    }


def rows_of(
    settings: Sequence[tuple[int, int, float]], num_cases: int, num_samples: int
) -> list[Row]:
    """Return a row of each toy, number of steps and number of particles."""
    rows = []
    for toy, num_known in toys():
        for num_steps, number, look_ahead in settings:
            particles = Particles(number, look_ahead=look_ahead)
            rows.append(estimate(toy, num_known, num_steps, particles, num_cases, num_samples))
            print(rows[-1], flush=True)
    return rows


def table(results: Mapping[str, Any]) -> str:
    """Return the largest error of p(known) over toys, of four particles, by number of steps."""
    rows = [row for row in results["rows"] if row["particles"] == 4 and row["look-ahead"] == 0.5]
    lines = ["| `sampler.num_steps` | largest error of p(known) |", "|---|---|"]
    for num_steps in sorted({row["steps"] for row in rows}):
        worst = max(row["worst"] for row in rows if row["steps"] == num_steps)
        lines.append(f"| {num_steps} | {worst:.0%} |")
    return "\n".join(lines)


def summary(results: Mapping[str, Any]) -> str:
    """Return the largest errors of p(known) over sets of known values, by steps and by prior."""
    rows = [row for row in results["rows"] if (row["particles"], row["look-ahead"]) == (4, 0.5)]
    lines = ["| steps | rough toys | smooth toys | noise |", "|---|---|---|---|"]
    for num_steps in sorted({row["steps"] for row in rows}):
        cells = [
            f"{max(_errors(rows, num_steps, 'worst', prior)) * 100:.1f} %"
            for prior in ("rough", "smooth")
        ]
        noise = max(_errors(rows, num_steps, "noise", ""))
        lines.append(f"| {num_steps} | {' | '.join(cells)} | {100 * noise:.1f} % |")
    text = "\n".join(lines)
    return f"Largest relative error of p(known), four particles.\n\n{text}"


def _errors(rows: Sequence[Row], num_steps: int, column: str, toy: str) -> list[float]:
    return [row[column] for row in rows if row["steps"] == num_steps and row["toy"].startswith(toy)]


def main(argv: list[str] | None = None) -> None:
    """Print the table, and write it as JSON."""
    parser = arguments(__doc__)
    parser.set_defaults(json=RESULTS, threads=1, device="cpu")
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    settings: Sequence[tuple[int, int, float]] = sorted({*DEFAULTS, *SETTINGS})
    num_cases = NUM_CASES
    num_samples = NUM_SAMPLES
    if options.quick:
        if options.json == RESULTS:
            options.json = None
        settings = ((3, 2, 0.5), (5, 2, 0.5))
        num_cases = 2
        num_samples = 10
    rows = rows_of(settings, num_cases, num_samples)
    arguments_given = sys.argv[1:] if argv is None else argv
    command = " ".join(["python -m benchmarks.known_probability", *arguments_given])
    report("p(known) of vectors", rows, options, command=command)


if __name__ == "__main__":
    main()
