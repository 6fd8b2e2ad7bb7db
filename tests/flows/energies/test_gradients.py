"""The gradient of the likelihood from weighted chains against enumeration; other phases; the report's estimates."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from benchmarks.planar import entropy, mmd, uniform_weights
from benchmarks.proposals import GradientDMALA, LocallyInformed, first_order
from blackout.errors import UserError
from blackout.flows import Couplings, Events, Ising, Leap
from blackout.flows.energies.data import target_samples
from blackout.flows.energies.family import max_gradient_z_score
from blackout.flows.energies.model import (
    EnergySampler,
    EnergyWithRates,
    PairEnergy,
    fit_couplings,
    score_couplings,
)
from blackout.flows.energies.negative import EnergyDiscrepancy, FlowSamples, PersistentChains
from blackout.flows.path import States
from blackout.flows.refinement import Gibbs, Refinement
from blackout.flows.replay import Rollout
from blackout.flows.simulation import Paths
from blackout.flows.targets import Target, all_states, exact_values
from blackout.flows.targets.energy_network import EnergyNetwork, LearnedEnergy
from blackout.flows.weights import effective_sample_size, log_mean_exp
from blackout.networks import LESite
from blackout.random import SampleStreams

_REPEATS, _CHAINS = 24, 2000


def lattice() -> LearnedEnergy:
    """An Ising model on 3x3."""
    energy, truth = PairEnergy(9), Ising(3, 0.24).pair / 2
    with torch.no_grad():
        energy.upper.copy_(truth[tuple(torch.triu_indices(9, 9, 1))])
    return energy


def network() -> LearnedEnergy:
    """A network of 8 bits with weights of order 1."""
    torch.manual_seed(1)
    energy = EnergyNetwork(8, [12, 12])
    with torch.no_grad():
        for weight in energy.parameters():
            weight *= 2
    return energy


def exact_gradient(energy: LearnedEnergy, data: Tensor) -> Tensor:
    """Of the mean negative log-likelihood, by enumeration."""
    states = all_states(energy.levels, energy.sites)
    loss = energy.energy(data).double().mean() + torch.logsumexp(-energy.energy(states).double(), 0)
    return flat(torch.autograd.grad(loss, list(energy.parameters())))


def flat(parts: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([part.flatten() for part in parts]).double()


@pytest.mark.parametrize("make, moves", [
    pytest.param(lattice, None, id="lattice-plain"), pytest.param(network, Gibbs(), id="network-gibbs"),
    pytest.param(lattice, Gibbs(), id="lattice-gibbs", marks=pytest.mark.deep),
    pytest.param(network, None, id="network-plain", marks=pytest.mark.deep),
])  # fmt: skip
def test_weighted_chains_give_the_gradient_of_the_likelihood(make, moves, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    energy = make()
    torch.manual_seed(0)
    rates = LESite(energy.sites, 2, 8, 1)  # untrained: the weights do the work
    rollout = Rollout(num_times=3, chains=8, group_size=8, refine=moves)
    model = EnergySampler(EnergyWithRates(energy, rates), Events(2), rollout=rollout)
    data = torch.randint(2, (50, energy.sites), generator=torch.Generator().manual_seed(2))
    assert float(effective_sample_size(model.draw_negative_chains(_CHAINS, 0).log_weights)) > 0.05
    exact = exact_gradient(energy, data)
    # directions, so that the number of standard errors is that of few tests
    directions = torch.randn(len(exact), 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)

    def off(phase: FlowSamples) -> Tensor:
        found = torch.stack([
            flat(torch.autograd.grad(phase.loss(model, data, seed), list(energy.parameters()), allow_unused=False))
            for seed in range(_REPEATS)
        ])  # fmt: skip
        along = (found - exact) @ directions
        return (along.mean(0) / (along.std(0) / math.sqrt(_REPEATS))).abs()

    assert float(off(FlowSamples(_CHAINS, max_enumerated_states=0)).max()) < 4
    if moves is None:  # without the weights it is the gradient of another law
        draw_negative_chains = model.draw_negative_chains
        monkeypatch.setattr(
            model, "draw_negative_chains", lambda number, seed: unweighted(draw_negative_chains(number, seed))
        )
        assert float(off(FlowSamples(_CHAINS, max_enumerated_states=0)).max()) > 8


@pytest.mark.parametrize("make", [lattice, network])
def test_of_few_states_the_loss_is_the_negative_log_likelihood(make) -> None:  # type: ignore[no-untyped-def]
    energy = make()
    model = EnergySampler(EnergyWithRates(energy, LESite(energy.sites, 2, 8, 1)))
    data = all_states(2, energy.sites)[:50]
    found = torch.autograd.grad(FlowSamples().loss(model, data, 0), list(energy.parameters()))
    assert torch.allclose(flat(found), exact_gradient(energy, data), atol=1e-5)
    heard = {}
    model.record = heard.__setitem__
    model.record_data({"x0": data}, torch.tensor(-9.0))  # as chains that miss nearly everything say of log Z
    wanted = exact_values(energy)["log_z"] - energy.log_density(data)
    assert torch.allclose(heard["val/nll"], wanted.double(), atol=1e-5)


@pytest.mark.parametrize("l1", [0.0, 0.03])
@pytest.mark.parametrize("field", [False, True])
def test_the_most_likely_couplings_have_no_slope_left(l1: float, field: bool) -> None:
    law = Couplings(Ising(3, 0.24).pair / 2, 0.3 * torch.linspace(-1, 1, 9).double() * field)
    data = target_samples(law, 4000, 0, "law").train
    energy, states = PairEnergy(9, l1, field), all_states(2, 9)
    flat_weights = torch.zeros(len(states))
    assert max_gradient_z_score(energy, data, states, flat_weights) > 6
    assert fit_couplings(energy, data)
    assert max_gradient_z_score(energy, data, states, energy.log_density(states)) < 0.01
    if l1:
        assert int((energy.upper == 0).sum()) > 0
        return
    nearby = PairEnergy(9, learn_field=field)
    assert not fit_couplings(nearby, data, exact=False)
    assert max_gradient_z_score(nearby, data, states, nearby.log_density(states)) < 1
    unnamed = replace(target_samples(law, 4000, 0, "law"), truth=None)
    found = score_couplings(nearby, unnamed)
    assert set(found) == {"coupling_slope"} and abs(found["coupling_slope"] - 1) < 1e-9


def test_couplings_of_another_number_of_sites_are_refused() -> None:
    with pytest.raises(UserError, match="of a target of 9 sites, the energy has 4"):
        score_couplings(PairEnergy(4), target_samples(Ising(3, 0.2), 10, 0, "law"))


def test_neighbouring_counts_are_alike_to_an_energy_of_levels() -> None:
    torch.manual_seed(0)
    apart = {}
    for waves in (0, 8):
        density = EnergyNetwork(2, [64], 64, waves).log_density(
            torch.stack([torch.arange(64), torch.full((64,), 9)], 1)
        )
        apart[waves] = float(density.diff().square().mean() / density.var())
    assert apart[8] < 0.1 < 1 < apart[0]


def unweighted(paths: Paths) -> Paths:
    return replace(paths, log_weights=torch.zeros_like(paths.log_weights))


@pytest.mark.parametrize("refine", [
    pytest.param(Gibbs(3), id="gibbs"),
    pytest.param(LocallyInformed(15, gradients=True), id="gwg", marks=pytest.mark.deep),  # of the benchmarks
    pytest.param(GradientDMALA(9, 0.8), id="dmala", marks=pytest.mark.deep),
])  # fmt: skip
def test_persistent_chains_reach_the_same_gradient(refine: Refinement) -> None:
    energy = lattice()
    model = EnergySampler(EnergyWithRates(energy, LESite(9, 2, 8, 1)), negative=PersistentChains(4000, refine))
    phase, data = model.negative, all_states(2, 9)[:7]
    for seed in range(10):
        loss = phase.loss(model, data, seed)
    found = flat(torch.autograd.grad(loss, list(energy.parameters())))
    states = all_states(2, 9)
    share = torch.softmax(energy.log_density(states).double(), 0)
    spins = 2 * states.double() - 1
    pairs = torch.triu_indices(9, 9, 1)
    products = 2 * spins[:, pairs[0]] * spins[:, pairs[1]]
    spread = (share @ products.square() - (share @ products) ** 2).sqrt() / math.sqrt(4000)
    assert float(((found - exact_gradient(energy, data)) / spread).abs().max()) < 4.5


@pytest.mark.deep
@pytest.mark.parametrize("move", [LocallyInformed(4, gradients=True), GradientDMALA(4, 0.8)])
@pytest.mark.parametrize("levels", [2, 3])
def test_proposals_by_gradients_leave_the_law_as_it_is(levels: int, move: Refinement) -> None:
    """A network's first-order ratios are wrong, and what is wrong is made good where a move is accepted."""
    torch.manual_seed(1)
    energy = EnergyNetwork(5, [12, 12], levels)
    everything = all_states(levels, 5)
    law = torch.softmax(energy.log_density(everything).double(), 0)
    exact = energy.log_ratios(everything).double()
    assert torch.equal(exact, first_order(States.evaluate(energy, everything))) == (levels > 2)
    start = torch.multinomial(law, 20_000, True, generator=torch.Generator().manual_seed(0))
    streams = SampleStreams(1, torch.arange(20_000)).step(0)
    moved = move(energy, States.evaluate(energy, everything[start]), 1.0, streams).x.long()
    seen = torch.bincount(moved @ levels ** torch.arange(4, -1, -1), minlength=len(law)).numpy()
    assert float((moved != everything[start].long()).any(1).double().mean()) > 0.2
    assert float(law.min()) * 20_000 > 5 and stats.chisquare(seen, law.numpy() * 20_000).pvalue > 1e-3


