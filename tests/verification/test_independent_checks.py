"""What pages promise, checked by enumeration that shares no code with the package.

Priors, denoisers, likelihoods and posteriors of tiny spaces are computed here in NumPy from their
definitions.
"""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from blackout.confidence_intervals import interval
from blackout.diffusion.finite_time_bound import weighted_path_bound
from blackout.diffusion.inpainting import KnownElements
from blackout.diffusion.kernels import Trapezoidal
from blackout.diffusion.likelihood import likelihood_bound
from blackout.diffusion.particles import Particles, run_particles
from blackout.diffusion.predictions import CountPrediction
from blackout.diffusion.processes import PureDeath
from blackout.diffusion.sampling import SamplingPlan
from blackout.diffusion.time_grids import logit_times
from blackout.evaluation.classifier_tests import classifier_test, null_auc_error
from blackout.flows.annealed_importance import anneal
from blackout.flows.simulation import draw_jump
from blackout.flows.targets import Ising
from blackout.flows.weights import estimate_target, jackknife_error
from blackout.permutations.codes import FisherYates
from blackout.posterior import (
    SMC,
    Binomial,
    Camera,
    Direct,
    Flips,
    Gaussian,
    Identity,
    Inpaint,
    InverseProblem,
    Matrix,
    NoiseDenoise,
    Overwrite,
    Poisson,
    Prior,
    SplitGibbs,
)
from blackout.posterior.diagnostics import (
    ess_bulk,
    log_mean_exp,
    posterior_predictive_p_value,
    predictive_quantiles,
    prior_predictive_p_value,
    r_hat,
    r_hat_limit,
    rank_discrepancies,
    rank_p_value,
)
from blackout.random import SampleStreams

LEVELS = 4  # counts 0 to 3
STATES = np.array(list(itertools.product(range(LEVELS), repeat=2)))
P = np.random.default_rng(7).dirichlet(np.full(len(STATES), 0.5))
MEAN = torch.from_numpy(P @ STATES)


def thinning(survival):
    """Return P(x_t = z | x_0 = x) of both counts, [states of x, states of z]."""
    return np.array([
        [
            np.prod([
                math.comb(x, z) * survival**z * (1 - survival) ** (x - z) if z <= x else 0.0
                for x, z in zip(data, state, strict=True)
            ])
            for state in STATES
        ]
        for data in STATES
    ])  # fmt: skip


class MissingMeans:
    """E[x_0 - x_t | x_t] of the prior P, by Bayes' rule over all data."""

    def __init__(self):
        self._tables = {}

    def __call__(self, xt, t):
        times = torch.as_tensor(t, dtype=torch.float64).expand(len(xt))
        index = xt.long()[:, 0] * LEVELS + xt.long()[:, 1]
        mean = torch.empty(len(xt), 2, dtype=torch.float64)
        for time in times.unique().tolist():
            if time not in self._tables:
                joint = P[:, None] * thinning(math.exp(-time))
                total = np.maximum(joint.sum(0), 1e-300)
                table = (joint.T @ STATES) / total[:, None] - STATES
                self._tables[time] = torch.from_numpy(np.maximum(table, 1e-30))
            rows = times == time
            mean[rows] = self._tables[time][index[rows]]
        return CountPrediction(mean, mean.log())


DENOISER = MissingMeans()


def make_prior(num_steps=60):
    times = logit_times(num_steps, 7.0, -7.0)
    process = PureDeath(LEVELS - 1)
    return Prior(DENOISER, process, (2,), Trapezoidal(), MEAN, times, steps_per_logit=4.0)


def chi_square(samples, p):
    """Return the p-value of samples [n, 2] against a distribution over all states."""
    counts = np.bincount(samples.long().numpy() @ [LEVELS, 1], minlength=len(STATES))
    expected = p * counts.sum()
    assert counts[expected == 0].sum() == 0
    common = expected >= 5
    observed = np.append(counts[common], counts[~common].sum())
    expected_counts = np.append(expected[common], expected[~common].sum())
    used = expected_counts > 1e-9
    return stats.chisquare(
        observed[used], expected_counts[used] * observed.sum() / expected_counts.sum()
    ).pvalue


