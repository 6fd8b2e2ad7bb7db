"""Every finite process equals expm and Bayes' rule, at 3 to 20 states."""

import pickle

import numpy as np
import pytest
import torch
from scipy import stats

from blackout.diffusion.processes import (
    Absorbing,
    BirthDeath,
    Ordinal,
    PureDeath,
    Uniform,
    from_generator,
)
from blackout.verification import toys as chains
from blackout.verification.exact_steps import birth_death_bridge_pmf
from tests.verification import brute_force

RNG = np.random.default_rng(7)
CYCLE = np.roll(np.eye(5), 1, axis=1) - np.eye(5)
TWO_CLASSES = np.kron(np.eye(2), np.full((3, 3), 1 / 3)) - np.eye(6)

PROCESSES = {
    "uniform, 3 states": Uniform(2),
    "uniform, 20 states": Uniform(19),
    "absorbing": Absorbing(5),
    "ordinal, nearest": Ordinal(6),
    "ordinal, wide": Ordinal(16, width=2.0),
    "ordinal, with a Gaussian stationary distribution": Ordinal(9, spread=2.5),
    "dense generator": from_generator(6, chains.random_generator(RNG, 8)),
    "stiff generator": from_generator(9, chains.random_generator(RNG, 10, spread=3.0)),
    "a cycle": from_generator(4, CYCLE),
    "two closed classes": from_generator(5, TWO_CLASSES),
    "sparse and absorbing generator": from_generator(
        6, chains.random_generator(RNG, 7, density=0.2)
    ),
}
TIMES = [(0.0, 0.3), (0.2, 0.9), (1.0, 1.01), (1e-6, 2.5)]


def all_pairs(process):
    """Return all (o, m): x0 and xt of shape [S0, S]."""
    o = torch.arange(process.max_count + 1)
    m = torch.arange(process.num_states)
    return torch.meshgrid(o, m, indexing="ij")


@pytest.mark.parametrize("name", PROCESSES)
@pytest.mark.parametrize("s, t", TIMES)
def test_transitions_bridges_and_reverse_rates_match_brute_force(name, s, t):
    process = PROCESSES[name]
    q = process.generator().numpy()
    assert (
        np.abs(q.sum(1)).max() < 1e-12 * max(1.0, np.abs(q).max())
        and (q - np.diag(np.diag(q)) >= 0).all()
    )
    first, transition, second = (brute_force.precise_expm(q * tau) for tau in (s, t, t - s))
    levels = process.max_count + 1
    x0, xt = all_pairs(process)

    pmf = process.pmf(torch.arange(levels)[None], t)[0].numpy()
    assert np.abs(pmf - transition[:levels]).max() < 1e-10
    assert np.abs(pmf.sum(1) - 1).max() < 1e-14
    log_likelihood = process.log_likelihood(torch.arange(process.num_states)[None], t)[0].numpy()
    assert np.abs(np.exp(log_likelihood) - transition[:levels]).max() < 1e-10

    possible = transition[:levels] > 1e-12
    bridge = process.bridge_pmf(x0, xt, s, t).numpy()
    assert np.abs(bridge - brute_force.bridge(first[:levels], second))[possible].max() < 1e-10

    rates = process.reverse_rates(x0, xt, t).movedim(1, -1).numpy()
    expected = brute_force.reverse_rates(q, transition)[:levels]
    assert np.abs(rates - expected)[possible].max() < 1e-10 * max(
        1.0, float(expected[possible].max())
    )


@pytest.mark.parametrize("tau", [1e-3, 0.02, 0.1])
def test_small_probabilities_keep_their_relative_accuracy(tau):
    process = Ordinal(30, spread=8.0)
    exact = brute_force.precise_expm(process.generator().numpy() * tau)
    computed = process.transition_after(torch.tensor([tau], dtype=torch.float64))[0].numpy()
    small = (exact > 1e-30) & (exact < 1e-9)
    assert small.sum() > 50 and float(np.abs(computed[small] / exact[small] - 1).max()) < 1e-10


