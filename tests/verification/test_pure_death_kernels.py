"""The reverse kernels of pure death with a perfect denoiser.

The tests measure the size of their errors, the orders of convergence, and which kernels are exact.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch

from blackout.data import digits
from blackout.diffusion.evaluations import count_evaluations
from blackout.diffusion.heads import LogisticMixtureHead, SoftplusHead
from blackout.diffusion.kernels import (
    BinomialBridge,
    MultistepLeap,
    PoissonLeap,
    PosteriorBridge,
    PosteriorTrapezoidal,
    ReverseStep,
    Trapezoidal,
    nearest_rounding,
)
from blackout.diffusion.kernels.multistep import extrapolate
from blackout.diffusion.predictions import CountPrediction
from blackout.diffusion.processes import PureDeath
from blackout.diffusion.sampler import Sampler
from blackout.diffusion.sampling import SamplingPlan, run_sampler
from blackout.diffusion.time_grids import fisher_times, logit_times
from blackout.random import SampleStreams
from blackout.verification import claims
from blackout.verification.draws import (
    MIN_P_VALUE,
    PURE_DEATH_KERNELS,
    ExactDenoiser,
    KernelUnderTest,
    p_value,
)
from blackout.verification.exact_steps import BIRTHS, PURE_DEATH_STEPS, independent_step
from blackout.verification.subjects import pure_death_subject
from blackout.verification.toys import (
    Toy,
    binomial_pmf,
    exclusive_pair,
    five_bits,
    pixel_pair,
    rare_pixel,
    three_pixels,
    total_variation,
    two_bumps,
)
from tests.verification.large_counts import GammaPoisson
from tests.verification.test_kernel_bias import final_distribution, survivals, walk

BUMPS = two_bumps()
PAIR = pixel_pair()


def error(toy, kernel, times):
    """Return the total variation between samples of a kernel and the data."""
    return total_variation(
        final_distribution(toy, survivals(times), PURE_DEATH_STEPS[kernel]), toy.p0
    )


def test_the_binomial_bridge_from_a_known_origin_is_exact_at_every_time():
    """X_0 = 9 in 0..15: the last step returns X_0 with probability 1.

    At every earlier time the distribution is right up to the error of the start.
    """
    toy = Toy("nine", np.eye(16)[9])
    for num_steps in (10, 100):
        times = fisher_times(num_steps)
        for k, distribution in walk(toy, survivals(times), PURE_DEATH_STEPS["nearest"]):
            assert total_variation(distribution, toy.marginal(math.exp(-times[k]))) < 1e-6
        assert distribution[9] == pytest.approx(1.0, abs=1e-9)


@pytest.mark.deep
def test_orders_of_convergence_on_two_correlated_pixels():
    """Equal network evaluations, 16 -> 32 -> 64.

    The error of Poisson leaps halves; that of the trapezoidal method falls by a factor above 2.5.
    """
    for grid in (fisher_times, partial(logit_times, first=7.0, last=-10.0)):
        poisson_errors = [error(PAIR, "poisson", grid(n)) for n in (16, 32, 64)]
        trapezoidal_errors = [error(PAIR, "trapezoidal", grid(n)) for n in (8, 16, 32)]
        for coarse, fine in pairwise(poisson_errors):
            assert coarse / fine == pytest.approx(2.0, abs=0.15)
        assert (
            trapezoidal_errors[0] / trapezoidal_errors[1] > 2.5
            and trapezoidal_errors[1] / trapezoidal_errors[2] > 2.5
        )
        assert trapezoidal_errors[2] < 0.25 * poisson_errors[2]


@pytest.mark.deep
def test_posterior_trapezoidal_steps_on_smooth_and_rough_toys():
    """Total variation at 7, 15 and 31 evaluations.

    Posterior trapezoidal steps are of second order on the smooth toy and of first order on the
    rough ones. They are nowhere clearly worse than the trapezoidal method, and half as wrong on
    three pixels.
    """
    grid = partial(logit_times, first=7.0, last=-10.0)
    kernels = "trapezoidal", "posterior_trapezoidal"
    table = {
        toy.name: [[error(toy, name, grid(n)) for n in (4, 8, 16)] for name in kernels]
        for toy in (PAIR, exclusive_pair(), five_bits(), three_pixels())
    }
    for trapezoidal_errors, posterior_errors in table.values():
        assert all(
            value < 1.04 * reference
            for value, reference in zip(posterior_errors, trapezoidal_errors, strict=True)
        )
    assert table["pixel pair"][1] == pytest.approx([0.1087, 0.0315, 0.0085], rel=0.02)
    assert table["three pixels"][0] == pytest.approx([0.2232, 0.1086, 0.0531], rel=0.02)
    assert table["three pixels"][1] == pytest.approx([0.1190, 0.0497, 0.0232], rel=0.02)


@pytest.mark.parametrize(
    "toy", [exclusive_pair(), five_bits(), three_pixels()], ids=lambda toy: toy.name
)
def test_posterior_trapezoidal_steps_follow_their_exact_distribution_on_rough_toys(toy):
    denoiser = ExactDenoiser(toy)
    mode = int(toy.p0.argmax())
    for s, t, state in ((0.2, 0.9, 0), (0.1, 0.3, mode), (1.0, 3.0, 0)):
        expected = PURE_DEATH_STEPS["posterior_trapezoidal"](
            toy, np.eye(len(toy.p0))[state], math.exp(-s), math.exp(-t)
        )
        kernel = KernelUnderTest(toy, denoiser, denoiser.process, PosteriorTrapezoidal())
        counts = kernel.step_counts(state, s, t, 8000, seed=1)
        assert p_value(counts, expected) > 1e-4


@pytest.mark.parametrize(
    "grid, num_exact", [("fisher grid", 3), pytest.param("logit grid", 3, marks=pytest.mark.deep)]
)
def test_every_claim_about_pure_death_holds(grid, num_exact):
    """All claims of `blackout verify --process pure_death` except those of the largest toy."""
    studies = [
        study for study in claims.studies(["pure_death"]) if study.subject.name != BUMPS.name
    ]
    assert {study.grid_name for study in studies} == {"fisher grid", "logit grid"}
    rows = [
        row for study in studies if study.grid_name == grid for row in claims.measure_orders(study)
    ]
    assert [row for row in rows if not row.holds] == []
    assert sum(row.order == math.inf for row in rows) == num_exact


@pytest.mark.parametrize("name", PURE_DEATH_KERNELS)
@pytest.mark.parametrize("toy", [rare_pixel(), PAIR], ids=lambda toy: toy.name)
def test_samples_of_kernels_and_the_loop_follow_their_exact_distributions(toy, name):
    assert claims.check_draws(pure_death_subject(toy, PURE_DEATH_KERNELS), name, 4000)[1] > 1e-4


@pytest.mark.parametrize("name", PURE_DEATH_KERNELS)
def test_samples_of_kernels_follow_their_exact_distributions_on_256_levels(name):
    """Means far above 10 and dispersions on both sides of 1 use other sampling methods."""
    kernel = KernelUnderTest(BUMPS, ExactDenoiser(BUMPS), PureDeath(255), PURE_DEATH_KERNELS[name])
    for s, t, state in ((0.0, 0.3, 60), (0.7, 1.2, 20), (2.0, 5.0, 0)):
        expected = PURE_DEATH_STEPS[name](BUMPS, np.eye(256)[state], math.exp(-s), math.exp(-t))
        assert p_value(kernel.step_counts(state, s, t, 4000), expected) > 1e-4


@dataclass(frozen=True)
class TooManyBirths:
    """A Poisson leap with 4 % too many births."""

    def __call__(self, at):
        def wrong(x, t):
            prediction = at.denoiser(x, t)
            return replace(prediction, log_mean=prediction.log_mean + math.log(1.04))

        return PoissonLeap()(replace(at, denoiser=wrong))


def test_the_verify_command_detects_a_wrong_kernel_and_a_lower_order(monkeypatch):
    assert (
        claims.check_draws(pure_death_subject(PAIR, {"poisson": TooManyBirths()}), "poisson")[1]
        < MIN_P_VALUE
    )
    orders = {"poisson": math.inf, "nearest": 0.9}
    study = claims.Study(
        pure_death_subject(rare_pixel(), PURE_DEATH_KERNELS),
        "fisher grid",
        fisher_times,
        (16, 32),
        orders,
    )
    assert [row.holds for row in claims.measure_orders(study)] == [False, False]
    monkeypatch.setattr(claims, "studies", lambda processes: iter([study]))
    monkeypatch.setattr(claims, "check_draws", lambda subject, kernel: ("draws", 0.5))
    lines: list[str] = []
    assert claims.verify(lines.append) is False and sum("FAILS" in line for line in lines) == 2


def test_kernels_name_the_head_that_they_need():
    xt = torch.zeros(2, 3, dtype=torch.uint8)
    (s, t) = torch.tensor([0.1, 0.2]).double()

    def denoiser(x, t):
        return CountPrediction(torch.ones(x.shape), torch.zeros(x.shape))

    with pytest.raises(ValueError, match="distribution"):
        PosteriorBridge()(ReverseStep(denoiser, PureDeath(9), xt, s, t))
    with pytest.raises(ValueError, match="distribution"):
        PosteriorTrapezoidal()(ReverseStep(denoiser, PureDeath(9), xt, s, t))
    with pytest.raises(ValueError, match="counts up to 1023"):
        PosteriorTrapezoidal()(ReverseStep(denoiser, PureDeath(65535), xt, s, t))


@pytest.mark.parametrize("name", PURE_DEATH_KERNELS)
def test_kernels_stay_within_the_range_of_counts(name):
    toy = Toy("full", np.array([0.05, 0.0, 0.0, 0.95]))
    xt = torch.randint(
        0, 4, (4000, 1), generator=torch.Generator().manual_seed(1), dtype=torch.uint8
    )
    for s, t in torch.tensor([[0.0, 0.5], [0.5, 2.0], [2.0, 9.0]]).double():
        numbers = SampleStreams(0, torch.arange(4000)).step(1)
        xs = PURE_DEATH_KERNELS[name](
            ReverseStep(ExactDenoiser(toy), PureDeath(3), xt, s, t, numbers)
        )
        assert xs.dtype == torch.uint8 and bool((xs >= xt).all()) and int(xs.max()) <= 3


@pytest.mark.parametrize("name", PURE_DEATH_KERNELS)
def test_reported_evaluations_are_those_that_a_kernel_makes(name):
    grid = partial(logit_times, first=4.0, last=-6.0)
    head = LogisticMixtureHead(SoftplusHead(), max_count=1, mean=1.0, std=1.0, components=1)

    def num_evaluations(num_steps):
        return count_evaluations(
            grid(num_steps), PureDeath(1), head, Sampler(PURE_DEATH_KERNELS[name])
        )

    per_step = (num_evaluations(8) - 1) // 7
    assert pure_death_subject(rare_pixel(), PURE_DEATH_KERNELS).measure_error(name, grid, 8)[
        0
    ] == num_evaluations(8 // per_step)


def test_nearest_rounding_adds_the_rounded_mean():
    step = independent_step(BUMPS, np.eye(256)[60], 1.0, math.exp(-0.3), BIRTHS["nearest"])
    nearest = Sampler(BinomialBridge(nearest_rounding))
    assert count_evaluations(fisher_times(7), PureDeath(255), SoftplusHead(), nearest) == 7
    num_births = round(float(BUMPS.missing_counts(math.exp(-0.3)).mean[60]))
    assert (
        step.argmax() == 60 + num_births
        and binomial_pmf(np.array([[num_births]]), 1.0, 255)[0, num_births] == 1
    )


# --- multistep kernels


def excess_of_totals(kernel, num_steps, n=20_000):
    """Return the excess dispersion of totals at every time, from last to first, with its error.

    The excess Var(sum X) / E(sum X) - 1 is given as a fraction of its exact value.
    """
    toy = GammaPoisson(0.5, 16)
    shares = []
    times = logit_times(num_steps, 1.0, -4.0)

    def record(k, x, prediction):
        total = x.sum(1, dtype=torch.float64)
        q = math.exp(-float(times[k]))
        shares.append(
            (float(total.var() / total.mean() - 1) / (q * 2.0), (2 / n) ** 0.5 / (q * 2.0))
        )
        # extrapolation does not change the mean
        assert float(total.mean()) == pytest.approx(8 * q, abs=4 * (8 * q * (1 + 2 * q) / n) ** 0.5)

    data_mean = torch.full((16,), 0.5, dtype=torch.float64)
    run_sampler(
        SamplingPlan(toy, PureDeath(255), times, kernel=kernel, data_mean=data_mean),
        (n, 16),
        SampleStreams(0, torch.arange(n)),
        callback=record,
    )
    return shares


def test_multistep_samples_have_the_right_covariance_from_the_first_step_on():
    multistep = excess_of_totals(MultistepLeap(), 9)
    poisson = excess_of_totals(PoissonLeap(), 9)
    assert all(abs(share - 1) < 0.1 + 3 * error for share, error in multistep[1:])
    assert all(share < 0.9 for share, _ in poisson[1:]) and poisson[1][0] < multistep[1][0] - 0.3


def test_clipping_an_extrapolation_adds_no_births():
    y = torch.tensor([[1.0, 2.0, 0.1], [0.0, 0.0, 0.0]])
    expected = torch.tensor([[0.5, 1.0, 1.0], [0.0, 0.0, 1.0]])
    rate = extrapolate(y, expected, 3.0)  # limited to one step: 1.5, 3.0, -0.8
    torch.testing.assert_close(
        rate, torch.tensor([[1.5, 3.0, 0.0], [0.0, 0.0, 0.0]]) * (3.7 / 4.5), check_dtype=False
    )


def test_a_multistep_leap_alone_or_after_a_corrector_is_a_poisson_leap():
    toy = GammaPoisson(0.5, 16)
    process = PureDeath(255)
    times = logit_times(4, 1.0, -4.0)
    xt = torch.ones(5, 16, dtype=torch.uint8)
    streams = SampleStreams(3, torch.arange(5))
    poisson = PoissonLeap()(ReverseStep(toy, process, xt, times[2], times[3], streams.step(1)))
    kernel = MultistepLeap()
    started = kernel.start(None)
    # a step that does not end where the next begins
    started(ReverseStep(toy, process, xt, times[2], times[4], streams.step(2)))
    for leap in (kernel, kernel, kernel.start(None), started):
        assert torch.equal(
            leap(ReverseStep(toy, process, xt, times[2], times[3], streams.step(1))), poisson
        )
    next_step = started(ReverseStep(toy, process, xt, times[1], times[2], streams.step(1)))
    assert not torch.equal(
        next_step, PoissonLeap()(ReverseStep(toy, process, xt, times[1], times[2], streams.step(1)))
    )


def around_digits():
    """Return the mean [64] and exact denoiser of Poisson images centred on digits."""
    centres = digits().train[:400].flatten(1).double() * 0.97 + 0.2

    def denoiser(xt, t):
        q = float(torch.exp(-t))
        log_weight = xt.double() @ centres.log().T - q * centres.sum(1)
        y = (1 - q) * (torch.softmax(log_weight, 1) @ centres)
        return CountPrediction(y, y.log())

    return centres.mean(0), denoiser


def brightness(kernel, first, last, num_steps, n=600):
    """Return the relative excess of the mean of samples with the exact denoiser."""
    data_mean, denoiser = around_digits()
    times = logit_times(num_steps, first, last)
    streams = SampleStreams(0, torch.arange(n))
    samples = run_sampler(
        SamplingPlan(denoiser, PureDeath(255), times, kernel=kernel, data_mean=data_mean),
        (n, 64),
        streams,
    )
    return float(samples.double().mean() / data_mean.mean()) - 1


def test_multistep_samples_keep_the_brightness_and_long_leaps_increase_it():
    """Births drawn independently lead to states outside the data, for which more is predicted."""
    # tolerance: three standard errors
    assert brightness(MultistepLeap(), 0.0, -4.0, 9) == pytest.approx(0.0, abs=0.015)
    assert brightness(PoissonLeap(), 4.0, -5.0, 9) > 0.03
    assert brightness(Trapezoidal(), 4.0, -5.0, 5) > 0.03
