"""The distribution of samples of `multistep`, the default kernel of small images, by enumeration.

A step depends on the current state and on the one before it, so pairs of states are a Markov chain.
The total variation to the data has order 1 if a birth can take the whole rate of another element.
On a smooth pair it has order 1.5 to 1.7; on both it is smaller than that of Poisson leaps.
"""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from benchmarks.exact_posteriors import smooth_prior
from blackout.diffusion.kernels import MultistepLeap
from blackout.diffusion.kernels.multistep import extrapolate
from blackout.diffusion.processes import PureDeath
from blackout.diffusion.sampling import SamplingPlan, run_sampler
from blackout.diffusion.survival import step_fraction
from blackout.diffusion.time_grids import logit_times
from blackout.random import SampleStreams
from blackout.verification.draws import ExactDenoiser, count_states, p_value
from blackout.verification.toys import five_bits, three_pixels, total_variation

FIRST = 7.0  # logits of the time grid
LAST = -7.0


def births_distribution(x, rate, max_count):
    """Return P(min(x + Poisson(rate), max_count)), [n, states], of x and rate [n, elements]."""
    levels = np.arange(max_count + 1)
    joint = np.ones((len(x), 1))
    for count, mean in zip(x.T, rate.T, strict=True):
        pmf = stats.poisson.pmf(levels - count[:, None], mean[:, None])
        pmf[:, -1] = stats.poisson.sf(max_count - 1 - count, mean)
        joint = (joint[:, :, None] * pmf[:, None]).reshape(len(x), -1)
    return joint


def rounded_distribution(x, y, max_count):
    """Return P(min(x + stochastically rounded y, max_count)), [n, states]."""
    joint = np.ones((len(x), 1))
    levels = np.arange(max_count + 1)
    for count, mean in zip(x.T, y.T, strict=True):
        low = np.floor(mean)
        fraction = mean - low
        ends = [np.minimum(count + low + k, max_count) for k in (0, 1)]
        pmf = (1 - fraction)[:, None] * (levels == ends[0][:, None]) + fraction[:, None] * (
            levels == ends[1][:, None]
        )
        joint = (joint[:, :, None] * pmf[:, None]).reshape(len(x), -1)
    return joint


def sample_distribution(toy, times, extrapolates=True):
    """Return the distribution of samples [states]; without extrapolation: of Poisson leaps."""
    states = toy.states
    count = len(toy.p0)
    max_count = toy.max_count
    grid = times.tolist()
    mean = {t: toy.missing_counts(math.exp(-t)).mean.reshape(states.shape) for t in grid[1:]}
    q = math.exp(-grid[-1])
    start = births_distribution(np.zeros((1, toy.pixels)), q * toy.mean[None], max_count)[0]
    pairs = np.eye(count) * start[:, None]  # (previous state, state), equal at the start
    previous = None
    for s, t in zip(grid[-2:0:-1], grid[:1:-1], strict=True):
        r = float(step_fraction(torch.tensor(s), torch.tensor(t)))
        y = np.tile(mean[t], (count, 1))
        if previous is None:
            d = math.exp(-s) - q
            expected = np.broadcast_to((1 - q) * toy.mean, y.shape)
            c = (q**2 + d**2) / (2 * q * d)
        else:
            a = previous[0]
            expected = (1 - previous[0]) * np.repeat(previous[1], count, 0)
            c = (r + math.log1p(-r) * (1 - r)) * (1 - a) / (r * a)
        rate = (
            extrapolate(torch.from_numpy(y), torch.from_numpy(expected.copy()), c).numpy()
            if extrapolates
            else y
        )
        steps = births_distribution(np.tile(states, (count, 1)), rate * r, max_count).reshape(
            count, count, count
        )
        pairs = np.einsum("ab,abc->bc", pairs, steps)
        previous = (r, mean[t])
    return pairs.sum(0) @ rounded_distribution(states, mean[grid[1]], max_count)


@pytest.mark.parametrize("toy", [five_bits(), three_pixels()], ids=lambda toy: toy.name)
def test_samples_follow_the_enumerated_distribution(toy):
    times = logit_times(6, FIRST, LAST)
    n = 20_000
    plan = SamplingPlan(
        ExactDenoiser(toy),
        PureDeath(toy.max_count),
        times,
        kernel=MultistepLeap(),
        data_mean=torch.from_numpy(toy.mean),
    )
    samples = run_sampler(plan, (n, toy.pixels), SampleStreams(0, torch.arange(n)))
    counts = count_states(samples, toy.levels)
    assert p_value(counts, sample_distribution(toy, times)) > 1e-3
    assert p_value(counts, sample_distribution(toy, times, extrapolates=False)) < 1e-6


@pytest.mark.parametrize(
    "toy, order", [(five_bits(), 1.0), (smooth_prior(2, 8), 1.4)], ids=["five bits", "smooth"]
)
def test_total_variation_has_the_claimed_order_and_is_below_that_of_poisson_leaps(toy, order):
    times = [logit_times(number, FIRST, LAST) for number in (10, 20, 40, 80)]
    errors = np.array([total_variation(sample_distribution(toy, grid), toy.p0) for grid in times])
    leaps = np.array(
        [
            total_variation(sample_distribution(toy, grid, extrapolates=False), toy.p0)
            for grid in times
        ]
    )
    assert (errors < 0.7 * leaps).all() and errors[0] < 0.11
    assert (np.log2(errors[:-1] / errors[1:]) >= order).all()