@pytest.mark.parametrize("levels", [2, 3])
def test_energy_discrepancy_perturbs_as_it_says_and_prefers_the_data(levels: int) -> None:
    torch.manual_seed(0)
    energy = EnergyNetwork(6, [16, 16], levels)
    model, phase = (
        EnergySampler(EnergyWithRates(energy, LESite(6, levels, 8, 1)), negative=EnergyDiscrepancy()),
        EnergyDiscrepancy(),
    )
    data = torch.zeros(64, 6, dtype=torch.uint8)
    optimizer, losses = torch.optim.Adam(energy.parameters(), 1e-2), []
    for seed in range(40):
        optimizer.zero_grad()
        losses.append(phase.loss(model, data, seed))
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < losses[0] - 0.5
    states = all_states(levels, 6)
    assert int(energy.log_density(states).argmax()) == 0


@pytest.mark.parametrize("levels", [2, 3])
def test_energy_discrepancy_changes_a_site_twice_with_its_rate_to_any_other_state(levels: int) -> None:
    rate, seen = 0.3, list[Tensor]()
    energy = SimpleNamespace(levels=levels, energy=lambda x: seen.append(x) or torch.zeros(x.shape[:-1]))
    data = torch.ones(20_000, 4, dtype=torch.uint8)
    EnergyDiscrepancy(rate, 1).loss(SimpleNamespace(energy=energy), data, 0)
    counted = torch.bincount(seen[-1].flatten().long(), minlength=levels).numpy()
    once = np.full((levels, levels), rate / (levels - 1))
    np.fill_diagonal(once, 1 - rate)
    assert stats.chisquare(counted, (once @ once)[1] * data.numel()).pvalue > 1e-3


