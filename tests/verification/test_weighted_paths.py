"""Importance-weighted bounds of the Poisson sampler, against its exact distribution by matrices."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy import stats

from blackout.diffusion.finite_time_bound import path_log_weights, weighted_path_bound
from blackout.diffusion.predictions import CountPrediction
from blackout.diffusion.processes import PureDeath
from blackout.diffusion.survival import step_fraction
from blackout.diffusion.time_grids import logit_times
from blackout.random import SampleStreams
from blackout.verification.draws import ExactDenoiser
from blackout.verification.toys import Toy
from tests.verification.large_counts import GammaPoisson, PoissonCounts, finite_time_bound

LEVELS = 4
TIMES = logit_times(6, 3.0, -5.0)
TOY = Toy(
    "pair of four levels",
    np.random.default_rng(1).dirichlet(np.full(LEVELS**2, 0.5)).reshape(LEVELS, LEVELS),
)
MEAN = torch.from_numpy(TOY.mean)


def overestimating(xt, t):
    """A network that predicts 1.5 times the exact mean, so that every step is overestimating."""
    exact = ExactDenoiser(TOY)(xt, t)
    mean = 1.5 * exact.mean.double().clamp(min=1e-6)
    return CountPrediction(mean.float(), mean.log().float())


def sampler_distribution(denoiser):
    """Return P(X_0 = x) [16] of the sampler with unclipped births, by a product of matrices."""
    levels = np.arange(LEVELS)
    states = torch.from_numpy(TOY.states).to(torch.uint8)
    start = [stats.poisson.pmf(levels, math.exp(-TIMES[-1]) * mean) for mean in TOY.mean]
    distribution = np.kron(*start)
    for s, t in zip(TIMES[:-1].flip(0), TIMES[1:].flip(0), strict=True):
        y = denoiser(states, t).mean.double().numpy() * float(step_fraction(s, t))
        births = TOY.states[None] - TOY.states[:, None]
        distribution = distribution @ np.where(
            births >= 0, stats.poisson.pmf(births, y[:, None]), 0.0
        ).prod(-1)
    return distribution


@pytest.mark.parametrize(
    "denoiser", [ExactDenoiser(TOY), overestimating], ids=["exact", "overestimating"]
)
def test_path_weights_average_to_the_probability_of_the_sample(denoiser):
    expected = sampler_distribution(denoiser)
    n = 20_000
    for state in np.argsort(-TOY.p0)[:3]:
        x0 = torch.from_numpy(TOY.states[state]).to(torch.uint8).expand(n, 2)
        streams = SampleStreams(int(state), torch.arange(n))
        weights = path_log_weights(denoiser, PureDeath(LEVELS - 1), TIMES, x0, MEAN, streams).exp()
        error = float(weights.std()) / math.sqrt(n)
        assert float(weights.mean()) == pytest.approx(expected[state], abs=4 * error)


def test_more_paths_give_a_tighter_bound_and_one_path_the_finite_time_bound():
    n = 6_000
    process = PureDeath(LEVELS - 1)
    indices = np.random.default_rng(0).choice(LEVELS**2, size=n, p=TOY.p0)
    x0 = torch.from_numpy(TOY.states[indices]).to(torch.uint8)
    truth = -np.log(sampler_distribution(overestimating))[indices]
    gaps = []
    errors = []
    for paths in (1, 4, 32):
        streams = [SampleStreams(100 * paths + k, torch.arange(n)) for k in range(paths)]
        gap = weighted_path_bound(overestimating, process, TIMES, x0, MEAN, streams).numpy() - truth
        gaps.append(gap.mean())
        errors.append(gap.std() / math.sqrt(n))
    assert gaps[0] > gaps[1] > gaps[2] > -3 * errors[2]
    assert gaps[2] < 0.1 * gaps[0]
    streams = SampleStreams(7, torch.arange(n)).step(0)
    steps = finite_time_bound(overestimating, process, TIMES, x0, MEAN, streams).numpy() - truth
    assert gaps[0] == pytest.approx(
        steps.mean(), abs=4 * math.hypot(errors[0], steps.std() / math.sqrt(n))
    )


@dataclass(frozen=True)
class SinglePrecision:
    """A denoiser whose output is float32, like that of every network."""

    denoiser: PoissonCounts | GammaPoisson

    def __call__(self, xt, t):
        exact = self.denoiser(xt, t)
        return CountPrediction(exact.mean.float(), exact.log_mean.float())


@pytest.mark.parametrize("max_count", [1_000, 10**6, 10**8, 2**31 - 1])
def test_rounding_does_not_bring_the_bound_below_the_truth(max_count):
    """Every path of Poisson counts has the same weight, p(X_0).

    If the rate and its logarithm are rounded separately, the bound is 280 nats off.
    """
    extra_width = max(0.0, math.log(max_count / 255))
    streams = [SampleStreams(k, torch.arange(4)) for k in range(64)]
    x0 = torch.full((4, 1), max_count, dtype=torch.int32)
    times = logit_times(12, 5 + extra_width, -8 - extra_width)

    def bound(denoiser, mean, paths):
        mean = torch.tensor([mean], dtype=torch.float64)
        return weighted_path_bound(denoiser, PureDeath(max_count), times, x0, mean, streams[:paths])

    poisson = PoissonCounts(float(max_count))
    mixed = GammaPoisson(max_count / 2)
    truth = -float(stats.poisson(float(max_count)).logpmf(max_count))
    nats = bound(SinglePrecision(poisson), max_count, 64)
    assert float((nats - truth).abs().max()) < 0.3
    single, double = (
        bound(denoiser, mixed.mean, 4) for denoiser in (SinglePrecision(mixed), mixed)
    )
    assert float((single - double).abs().max()) < 0.3
