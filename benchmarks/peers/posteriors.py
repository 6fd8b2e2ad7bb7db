"""Coverage of posterior intervals on test digits: `python -m benchmarks.peers.posteriors`.

Three measurements: the left half of the pixels; photons in sums of 2x2 pixels; 30 % of the counts
of every pixel. A model of this project (`--model`, or one that is trained for `--seconds`) draws
from the posterior of every test digit by `posterior=auto`. The other method is importance sampling
over training digits, with weights p(y | x); half of the pixels, which no training digit has
exactly, are weighted by normal errors of one count.

Intervals are those of ranks: the truth has a uniform rank among draws from the right posterior,
with ties broken at random. `within` says whether every coverage is within two standard errors of
its level; the errors treat digits, not pixels, as independent. CRPS (continuous ranked probability
score, smaller is better) is that of the draws, without bias by their number.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks.peers.budget import Budget, train
from benchmarks.peers.comparison import images_of
from benchmarks.peers.generators import Blackout
from benchmarks.peers.results import Row, make_parser, parse, write_results
from blackout import load_model
from blackout.data import digits
from blackout.posterior import (
    Auto,
    Binomial,
    Gaussian,
    Identity,
    Inpaint,
    InverseProblem,
    Noise,
    Operator,
    Pool,
)
from blackout.posterior.draw import make_prior
from blackout.random import SampleStreams

LEVELS = (0.8, 0.9)
SURVIVAL = 0.3  # share of the counts that thinning leaves
MATCH_ERROR = 1.0  # counts; of observed pixels, in importance sampling
MEASUREMENT_SEED = 5
BUDGET = {"lr": 3e-3, "betas": (0.9, 0.99)}  # conf/recipe/blackout/digits.yaml
Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Task:
    """A measurement.

    Args:
        name: of it.
        operator: what is measured.
        noise: distribution of measurements given the operator's values.
        matching: noise by which importance sampling weights training images; None for `noise`.
    """

    name: str
    operator: Operator
    noise: Noise
    matching: Noise | None = None

    def measure(self, truths: Tensor) -> InverseProblem:
        """Simulate a measurement of every truth [n, 1, 8, 8]."""
        source = SampleStreams(MEASUREMENT_SEED, torch.arange(len(truths))).step(0)
        values = self.noise.draw(self.operator(truths.double()), source)
        return InverseProblem(self.operator, self.noise, values)


def make_tasks() -> list[Task]:
    """Return the three measurements."""
    observed = torch.zeros(1, 8, 8, dtype=torch.bool)
    observed[..., :4] = True
    half = Inpaint(observed)
    pool = Pool(2)
    return [
        Task("half of the pixels", half, half.noise, Gaussian(MATCH_ERROR)),
        Task("photons of 2x2 pixels", pool, pool.noise),
        Task(f"thinning to {SURVIVAL:.0%}", Identity(), Binomial(SURVIVAL)),
    ]


def model_draws(model: Any, task: Task, truths: Tensor, num_samples: int) -> Tensor:
    """Draw from the model's posterior of every truth, [num_samples, n, 1, 8, 8]."""
    problem = task.measure(truths)
    prior = make_prior(model, model.sampler)
    with torch.no_grad(), model.sampler.evaluating(model.averaged):
        method = Auto().resolve(prior, problem)
        draws = method.sample(prior, problem, num_samples * len(truths))
    return problem.repair(draws.samples).view(num_samples, *truths.shape)


def training_draws(
    images: Tensor, task: Task, truths: Tensor, num_samples: int, seed: int = 0
) -> tuple[Tensor, float]:
    """Draw training images in proportion to p(y | x), and return their median effective number.

    Where y has probability 0 given every image, all are equally probable.

    Args:
        images: of training, counts [N, 1, 8, 8].
        task: the measurement.
        truths: counts [n, 1, 8, 8].
        num_samples: of every truth.
        seed: of the draws.

    Returns:
        Draws [num_samples, n, 1, 8, 8], and the median over truths of 1 / sum of squared weights.
    """
    generator = torch.Generator().manual_seed(seed)
    noise = task.matching or task.noise
    draws = []
    effective = []
    for y in task.measure(truths).measurement:
        problem = InverseProblem(task.operator, noise, y[None])
        log_likelihood = problem.log_likelihood(images.double())
        if not bool((log_likelihood > -math.inf).any()):
            log_likelihood = torch.zeros_like(log_likelihood)
        weights = log_likelihood.softmax(0)
        effective.append(1 / float(weights.square().sum()))
        rows = torch.multinomial(weights, num_samples, replacement=True, generator=generator)
        draws.append(images[rows])
    return torch.stack(draws, 1), float(np.median(effective))