@pytest.mark.parametrize("levels", [2, 4])
def test_ratios_of_learned_energies_by_brute_force(levels: int) -> None:
    energies: list[LearnedEnergy] = [EnergyNetwork(4, [8, 8], levels).double()]
    if levels == 2:
        energies.append(PairEnergy(4, learn_field=True).double())
    for energy in energies:
        with torch.no_grad():
            for weight in energy.parameters():
                weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(4)))
        x = torch.randint(levels, (9, 4), generator=torch.Generator().manual_seed(5))
        where = torch.arange(4)
        swapped = x[:, None, None].repeat(1, 4, levels, 1)
        for site in range(4):
            swapped[:, site, :, site] = torch.arange(levels)
        expected = energy.log_density(swapped) - energy.log_density(x)[:, None, None]
        assert torch.allclose(energy.log_ratios(x), expected, atol=1e-10)
        assert torch.allclose(energy.log_ratios_at(x, where[2:]), expected[:, 2:], atol=1e-10)


def test_the_report_estimates_log_z_and_mmd() -> None:
    energy: Target = lattice()
    weights = uniform_weights(energy, 0, 200_000)
    exact = float(torch.logsumexp(energy.log_density(all_states(2, 9)), 0))
    assert abs(float(log_mean_exp(weights)) - exact) < 0.01
    data = target_samples(Ising(3, 0.2), 600, 0, "ising")
    one, two = data.train, data.test
    assert abs(mmd(one, two)) < 3e-3
    assert mmd(one, torch.ones_like(two)) > 0.05
    k = torch.exp(-0.1 * (one[:50, None] != two[None, :40]).sum(-1).double())
    within = [torch.exp(-0.1 * (a[:, None] != a[None]).sum(-1).double()) for a in (one[:50], two[:40])]
    unbiased = [float((part.sum() - part.trace()) / (len(part) * (len(part) - 1))) for part in within]
    assert abs(mmd(one[:50], two[:40]) - (sum(unbiased) - 2 * float(k.mean()))) < 1e-6


def test_entropies_of_points_in_the_plane() -> None:
    value, error = entropy("moons", 400, 4000)
    assert abs(value - 19.708) < 4 * math.hypot(error, 0.008)
    assert entropy("checkerboard")[1] == 0 and math.isnan(entropy("pinwheel")[0])


def test_simulations_in_time_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="events"):
        EnergySampler(EnergyWithRates(lattice(), LESite(9, 2, 8, 1)), Leap(4))


@pytest.mark.parametrize("field", [False, True])
def test_a_sweep_of_spins_is_that_of_every_target(field: bool) -> None:
    energy, generator = PairEnergy(9, learn_field=field), torch.Generator().manual_seed(4)
    with torch.no_grad():
        for weight in energy.parameters():
            weight.normal_(std=0.5, generator=generator)
    x = torch.randint(0, 2, (200, 9), generator=generator, dtype=torch.uint8)
    uniforms = torch.rand(200, 9, generator=generator, dtype=torch.float64)
    assert torch.equal(energy.gibbs_sweep(x, uniforms, 0.7), Target.gibbs_sweep(energy, x, uniforms, 0.7))
    assert not torch.equal(energy.gibbs_sweep(x, uniforms, 0.7), x)
