"""The ends of the range of times.

Where Poisson counts may replace X_T, bounds of counts of any size, and the dispersion of totals.
"""

import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from blackout.config.choices import list_choices, load_choice
from blackout.config.descriptions import complete_description
from blackout.config.instantiate import instantiate
from blackout.data.count_statistics import covariance_excess, total_dispersion
from blackout.diffusion import likelihood
from blackout.diffusion.finite_time_bound import start_bound
from blackout.diffusion.grid_ends import GridEnds, add_grid_ends
from blackout.diffusion.kernels import BirthDeathBridge, Trapezoidal
from blackout.diffusion.predictions import BirthDeathPrediction
from blackout.diffusion.processes import BirthDeath, PureDeath
from blackout.diffusion.sampling import SamplingPlan, run_sampler
from blackout.diffusion.survival import time_of_logit
from blackout.diffusion.time_grids import logit_times
from blackout.random import SampleStreams, low_discrepancy
from blackout.verification.toys import pixel_pair
from tests.cli.test_configs import composed
from tests.verification.large_counts import GammaPoisson, PoissonCounts, TwoPoint

ROOT = Path(__file__).parents[2]
LARGEST = 2**31 - 1
CIFAR10 = {
    "total_dispersion": 25967.377,
    "covariance_excess": 34030.87,
    "max_count": 255,
    "mean": 120.7,
    "std": 64.2,
}
# logit of the final time_at -> `start_divergence` of CIFAR-10's 50,000 training images
CIFAR10_NATS = {-8: 6.7177, -10: 0.34566, -12: 0.00945, -15: 3e-5}


def start_divergence(t, mean, covariance):
    """Return the KL in nats of X_t from Poisson counts of its mean, from the moments of X_0.

    It is exact for Gaussian counts, and correct to second order in q_t otherwise. For nearly black
    data the third order matters: the exact divergence of single elements is then up to twice as
    large.

    Args:
        t: the final time_at.
        mean: E[X_0], positive, float64 [d].
        covariance: of X_0, float64 [d, d].
    """
    scale = mean.double().flatten().sqrt()
    excess = covariance.double() / (scale[:, None] * scale[None, :]) - torch.eye(
        len(scale), dtype=torch.float64
    )
    excess_at_end = math.exp(-float(t)) * torch.linalg.eigvalsh(excess)
    return max(0.0, float((excess_at_end - torch.log1p(excess_at_end)).sum() / 2))


def survival_at(u):
    """Return q = e^-t at logit u."""
    return 1 / (1 + math.exp(-u))


def time_at(u):
    """Return the time at logit u."""
    return time_of_logit(torch.tensor(u, dtype=torch.float64))


# --- start distribution


@pytest.mark.parametrize("mean", [2.0, 100.0, 3e4, 4e8])
@pytest.mark.parametrize("pixels", [1, 16])
def test_the_start_divergence_of_correlated_counts(mean, pixels):
    toy = GammaPoisson(mean, pixels)
    for excess in (0.02, 0.1, 0.4, 3.0):  # q_T times the largest eigenvalue
        q = excess / (pixels * mean / toy.shape)
        if q < 0.5:
            divergence = start_divergence(
                -math.log(q), torch.full((pixels,), mean).double(), toy.covariance
            )
            assert divergence == pytest.approx(toy.start_divergence(q), rel=0.1)
            assert divergence <= toy.ends(255).start_divergence(-math.log(q))


def test_the_start_divergence_of_two_pixels_by_enumeration():
    pair = pixel_pair()
    mean = torch.from_numpy(pair.mean)
    covariance = torch.from_numpy(np.cov(pair.states.T, aweights=pair.p0, bias=True))
    for u in (-4.0, -5.0, -6.0, -8.0):
        q = survival_at(u)
        marginal = pair.marginal(q)
        log_start = stats.poisson.logpmf(pair.states, q * pair.mean).sum(1)
        exact = float(np.sum(marginal * (np.log(marginal) - log_start)))
        divergence = start_divergence(-math.log(q), mean, covariance)
        assert exact / 2 <= divergence <= 1.2 * exact


