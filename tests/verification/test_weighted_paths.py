"""Importance-weighted bounds of the Poisson sampler, against its own law by exact matrices."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy import stats

from blackout.diffusion.likelihood import path_log_weights, weighted_path_bound
from blackout.diffusion.predictions import CountPrediction
from blackout.diffusion.processes import PureDeath
from blackout.diffusion.schedules import logit_times, step_fraction
from blackout.random import SampleStreams
from blackout.verification.draws import ExactDenoiser
from blackout.verification.toys import Toy
from tests.verification.large_counts import GammaPoisson, PoissonCounts, finite_time_bound

LEVELS, TIMES = 4, logit_times(6, 3.0, -5.0)
TOY = Toy("pair of four levels", np.random.default_rng(1).dirichlet(np.full(LEVELS**2, 0.5)).reshape(LEVELS, LEVELS))
MEAN = torch.from_numpy(TOY.mean)


def wrong(xt, t):
    """A network that predicts half as much again as it should, so that every step is wrong."""
    right = ExactDenoiser(TOY)(xt, t)
    mean = 1.5 * right.mean.double().clamp(min=1e-6)
    return CountPrediction(mean.float(), mean.log().float())


def sampled_law(denoiser):
    """P(X_0 = x) [16] of the sampler whose births are not clipped, by a product of matrices."""
    levels, states = np.arange(LEVELS), torch.from_numpy(TOY.states).to(torch.uint8)
    start = [stats.poisson.pmf(levels, math.exp(-TIMES[-1]) * mean) for mean in TOY.mean]
    law = np.kron(*start)
    for s, t in zip(TIMES[:-1].flip(0), TIMES[1:].flip(0), strict=True):
        y = denoiser(states, t).mean.double().numpy() * float(step_fraction(s, t))
        births = TOY.states[None] - TOY.states[:, None]
        law = law @ np.where(births >= 0, stats.poisson.pmf(births, y[:, None]), 0.0).prod(-1)
    return law


@pytest.mark.parametrize("denoiser", [ExactDenoiser(TOY), wrong], ids=["exact", "wrong"])
def test_weights_of_paths_average_to_the_probability_of_what_is_sampled(denoiser):
    law, n = sampled_law(denoiser), 20_000
    for state in np.argsort(-TOY.p0)[:3]:
        x0 = torch.from_numpy(TOY.states[state]).to(torch.uint8).expand(n, 2)
        streams = SampleStreams(int(state), torch.arange(n))
        weights = path_log_weights(denoiser, PureDeath(LEVELS - 1), TIMES, x0, MEAN, streams).exp()
        error = float(weights.std()) / math.sqrt(n)
        assert float(weights.mean()) == pytest.approx(law[state], abs=4 * error)


def test_more_paths_bound_more_tightly_and_one_path_is_the_finite_time_bound():
    n, process = 6_000, PureDeath(LEVELS - 1)
    drawn = np.random.default_rng(0).choice(LEVELS**2, size=n, p=TOY.p0)
    x0, truth = torch.from_numpy(TOY.states[drawn]).to(torch.uint8), -np.log(sampled_law(wrong))[drawn]
    found, errors = [], []
    for paths in (1, 4, 32):
        streams = [SampleStreams(100 * paths + k, torch.arange(n)) for k in range(paths)]
        surplus = weighted_path_bound(wrong, process, TIMES, x0, MEAN, streams).numpy() - truth
        found.append(surplus.mean())
        errors.append(surplus.std() / math.sqrt(n))
    assert found[0] > found[1] > found[2] > -3 * errors[2]
    assert found[2] < 0.1 * found[0]
    streams = SampleStreams(7, torch.arange(n)).step(0)
    steps = finite_time_bound(wrong, process, TIMES, x0, MEAN, streams).numpy() - truth
    assert found[0] == pytest.approx(steps.mean(), abs=4 * math.hypot(errors[0], steps.std() / math.sqrt(n)))


@dataclass(frozen=True)
class SinglePrecision:
    """A denoiser whose head ends in float32, as every network's does."""

    law: PoissonCounts | GammaPoisson

    def __call__(self, xt, t):
        right = self.law(xt, t)
        return CountPrediction(right.mean.float(), right.log_mean.float())


@pytest.mark.parametrize("top", [1_000, 10**6, 10**8, 2**31 - 1])
def test_no_rounding_beats_the_truth(top):
    """Of Poisson counts every path has one weight, p(X_0); rounded apart, rate and logarithm were 280 nats off."""
    wide, streams = max(0.0, math.log(top / 255)), [SampleStreams(k, torch.arange(4)) for k in range(64)]
    x0, times = torch.full((4, 1), top, dtype=torch.int32), logit_times(12, 5 + wide, -8 - wide)

    def bound(denoiser, mean, paths):
        mean = torch.tensor([mean], dtype=torch.float64)
        return weighted_path_bound(denoiser, PureDeath(top), times, x0, mean, streams[:paths])

    poisson, mixed = PoissonCounts(float(top)), GammaPoisson(top / 2)
    truth = -float(stats.poisson(float(top)).logpmf(top))
    found = bound(SinglePrecision(poisson), top, 64)
    assert float((found - truth).abs().max()) < 0.3
    single, double = (bound(one, mixed.mean, 4) for one in (SinglePrecision(mixed), mixed))
    assert float((single - double).abs().max()) < 0.3