@pytest.mark.parametrize("name", PROCESSES)
def test_rates_are_linear_in_the_distribution_of_the_origin(name):
    process = PROCESSES[name]
    t = torch.tensor(0.6).double()
    levels = process.max_count + 1
    m = torch.arange(process.num_states)[None]
    p0 = np.random.default_rng(1).dirichlet(np.ones(levels))
    posterior = torch.from_numpy(
        brute_force.posterior(p0, process.transition(t.new_zeros(1), t[None])[0].numpy())
    )
    rates_by_origin = torch.stack(
        [process.reverse_rates(torch.full_like(m, o), m, t) for o in range(levels)]
    )
    expected = torch.einsum("mo,obsm->bsm", posterior, rates_by_origin)
    rates = process.rates(posterior.T[None], m, t)
    reachable = process.log_likelihood(m, t).exp().amax(1)[0] > 1e-12
    assert torch.allclose(rates[..., reachable], expected[..., reachable], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", PROCESSES)
def test_the_reverse_process_carries_the_distribution_back(name):
    """d/dt p_t = p_t Q, and the reverse generator with exact rates gives -p_t Q at the same t."""
    process = PROCESSES[name]
    t = torch.tensor(0.7).double()
    levels = process.max_count + 1
    m = torch.arange(process.num_states)[None]
    p0 = np.random.default_rng(2).dirichlet(np.ones(levels))
    transition = process.transition(t.new_zeros(1), t[None])[0].numpy()
    marginal = p0 @ transition[:levels]
    # [j, m]
    rates = process.rates(torch.from_numpy(brute_force.posterior(p0, transition)).T[None], m, t)[
        0
    ].numpy()
    inflow = rates @ marginal - rates.sum(0) * marginal
    forward = marginal @ process.generator().numpy()
    assert np.abs(inflow + forward).max() < 1e-10 * max(1.0, float(process.generator().abs().max()))


@pytest.mark.parametrize("process", [Ordinal(12), Ordinal(12, width=1.5, spread=3.0)])
def test_ordinal_processes_are_reversible_and_their_slowest_mode_decays_at_rate_one(process):
    q = process.generator()
    stationary = process.stationary
    flow = stationary[:, None] * q
    assert torch.allclose(flow, flow.T, atol=1e-15)
    assert float((stationary @ q).abs().max()) < 1e-13
    values = np.sort(np.linalg.eigvals(q.numpy()).real)
    assert values[-1] == pytest.approx(0, abs=1e-10) and values[-2] == pytest.approx(-1, abs=1e-9)
    assert torch.allclose(process.prior_pmf(30.0), stationary, atol=1e-9)


@pytest.mark.parametrize("max_count, mean", [(2, 0.7), (9, 3.0), (19, 8.0)])
@pytest.mark.parametrize("t", [0.05, 0.5, 2.0])
def test_immigration_and_death_matches_brute_force(max_count, mean, t):
    process = BirthDeath(max_count, mean)
    q = chains.birth_death_generator(mean, process.num_states + 15)
    transition = brute_force.precise_expm(q * t)
    size = process.num_states
    pmf = process.pmf(torch.arange(max_count + 1)[None], t)[0].numpy()
    assert np.abs(pmf - transition[: max_count + 1, :size]).max() < 1e-10
    assert np.abs(pmf.sum(1) - 1).max() < 1e-12
    log_likelihood = process.log_likelihood(torch.arange(size)[None], t)[0].numpy()
    assert np.abs(np.exp(log_likelihood) - transition[: max_count + 1, :size]).max() < 1e-10

    x0, xt = all_pairs(process)
    rates = process.reverse_rates(x0, xt, t).numpy()
    exact = brute_force.reverse_rates(q, transition)
    for o in range(max_count + 1):
        for m in range(size - 1):
            if transition[o, m] > 1e-12:
                assert rates[o, 0, m] == pytest.approx(exact[o, m, m + 1], rel=1e-10)
                if m > 0:
                    assert rates[o, 1, m] == pytest.approx(exact[o, m, m - 1], rel=1e-10)
    assert np.abs(rates[:, 1, 0]).max() == 0.0


@pytest.mark.parametrize("max_count, mean", [(2, 0.7), (9, 3.0)])
@pytest.mark.parametrize("s, t", [(0.02, 0.05), (0.3, 1.2), (1.0, 4.0)])
def test_the_bridge_of_immigration_and_death_follows_bayes_rule(max_count, mean, s, t):
    """Averaged over survivors, reborn, departed and transient immigrants."""
    size = BirthDeath(max_count, mean).num_states
    q = chains.birth_death_generator(mean, size + 15)
    first, transition, second = (
        brute_force.precise_expm(q * tau)[:size, :size] for tau in (s, t, t - s)
    )
    o, m, k = np.meshgrid(
        np.arange(max_count + 1), np.arange(size), np.arange(max_count + 1), indexing="ij"
    )
    survivors = stats.binom.pmf(k, o, np.exp(-t)) * stats.poisson.pmf(m - k, -mean * np.expm1(-t))
    missing = np.maximum(o - k, 0)
    immigrants = np.maximum(m - k, 0)
    conditional_bridge = birth_death_bridge_pmf(size, m, missing, immigrants, s, t, mean)
    joint = (survivors[..., None] * conditional_bridge).sum(2)
    expected = first[: max_count + 1, None, :] * second.T[None]
    assert np.abs(joint - expected).max() < 1e-10
    likely = transition[: max_count + 1] > 1e-4
    bridge = joint / survivors.sum(2)[..., None]
    assert np.abs(bridge - brute_force.bridge(first[: max_count + 1], second))[likely].max() < 1e-10


def test_pure_death_has_the_same_interface():
    process = PureDeath(12)
    t = 0.8
    q = -np.diag(np.arange(13.0)) + np.diag(np.arange(1.0, 13), -1)
    transition = brute_force.precise_expm(q * t)
    assert np.abs(process.pmf(torch.arange(13)[None], t)[0].numpy() - transition).max() < 1e-12
    assert (
        np.abs(
            process.log_likelihood(torch.arange(13)[None], t)[0].exp().numpy() - transition
        ).max()
        < 1e-12
    )
    x0, xt = all_pairs(process)
    rates = process.reverse_rates(x0, xt, t)[:, 0].numpy()
    exact = brute_force.reverse_rates(q, transition)
    for o in range(13):
        for m in range(o):
            assert rates[o, m] == pytest.approx(exact[o, m, m + 1], rel=1e-10)


def test_processes_can_be_pickled():
    process = Ordinal(3)
    t = torch.tensor([0.5], dtype=torch.float64)
    matrices = process.transition(torch.zeros_like(t), t)
    assert torch.equal(
        pickle.loads(pickle.dumps(process)).transition(torch.zeros_like(t), t), matrices
    )


@pytest.mark.deep
def test_tables_of_256_states_compose(monkeypatch):
    """Forty times; a thousand would take 25 times as long and 500 MB."""
    process = Ordinal(255)
    t = torch.logspace(-6, 1, 40, dtype=torch.float64)
    matrices = process.transition(torch.zeros_like(t), t)
    assert matrices.shape == (40, 256, 256) and float((matrices.sum(-1) - 1).abs().max()) < 1e-13
    half = process.transition(torch.zeros_like(t), t / 2)
    assert float((half @ half - matrices).abs().max()) < 1e-12