def total_variation(samples, p):
    counts = np.bincount(samples.long().numpy() @ [LEVELS, 1], minlength=len(STATES))
    return 0.5 * np.abs(counts / counts.sum() - p).sum()


def bayes(likelihood):
    """Return p(x | y) and p(y) of a likelihood of all states."""
    joint = P * likelihood
    return joint / joint.sum(), joint.sum()


# --- posteriors


def test_direct_runs_follow_bayes_rule():
    y = np.array([1, 0])
    likelihood = stats.binom.pmf(y, STATES, 0.4).prod(1)
    problem = InverseProblem(Identity(), Binomial(0.4), torch.tensor(y, dtype=torch.float64))
    result = Direct(100).sample(make_prior(), problem, 5000)
    assert chi_square(result.samples, bayes(likelihood)[0]) > 1e-3


def photons_of_sum(exposure=1.5, y=3):
    """Return the problem of photons from a sum of counts, and its likelihood of all states."""
    problem = InverseProblem(
        Matrix(torch.ones(1, 2, dtype=torch.float64)),
        Poisson(exposure),
        torch.tensor([float(y)], dtype=torch.float64),
    )
    return problem, stats.poisson.pmf(y, exposure * STATES.sum(1))


def test_weights_of_smc_average_to_the_evidence():
    problem, likelihood = photons_of_sum()
    posterior, evidence = bayes(likelihood)
    result = SMC(particles=8).sample(make_prior(40), problem, 3000)
    numbers = result.log_evidence.exp().numpy()
    error = numbers.std() / math.sqrt(len(numbers))
    assert numbers.mean() == pytest.approx(evidence, abs=4 * error + 0.01 * evidence)
    assert error < 0.03 * evidence
    distance = total_variation(result.samples, posterior)
    assert distance < 0.06


@pytest.mark.deep
def test_more_particles_bring_smc_nearer_to_the_posterior():
    problem, likelihood = photons_of_sum(y=6)
    posterior, _ = bayes(likelihood)
    distances = [
        total_variation(SMC(number).sample(make_prior(40), problem, 3000).samples, posterior)
        for number in (1, 32)
    ]
    assert distances[1] < 0.05 < 0.1 < distances[0]


@pytest.mark.deep
def test_sweeps_at_one_level_have_the_limit_that_the_page_states():
    """For normal noise the marginal of x is p(x) sum_z K(x, z) L(e^t z), not p(x) L(x)."""
    level = 0.5
    y = torch.tensor([2.0, 0.5], dtype=torch.float64)
    problem = InverseProblem(Identity(), Gaussian(0.7), y)

    def likelihood(x):
        return stats.norm.pdf(y.numpy(), x, 0.7).prod(1)

    read = np.minimum(STATES * math.exp(level), LEVELS - 1)
    limit, _ = bayes(thinning(math.exp(-level)) @ likelihood(read))
    exact, _ = bayes(likelihood(STATES))
    result = SplitGibbs(levels=(level,) * 25, steps=30).sample(make_prior(), problem, 5000)
    assert chi_square(result.samples, limit) > 1e-3
    assert chi_square(result.samples, exact) < 1e-6


@pytest.mark.deep
def test_moves_leave_the_posterior_as_it_is_and_lead_to_it():
    problem, likelihood = photons_of_sum(y=2)
    posterior, _ = bayes(likelihood)
    rng = np.random.default_rng(0)
    start = torch.from_numpy(STATES[rng.choice(len(STATES), 5000, p=posterior)])
    prior = make_prior()
    moved = NoiseDenoise((3.0, 0.5), 4).sample(prior, problem, 5000, start=start)
    assert chi_square(moved.samples, posterior) > 1e-3
    far = torch.zeros(5000, 2, dtype=torch.int64)
    arrived = NoiseDenoise((3.0, 0.5), 30).sample(prior, problem, 5000, start=far)
    assert chi_square(arrived.samples, posterior) > 1e-3