def test_total_dispersion_and_covariance_excess_of_counts():
    toy = GammaPoisson(50.0, 16)
    counts = toy.draw(20_000)
    assert total_dispersion(counts) == pytest.approx(1 + 16 * 50 / 4, rel=0.03)
    assert covariance_excess(counts) == pytest.approx(16 * 50 / 4, rel=0.1)
    independent = torch.from_numpy(np.random.default_rng(0).poisson(20.0, (5000, 16)))
    assert covariance_excess(independent) < 0.5
    constant = torch.full((50, 3), 7)
    assert total_dispersion(constant) == 0 and total_dispersion(constant * 0) == 0
    assert covariance_excess(constant) == pytest.approx(3**0.5, rel=0.02)
    single_sample = torch.ones(1, 3, dtype=torch.uint8)
    assert math.isfinite(covariance_excess(single_sample)) and total_dispersion(single_sample) == 0


@pytest.mark.parametrize("mean", [1e2, 3e4, 4e8])
@pytest.mark.parametrize("pixels", [1, 16])
def test_ends_chosen_from_the_data_are_within_a_hundredth_of_a_nat(mean, pixels):
    toy = GammaPoisson(mean, pixels)
    ends = toy.ends(LARGEST)
    q = survival_at(ends.last)
    assert q * ends.total_dispersion <= 0.05 + 1e-12 and toy.start_divergence(q) <= 0.01
    assert (
        math.exp(-ends.final_time) <= q * (1 + 1e-9)
        and float(time_at(ends.last)) >= ends.earliest_time()
    )


def load_shipped_grids():
    """Return every grid in conf/ that is not fitted to a model."""
    grids = {
        f"sampler/grid={name}": load_choice("sampler/grid", name)
        for name in list_choices("sampler/grid")
    }
    grids |= {
        f"schedule={name}": composed(f"schedule={name}")["schedule"]["grid"]
        for name in list_choices("schedule")
    }
    excluded = ("steps", "schedule=counts")  # `counts` needs more statistics of the data
    return {name: grid for name, grid in grids.items() if not name.endswith(excluded)}


SHIPPED_GRIDS = load_shipped_grids()


def final_time(grid, statistics):
    """Return the final time of a grid for data with these statistics."""
    complete = add_grid_ends({"mean": 1.0, "std": 1.0, **statistics})
    return instantiate(complete_description(grid, complete, "grid"), "grid")(50)[-1]


@pytest.mark.parametrize("name", SHIPPED_GRIDS)
@pytest.mark.parametrize("mean", [10, 1e2, 3e4, 4e8])
def test_shipped_grids_on_sixteen_correlated_pixels_are_close_or_refused(name, mean):
    toy = GammaPoisson(mean, 16)
    ends = toy.ends(LARGEST)
    statistics = {
        "total_dispersion": ends.total_dispersion,
        "covariance_excess": ends.covariance_excess,
    }
    statistics |= {"mean": mean, "std": mean}
    t = final_time(SHIPPED_GRIDS[name], {**statistics, "max_count": LARGEST})
    divergence = (
        toy.start_divergence(float(torch.exp(-t)))
        if float(torch.exp(-t)) * mean < 1e5
        else math.inf
    )
    assert divergence <= 0.05 or float(t) < ends.earliest_time()
    assert float(t) >= ends.earliest_time() or divergence > 0.02  # no grid is refused needlessly
    if name.endswith("logit_data"):
        assert float(t) >= ends.earliest_time()


@pytest.mark.parametrize("name", SHIPPED_GRIDS)
def test_shipped_grids_on_cifar10_are_close_or_refused(name):
    ends = GridEnds.from_facts(CIFAR10)
    t = final_time(SHIPPED_GRIDS[name], CIFAR10)
    u = -float(t)  # at such late times the logit is -t
    divergence = np.interp(
        u, sorted(CIFAR10_NATS), [CIFAR10_NATS[end] for end in sorted(CIFAR10_NATS)]
    )
    assert (float(t) >= ends.earliest_time()) == (divergence <= 0.05)
    assert (float(t) >= ends.earliest_time()) == name.endswith(
        ("fisher", "fisher_20", "cosine", "uniform", "logit_data")
    )


