"""Hidden entries of test samples are imputed: `python -m benchmarks.imputation counts.npz --run
RUN`.

A fifth of the entries of every sample are hidden at random. The columns are

- network evaluations of a draw;
- CPU seconds of all draws;
- the fraction of hidden entries in the central nine tenths of the draws, with ties broken at random
  (0.90 for correct draws);
- the mean fraction of draws below the truth (0.5 for correct draws);
- the mean absolute error of medians, and the continuous ranked probability score, of log(1 +
  counts).

Methods:

    run        `inpaint`, with the sampler's steps and particles: STEPS,PARTICLES
    mixture    independent negative binomial counts, conditioned exactly
    neighbours training samples nearest in the known entries, in logarithms
    elements   training values of the element, independent of the sample
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import gammaln

from benchmarks.count_baselines import COMPONENTS, Mixture, flat
from blackout import load_model
from blackout.data import counts
from blackout.diffusion.conditions import Conditions
from blackout.diffusion.evaluations import evaluations_per_sample
from blackout.diffusion.inpainting import KnownElements
from blackout.diffusion.particles import particles_per_sample

Array = npt.NDArray[Any]
_HIDDEN = 0.2
_NEAREST = 32


def by_run(run: Path, settings: str) -> tuple[str, Callable[[Array, Array, int], Array]]:
    """Return a name with the number of evaluations, and draws [n, draws, D]."""
    model: Any = load_model(run)
    sampler = model.sampler
    if settings:
        steps, particles = map(int, settings.split(","))
        sampler = replace(sampler, num_steps=steps, inpainting_particles=particles)
    particles = particles_per_sample(sampler, model.process, True)
    evaluations = evaluations_per_sample(model, sampler, with_known_elements=True)
    name = (
        f"{run.name}, {sampler.num_steps} steps, {particles} particles: {evaluations} evaluations"
    )

    def draw(x: Array, is_known: Array, number: int) -> Array:
        rows = [torch.from_numpy(values).repeat_interleave(number, 0) for values in (x, is_known)]
        known_elements = KnownElements(
            rows[0].view(-1, *model.shape), rows[1].view(-1, *model.shape)
        )
        batches = model.batches(
            torch.arange(len(rows[0])),
            0,
            sampler=sampler,
            conditions=Conditions(known_elements=known_elements),
        )
        draws = [values["samples"] for _, values in batches]
        return torch.cat(draws).flatten(1).view(len(x), number, -1).numpy()

    return name, draw


def mixture(train: Array) -> Callable[[Array, Array, int], Array]:
    """Draw hidden entries given the known ones, from the best number of components."""
    held = np.arange(len(train)) % 10 == 0
    bits = {k: Mixture(train[~held], k).bits(train[held]) for k in COMPONENTS if k < len(train) / 4}
    fitted = Mixture(train, min(bits, key=bits.__getitem__))

    def draw(x: Array, is_known: Array, number: int) -> Array:
        random = np.random.default_rng(0)
        shape = fitted.shape
        p = fitted.mean[:, None] / (fitted.mean[:, None] + shape)
        log_terms = gammaln(x + shape) - gammaln(shape) + x * np.log(p) + shape * np.log1p(-p)
        joint = np.log(fitted.weight)[:, None] + (log_terms * is_known).sum(2)
        share = np.exp(joint - joint.max(0))
        share /= share.sum(0)
        chosen = np.stack([random.choice(len(share), number, p=weights) for weights in share.T])
        return np.asarray(random.poisson(random.gamma(shape, fitted.mean[chosen] / shape)))

    return draw


def neighbours(train: Array, nearest: int) -> Callable[[Array, Array, int], Array]:
    """Draw values of the nearest training samples with repetition, or of all samples."""

    def draw(x: Array, is_known: Array, number: int) -> Array:
        random = np.random.default_rng(0)
        log = np.log1p(train)
        draws = np.empty((len(x), number, x.shape[1]), dtype=np.int64)
        for k in range(len(x)):
            distances = np.square(log[:, is_known[k]] - np.log1p(x[k, is_known[k]])).sum(1)
            draws[k] = train[random.choice(np.argsort(distances)[:nearest], number)]
        return draws

    return draw


def row(name: str, draws: Array, x: Array, is_known: Array, seconds: float) -> str:
    """Return a line of the table."""
    random = np.random.default_rng(1)
    # [hidden], [hidden, draws]
    truth = x[~is_known]
    hidden_draws = np.moveaxis(draws, 1, 2)[~is_known]
    below = (hidden_draws < truth[:, None]).sum(1)
    equal = (hidden_draws == truth[:, None]).sum(1)
    rank = (below + random.random(len(truth)) * (equal + 1)) / (hidden_draws.shape[1] + 1)
    log = np.log1p(np.sort(hidden_draws, 1))
    log_truth = np.log1p(truth)
    number = hidden_draws.shape[1]
    # E|X - X'| / 2
    spread = ((2 * np.arange(1, number + 1) - number - 1) * log).sum(1) / (number * (number - 1))
    score = np.abs(log - log_truth[:, None]).mean(1) - spread
    cells = [
        f"{seconds:.0f}",
        f"{np.mean((rank > 0.05) & (rank < 0.95)):.3f}",
        f"{rank.mean():.3f}",
    ]
    return (
        f"| {name} | "
        + " | ".join(
            [*cells, f"{np.abs(np.median(log, 1) - log_truth).mean():.3f}", f"{score.mean():.3f}"]
        )
        + " |"
    )


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="of counts, as for dataset.path")
    parser.add_argument("--run", type=Path, required=True, help="trained on the file")
    parser.add_argument(
        "--samplers", nargs="*", default=[""], help="STEPS,PARTICLES; without any, the run's own"
    )
    parser.add_argument("--samples", type=int, default=50)
    parser.add_argument("--draws", type=int, default=32)
    options = parser.parse_args(argv)
    data = counts(options.file)
    train = flat(data.train)
    x = flat(data.test)[: options.samples]
    is_known = np.random.default_rng(0).random(x.shape) >= _HIDDEN
    baselines = {"mixture": mixture(train), "neighbours": neighbours(train, _NEAREST)}
    baselines["elements"] = neighbours(train, len(train))
    print("| method | CPU s | in nine tenths | rank | error | ranked score |")
    print("|---|---|---|---|---|---|")
    for name, draw in baselines.items():
        start = time.process_time()
        print(
            row(name, draw(x, is_known, options.draws), x, is_known, time.process_time() - start),
            flush=True,
        )
    for settings in options.samplers:
        start = time.process_time()
        name, draw = by_run(options.run, settings)
        print(
            row(name, draw(x, is_known, options.draws), x, is_known, time.process_time() - start),
            flush=True,
        )


if __name__ == "__main__":
    main()