def test_known_elements_are_weighted_to_their_conditional_distribution_and_probability():
    known = np.argmax(P.reshape(LEVELS, LEVELS).sum(1))
    joint = P * (STATES[:, 0] == known)
    mask = torch.tensor([True, False])
    y = torch.tensor([float(known), 0.0], dtype=torch.float64)
    problem = InverseProblem(Inpaint(mask), Inpaint(mask).noise, y)
    result = Overwrite(particles=8, steps=80).sample(make_prior(), problem, 2500)
    assert total_variation(result.samples, joint / joint.sum()) < 0.05
    numbers = result.log_evidence.exp().numpy()
    error = numbers.std() / math.sqrt(len(numbers))
    assert numbers.mean() == pytest.approx(joint.sum(), abs=4 * error + 0.02 * joint.sum())


def test_the_look_ahead_does_not_change_the_expected_weight():
    x0 = torch.tensor([[1, 0]], dtype=torch.uint8).expand(3000, 2)
    mask = torch.tensor([True, False]).expand(3000, 2)
    estimates = []
    for look_ahead in (0.0, 1.0):
        plan = SamplingPlan(
            DENOISER,
            PureDeath(LEVELS - 1),
            logit_times(12, 6.0, -6.0),
            Trapezoidal(),
            data_mean=MEAN,
            known_elements=KnownElements(x0, mask),
        )
        streams = SampleStreams(0, torch.arange(3000))
        particles = Particles(4, look_ahead=look_ahead)
        numbers = run_particles(plan, (3000, 2), streams, particles).log_normaliser.exp()
        estimates.append((float(numbers.mean()), float(numbers.std()) / math.sqrt(3000)))
    (first, first_error), (second, second_error) = estimates
    assert abs(first - second) < 4 * math.hypot(first_error, second_error)


# --- likelihoods of measurements


@pytest.mark.parametrize(
    "noise, m, values",
    [
        (Binomial(0.3), 7.0, np.arange(8)),
        (Poisson(0.8, background=0.5), 5.0, np.arange(80)),
    ],
)
def test_probabilities_of_integer_measurements_sum_to_one(noise, m, values):
    y = torch.from_numpy(values).double()[:, None]
    p = noise.log_prob(y, torch.tensor([[m]], dtype=torch.float64)).exp()
    assert float(p.sum()) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("noise", [Gaussian(1.3), Camera(0.7, 0.2, 2.0, 10.0, 1.5)])
def test_densities_of_real_measurements_integrate_to_one(noise):
    y = torch.linspace(-40, 120, 20_001, dtype=torch.float64)[:, None]
    density = noise.log_prob(y, torch.tensor([[4.0]], dtype=torch.float64)).exp().flatten()
    assert integrate.trapezoid(density.numpy(), y.flatten().numpy()) == pytest.approx(1, abs=1e-4)


def test_flips_are_described_as_no_normalised_likelihood():
    flips = Flips(2.0)
    y = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    total = float(flips.log_prob(y, torch.ones(1, 1, dtype=torch.float64)).exp().sum())
    assert not flips.normalised and total == pytest.approx(1 + math.exp(-2))
    assert all(noise.normalised for noise in (Gaussian(), Poisson(1.0), Binomial(0.5)))


def test_thinned_likelihoods_average_to_the_likelihood():
    """Sum over z of Binomial(z; x, survival) L_t(z) is L(x), for sums of two counts."""
    problem, likelihood = photons_of_sum(exposure=1.2, y=2)
    survival = 0.8
    thinned = problem.thin(survival, (2,), LEVELS - 1)
    assert thinned is not None
    of_states = thinned.log_likelihood(torch.from_numpy(STATES).double()).exp().numpy()
    assert np.allclose(thinning(survival) @ of_states, likelihood, rtol=1e-9)


# --- bounds of the model's likelihood


