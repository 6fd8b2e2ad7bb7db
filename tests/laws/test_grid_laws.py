"""Where to step: the local error of a Poisson step, its estimate from a pilot run, and the grid made of it."""

import math
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch

from blackout.diffusion.grids import OptimalGrid, pilot_run
from blackout.diffusion.predictions import CountPrediction
from blackout.diffusion.processes import PureDeath
from blackout.diffusion.schedules import logit_survival, logit_times
from blackout.laws.kernels import ExactDenoiser, final_law, fraction, poisson_births, poisson_pmf, step_law
from blackout.laws.toys import pixel_pair, total_variation
from blackout.random import SampleStreams
from tests.laws.brute_force import curvature

PAIR = pixel_pair()


def sigmoid(u):
    return 1 / (1 + math.exp(-u))


def step_divergence(toy, q_s, q_t):
    """E KL(exact joint reverse step || independent Poisson births), by enumeration."""
    exact = toy.reverse(q_s, q_t)
    rate = toy.beliefs(q_t).mean.reshape(-1, toy.pixels) * fraction(q_s, q_t)
    births = toy.states[None, :, :] - toy.states[:, None, :]
    log_poisson = np.zeros(births.shape[:2])
    for pixel in range(toy.pixels):
        table = np.log(poisson_pmf(rate[:, pixel], toy.max_count).clip(1e-300))
        log_poisson += np.take_along_axis(table, births[:, :, pixel].clip(0), 1)
    possible = exact > 1e-300
    log_exact = np.log(np.where(possible, exact, 1))
    return float(toy.marginal(q_t) @ np.where(possible, exact * (log_exact - log_poisson), 0).sum(1))


@pytest.mark.parametrize("u", [-4.0, -1.5, 0.0, 1.0])
def test_a_short_poisson_step_costs_a_quarter_of_r_squared_g(u):
    q_s, q_t = sigmoid(u + 0.02), sigmoid(u)
    predicted = fraction(q_s, q_t) ** 2 * curvature(PAIR, q_t) / 4
    assert step_divergence(PAIR, q_s, q_t) == pytest.approx(predicted, rel=0.1)


def test_the_pilot_run_estimates_g():
    """From the samples' predictions alone, averaged over a range of levels: within 2 %.

    Over seeds, the ratio to the exact G was 0.996 +- 0.004 with these steps and 0.999 +- 0.002 with four times as many.
    """
    n = 40_000
    denoiser = ExactDenoiser(PAIR)
    pilot = pilot_run(denoiser, PureDeath(15), (n, 2), SampleStreams(1, torch.arange(n)),
                      mean=torch.from_numpy(PAIR.mean), num_steps=250, first=-0.5, last=-6.0)  # fmt: skip
    logits, found = np.array(pilot["logits"]), np.array(pilot["curvature"])
    assert len(logits) == 250 and len(found) == 249
    middle = (logits[1:] + logits[:-1]) / 2
    exact = np.mean([curvature(PAIR, sigmoid(u)) for u in np.arange(-3.375, -0.5, 0.25)])
    assert found[(middle > -3.5) & (middle < -0.5)].mean() == pytest.approx(exact, rel=0.02)


def exact_pilot():
    logits = np.linspace(10.0, -12.0, 100)
    middle = (logits[1:] + logits[:-1]) / 2
    return {"logits": logits.tolist(), "curvature": [curvature(PAIR, sigmoid(u)) for u in middle]}


def test_the_optimal_grid_is_better_than_uniform_ones_and_needs_no_exact_g():
    def poisson_error(times):
        law = final_law(PAIR, np.exp(-times.numpy()), partial(step_law, births=poisson_births))
        return total_variation(law, PAIR.p0)

    denoiser = ExactDenoiser(PAIR)
    small = pilot_run(denoiser, PureDeath(15), (64, 2), SampleStreams(0, torch.arange(64)),
                      mean=torch.from_numpy(PAIR.mean), num_steps=100)  # fmt: skip
    best, estimated = poisson_error(OptimalGrid(exact_pilot())(16)), poisson_error(OptimalGrid(small)(16))
    assert best < 0.6 * poisson_error(logit_times(16, 5.0, -8.0))
    assert estimated < 1.1 * best


@pytest.mark.parametrize("num_steps", [1, 2, 7, 50])
def test_the_optimal_grid_is_a_grid_whose_steps_share_the_cost(num_steps):
    times = OptimalGrid(exact_pilot(), floor=0.02)(num_steps)
    assert times.dtype == torch.float64 and len(times) == num_steps + 1
    assert times[0] == 0 and bool((times.diff() > 0).all())
    assert float(logit_survival(times[-1])) == pytest.approx(-12.0)
    if num_steps == 50:
        u = logit_survival(times[1:]).numpy()
        cost = [0.5 * (a - b) * sigmoid((a + b) / 2) * curvature(PAIR, sigmoid((a + b) / 2)) ** 0.5
                for a, b in pairwise(u)]  # fmt: skip
        assert max(cost[5:-5]) / min(cost[5:-5]) < 1.15


def test_without_births_the_grid_is_even():
    flat = {"logits": [2.0, 0.0, -2.0], "curvature": [0.0, 0.0]}
    assert logit_survival(OptimalGrid(flat)(4)[1:]).tolist() == pytest.approx([1.0, 0.0, -1.0, -2.0])


@pytest.mark.parametrize("pilot", [
    None, {}, {"logits": [1.0], "curvature": []}, {"logits": [1.0, 2.0], "curvature": [1.0]},
    {"logits": [2.0, 1.0], "curvature": [-1.0]}, {"logits": [2.0, 1.0], "curvature": [float("nan")]},
])  # fmt: skip
def test_impossible_pilots_are_refused(pilot):
    with pytest.raises(ValueError, match="pilot"):
        OptimalGrid(pilot)


def test_a_pilot_run_is_the_same_for_the_same_seed_and_refuses_too_few_steps():
    def denoiser(xt, t):
        y = (20.0 - xt.float()).clamp(min=0.0)
        return CountPrediction(y, y.clamp(min=1e-9).log())

    runs = [pilot_run(denoiser, PureDeath(20), (8, 3), SampleStreams(4, torch.arange(8)), num_steps=20) for _ in "ab"]
    assert runs[0] == runs[1]
    with pytest.raises(ValueError, match="at least 3"):
        pilot_run(denoiser, PureDeath(20), (8, 3), num_steps=2)
