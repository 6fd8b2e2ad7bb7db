"""Errors of the kernels on one pixel of 256 levels with the exact mean, number by number: no Monte Carlo anywhere."""

import math

import numpy as np
import pytest

from blackout.diffusion.schedules import fisher_times, logit_times
from blackout.verification.exact_steps import (
    BIRTHS,
    PURE_DEATH_STEPS,
    add_births,
    birth_fraction,
    poisson_pmf,
    pure_death_start,
)
from blackout.verification.toys import Toy, rare_pixel, total_variation, two_bumps

BUMPS = two_bumps()


def survivals(times):
    """e^-t at every time of a grid."""
    return np.exp(-times.numpy())


def walk(toy, q, step):
    """(k, distribution of X_{t_k}) of a sampler that starts from Poisson(q_T E[X_0]), k = T down to 0."""
    law = pure_death_start(toy, q[-1])
    yield len(q) - 1, law
    for k in range(len(q) - 1, 0, -1):
        law = step(toy, law, q[k - 1], q[k])
        yield k - 1, law


def final_law(toy, q, step):
    """The distribution of what a sampler returns, [S]."""
    *_, (_, law) = walk(toy, q, step)
    return law


def wasserstein(p, q):
    return float(np.abs(np.cumsum(p - q)).sum())


def poisson_leap(rate):
    """A step of Poisson births of mean y x rate(q_s, q_t)."""

    def births(missing, q_s, q_t):
        return poisson_pmf(missing.mean * rate(q_s, q_t), missing.max_count)

    return births


def of_fraction(births):
    return lambda missing, q_s, q_t: births(missing, birth_fraction(q_s, q_t))


def printed(q_s, q_t):
    """The rate of Algorithm 2, which lacks the increment of time."""
    return q_t / (1 - q_t)


def frozen(q_s, q_t):
    """The printed rate times t - s."""
    return math.log(q_s / q_t) * q_t / (1 - q_t)


KERNELS = {**{name: of_fraction(births) for name, births in BIRTHS.items()}, "frozen": poisson_leap(frozen)}
TABLE = {  # total variation and Wasserstein distance, by steps on the paper's grid
    10: {
        "posterior": (1e-5, 1e-3), "nearest": (0.393, 20.4), "stochastic": (0.380, None), "poisson": (0.331, 19.0),
        "frozen": (0.977, 112.0),
    },
    30: {
        "posterior": (1e-5, 1e-3), "nearest": (0.127, 7.8), "stochastic": (0.125, None), "poisson": (0.106, 6.9),
        "frozen": (0.669, 82.0),
    },
    100: {
        "posterior": (1e-5, 1e-3), "nearest": (0.044, 2.6), "stochastic": (0.037, None), "poisson": (0.030, 2.2),
        "frozen": (0.273, 36.0),
    },
    300: {
        "nearest": (0.0165, None), "stochastic": (0.0122, None), "poisson": (0.0100, None), "frozen": (0.101, 13.0),
    },
    1000: {
        "nearest": (0.0084, 0.27), "stochastic": (0.0036, 0.28), "poisson": (0.0030, 0.23), "frozen": (0.031, 4.0),
    },
}  # fmt: skip


@pytest.mark.parametrize("num_steps", [pytest.param(n, marks=[pytest.mark.deep] if n > 30 else []) for n in TABLE])
def test_the_bias_of_every_kernel_on_a_two_bump_pixel(num_steps):
    q = survivals(fisher_times(num_steps))
    start = poisson_pmf(BUMPS.mean * q[-1], 255)[0]
    laws = dict.fromkeys(TABLE[num_steps], start)
    for q_s, q_t in zip(q[-2::-1], q[:0:-1], strict=True):  # all kernels at once: the missing counts cost most
        missing = BUMPS.missing_counts(q_t)
        births = {name: KERNELS[name](missing, q_s, q_t) for name in laws}
        laws = {name: law @ add_births(births[name], np.arange(256)) for name, law in laws.items()}
    for name, (variation, distance) in TABLE[num_steps].items():
        found = total_variation(laws[name], BUMPS.p0), wasserstein(laws[name], BUMPS.p0)
        if name == "posterior":
            assert found[0] < variation and found[1] < distance
            continue
        # 10 %, or half of the last digit that is known
        assert found[0] == pytest.approx(variation, rel=0.1, abs=0.5e-5), name
        assert distance is None or found[1] == pytest.approx(distance, rel=0.1, abs=0.5e-2), name


@pytest.mark.parametrize("num_steps, increment, without_time, without_step", [
    (10, 0.647, 0.883, 1.0), (100, 0.132, 0.146, 0.957), (1000, 0.0144, 0.0158, 1.0),
])  # fmt: skip
def test_poisson_leaps_need_the_step_fraction_not_the_printed_rate(num_steps, increment, without_time, without_step):
    """X_0 = 9 in 0..15, the worst level's total variation: y r is right, Algorithm 2's printed rate never is."""
    toy, q = Toy("nine", np.eye(16)[9]), survivals(fisher_times(num_steps))
    y = 9.0 - np.arange(16).clip(max=9)  # the oracle, also of states that only an overshoot reaches

    def worst(rate):
        def step(toy, law, q_s, q_t):
            return law @ add_births(poisson_pmf(y * rate(q_s, q_t), 15), np.arange(16))

        return max(total_variation(law, toy.marginal(q[k])) for k, law in walk(toy, q, step))

    assert worst(birth_fraction) == pytest.approx(increment, rel=0.02)
    assert worst(frozen) == pytest.approx(without_time, rel=0.02)
    assert worst(printed) == pytest.approx(without_step, rel=0.02)


@pytest.mark.parametrize("num_steps", [10, 100, 1000])
def test_nearest_rounding_never_lights_a_rare_pixel_and_the_unbiased_kernels_are_exact(num_steps):
    q = survivals(fisher_times(num_steps))
    lit = {name: final_law(rare_pixel(), q, PURE_DEATH_STEPS[name])[1] for name in ("nearest", "stochastic")}
    assert lit["nearest"] < 1e-6
    assert lit["stochastic"] == pytest.approx(0.3, abs=1e-6)


def test_nearest_rounding_dims_a_common_pixel_however_many_steps_there_are():
    q = survivals(fisher_times(1000))
    assert final_law(rare_pixel(0.7), q, PURE_DEATH_STEPS["nearest"])[1] == pytest.approx(0.578, rel=0.01)
    assert final_law(rare_pixel(0.3), q, PURE_DEATH_STEPS["poisson"])[1] == pytest.approx(0.2998, rel=1e-3)


@pytest.mark.deep
def test_a_grid_that_ends_early_needs_the_poisson_start():
    """Logit 4 to -7: from black, what is left at the final time is missing for good."""
    q = survivals(logit_times(100, 4.0, -7.0))
    black = np.eye(256)[0]
    for q_s, q_t in zip(q[-2::-1], q[:0:-1], strict=True):
        black = PURE_DEATH_STEPS["posterior"](BUMPS, black, q_s, q_t)
    assert wasserstein(black, BUMPS.p0) == pytest.approx(3.3, rel=0.1)
    assert wasserstein(final_law(BUMPS, q, PURE_DEATH_STEPS["posterior"]), BUMPS.p0) < 0.1
