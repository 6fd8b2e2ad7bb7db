"""Forward laws, bridges and reverse rates of every finite process equal expm and Bayes' rule, at 3 to 20 states."""

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
    "ordinal, with a Gaussian stationary law": Ordinal(9, spread=2.5),
    "dense generator": from_generator(6, chains.random_generator(RNG, 8)),
    "stiff generator": from_generator(9, chains.random_generator(RNG, 10, spread=3.0)),
    "a cycle": from_generator(4, CYCLE),
    "two closed classes": from_generator(5, TWO_CLASSES),
    "sparse and absorbing generator": from_generator(6, chains.random_generator(RNG, 7, density=0.2)),
}
TIMES = [(0.0, 0.3), (0.2, 0.9), (1.0, 1.01), (1e-6, 2.5)]


def pair(process):
    """All (o, m): x0 and xt of shape [S0, S]."""
    o, m = torch.arange(process.max_count + 1), torch.arange(process.num_states)
    return torch.meshgrid(o, m, indexing="ij")


@pytest.mark.parametrize("name", PROCESSES)
@pytest.mark.parametrize("s, t", TIMES)
def test_forward_bridge_and_reverse_rates(name, s, t):
    process = PROCESSES[name]
    q = process.generator().numpy()
    assert np.abs(q.sum(1)).max() < 1e-12 * max(1.0, np.abs(q).max()) and (q - np.diag(np.diag(q)) >= 0).all()
    first, whole, rest = (brute_force.precise_expm(q * tau) for tau in (s, t, t - s))
    levels = process.max_count + 1
    x0, xt = pair(process)

    pmf = process.pmf(torch.arange(levels)[None], t)[0].numpy()
    assert np.abs(pmf - whole[:levels]).max() < 1e-10
    assert np.abs(pmf.sum(1) - 1).max() < 1e-14
    log_likelihood = process.log_likelihood(torch.arange(process.num_states)[None], t)[0].numpy()
    assert np.abs(np.exp(log_likelihood) - whole[:levels]).max() < 1e-10

    possible = whole[:levels] > 1e-12
    bridge = process.bridge_pmf(x0, xt, s, t).numpy()
    assert np.abs(bridge - brute_force.bridge(first[:levels], rest))[possible].max() < 1e-10

    rates = process.reverse_rates(x0, xt, t).movedim(1, -1).numpy()
    expected = brute_force.reverse_rates(q, whole)[:levels]
    assert np.abs(rates - expected)[possible].max() < 1e-10 * max(1.0, float(expected[possible].max()))


@pytest.mark.parametrize("tau", [1e-3, 0.02, 0.1])
def test_small_probabilities_keep_their_digits(tau):
    process = Ordinal(30, spread=8.0)
    exact = brute_force.precise_expm(process.generator().numpy() * tau)
    made = process.transition_after(torch.tensor([tau], dtype=torch.float64))[0].numpy()
    small = (exact > 1e-30) & (exact < 1e-9)
    assert small.sum() > 50 and float(np.abs(made[small] / exact[small] - 1).max()) < 1e-10