def uniform_ranks(truths: Tensor, draws: Tensor, seed: int = 0) -> Array:
    """Return ranks of truths [n, ...] among draws [m, n, ...], uniform on [0, 1] if both are alike.

    Ties are broken at random, and a uniform number fills the step between neighbouring ranks.
    """
    rng = np.random.default_rng(seed)
    below = (draws < truths).sum(0).numpy()
    equal = (draws == truths).sum(0).numpy()
    rank = below + rng.integers(0, equal + 1)
    ranks: Array = (rank + rng.random(rank.shape)) / (len(draws) + 1)
    return ranks


def coverage(ranks: Array, level: float) -> tuple[float, float]:
    """Return the share of ranks [n, elements] in the central interval, and its standard error."""
    covered = np.abs(ranks - 0.5) <= level / 2
    shares = covered.mean(1)
    return float(shares.mean()), float(shares.std(ddof=1) / math.sqrt(len(shares)))


def crps(truths: Tensor, draws: Tensor) -> Tensor:
    """Return the continuous ranked probability score of draws [m, n, ...], float64 [n, ...].

    It is E|X - x| - E|X - X'| / 2, the last mean over pairs of different draws.

    References: Ferro 2014, eq. 4.
    """
    values = draws.double()
    number = len(values)
    error = (values - truths.double()).abs().mean(0)
    pairs = (values[:, None] - values[None]).abs().sum((0, 1)) / (number * (number - 1))
    return error - pairs / 2


def coverage_row(method: str, task: Task, truths: Tensor, draws: Tensor) -> Row:
    """Return coverages of totals and of single elements that were not observed exactly."""
    row: Row = {"measurement": task.name, "method": method}
    hidden = torch.ones(truths.shape[1:], dtype=torch.bool)
    if isinstance(task.operator, Inpaint):
        mask = task.operator.observed_mask(tuple(truths.shape[1:]))
        assert mask is not None
        hidden = ~mask
    totals = uniform_ranks(truths.flatten(1).long().sum(1), draws.flatten(2).long().sum(2))
    elements = uniform_ranks(truths[:, hidden], draws[:, :, hidden])
    is_within = True
    for name, ranks in (("totals", totals[:, None]), ("pixels", elements)):
        for level in LEVELS:
            share, error = coverage(ranks, level)
            column = f"{level:.0%} of {name}"
            row |= {column: share, f"{column} error": error}
            is_within &= abs(share - level) <= 2 * error
    row["within"] = "yes" if is_within else "no"
    scores = {
        "CRPS of totals": crps(
            truths.flatten(1).long().sum(1)[:, None], draws.flatten(2).long().sum(2)[..., None]
        ),
        "CRPS of pixels": crps(truths[:, hidden], draws[:, :, hidden]),
    }
    for name, score in scores.items():
        digit_scores = score.mean(1)
        row |= {
            name: float(digit_scores.mean()),
            f"{name} error": float(digit_scores.std()) / math.sqrt(len(digit_scores)),
        }
    return row


def main(argv: list[str] | None = None) -> None:
    """Measure the coverage of all intervals."""
    parser = make_parser("posteriors", __doc__ or "", seconds=200)
    parser.add_argument("--model", type=Path, help="a trained model of the digits")
    parser.add_argument("--truths", type=int, default=200, help="test digits")
    parser.add_argument("--num_samples", type=int, default=9, help="of every posterior")
    options = parse(parser, argv)
    if options.quick:
        options.seconds, options.truths, options.num_samples = 0.3, 3, 2
    data = digits()
    if options.model is None:
        generator = Blackout(seed=0)
        train(generator, data, Budget(options.seconds, **BUDGET), seed=0)  # type: ignore[arg-type]
        model: Any = generator.model
    else:
        model = load_model(options.model)
    truths = images_of(data, "test")[: options.truths]
    rows = []
    for task in make_tasks():
        start = time.process_time()
        draws = model_draws(model, task, truths, options.num_samples)
        row = coverage_row("blackout", task, truths, draws)
        rows.append(row | {"effective digits": None, "CPU s": time.process_time() - start})
        print(rows[-1], flush=True)
        start = time.process_time()
        draws, effective = training_draws(
            images_of(data, "train"), task, truths, options.num_samples
        )
        row = coverage_row("importance sampling", task, truths, draws)
        rows.append(row | {"effective digits": effective, "CPU s": time.process_time() - start})
        write_results(
            options,
            f"coverage of intervals, {len(truths)} test digits",
            rows,
            truths=len(truths),
            num_samples=options.num_samples,
        )


if __name__ == "__main__":
    main()