def test_the_continuous_bound_averages_to_the_entropy_with_the_exact_denoiser():
    entropy = -(P * np.log(P)).sum()
    n = 12_000
    rng = np.random.default_rng(0)
    x0 = torch.from_numpy(STATES[rng.choice(len(STATES), n, p=P)]).to(torch.uint8)
    v = ((torch.arange(n, dtype=torch.float64) % 200) + 0.5) / 200
    streams = SampleStreams(0, torch.arange(n)).step(0)
    nats = likelihood_bound(DENOISER, PureDeath(LEVELS - 1), x0, v, streams, data_mean=MEAN)
    error = float(nats.std()) / math.sqrt(n)
    assert float(nats.mean()) == pytest.approx(entropy, abs=4 * error)
    assert error < 0.05


def test_bounds_of_paths_lie_above_the_entropy_and_fall():
    """The sampler's own -log p(x) is at least the entropy on average, and bounds are above it."""
    entropy = -(P * np.log(P)).sum()
    n = 4000
    rng = np.random.default_rng(1)
    x0 = torch.from_numpy(STATES[rng.choice(len(STATES), n, p=P)]).to(torch.uint8)
    times = logit_times(8, 5.0, -6.0)
    bounds = []
    for number in (1, 16):
        streams = [SampleStreams(k, torch.arange(n)) for k in range(number)]
        process = PureDeath(LEVELS - 1)
        nats = weighted_path_bound(DENOISER, process, times, x0, MEAN, streams)
        bounds.append((float(nats.mean()), float(nats.std()) / math.sqrt(n)))
    assert bounds[1][0] < bounds[0][0]
    assert all(mean > entropy - 3 * error for mean, error in bounds)


# --- log Z


def ising_log_z(size, coupling):
    """Return log Z of a periodic lattice by a sum over all states."""
    spins = np.array(list(itertools.product((-1, 1), repeat=size * size)), dtype=np.int8)
    grid = spins.reshape(-1, size, size)
    bonds = (grid * np.roll(grid, 1, 1)).sum((1, 2), dtype=np.int64)
    bonds += (grid * np.roll(grid, 1, 2)).sum((1, 2), dtype=np.int64)
    energy = coupling * bonds
    largest = energy.max()
    return largest + math.log(np.exp(energy - largest).sum())


@pytest.mark.deep
def test_errors_and_intervals_of_log_z_hold():
    """Of 100 annealing runs, the standardised errors have a variance near 1."""
    target = Ising(3, 0.3)
    exact = ising_log_z(3, 0.3)
    scores = []
    inside = 0
    for seed in range(100):
        paths = anneal(target, 128, 12, seed)
        values = estimate_target(
            target, paths.states.x, paths.log_weights, paths.states.log_density
        )
        scores.append((values["log_z"] - exact) / values["log_z_error"])
        inside += values["log_z_ci_low"] <= exact <= values["log_z_ci_high"]
    # binomial with 95 of 100: fewer than 88 in 0.2 % of cases
    assert inside >= 88
    assert 0.3 < np.var(scores) < 1.6
    assert abs(np.mean(scores)) < 0.4


@pytest.mark.deep
def test_the_mean_weight_of_annealing_is_unbiased():
    target = Ising(3, 0.35)
    exact = ising_log_z(3, 0.35)
    ratios = np.concatenate([
        (anneal(target, 1000, 4, seed).log_weights - exact).exp().numpy() for seed in range(10)
    ])  # fmt: skip
    error = ratios.std() / math.sqrt(len(ratios))
    assert ratios.mean() == pytest.approx(1, abs=4 * error)


def test_equal_weights_have_an_error():
    """Equal weights of N chains leave a share of 3.7 / N unseen."""
    error = jackknife_error(torch.zeros(30, dtype=torch.float64))
    low, high = interval(torch.zeros(30, dtype=torch.float64))
    assert 1.96 * error == pytest.approx(1 - 0.025 ** (1 / 30), rel=1e-4)
    assert low <= 0 <= high
    assert log_mean_exp(np.zeros(12))[1] > 0.1


