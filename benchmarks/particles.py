"""Errors of completed and steered samples; tables of the documentation.

    python -m benchmarks.particles [completion steering]

With exact denoisers: total variation between samples and the exact distribution, and that of as
many exact samples.
"""

from __future__ import annotations

import argparse
import math
import time
from typing import Any

import numpy as np
import torch

from blackout.diffusion.correctors import Correction, LevelCorrector
from blackout.diffusion.inpainting import KnownElements
from blackout.diffusion.kernels import Trapezoidal
from blackout.diffusion.particles import Particles, Steering, run_particles
from blackout.diffusion.processes import Absorbing, PureDeath, Uniform
from blackout.diffusion.sampling import SamplingPlan, run_sampler
from blackout.diffusion.schedules import logit_times
from blackout.random import SampleStreams
from blackout.verification.draws import ExactDenoiser, ExactJumpDenoiser, state_numbers
from blackout.verification.toys import (
    Array,
    JumpToy,
    generator_transitions,
    pixel_pair,
    total_variation,
)

DRAWS = 10_000


def distances(x: torch.Tensor, distribution: Array) -> str:
    """Return the total variation of samples [n, pixels] to a distribution, and of exact samples."""
    drawn = np.bincount(
        np.ravel_multi_index(tuple(x.long().numpy().T), (16,) * x.shape[1]),
        minlength=len(distribution),
    )
    n = len(x)
    rng = np.random.default_rng(0)
    floor = np.mean(
        [total_variation(rng.multinomial(n, distribution) / n, distribution) for _ in range(8)]
    )
    return f"{total_variation(drawn / n, distribution):.3f} ({floor:.3f})"


def completion(y: int, number: int, correctors: int = 0) -> str:
    """Return the error of the second pixel of the pair of `blackout.verification` given the first,
    y."""
    pair = pixel_pair()
    distribution = pair.p0.reshape(16, 16)[y] / pair.p0.reshape(16, 16)[y].sum()
    n = DRAWS if number < 64 else DRAWS // 2
    streams = SampleStreams(0, torch.arange(n))
    known = KnownElements(torch.full((1, 2), y, dtype=torch.uint8), torch.tensor([[True, False]]))
    plan = SamplingPlan(
        ExactDenoiser(pair),
        PureDeath(15),
        logit_times(25, 5.0, -7.0),
        Trapezoidal(),
        Correction(correctors, LevelCorrector()),
        torch.tensor(pair.mean),
        known,
    )
    if number == 1:
        return distances(run_sampler(plan, (n, 2), streams)[:, 1:], distribution)
    return distances(
        run_particles(plan, (n, 2), streams, Particles(number)).samples[:, 1:], distribution
    )


STEERED: dict[str, dict[str, Any]] = {
    "the prior's walks, weighed at the end, 32": {"number": 32, "every": 32},
    "classifier guidance": {"number": 1, "guided": True},
    "TDS, 4": {"number": 4, "guided": True},
    "FK, 16, 1 draw": {"number": 16, "every": 4},
    "FK, 16, 8 draws": {"number": 16, "every": 4, "draws": 8},
}


def steering(
    process: Uniform | Absorbing, strength: float, how: dict[str, Any]
) -> tuple[str, str, float]:
    """Return (distances, Z over its exact value, CPU s) of steered samples of two elements.

    The elements have four levels and Dirichlet(1) distributions; L = exp(-strength U) with U
    uniform for every state. The classifier of guided steps is exact.
    """
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(16))
    log_l = -strength * rng.random(16)
    z = float(p @ np.exp(log_l))
    matrices = generator_transitions(process.generator().numpy())
    toys = [
        JumpToy("", distribution.reshape(4, 4), matrices)
        for distribution in (p, p * np.exp(log_l) / z)
    ]

    def classifier(x: torch.Tensor, t: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        plain, given = (np.maximum(toy.marginal(float(t)), 1e-300) for toy in toys)
        return torch.from_numpy(np.log(z * given / plain))[
            torch.from_numpy(state_numbers(x, toys[0].size))
        ]

    def likelihood(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(log_l)[torch.from_numpy(state_numbers(x.long(), 4))]

    began = time.process_time()
    n = 4000
    steering = Steering(
        process, likelihood, classifier=classifier if how.get("guided") else None, **how
    )
    denoiser = ExactJumpDenoiser(toys[0], JumpToy.origin_pmf)
    streams = SampleStreams(0, torch.arange(n))
    plan = SamplingPlan(denoiser, process, logit_times(32, 5.0, -7.0))
    drawn = steering.run(plan, (n, 2), streams)
    spent = time.process_time() - began
    found = drawn.log_normaliser.exp() / z
    distribution = np.bincount(state_numbers(drawn.samples.long(), 4), minlength=16) / n
    floor = np.mean(
        [total_variation(rng.multinomial(n, toys[1].p0) / n, toys[1].p0) for _ in range(8)]
    )
    distance = f"{total_variation(distribution, toys[1].p0):.3f} ({floor:.3f})"
    return distance, f"{float(found.mean()):.3f} +- {float(found.std()) / math.sqrt(n):.3f}", spent


def steering_table() -> None:
    """Print one line per method."""
    cases: dict[str, tuple[Uniform | Absorbing, float]] = {
        "uniform": (Uniform(3), 4.0),
        "absorbing": (Absorbing(3), 4.0),
        "uniform, L sharper": (Uniform(3), 12.0),
    }
    print(
        "| walks of each sample | "
        + " | ".join(f"{name} | Z / exact | CPU s" for name in cases)
        + " |"
    )
    for name, how in STEERED.items():
        found = [steering(process, strength, how) for process, strength in cases.values()]
        print(
            f"| {name} | "
            + " | ".join(f"{one} | {z} | {spent:.1f}" for one, z, spent in found)
            + " |",
            flush=True,
        )


def completion_table() -> None:
    """Print one line per known count."""
    print(
        "| known pixel | overwritten | 4 correctors | 16 correctors "
        "| 4 particles | 16 particles | 64 particles |"
    )
    for y in (2, 5, 8, 12):
        cells = [completion(y, 1, steps) for steps in (0, 4, 16)] + [
            completion(y, number) for number in (4, 16, 64)
        ]
        print(f"| {y} | " + " | ".join(cells) + " |", flush=True)


TABLES = {"completion": completion_table, "steering": steering_table}


def main(argv: list[str] | None = None) -> None:
    """Print the tables as Markdown."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", nargs="*", metavar="|".join(TABLES))
    for table in parser.parse_args(argv).tables or TABLES:
        TABLES[table]()


if __name__ == "__main__":
    main()