@pytest.mark.parametrize("name", PROCESSES)
def test_rates_are_linear_in_the_law_of_the_origin(name):
    process, t = PROCESSES[name], torch.tensor(0.6).double()
    levels, m = process.max_count + 1, torch.arange(process.num_states)[None]
    p0 = np.random.default_rng(1).dirichlet(np.ones(levels))
    posterior = torch.from_numpy(brute_force.posterior(p0, process.transition(t.new_zeros(1), t[None])[0].numpy()))
    each = torch.stack([process.reverse_rates(torch.full_like(m, o), m, t) for o in range(levels)])
    expected = torch.einsum("mo,obsm->bsm", posterior, each)
    rates = process.rates(posterior.T[None], m, t)
    reachable = process.log_likelihood(m, t).exp().amax(1)[0] > 1e-12
    assert torch.allclose(rates[..., reachable], expected[..., reachable], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", PROCESSES)
def test_the_time_reversed_process_conserves_probability(name):
    """d/dt p_t = p_t Q, and the reverse generator with exact rates carries p_t backwards: -p_t Q at the same t."""
    process, t = PROCESSES[name], torch.tensor(0.7).double()
    levels, m = process.max_count + 1, torch.arange(process.num_states)[None]
    p0 = np.random.default_rng(2).dirichlet(np.ones(levels))
    whole = process.transition(t.new_zeros(1), t[None])[0].numpy()
    law = p0 @ whole[:levels]
    rates = process.rates(torch.from_numpy(brute_force.posterior(p0, whole)).T[None], m, t)[0].numpy()  # [j, m]
    inflow = rates @ law - rates.sum(0) * law
    forward = law @ process.generator().numpy()
    assert np.abs(inflow + forward).max() < 1e-10 * max(1.0, float(process.generator().abs().max()))


@pytest.mark.parametrize("process", [Ordinal(12), Ordinal(12, width=1.5, spread=3.0)])
def test_ordinal_processes_are_reversible_and_their_slowest_mode_decays_at_rate_one(process):
    q, law = process.generator(), process.stationary
    flow = law[:, None] * q
    assert torch.allclose(flow, flow.T, atol=1e-15)
    assert float((law @ q).abs().max()) < 1e-13
    values = np.sort(np.linalg.eigvals(q.numpy()).real)
    assert values[-1] == pytest.approx(0, abs=1e-10) and values[-2] == pytest.approx(-1, abs=1e-9)
    assert torch.allclose(process.prior_pmf(30.0), law, atol=1e-9)


@pytest.mark.parametrize("max_count, mean", [(2, 0.7), (9, 3.0), (19, 8.0)])
@pytest.mark.parametrize("t", [0.05, 0.5, 2.0])
def test_immigration_and_death(max_count, mean, t):
    process = BirthDeath(max_count, mean)
    q = chains.birth_death_generator(mean, process.num_states + 15)
    whole = brute_force.precise_expm(q * t)
    size = process.num_states
    pmf = process.pmf(torch.arange(max_count + 1)[None], t)[0].numpy()
    assert np.abs(pmf - whole[: max_count + 1, :size]).max() < 1e-10
    assert np.abs(pmf.sum(1) - 1).max() < 1e-12
    log_likelihood = process.log_likelihood(torch.arange(size)[None], t)[0].numpy()
    assert np.abs(np.exp(log_likelihood) - whole[: max_count + 1, :size]).max() < 1e-10

    x0, xt = pair(process)
    rates = process.reverse_rates(x0, xt, t).numpy()
    exact = brute_force.reverse_rates(q, whole)
    for o in range(max_count + 1):
        for m in range(size - 1):
            if whole[o, m] > 1e-12:
                assert rates[o, 0, m] == pytest.approx(exact[o, m, m + 1], rel=1e-10)
                if m > 0:
                    assert rates[o, 1, m] == pytest.approx(exact[o, m, m - 1], rel=1e-10)
    assert np.abs(rates[:, 1, 0]).max() == 0.0


@pytest.mark.parametrize("max_count, mean", [(2, 0.7), (9, 3.0)])
@pytest.mark.parametrize("s, t", [(0.02, 0.05), (0.3, 1.2), (1.0, 4.0)])
def test_the_bridge_of_immigration_and_death(max_count, mean, s, t):
    """Averaged over how many survived, missing and immigrants reborn, gone and passing through are Bayes' rule."""
    size = BirthDeath(max_count, mean).num_states
    q = chains.birth_death_generator(mean, size + 15)
    first, whole, rest = (brute_force.precise_expm(q * tau)[:size, :size] for tau in (s, t, t - s))
    o, m, k = np.meshgrid(np.arange(max_count + 1), np.arange(size), np.arange(max_count + 1), indexing="ij")
    survivors = stats.binom.pmf(k, o, np.exp(-t)) * stats.poisson.pmf(m - k, -mean * np.expm1(-t))
    missing, immigrants = np.maximum(o - k, 0), np.maximum(m - k, 0)
    law = birth_death_bridge_pmf(size, m, missing, immigrants, s, t, mean)
    joint = (survivors[..., None] * law).sum(2)
    expected = first[: max_count + 1, None, :] * rest.T[None]
    assert np.abs(joint - expected).max() < 1e-10
    likely = whole[: max_count + 1] > 1e-4
    bridge = joint / survivors.sum(2)[..., None]
    assert np.abs(bridge - brute_force.bridge(first[: max_count + 1], rest))[likely].max() < 1e-10


def test_pure_death_has_the_same_interface():
    process, t = PureDeath(12), 0.8
    q = -np.diag(np.arange(13.0)) + np.diag(np.arange(1.0, 13), -1)
    whole = brute_force.precise_expm(q * t)
    assert np.abs(process.pmf(torch.arange(13)[None], t)[0].numpy() - whole).max() < 1e-12
    assert np.abs(process.log_likelihood(torch.arange(13)[None], t)[0].exp().numpy() - whole).max() < 1e-12
    x0, xt = pair(process)
    rates = process.reverse_rates(x0, xt, t)[:, 0].numpy()
    exact = brute_force.reverse_rates(q, whole)
    for o in range(13):
        for m in range(o):
            assert rates[o, m] == pytest.approx(exact[o, m, m + 1], rel=1e-10)


def test_processes_can_be_sent_to_other_processes():
    process, t = Ordinal(3), torch.tensor([0.5], dtype=torch.float64)
    matrices = process.transition(torch.zeros_like(t), t)
    assert torch.equal(pickle.loads(pickle.dumps(process)).transition(torch.zeros_like(t), t), matrices)


@pytest.mark.deep
def test_the_table_of_256_states_and_a_thousand_times_fits(monkeypatch):
    """Here 40 times; a thousand take 25 times as long and 500 MB."""
    process = Ordinal(255)
    t = torch.logspace(-6, 1, 40, dtype=torch.float64)
    matrices = process.transition(torch.zeros_like(t), t)
    assert matrices.shape == (40, 256, 256) and float((matrices.sum(-1) - 1).abs().max()) < 1e-13
    half = process.transition(torch.zeros_like(t), t / 2)
    assert float((half @ half - matrices).abs().max()) < 1e-12