def test_errors_of_evidence_cover():
    """The mean of log-normal weights lies within 1.96 errors in about 95 % of cases."""
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        logs = 0.5 * rng.normal(size=40)
        value, error = log_mean_exp(logs)
        covered += abs(value - 0.125) < 1.96 * error
    assert covered > 0.9 * 400


def test_jumps_of_rate_zero_do_not_happen():
    """Not even where a uniform number times the sum of rates rounds to the sum."""
    for dtype in (torch.float32, torch.float64):
        rates = torch.tensor([[[0.0, 0.3, 0.0], [0.0, 0.4, 0.0]]], dtype=dtype)
        last = torch.nextafter(torch.ones((), dtype=dtype), torch.zeros((), dtype=dtype))
        for u in (torch.zeros((), dtype=dtype), last, torch.ones((), dtype=dtype)):
            after = draw_jump(torch.full((1, 2), 2), rates, u[None])
            # one of the two sites has jumped to its only level with a positive rate
            assert sorted(after[0].tolist()) == [1, 2]


def test_fisher_yates_digits_of_an_ewens_distribution_are_independent():
    """P(x) proportional to 2^cycles is a product over digits."""
    orders = np.array(list(itertools.permutations(range(5))))

    def count_cycles(order):
        remaining = set(range(len(order)))
        number = 0
        while remaining:
            number += 1
            position = remaining.pop()
            while order[position] in remaining:
                position = order[position]
                remaining.remove(position)
        return number

    p = 2.0 ** np.array([count_cycles(order) for order in orders])
    p /= p.sum()
    digits = FisherYates.encode(torch.from_numpy(orders)).numpy()
    product = np.ones(len(orders))
    for column in digits.T:
        marginal = np.bincount(column, weights=p)
        product *= marginal[column]
    assert np.allclose(product, p)
    assert [count_cycles(order) for order in orders] == (digits == 0).sum(1).tolist()


@pytest.mark.parametrize("number", [4096, 20_000])
def test_the_start_bound_of_large_counts_is_twice_the_divergence(number):
    k = np.arange(number + 1)
    for q in (0.001, 0.1, 0.9, 0.99):
        log_p = stats.binom.logpmf(k, number, q)
        terms = np.exp(log_p) * (log_p - stats.poisson.logpmf(k, number * q))
        exact = terms[np.exp(log_p) > 0].sum()
        assert (-math.log1p(-q) - q) / exact == pytest.approx(2, rel=2e-3)


# --- diagnostics of chains


def reference_r_hat(chains):
    """Return rank-normalised split R-hat [Vehtari et al. 2021, section 4] in plain loops."""
    half = chains.shape[1] // 2
    parts = [part for chain in chains for part in (chain[:half], chain[-half:])]
    parts = np.array(parts)
    largest = 0.0
    for values in (parts, np.abs(parts - np.median(parts))):
        ranks = stats.rankdata(values).reshape(values.shape)
        z = stats.norm.ppf((ranks - 3 / 8) / (values.size + 1 / 4))
        within = np.mean([part.var(ddof=1) for part in z])
        between = half * np.var([part.mean() for part in z], ddof=1)
        largest = max(largest, math.sqrt(((half - 1) / half * within + between / half) / within))
    return largest


def test_r_hat_is_that_of_the_definition():
    rng = np.random.default_rng(0)
    for shift in (0.0, 0.5, 2.0):
        chains = rng.poisson(3.0, (4, 30)) + shift * np.arange(4)[:, None]
        assert r_hat(chains) == pytest.approx(reference_r_hat(chains), rel=1e-12)


@pytest.mark.deep
@pytest.mark.parametrize("chains, sweeps", [(4, 30), (8, 30), (12, 12)])
def test_independent_chains_are_seldom_flagged(chains, sweeps):
    rng = np.random.default_rng(1)
    limit = r_hat_limit(chains, sweeps, 18, 0.04)
    draws = rng.normal(size=(200, 18, chains, sweeps))
    flagged = np.mean([max(map(r_hat, values)) > limit for values in draws])
    # 5 % of 200, and three standard errors
    assert flagged < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 200)


