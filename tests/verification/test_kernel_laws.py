"""The reverse kernels with a perfect denoiser: how large their errors are, how fast they vanish, which are exact."""

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
from blackout.diffusion.schedules import fisher_times, logit_times
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
from tests.verification.test_toy_tables import final_law, survivals, walk

BUMPS, PAIR = two_bumps(), pixel_pair()


def error(toy, kernel, times):
    return total_variation(final_law(toy, survivals(times), PURE_DEATH_STEPS[kernel]), toy.p0)


def test_with_known_origin_the_binomial_bridge_is_exact_at_every_level():
    """X_0 = 9 in 0..15: after the last step X_0 with probability 1, each level's law right up to the start's error."""
    toy = Toy("nine", np.eye(16)[9])
    for num_steps in (10, 100):
        times = fisher_times(num_steps)
        for k, law in walk(toy, survivals(times), PURE_DEATH_STEPS["nearest"]):
            assert total_variation(law, toy.marginal(math.exp(-times[k]))) < 1e-6
        assert law[9] == pytest.approx(1.0, abs=1e-9)


@pytest.mark.deep
def test_orders_of_convergence_on_two_correlated_pixels():
    """Equal network evaluations, 16 -> 32 -> 64: Poisson halves its error, the trapezoidal method falls by 2.5."""
    for grid in (fisher_times, partial(logit_times, first=7.0, last=-10.0)):
        one = [error(PAIR, "poisson", grid(n)) for n in (16, 32, 64)]
        two = [error(PAIR, "trapezoidal", grid(n)) for n in (8, 16, 32)]
        for before, after in pairwise(one):
            assert before / after == pytest.approx(2.0, abs=0.15)
        assert two[0] / two[1] > 2.5 and two[1] / two[2] > 2.5
        assert two[2] < 0.25 * one[2]


@pytest.mark.deep
def test_trapezoidal_steps_of_whole_distributions_on_smooth_and_rough_toys():
    """Total variation at 7, 15 and 31 evaluations: of second order on the smooth toy, of the first on the rough ones,
    where it is nowhere clearly worse than the trapezoidal method and half as wrong on three pixels.
    """
    grid = partial(logit_times, first=7.0, last=-10.0)
    both = "trapezoidal", "posterior_trapezoidal"
    table = {toy.name: [[error(toy, name, grid(n)) for n in (4, 8, 16)] for name in both]
             for toy in (PAIR, exclusive_pair(), five_bits(), three_pixels())}  # fmt: skip
    for counts, whole in table.values():
        assert all(mine < 1.04 * other for mine, other in zip(whole, counts, strict=True))
    assert table["pixel pair"][1] == pytest.approx([0.1087, 0.0315, 0.0085], rel=0.02)
    assert table["three pixels"][0] == pytest.approx([0.2232, 0.1086, 0.0531], rel=0.02)
    assert table["three pixels"][1] == pytest.approx([0.1190, 0.0497, 0.0232], rel=0.02)


@pytest.mark.parametrize("toy", [exclusive_pair(), five_bits(), three_pixels()], ids=lambda toy: toy.name)
def test_posterior_trapezoidal_steps_draw_from_their_exact_laws_on_rough_toys(toy):
    denoiser, likely = ExactDenoiser(toy), int(toy.p0.argmax())
    for s, t, state in ((0.2, 0.9, 0), (0.1, 0.3, likely), (1.0, 3.0, 0)):
        law = PURE_DEATH_STEPS["posterior_trapezoidal"](toy, np.eye(len(toy.p0))[state], math.exp(-s), math.exp(-t))
        kernel = KernelUnderTest(toy, denoiser, denoiser.process, PosteriorTrapezoidal())
        drawn = kernel.step_counts(state, s, t, 8000, seed=1)
        assert p_value(drawn, law) > 1e-4


@pytest.mark.parametrize("grid, exact", [("fisher grid", 3), pytest.param("logit grid", 3, marks=pytest.mark.deep)])
def test_every_claim_about_pure_death_holds(grid, exact):
    """All of `blackout verify --process pure_death` but the largest toy."""
    studies = [study for study in claims.studies(["pure_death"]) if study.subject.name != BUMPS.name]
    assert {study.grid_name for study in studies} == {"fisher grid", "logit grid"}
    found = [row for study in studies if study.grid_name == grid for row in claims.measure_orders(study)]
    assert [row for row in found if not row.holds] == []
    assert sum(row.order == math.inf for row in found) == exact


@pytest.mark.parametrize("name", PURE_DEATH_KERNELS)
@pytest.mark.parametrize("toy", [rare_pixel(), PAIR], ids=lambda toy: toy.name)
def test_kernels_and_the_loop_draw_from_their_exact_laws(toy, name):
    assert claims.check_draws(pure_death_subject(toy, PURE_DEATH_KERNELS), name, 4000)[1] > 1e-4