@pytest.mark.deep
@pytest.mark.skipif(
    "BLACKOUT_DATA" not in os.environ, reason="BLACKOUT_DATA names no folder of data"
)
def test_total_dispersion_and_covariance_excess_of_cifar10():
    from blackout.data import cifar10

    train = cifar10(os.environ["BLACKOUT_DATA"], validation=0).train
    assert total_dispersion(train) == pytest.approx(CIFAR10["total_dispersion"], rel=1e-6)
    assert covariance_excess(train) == pytest.approx(CIFAR10["covariance_excess"], rel=1e-4)
    x = train[::10].flatten(1).double()
    for u in (-10, -12):
        assert start_divergence(time_at(float(u)), x.mean(0), x.T.cov()) == pytest.approx(
            CIFAR10_NATS[u], rel=0.2
        )


def test_a_grid_that_is_too_short_is_refused_with_a_sufficient_end():
    ends = GridEnds.from_facts(CIFAR10)
    with pytest.raises(
        ValueError, match=r"ends at logit -8,.* last=-13.2 of the grid, .* or .*logit_data"
    ):
        ends.check(time_at(-8.0))
    assert GridEnds.from_facts({"max_count": 255}) is None


# --- bounds


def mean_bound(toy, max_count, n):
    """Return the mean bound in nats and its standard error."""
    x0 = toy.draw(n)
    assert int(x0.max()) <= max_count
    x0 = x0.to(torch.uint8 if max_count <= 255 else torch.int32)
    process = PureDeath(max_count)
    v = low_discrepancy(torch.arange(n))
    streams = SampleStreams(4, torch.arange(n)).step(0)
    data_mean = torch.full((x0.shape[1],), float(toy.mean))
    nats = likelihood.likelihood_bound(toy, process, x0, v, streams, data_mean=data_mean)
    if max_count <= 255:
        assert not likelihood.includes_ends(process)
        nats = nats + likelihood.end_bound(toy, process, x0, data_mean, streams)
    return float(nats.mean()), float(nats.std()) / n**0.5


@pytest.mark.parametrize(
    "toy, max_count",
    [
        (PoissonCounts(100.0), 255),
        (GammaPoisson(20.0), 255),
        (TwoPoint(60, 200), 255),
        (PoissonCounts(3e4), 65_535),
        (GammaPoisson(8000.0), 65_535),
        (TwoPoint(10_000, 60_000), 65_535),
        (PoissonCounts(1e9), LARGEST),
        (GammaPoisson(2e8), LARGEST),
        (TwoPoint(10**8, 2 * 10**9), LARGEST),
        (GammaPoisson(20.0, 16), 255),
        (GammaPoisson(8000.0, 16), 65_535),
        (GammaPoisson(2e8, 16), LARGEST),
    ],
)
def test_bounds_with_the_exact_mean_are_tight_for_counts_of_any_size(toy, max_count):
    num_samples = {PoissonCounts: 100_000, GammaPoisson: 100_000, TwoPoint: 500_000}[type(toy)]
    nats, error = mean_bound(toy, max_count, num_samples if toy.pixels == 1 else 5_000)
    assert nats > toy.entropy - 3 * error
    assert nats < 1.05 * toy.entropy and error < 0.03 * toy.entropy


def test_the_bound_of_large_counts_needs_their_mean():
    x0 = torch.zeros(2, 1, dtype=torch.int32)
    with pytest.raises(ValueError, match="mean"):
        likelihood.likelihood_bound(
            PoissonCounts(5.0), PureDeath(300), x0, torch.tensor([0.3, 0.7]).double()
        )


def test_a_wrong_model_is_penalised_at_the_ends(monkeypatch):
    """A model that excludes the last births gets no valid bound without the ends."""
    excludes_births = PoissonCounts(1e-30)
    n = 4000
    x0 = torch.ones(n, 1, dtype=torch.uint8) * 255
    streams = SampleStreams(0, torch.arange(n)).step(0)
    mean = torch.tensor([255.0])
    monkeypatch.setattr(likelihood, "LIMIT", 10.0)
    nats = likelihood.end_bound(excludes_births, PureDeath(255), x0, mean, streams)
    assert float(nats.min()) < 0.01 and float(nats.max()) > 60