def test_effective_sizes_are_those_of_an_autoregressive_chain():
    """n (1 - rho) / (1 + rho) for the mean of an AR(1) process."""
    rng = np.random.default_rng(2)
    rho = 0.6
    sizes = []
    for _ in range(20):
        x = np.zeros((4, 1000))
        x[:, 0] = rng.normal(size=4)
        noise = math.sqrt(1 - rho**2) * rng.normal(size=x.shape)
        for k in range(1, x.shape[1]):
            x[:, k] = rho * x[:, k - 1] + noise[:, k]
        sizes.append(ess_bulk(x))
    assert np.mean(sizes) == pytest.approx(4000 * (1 - rho) / (1 + rho), rel=0.1)


# --- predictive checks and calibration


def test_posterior_predictive_p_values_are_seldom_small():
    """Of a correct model the value is below a in at most about 15 a of measurements."""
    rng = np.random.default_rng(3)
    noise = Poisson(1.0)
    small = 0
    for seed in range(100):
        # a conjugate model: x ~ Gamma(3), y ~ Poisson(x), x | y ~ Gamma(3 + y, scale 1 / 2)
        x = rng.gamma(3.0, size=12)
        y = rng.poisson(x)
        samples = rng.gamma(3.0 + y, 0.5, size=(12, 12))
        p = posterior_predictive_p_value(
            noise, torch.from_numpy(y).double()[None], torch.from_numpy(samples), None, seed
        )
        small += p < 0.01
    assert small <= 0.15 * 100


def test_prior_predictive_p_values_are_valid():
    rng = np.random.default_rng(4)
    p_values = []
    for _ in range(200):
        draws = rng.poisson(rng.gamma(2.0, size=(65, 1)) * np.ones(20)).astype(float)
        y = torch.from_numpy(draws)
        simulated = torch.from_numpy(
            rng.poisson(rng.gamma(2.0, size=(40, 65, 1)) * np.ones(20)).astype(float)
        )
        discrepancies = rank_discrepancies(y, simulated)
        p_values.append(prior_predictive_p_value(discrepancies[0], discrepancies[1:], 20))
    p_values = np.array(p_values)
    assert (p_values < 0.05).mean() < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 200)
    assert (p_values < 0.001).mean() < 0.02


def test_p_values_of_ranks_are_valid():
    rng = np.random.default_rng(5)
    p_values = [rank_p_value({str(k): rng.random(100) for k in range(18)}) for _ in range(200)]
    assert np.mean(np.array(p_values) < 0.05) < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 200)


def test_the_next_draw_lies_below_a_quantile_with_its_probability():
    rng = np.random.default_rng(6)
    draws = torch.from_numpy(rng.gamma(2.0, size=(19, 20_000)))
    following = torch.from_numpy(rng.gamma(2.0, size=20_000))
    below = (following < predictive_quantiles(draws)).double().mean(1)
    assert torch.allclose(below, torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95]).double(), atol=0.012)


def test_intervals_of_skewed_means_miss_as_often_on_either_side():
    rng = np.random.default_rng(8)
    below = 0
    above = 0
    for _ in range(1000):
        low, high = interval(torch.from_numpy(rng.exponential(size=40)))
        below += high < 1
        above += low > 1
    assert below < 50 and above < 50 and below + above < 90


@pytest.mark.deep
def test_errors_of_classifier_scores_are_those_of_equal_distributions():
    rng = np.random.default_rng(9)
    scores = [
        classifier_test(*rng.poisson(4.0, (2, 61, 6)), linear=True, seed=seed)[0]
        for seed in range(120)
    ]
    spread = np.std(scores, ddof=1)
    # a standard deviation of 120 values has a standard error of 6.5 %
    assert spread == pytest.approx(null_auc_error(61), rel=0.25)
    assert np.mean(scores) == pytest.approx(0.5, abs=0.03)