@pytest.mark.parametrize("name", PURE_DEATH_KERNELS)
def test_kernels_draw_from_their_exact_laws_on_256_levels(name):
    """Means far above 10 and dispersions on both sides of 1, where other ways of drawing are in use."""
    kernel = KernelUnderTest(BUMPS, ExactDenoiser(BUMPS), PureDeath(255), PURE_DEATH_KERNELS[name])
    for s, t, state in ((0.0, 0.3, 60), (0.7, 1.2, 20), (2.0, 5.0, 0)):
        law = PURE_DEATH_STEPS[name](BUMPS, np.eye(256)[state], math.exp(-s), math.exp(-t))
        assert p_value(kernel.step_counts(state, s, t, 4000), law) > 1e-4


@dataclass(frozen=True)
class TooMany:
    """A Poisson leap of 4 % too many births."""

    def __call__(self, at):
        def wrong(x, t):
            prediction = at.denoiser(x, t)
            return replace(prediction, log_mean=prediction.log_mean + math.log(1.04))

        return PoissonLeap()(replace(at, denoiser=wrong))


def test_the_law_command_finds_a_wrong_kernel_and_a_lost_order(monkeypatch):
    assert claims.check_draws(pure_death_subject(PAIR, {"poisson": TooMany()}), "poisson")[1] < MIN_P_VALUE
    orders = {"poisson": math.inf, "nearest": 0.9}
    study = claims.Study(pure_death_subject(rare_pixel(), PURE_DEATH_KERNELS), "fisher grid", fisher_times, (16, 32), orders)
    assert [row.holds for row in claims.measure_orders(study)] == [False, False]
    monkeypatch.setattr(claims, "studies", lambda processes: iter([study]))
    monkeypatch.setattr(claims, "check_draws", lambda subject, kernel: ("draws", 0.5))
    lines: list[str] = []
    assert claims.verify(lines.append) is False and sum("FAILS" in line for line in lines) == 2


def test_kernels_say_what_they_need_of_the_head():
    xt, (s, t) = torch.zeros(2, 3, dtype=torch.uint8), torch.tensor([0.1, 0.2]).double()

    def denoiser(x, t):
        return CountPrediction(torch.ones(x.shape), torch.zeros(x.shape))

    with pytest.raises(ValueError, match="distribution"):
        PosteriorBridge()(ReverseStep(denoiser, PureDeath(9), xt, s, t))
    with pytest.raises(ValueError, match="distribution"):
        PosteriorTrapezoidal()(ReverseStep(denoiser, PureDeath(9), xt, s, t))
    with pytest.raises(ValueError, match="counts up to 1023"):
        PosteriorTrapezoidal()(ReverseStep(denoiser, PureDeath(65535), xt, s, t))


