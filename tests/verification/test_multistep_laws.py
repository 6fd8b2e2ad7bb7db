"""The law of `multistep`, the default sampler of small images, by sums over all states instead of moments.

What a step draws depends on the state before and on the one before that, so that pairs of states are a Markov chain.
Total variation to the data has order 1 where a birth may take all rate from another element; on a smooth pair it falls
faster, with 1.5 to 1.7, and on both it is less than that of Poisson leaps.
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
from blackout.diffusion.schedules import logit_times, step_fraction
from blackout.random import SampleStreams
from blackout.verification.draws import ExactDenoiser, count_states, p_value
from blackout.verification.toys import five_bits, three_pixels, total_variation

FIRST, LAST = 7.0, -7.0


def births_law(x, rate, max_count):
    """P(min(x + Poisson(rate), max_count)), [n, states] of all elements, from x and rate [n, elements]."""
    levels = np.arange(max_count + 1)
    law = np.ones((len(x), 1))
    for own, mean in zip(x.T, rate.T, strict=True):
        pmf = stats.poisson.pmf(levels - own[:, None], mean[:, None])
        pmf[:, -1] = stats.poisson.sf(max_count - 1 - own, mean)
        law = (law[:, :, None] * pmf[:, None]).reshape(len(x), -1)
    return law


def rounded_law(x, y, max_count):
    """P(x + y rounded up or down at random), [n, states], as far as there are counts."""
    law = np.ones((len(x), 1))
    levels = np.arange(max_count + 1)
    for own, mean in zip(x.T, y.T, strict=True):
        low, share = np.floor(mean), mean - np.floor(mean)
        ends = [np.minimum(own + low + k, max_count) for k in (0, 1)]
        pmf = (1 - share)[:, None] * (levels == ends[0][:, None]) + share[:, None] * (levels == ends[1][:, None])
        law = (law[:, :, None] * pmf[:, None]).reshape(len(x), -1)
    return law


def multistep_law(toy, times, lends=True):
    """The law of samples, [states]; without what steps lend each other that of Poisson leaps."""
    states, count, max_count = toy.states, len(toy.p0), toy.max_count
    grid = times.tolist()
    mean = {t: toy.missing_counts(math.exp(-t)).mean.reshape(states.shape) for t in grid[1:]}
    q = math.exp(-grid[-1])
    start = births_law(np.zeros((1, toy.pixels)), q * toy.mean[None], max_count)[0]
    pairs = np.eye(count) * start[:, None]  # of the state before, and the state: at first they are the same
    before = None
    for s, t in zip(grid[-2:0:-1], grid[:1:-1], strict=True):
        r = float(step_fraction(torch.tensor(s), torch.tensor(t)))
        y = np.tile(mean[t], (count, 1))
        if before is None:
            d = math.exp(-s) - q
            expected, c = np.broadcast_to((1 - q) * toy.mean, y.shape), (q**2 + d**2) / (2 * q * d)
        else:
            a, expected = before[0], (1 - before[0]) * np.repeat(before[1], count, 0)
            c = (r + math.log1p(-r) * (1 - r)) * (1 - a) / (r * a)
        rate = extrapolate(torch.from_numpy(y), torch.from_numpy(expected.copy()), c).numpy() if lends else y
        steps = births_law(np.tile(states, (count, 1)), rate * r, max_count).reshape(count, count, count)
        pairs = np.einsum("ab,abc->bc", pairs, steps)
        before = (r, mean[t])
    return pairs.sum(0) @ rounded_law(states, mean[grid[1]], max_count)


@pytest.mark.parametrize("toy", [five_bits(), three_pixels()], ids=lambda toy: toy.name)
def test_the_package_draws_from_this_law(toy):
    times, n = logit_times(6, FIRST, LAST), 20_000
    plan = SamplingPlan(
        ExactDenoiser(toy), PureDeath(toy.max_count), times, kernel=MultistepLeap(), mean=torch.from_numpy(toy.mean)
    )
    drawn = run_sampler(plan, (n, toy.pixels), SampleStreams(0, torch.arange(n)))
    counts = count_states(drawn, toy.levels)
    assert p_value(counts, multistep_law(toy, times)) > 1e-3
    assert p_value(counts, multistep_law(toy, times, lends=False)) < 1e-6


@pytest.mark.parametrize(
    "toy, order", [(five_bits(), 1.0), (smooth_prior(2, 8), 1.4)], ids=["five bits", "smooth"]
)
def test_its_total_variation_falls_with_this_order_and_is_below_that_of_independent_leaps(toy, order):
    times = [logit_times(number, FIRST, LAST) for number in (10, 20, 40, 80)]
    errors = np.array([total_variation(multistep_law(toy, grid), toy.p0) for grid in times])
    leaps = np.array([total_variation(multistep_law(toy, grid, lends=False), toy.p0) for grid in times])
    assert (errors < 0.7 * leaps).all() and errors[0] < 0.11
    assert (np.log2(errors[:-1] / errors[1:]) >= order).all()
