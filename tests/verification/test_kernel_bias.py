"""Errors of the kernels on one pixel with the exact mean, by matrices and without Monte Carlo."""

import math

import numpy as np
import pytest

from blackout.diffusion.time_grids import fisher_times, logit_times
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
    """Return e^-t at every time of a grid."""
    return np.exp(-times.numpy())


def walk(toy, q, step):
    """Yield (k, distribution of X_{t_k}) from k = T down to 0.

    The sampler starts from Poisson(q_T E[X_0]).
    """
    distribution = pure_death_start(toy, q[-1])
    yield len(q) - 1, distribution
    for k in range(len(q) - 1, 0, -1):
        distribution = step(toy, distribution, q[k - 1], q[k])
        yield k - 1, distribution


def final_distribution(toy, q, step):
    """Return the distribution of the samples, [S]."""
    *_, (_, distribution) = walk(toy, q, step)
    return distribution


def wasserstein(p, q):
    """Return the Wasserstein-1 distance between two distributions over levels."""
    return float(np.abs(np.cumsum(p - q)).sum())


def poisson_leap(rate):
    """Return a step with Poisson births of mean y x rate(q_s, q_t)."""

    def births(missing, q_s, q_t):
        return poisson_pmf(missing.mean * rate(q_s, q_t), missing.max_count)

    return births


def with_step_fraction(births):
    """Turn births by step fraction into births by survival."""
    return lambda missing, q_s, q_t: births(missing, birth_fraction(q_s, q_t))


def printed_rate(q_s, q_t):
    """Return the rate of Algorithm 2 as printed, which lacks the increment of time."""
    return q_t / (1 - q_t)


def frozen_rate(q_s, q_t):
    """Return the printed rate times t - s."""
    return math.log(q_s / q_t) * q_t / (1 - q_t)


KERNELS = {
    **{name: with_step_fraction(births) for name, births in BIRTHS.items()},
    "frozen": poisson_leap(frozen_rate),
}
# number of steps on the paper's grid -> kernel -> (total variation, Wasserstein distance)
TABLE = {
    10: {
        "posterior": (1e-5, 1e-3),
        "nearest": (0.393, 20.4),
        "stochastic": (0.380, None),
        "poisson": (0.331, 19.0),
        "frozen": (0.977, 112.0),
    },
    30: {
        "posterior": (1e-5, 1e-3),
        "nearest": (0.127, 7.8),
        "stochastic": (0.125, None),
        "poisson": (0.106, 6.9),
        "frozen": (0.669, 82.0),
    },
    100: {
        "posterior": (1e-5, 1e-3),
        "nearest": (0.044, 2.6),
        "stochastic": (0.037, None),
        "poisson": (0.030, 2.2),
        "frozen": (0.273, 36.0),
    },
    300: {
        "nearest": (0.0165, None),
        "stochastic": (0.0122, None),
        "poisson": (0.0100, None),
        "frozen": (0.101, 13.0),
    },
    1000: {
        "nearest": (0.0084, 0.27),
        "stochastic": (0.0036, 0.28),
        "poisson": (0.0030, 0.23),
        "frozen": (0.031, 4.0),
    },
}


@pytest.mark.parametrize(
    "num_steps", [pytest.param(n, marks=[pytest.mark.deep] if n > 30 else []) for n in TABLE]
)
def test_the_bias_of_every_kernel_on_a_two_bump_pixel(num_steps):
    q = survivals(fisher_times(num_steps))
    start = poisson_pmf(BUMPS.mean * q[-1], 255)[0]
    distributions = dict.fromkeys(TABLE[num_steps], start)
    # all kernels at once, since the posteriors cost most
    for q_s, q_t in zip(q[-2::-1], q[:0:-1], strict=True):
        missing = BUMPS.missing_counts(q_t)
        births = {name: KERNELS[name](missing, q_s, q_t) for name in distributions}
        distributions = {
            name: p @ add_births(births[name], np.arange(256)) for name, p in distributions.items()
        }
    for name, (variation, distance) in TABLE[num_steps].items():
        errors = (
            total_variation(distributions[name], BUMPS.p0),
            wasserstein(distributions[name], BUMPS.p0),
        )
        if name == "posterior":
            assert errors[0] < variation and errors[1] < distance
            continue
        # 10 %, or half of the last known digit
        assert errors[0] == pytest.approx(variation, rel=0.1, abs=0.5e-5), name
        assert distance is None or errors[1] == pytest.approx(distance, rel=0.1, abs=0.5e-2), name


@pytest.mark.parametrize(
    "num_steps, increment, without_time, without_step",
    [
        (10, 0.647, 0.883, 1.0),
        (100, 0.132, 0.146, 0.957),
        (1000, 0.0144, 0.0158, 1.0),
    ],
)
def test_poisson_leaps_need_the_step_fraction_not_the_printed_rate(
    num_steps, increment, without_time, without_step
):
    """X_0 = 9 in 0..15, total variation at the worst time.

    The mean y r is right; the printed rate of Algorithm 2 is wrong at any number of steps.
    """
    toy = Toy("nine", np.eye(16)[9])
    q = survivals(fisher_times(num_steps))
    y = 9.0 - np.arange(16).clip(max=9)  # exact, also for states that only an overshoot reaches

    def worst(rate):
        def step(toy, distribution, q_s, q_t):
            return distribution @ add_births(poisson_pmf(y * rate(q_s, q_t), 15), np.arange(16))

        return max(
            total_variation(distribution, toy.marginal(q[k]))
            for k, distribution in walk(toy, q, step)
        )

    assert worst(birth_fraction) == pytest.approx(increment, rel=0.02)
    assert worst(frozen_rate) == pytest.approx(without_time, rel=0.02)
    assert worst(printed_rate) == pytest.approx(without_step, rel=0.02)


@pytest.mark.parametrize("num_steps", [10, 100, 1000])
def test_nearest_rounding_never_lights_a_rare_pixel_and_stochastic_rounding_is_exact(num_steps):
    q = survivals(fisher_times(num_steps))
    lit_probability = {
        name: final_distribution(rare_pixel(), q, PURE_DEATH_STEPS[name])[1]
        for name in ("nearest", "stochastic")
    }
    assert lit_probability["nearest"] < 1e-6
    assert lit_probability["stochastic"] == pytest.approx(0.3, abs=1e-6)


def test_nearest_rounding_dims_a_common_pixel_at_any_number_of_steps():
    q = survivals(fisher_times(1000))
    assert final_distribution(rare_pixel(0.7), q, PURE_DEATH_STEPS["nearest"])[1] == pytest.approx(
        0.578, rel=0.01
    )
    assert final_distribution(rare_pixel(0.3), q, PURE_DEATH_STEPS["poisson"])[1] == pytest.approx(
        0.2998, rel=1e-3
    )


@pytest.mark.deep
def test_a_grid_that_ends_early_needs_the_poisson_start():
    """Logits 4 to -7: a start from black never recovers the units left at the final time."""
    q = survivals(logit_times(100, 4.0, -7.0))
    from_black = np.eye(256)[0]
    for q_s, q_t in zip(q[-2::-1], q[:0:-1], strict=True):
        from_black = PURE_DEATH_STEPS["posterior"](BUMPS, from_black, q_s, q_t)
    assert wasserstein(from_black, BUMPS.p0) == pytest.approx(3.3, rel=0.1)
    assert wasserstein(final_distribution(BUMPS, q, PURE_DEATH_STEPS["posterior"]), BUMPS.p0) < 0.1
