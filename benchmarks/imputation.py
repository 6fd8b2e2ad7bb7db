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


def by_run(run: Path, how: str) -> tuple[str, Callable[[Array, Array, int], Array]]:
    """Return a name with the number of evaluations, and draws [n, draws, D]."""
    model: Any = load_model(run)
    sampler = model.sampler
    if how:
        steps, particles = map(int, how.split(","))
        sampler = replace(sampler, num_steps=steps, inpainting_particles=particles)
    particles = particles_per_sample(sampler, model.process, True)
    evaluations = evaluations_per_sample(model, sampler, with_known=True)
    name = (
        f"{run.name}, {sampler.num_steps} steps, {particles} particles: {evaluations} evaluations"
    )

    def draw(x: Array, known: Array, number: int) -> Array:
        rows = [torch.from_numpy(of).repeat_interleave(number, 0) for of in (x, known)]
        given = KnownElements(rows[0].view(-1, *model.shape), rows[1].view(-1, *model.shape))
        batches = model.batches(
            torch.arange(len(rows[0])), 0, sampler=sampler, conditions=Conditions(known=given)
        )
        made = [of["samples"] for _, of in batches]
        return torch.cat(made).flatten(1).view(len(x), number, -1).numpy()

    return name, draw


def mixture(train: Array) -> Callable[[Array, Array, int], Array]:
    """Draw hidden entries given the known ones, from the best number of components."""
    held = np.arange(len(train)) % 10 == 0
    tried = {
        k: Mixture(train[~held], k).bits(train[held]) for k in COMPONENTS if k < len(train) / 4
    }
    fitted = Mixture(train, min(tried, key=tried.__getitem__))

    def draw(x: Array, known: Array, number: int) -> Array:
        random = np.random.default_rng(0)
        shape = fitted.shape
        seen = fitted.mean[:, None] / (fitted.mean[:, None] + shape)
        each = gammaln(x + shape) - gammaln(shape) + x * np.log(seen) + shape * np.log1p(-seen)
        joint = np.log(fitted.weight)[:, None] + (each * known).sum(2)
        share = np.exp(joint - joint.max(0))
        share /= share.sum(0)
        chosen = np.stack([random.choice(len(share), number, p=of) for of in share.T])
        return np.asarray(random.poisson(random.gamma(shape, fitted.mean[chosen] / shape)))

    return draw


def neighbours(train: Array, nearest: int) -> Callable[[Array, Array, int], Array]:
    """Draw values of the nearest training samples with repetition, or of all samples."""

    def draw(x: Array, known: Array, number: int) -> Array:
        random = np.random.default_rng(0)
        log = np.log1p(train)
        made = np.empty((len(x), number, x.shape[1]), dtype=np.int64)
        for k in range(len(x)):
            away = np.square(log[:, known[k]] - np.log1p(x[k, known[k]])).sum(1)
            made[k] = train[random.choice(np.argsort(away)[:nearest], number)]
        return made

    return draw


def row(name: str, made: Array, x: Array, known: Array, seconds: float) -> str:
    """Return a line of the table."""
    random = np.random.default_rng(1)
    # [hidden], [hidden, draws]
    truth = x[~known]
    drawn = np.moveaxis(made, 1, 2)[~known]
    below = (drawn < truth[:, None]).sum(1)
    equal = (drawn == truth[:, None]).sum(1)
    rank = (below + random.random(len(truth)) * (equal + 1)) / (drawn.shape[1] + 1)
    log = np.log1p(np.sort(drawn, 1))
    told = np.log1p(truth)
    number = drawn.shape[1]
    # E|X - X'| / 2
    spread = ((2 * np.arange(1, number + 1) - number - 1) * log).sum(1) / (number * (number - 1))
    score = np.abs(log - told[:, None]).mean(1) - spread
    cells = [
        f"{seconds:.0f}",
        f"{np.mean((rank > 0.05) & (rank < 0.95)):.3f}",
        f"{rank.mean():.3f}",
    ]
    return (
        f"| {name} | "
        + " | ".join(
            [*cells, f"{np.abs(np.median(log, 1) - told).mean():.3f}", f"{score.mean():.3f}"]
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
        "--how", nargs="*", default=[""], help="STEPS,PARTICLES; without any, the run's own"
    )
    parser.add_argument("--samples", type=int, default=50)
    parser.add_argument("--draws", type=int, default=32)
    given = parser.parse_args(argv)
    data = counts(given.file)
    train = flat(data.train)
    x = flat(data.test)[: given.samples]
    known = np.random.default_rng(0).random(x.shape) >= _HIDDEN
    rivals = {"mixture": mixture(train), "neighbours": neighbours(train, _NEAREST)}
    rivals["elements"] = neighbours(train, len(train))
    print("| method | CPU s | in nine tenths | rank | error | ranked score |")
    print("|---|---|---|---|---|---|")
    for name, draw in rivals.items():
        began = time.process_time()
        print(
            row(name, draw(x, known, given.draws), x, known, time.process_time() - began),
            flush=True,
        )
    for how in given.how:
        began = time.process_time()
        name, draw = by_run(given.run, how)
        print(
            row(name, draw(x, known, given.draws), x, known, time.process_time() - began),
            flush=True,
        )


if __name__ == "__main__":
    main()
