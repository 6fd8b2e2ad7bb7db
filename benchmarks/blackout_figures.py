"""Figures 1, 2, 4 and 5 of Santos et al. 2023: `python -m benchmarks.blackout_figures OUT`.

    figure1.png   an image under Gaussian diffusion (a) and blackout (b), each on its own scale
    figure5.png   the same on a common scale
    figure2.png   one element on 0..8, Gaussian (a) and pure death (b): distributions and paths
    figure4.png   the observation times t_k, on linear and logarithmic scales, and t = log 2

Nothing is trained. The image is a patch of `dataset=patches`. The Gaussian process is that of Ho et
al. 2020 with the cosine schedule, on counts with added uniform noise. Both processes have T = 1000
steps, and both reverse paths use the exact distribution of X_0, which the caption does not specify:
here two bumps, near 2 and 6. Tests compare the ends of reverse paths with it.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch

from blackout.data import patches
from blackout.diffusion import fisher_times
from blackout.diffusion.kernels import PosteriorBridge
from blackout.diffusion.processes import PureDeath
from blackout.diffusion.sampling import SamplingPlan, run_sampler
from blackout.random import SampleStreams
from blackout.verification.draws import ExactDenoiser
from blackout.verification.toys import Toy, thinning

matplotlib.use("Agg")
import matplotlib.pyplot as plt

Array = np.ndarray
STEPS = 1000
LARGEST = 8
LEVELS = np.arange(LARGEST + 1)
P0 = np.exp(-((LEVELS - 2) ** 2)) + 0.7 * np.exp(-((LEVELS - 6) ** 2))
P0 = P0 / P0.sum()


def signal_fractions(steps: int = STEPS) -> Array:
    """Return the product of 1 - beta up to every k, [T + 1]: the cosine schedule with beta at most
    0.999.

    References: Nichol and Dhariwal 2021, eq. 17.
    """
    f = np.cos((np.arange(steps + 1) / steps + 0.008) / 1.008 * math.pi / 2) ** 2
    return np.cumprod(np.append(1.0, np.clip(f[1:] / f[:-1], 0.001, None)))


def to_unit_interval(x: Array) -> Array:
    """Map counts with uniform noise on [0, M + 1] to [-1, 1]."""
    return 2 * x / (LARGEST + 1) - 1


def to_counts(z: Array) -> Array:
    """Invert `to_unit_interval`, without the mean of the uniform noise."""
    return (z + 1) * (LARGEST + 1) / 2 - 0.5


def gaussian_forward(number: int, rng: np.random.Generator) -> Array:
    """Return paths of the Markov chain, [T + 1, number], on the scale of counts."""
    alpha = signal_fractions()
    z = to_unit_interval(rng.choice(LARGEST + 1, number, p=P0) + rng.random(number))
    path = [z]
    for k in range(1, STEPS + 1):
        step = alpha[k] / alpha[k - 1]
        path.append(z := math.sqrt(step) * z + math.sqrt(1 - step) * rng.normal(size=number))
    return to_counts(np.stack(path))


# grid of z_0 over which its distribution, uniform on each of nine cells, is summed
_GRID = np.linspace(-1, 1, 361)[:-1] + 1 / 360


def gaussian_back(number: int, rng: np.random.Generator) -> Array:
    """Return ancestral paths with the exact distribution of z_0 given z_k, [T + 1, number].

    They run from the last state to the first.
    """
    alpha = signal_fractions()
    weight = P0[np.clip(((_GRID + 1) * (LARGEST + 1) / 2).astype(int), 0, LARGEST)]
    z = rng.normal(size=number)
    path = [z]
    for k in range(STEPS, 0, -1):
        log_p = -((z[:, None] - math.sqrt(alpha[k]) * _GRID) ** 2) / (2 * (1 - alpha[k]))
        p = weight * np.exp(log_p - log_p.max(1, keepdims=True))
        z0 = _GRID[(p.cumsum(1) < (rng.random(number) * p.sum(1))[:, None]).sum(1)]
        step = alpha[k] / alpha[k - 1]
        mean = math.sqrt(alpha[k - 1]) * (1 - step) * z0 + math.sqrt(step) * (1 - alpha[k - 1]) * z
        deviation = math.sqrt((1 - alpha[k - 1]) / (1 - alpha[k]) * (1 - step))
        path.append(z := mean / (1 - alpha[k]) + deviation * rng.normal(size=number))
    return to_counts(np.stack(path))


def death_forward(number: int, rng: np.random.Generator) -> Array:
    """Return paths at the observation times, [T + 1, number]."""
    times = fisher_times(STEPS).numpy()
    x = rng.choice(LARGEST + 1, number, p=P0)
    path = [x]
    for s, t in pairwise(times):
        path.append(x := rng.binomial(x, math.exp(s - t)))
    return np.stack(path)


def death_back(number: int, seed: int = 0) -> Array:
    """Return paths with the exact denoiser, [T + 1, number], from the last state to the first."""
    toy = Toy("two bumps on 0..8", P0)
    path = []
    run_sampler(
        SamplingPlan(
            ExactDenoiser(toy),
            PureDeath(LARGEST),
            fisher_times(STEPS),
            kernel=PosteriorBridge(),
            data_mean=torch.tensor(toy.mean),
        ),
        (number, 1),
        SampleStreams(seed, torch.arange(number)),
        callback=lambda k, x, prediction: path.append(x[:, 0].numpy().copy()),
    )
    return np.stack(path)


def gaussian_density(places: Array) -> Array:
    """Return the density of every z_k on the scale of counts, [T + 1, places]."""
    alpha = signal_fractions()[:, None, None]
    z = to_unit_interval(places + 0.5)[None, :, None]
    centres = to_unit_interval(LEVELS + 0.5)  # a cell by its middle and variance
    variance = 1 - alpha + alpha * (2 / (LARGEST + 1)) ** 2 / 12
    density = np.exp(-((z - np.sqrt(alpha) * centres) ** 2) / (2 * variance)) / np.sqrt(variance)
    return np.asarray((P0 * density).sum(-1))


def figure2(paths: int = 4) -> Any:
    """Plot distributions and paths, with a row per process and a column per direction."""
    rng = np.random.default_rng(0)
    figure = plt.figure(figsize=(11, 6))
    axes = figure.subplots(2, 2)
    places = np.linspace(-6, 14, 201)
    distribution = np.stack(
        [P0 @ thinning(LARGEST, math.exp(-t)) for t in fisher_times(STEPS).tolist()]
    )
    shown = (
        (
            "(a) Gaussian",
            gaussian_density(places),
            (-6, 14),
            gaussian_forward(paths, rng),
            gaussian_back(paths, rng),
        ),
        (
            "(b) pure death",
            distribution,
            (-0.5, LARGEST + 0.5),
            death_forward(paths, rng),
            death_back(paths),
        ),
    )
    for row, (name, density, ends, forward, back) in zip(axes, shown, strict=True):
        density = density / density.max(1, keepdims=True)
        for axis, heat, path, title in zip(
            row, (density, density[::-1]), (forward, back), ("k", "T - k"), strict=True
        ):
            axis.imshow(
                heat.T,
                aspect="auto",
                origin="lower",
                extent=(0, STEPS, *ends),
                cmap="Blues",
                vmax=1.5,
            )
            axis.plot(np.arange(len(path)), path, drawstyle="steps-post", linewidth=0.8)
            axis.set(title=name, xlabel=title, ylabel="state", ylim=ends)
    figure.tight_layout()
    return figure


def noise_image(steps: Sequence[int]) -> tuple[Array, Array]:
    """Return an image [32, 32, 3] at these steps, under Gaussian diffusion and blackout, [n, 32,
    32, 3]."""
    x0 = patches().test[:1]
    rng = np.random.default_rng(0)
    alpha = signal_fractions()
    z0 = 2 * x0.numpy()[0].transpose(1, 2, 0) / 255 - 1
    times = fisher_times(STEPS)
    gaussian = [
        math.sqrt(alpha[k]) * z0 + math.sqrt(1 - alpha[k]) * rng.normal(size=z0.shape)
        for k in steps
    ]
    streams = SampleStreams(0, torch.arange(1))
    dark = [
        PureDeath(255).sample(x0, times[k], streams.step(k))[0].permute(1, 2, 0).numpy()
        for k in steps
    ]
    return np.stack(gaussian), np.stack(dark)


def figure1(adjusted: bool) -> Any:
    """Plot the image under both processes, on a scale per state or a common one."""
    steps = (0, 200, 400, 500, 600, 700, 800, 1000)
    figure = plt.figure(figsize=(1.5 * len(steps), 3.2))
    for row, states, ends in zip(
        figure.subplots(2, len(steps)), noise_image(steps), ((-1, 1), (0, 255)), strict=True
    ):
        for axis, k, x in zip(row, steps, states, strict=True):
            low, high = (x.min(), max(x.max(), x.min() + 1e-9)) if adjusted else ends
            axis.imshow(np.clip((x - low) / (high - low), 0, 1))
            axis.set_title(f"k = {k}", fontsize=8)
            axis.set_axis_off()
    figure.tight_layout()
    return figure


def figure4() -> Any:
    """Plot the observation times."""
    times = fisher_times(STEPS).numpy()
    figure = plt.figure(figsize=(8, 3))
    for axis, scale in zip(figure.subplots(1, 2), ("linear", "log"), strict=True):
        axis.plot(np.arange(1, STEPS + 1), times[1:])
        axis.axhline(math.log(2), linestyle="--", color="grey")
        axis.set(xlabel="k", ylabel="t_k", yscale=scale)
    figure.tight_layout()
    return figure


def main(argv: list[str] | None = None) -> None:
    """Write all figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "out", type=Path, nargs="?", default=Path("results/blackout_figures"), help="a folder"
    )
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    figures = {
        "figure1": figure1(True),
        "figure2": figure2(),
        "figure4": figure4(),
        "figure5": figure1(False),
    }
    for name, figure in figures.items():
        figure.savefig(options.out / f"{name}.png", dpi=120)
        plt.close(figure)


if __name__ == "__main__":
    main()