@pytest.mark.parametrize("name", PURE_DEATH_KERNELS)
def test_kernels_stay_within_the_counts(name):
    toy = Toy("full", np.array([0.05, 0.0, 0.0, 0.95]))
    xt = torch.randint(0, 4, (4000, 1), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    for s, t in torch.tensor([[0.0, 0.5], [0.5, 2.0], [2.0, 9.0]]).double():
        numbers = SampleStreams(0, torch.arange(4000)).step(1)
        xs = PURE_DEATH_KERNELS[name](ReverseStep(ExactDenoiser(toy), PureDeath(3), xt, s, t, numbers))
        assert xs.dtype == torch.uint8 and bool((xs >= xt).all()) and int(xs.max()) <= 3


@pytest.mark.parametrize("name", PURE_DEATH_KERNELS)
def test_evaluations_in_the_tables_are_those_that_a_kernel_makes(name):
    grid = partial(logit_times, first=4.0, last=-6.0)
    head = LogisticMixtureHead(SoftplusHead(), max_count=1, mean=1.0, std=1.0, components=1)

    def made(num_steps):
        return count_evaluations(grid(num_steps), PureDeath(1), head, Sampler(PURE_DEATH_KERNELS[name]))

    per_step = (made(8) - 1) // 7
    assert pure_death_subject(rare_pixel(), PURE_DEATH_KERNELS).measure_error(name, grid, 8)[0] == made(8 // per_step)


def test_nearest_rounding_rounds():
    law = independent_step(BUMPS, np.eye(256)[60], 1.0, math.exp(-0.3), BIRTHS["nearest"])
    nearest = Sampler(BinomialBridge(nearest_rounding))
    assert count_evaluations(fisher_times(7), PureDeath(255), SoftplusHead(), nearest) == 7
    n = round(float(BUMPS.missing_counts(math.exp(-0.3)).mean[60]))
    assert law.argmax() == 60 + n and binomial_pmf(np.array([[n]]), 1.0, 255)[0, n] == 1


# --- births that lend to the next


def excess_of_totals(kernel, num_steps, n=20_000):
    """Var(sum X) / E(sum X) - 1 at every time, last to first, as a share of what it is under the exact law; errors."""
    toy, found = GammaPoisson(0.5, 16), []
    times = logit_times(num_steps, 1.0, -4.0)

    def look(k, x, prediction):
        total, q = x.sum(1, dtype=torch.float64), math.exp(-float(times[k]))
        found.append((float(total.var() / total.mean() - 1) / (q * 2.0), (2 / n) ** 0.5 / (q * 2.0)))
        # the mean of the law, whatever is extrapolated
        assert float(total.mean()) == pytest.approx(8 * q, abs=4 * (8 * q * (1 + 2 * q) / n) ** 0.5)

    mean = torch.full((16,), 0.5, dtype=torch.float64)
    run_sampler(
        SamplingPlan(toy, PureDeath(255), times, kernel=kernel, mean=mean),
        (n, 16),
        SampleStreams(0, torch.arange(n)),
        callback=look,
    )
    return found


def test_a_multistep_walk_has_the_covariance_of_the_law_from_its_first_step_on():
    lent, plain = excess_of_totals(MultistepLeap(), 9), excess_of_totals(PoissonLeap(), 9)
    assert all(abs(share - 1) < 0.1 + 3 * error for share, error in lent[1:])
    assert all(share < 0.9 for share, _ in plain[1:]) and plain[1][0] < lent[1][0] - 0.3


def test_what_is_cut_of_an_extrapolation_adds_no_births():
    y, expected = torch.tensor([[1.0, 2.0, 0.1], [0.0, 0.0, 0.0]]), torch.tensor([[0.5, 1.0, 1.0], [0.0, 0.0, 1.0]])
    rate = extrapolate(y, expected, 3.0)  # at most once: 1.5, 3.0, -0.8
    torch.testing.assert_close(rate, torch.tensor([[1.5, 3.0, 0.0], [0.0, 0.0, 0.0]]) * (3.7 / 4.5), check_dtype=False)


def test_a_multistep_leap_by_itself_or_after_a_corrector_knows_no_step_before():
    toy, process, times = GammaPoisson(0.5, 16), PureDeath(255), logit_times(4, 1.0, -4.0)
    xt, one = torch.ones(5, 16, dtype=torch.uint8), SampleStreams(3, torch.arange(5))
    plain = PoissonLeap()(ReverseStep(toy, process, xt, times[2], times[3], one.step(1)))
    kernel = MultistepLeap()
    walker = kernel.start(None)
    walker(ReverseStep(toy, process, xt, times[2], times[4], one.step(2)))  # not ending where the next begins
    for leap in (kernel, kernel, kernel.start(None), walker):
        assert torch.equal(leap(ReverseStep(toy, process, xt, times[2], times[3], one.step(1))), plain)
    last = walker(ReverseStep(toy, process, xt, times[1], times[2], one.step(1)))
    assert not torch.equal(last, PoissonLeap()(ReverseStep(toy, process, xt, times[1], times[2], one.step(1))))


def around_digits():
    """Poisson images around digits: their mean [64] and exact denoiser."""
    centres = digits().train[:400].flatten(1).double() * 0.97 + 0.2

    def denoiser(xt, t):
        q = float(torch.exp(-t))
        log_weight = xt.double() @ centres.log().T - q * centres.sum(1)
        y = (1 - q) * (torch.softmax(log_weight, 1) @ centres)
        return CountPrediction(y, y.log())

    return centres.mean(0), denoiser


def brightness(kernel, first, last, num_steps, n=600):
    """Mean of samples over that of their law, less 1, with the exact denoiser."""
    mean, denoiser = around_digits()
    times = logit_times(num_steps, first, last)
    streams = SampleStreams(0, torch.arange(n))
    drawn = run_sampler(SamplingPlan(denoiser, PureDeath(255), times, kernel=kernel, mean=mean), (n, 64), streams)
    return float(drawn.double().mean() / mean.mean()) - 1


def test_with_the_exact_denoiser_multistep_samples_are_as_bright_as_their_law_and_those_of_long_leaps_brighter():
    """Births that know nothing of each other lead to states the law does not have, of which more is expected."""
    assert brightness(MultistepLeap(), 0.0, -4.0, 9) == pytest.approx(0.0, abs=0.015)  # three standard errors
    assert brightness(PoissonLeap(), 4.0, -5.0, 9) > 0.03
    assert brightness(Trapezoidal(), 4.0, -5.0, 5) > 0.03