def test_the_start_bound_of_large_counts_is_above_the_exact_one():
    mean = torch.tensor([30.0]).double()
    for n in (1, 3, 50, 255):
        for t in (0.2, 1.0, 4.0, 9.0):
            x0 = torch.tensor([[n]])
            t = torch.tensor(t).double()
            exact, larger = (
                float(start_bound(PureDeath(max_count), x0, t, mean)) for max_count in (255, 4096)
            )
            q = math.exp(-float(t))
            assert exact - 1e-9 <= larger <= exact - 0.7 * (math.log1p(-q) + q)


@pytest.mark.parametrize(
    "last, limit, flat", [(-15, 15, 0), (-15.01, 15.01, 5.55), (-20.5, 20.5, 11.1), (-31, 31, 21.5)]
)
def test_the_proposal_returns_the_density_of_its_samples(last, limit, flat):
    v = (torch.arange(200_000).double() + 0.5) / 200_000
    u, density = likelihood.propose_logits(v, float(last), float(limit), float(flat))
    assert (
        bool((u.diff() > 0).all()) and last - 1e-9 <= float(u[0]) and float(u[-1]) <= limit + 1e-9
    )
    assert float((1 / density).mean()) == pytest.approx(limit - last, rel=1e-3)
    slope = (v[2:] - v[:-2]) / (u[2:] - u[:-2])
    assert torch.allclose(slope, density[1:-1], rtol=1e-2)


# --- samples


@pytest.mark.parametrize("mean", [1e2, 1e4, 1e6, 4e8])
@pytest.mark.parametrize("pixels", [1, 16])
def test_sampled_totals_have_the_right_dispersion(mean, pixels):
    toy = GammaPoisson(mean, pixels)
    n = 3000
    max_count = min(LARGEST, int(20 * mean))
    ends = toy.ends(max_count)
    times = logit_times(100, ends.first, ends.last)
    plan = SamplingPlan(
        toy, PureDeath(max_count), times, Trapezoidal(), data_mean=torch.full((pixels,), mean)
    )
    generator = torch.Generator().manual_seed(0)
    x = run_sampler(plan, (n, pixels), generator).double().sum(1)
    assert float(x.mean()) == pytest.approx(mean * pixels, rel=0.03)
    assert float(x.std() / x.mean()) == pytest.approx(toy.variation, rel=0.05)


@pytest.mark.deep
def test_elements_that_are_always_zero_have_a_finite_start_bound():
    x0 = torch.tensor([[0, 3], [2, 3]], dtype=torch.int32)
    t = torch.tensor(5.0, dtype=torch.float64)
    for max_count in (255, 4095, 4096, 2**31 - 1):
        dark, lit = start_bound(PureDeath(max_count), x0, t, torch.tensor([0.0, 3.0])).tolist()
        assert math.isfinite(dark) and dark >= 0 and lit == math.inf
        late = torch.tensor(800.0, dtype=torch.float64)  # e^-t underflows to 0
        assert start_bound(PureDeath(max_count), x0, late, torch.tensor([1.0, 3.0])).tolist() == [
            0,
            0,
        ]


def test_states_beyond_the_largest_count_do_not_overflow():
    """With immigrants on top of 2^31 - 1 counts, states need more than int32."""
    process = BirthDeath(2**31 - 1, 2.0**20)
    x0 = torch.full((200, 1), 2**31 - 1, dtype=torch.int32)
    xt, target = process.observe(x0, torch.tensor(1e-6), torch.Generator().manual_seed(0))
    assert bool((xt > 2**31 - 1 - 10_000).all()) and bool((target.statistic >= 0).all())
    assert torch.equal(xt.long(), x0.long() - target.statistic[:, 0] + target.statistic[:, 1])
    times = torch.tensor([0.0, 1e-6], dtype=torch.float64)

    def nothing_missing(x, t):
        pair = torch.zeros(len(x), 2, 1)
        return BirthDeathPrediction(pair, pair - 700.0)

    samples = run_sampler(
        SamplingPlan(nothing_missing, process, times, kernel=BirthDeathBridge()), (200, 1), start=xt
    )
    assert samples.dtype == torch.int32 and bool((samples > 2**31 - 1 - 10_000).all())
