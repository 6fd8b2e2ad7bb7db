"""Gradients of learned energies against enumeration.

The likelihood by weighted chains, other negative phases, and the estimates of the report.
"""

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
from blackout.flows.energies.evaluation import max_gradient_z_score
from blackout.flows.energies.model import EnergySampler, EnergyWithRates
from blackout.flows.energies.negative import EnergyDiscrepancy, FlowSamples, PersistentChains
from blackout.flows.energies.pair_energy import PairEnergy, fit_couplings, score_couplings
from blackout.flows.path import States
from blackout.flows.refinement import Gibbs, Refinement
from blackout.flows.replay import Rollout
from blackout.flows.simulation import Paths
from blackout.flows.targets import Target, all_states, exact_values
from blackout.flows.targets.energy_network import EnergyNetwork, LearnedEnergy
from blackout.flows.weights import effective_sample_size, log_mean_exp
from blackout.networks import LESite
from blackout.random import SampleStreams

_REPEATS = 24  # independent gradients, for their standard error
_CHAINS = 2000  # chains of one gradient


def lattice() -> LearnedEnergy:
    """Return the energy of an Ising model on 3x3."""
    energy = PairEnergy(9)
    truth = Ising(3, 0.24).pair / 2
    with torch.no_grad():
        energy.upper.copy_(truth[tuple(torch.triu_indices(9, 9, 1))])
    return energy


def network() -> LearnedEnergy:
    """Return an energy network of 8 bits with weights of order 1."""
    torch.manual_seed(1)
    energy = EnergyNetwork(8, [12, 12])
    with torch.no_grad():
        for weight in energy.parameters():
            weight *= 2
    return energy


def exact_gradient(energy: LearnedEnergy, data: Tensor) -> Tensor:
    """Return the gradient of the mean negative log-likelihood, by enumeration."""
    states = all_states(energy.levels, energy.sites)
    loss = energy.energy(data).double().mean() + torch.logsumexp(-energy.energy(states).double(), 0)
    return flat(torch.autograd.grad(loss, list(energy.parameters())))


def flat(parts: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([part.flatten() for part in parts]).double()


@pytest.mark.parametrize(
    "make, moves",
    [
        pytest.param(lattice, None, id="lattice-plain"),
        pytest.param(network, Gibbs(), id="network-gibbs"),
        pytest.param(lattice, Gibbs(), id="lattice-gibbs", marks=pytest.mark.deep),
        pytest.param(network, None, id="network-plain", marks=pytest.mark.deep),
    ],
)
def test_weighted_chains_give_the_gradient_of_the_likelihood(make, moves, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    energy = make()
    torch.manual_seed(0)
    rates = LESite(energy.sites, 2, 8, 1)  # untrained, so that the importance weights matter
    rollout = Rollout(num_times=3, chains=8, group_size=8, refine=moves)
    model = EnergySampler(EnergyWithRates(energy, rates), Events(2), rollout=rollout)
    data = torch.randint(2, (50, energy.sites), generator=torch.Generator().manual_seed(2))
    assert float(effective_sample_size(model.draw_negative_chains(_CHAINS, 0).log_weights)) > 0.05
    exact = exact_gradient(energy, data)
    # random directions, so that few standard errors are tested
    directions = torch.randn(
        len(exact), 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64
    )

    def standard_errors_off(phase: FlowSamples) -> Tensor:
        gradients = torch.stack(
            [
                flat(
                    torch.autograd.grad(
                        phase.loss(model, data, seed), list(energy.parameters()), allow_unused=False
                    )
                )
                for seed in range(_REPEATS)
            ]
        )
        deviations = (gradients - exact) @ directions
        return (deviations.mean(0) / (deviations.std(0) / math.sqrt(_REPEATS))).abs()

    assert float(standard_errors_off(FlowSamples(_CHAINS, max_enumerated_states=0)).max()) < 4
    if moves is None:  # without the weights it is the gradient of another distribution
        draw_negative_chains = model.draw_negative_chains
        monkeypatch.setattr(
            model,
            "draw_negative_chains",
            lambda number, seed: unweighted(draw_negative_chains(number, seed)),
        )
        assert float(standard_errors_off(FlowSamples(_CHAINS, max_enumerated_states=0)).max()) > 8


@pytest.mark.parametrize("make", [lattice, network])
def test_the_loss_of_few_states_is_the_exact_negative_log_likelihood(make) -> None:  # type: ignore[no-untyped-def]
    energy = make()
    model = EnergySampler(EnergyWithRates(energy, LESite(energy.sites, 2, 8, 1)))
    data = all_states(2, energy.sites)[:50]
    gradient = torch.autograd.grad(FlowSamples().loss(model, data, 0), list(energy.parameters()))
    assert torch.allclose(flat(gradient), exact_gradient(energy, data), atol=1e-5)
    recorded = {}
    model.record = recorded.__setitem__
    # the estimate of log Z by chains that miss nearly everything
    model.record_data_metrics({"x0": data}, torch.tensor(-9.0))
    expected = exact_values(energy)["log_z"] - energy.log_density(data)
    assert torch.allclose(recorded["val/nll"], expected.double(), atol=1e-5)


@pytest.mark.parametrize("l1", [0.0, 0.03])
@pytest.mark.parametrize("field", [False, True])
def test_fitted_couplings_have_zero_gradient(l1: float, field: bool) -> None:
    target = Couplings(Ising(3, 0.24).pair / 2, 0.3 * torch.linspace(-1, 1, 9).double() * field)
    data = target_samples(target, 4000, 0, "law").train
    energy = PairEnergy(9, l1, field)
    states = all_states(2, 9)
    flat_weights = torch.zeros(len(states))
    assert max_gradient_z_score(energy, data, states, flat_weights) > 6
    assert fit_couplings(energy, data)
    assert max_gradient_z_score(energy, data, states, energy.log_density(states)) < 0.01
    if l1:
        assert int((energy.upper == 0).sum()) > 0
        return
    pseudo_likelihood_fit = PairEnergy(9, learn_field=field)
    assert not fit_couplings(pseudo_likelihood_fit, data, exact=False)
    assert (
        max_gradient_z_score(
            pseudo_likelihood_fit, data, states, pseudo_likelihood_fit.log_density(states)
        )
        < 1
    )
    unnamed = replace(target_samples(target, 4000, 0, "law"), truth=None)
    scores = score_couplings(pseudo_likelihood_fit, unnamed)
    assert set(scores) == {"coupling_slope"} and abs(scores["coupling_slope"] - 1) < 1e-9


def test_couplings_of_a_different_number_of_sites_are_refused() -> None:
    with pytest.raises(UserError, match="its target has 9 sites, but the energy has 4"):
        score_couplings(PairEnergy(4), target_samples(Ising(3, 0.2), 10, 0, "law"))


def test_cosine_features_make_energies_smooth_in_the_level() -> None:
    torch.manual_seed(0)
    roughness = {}
    for waves in (0, 8):
        density = EnergyNetwork(2, [64], 64, waves).log_density(
            torch.stack([torch.arange(64), torch.full((64,), 9)], 1)
        )
        roughness[waves] = float(density.diff().square().mean() / density.var())
    assert roughness[8] < 0.1 < 1 < roughness[0]


def unweighted(paths: Paths) -> Paths:
    """Return the paths with equal weights."""
    return replace(paths, log_weights=torch.zeros_like(paths.log_weights))


@pytest.mark.parametrize(
    "refine",
    [
        pytest.param(Gibbs(3), id="gibbs"),
        # defined in the benchmarks
        pytest.param(LocallyInformed(15, gradients=True), id="gwg", marks=pytest.mark.deep),
        pytest.param(GradientDMALA(9, 0.8), id="dmala", marks=pytest.mark.deep),
    ],
)
def test_persistent_chains_reach_the_same_gradient(refine: Refinement) -> None:
    energy = lattice()
    model = EnergySampler(
        EnergyWithRates(energy, LESite(9, 2, 8, 1)), negative=PersistentChains(4000, refine)
    )
    phase = model.negative
    data = all_states(2, 9)[:7]
    for seed in range(10):
        loss = phase.loss(model, data, seed)
    gradient = flat(torch.autograd.grad(loss, list(energy.parameters())))
    states = all_states(2, 9)
    probabilities = torch.softmax(energy.log_density(states).double(), 0)
    spins = 2 * states.double() - 1
    pairs = torch.triu_indices(9, 9, 1)
    products = 2 * spins[:, pairs[0]] * spins[:, pairs[1]]
    errors = (
        probabilities @ products.square() - (probabilities @ products) ** 2
    ).sqrt() / math.sqrt(4000)
    assert float(((gradient - exact_gradient(energy, data)) / errors).abs().max()) < 4.5


@pytest.mark.deep
@pytest.mark.parametrize("move", [LocallyInformed(4, gradients=True), GradientDMALA(4, 0.8)])
@pytest.mark.parametrize("levels", [2, 3])
def test_gradient_proposals_leave_the_distribution_invariant(levels: int, move: Refinement) -> None:
    """First-order ratios of a network are wrong; the acceptance step corrects them."""
    torch.manual_seed(1)
    energy = EnergyNetwork(5, [12, 12], levels)
    states = all_states(levels, 5)
    probabilities = torch.softmax(energy.log_density(states).double(), 0)
    exact = energy.log_ratios(states).double()
    assert torch.equal(exact, first_order(States.evaluate(energy, states))) == (levels > 2)
    start = torch.multinomial(
        probabilities, 20_000, True, generator=torch.Generator().manual_seed(0)
    )
    streams = SampleStreams(1, torch.arange(20_000)).step(0)
    moved = move(energy, States.evaluate(energy, states[start]), 1.0, streams).x.long()
    counts = torch.bincount(
        moved @ levels ** torch.arange(4, -1, -1), minlength=len(probabilities)
    ).numpy()
    assert float((moved != states[start].long()).any(1).double().mean()) > 0.2
    assert (
        float(probabilities.min()) * 20_000 > 5
        and stats.chisquare(counts, probabilities.numpy() * 20_000).pvalue > 1e-3
    )


@pytest.mark.parametrize("levels", [2, 3])
def test_energy_discrepancy_learns_to_prefer_the_data(levels: int) -> None:
    torch.manual_seed(0)
    energy = EnergyNetwork(6, [16, 16], levels)
    model = EnergySampler(
        EnergyWithRates(energy, LESite(6, levels, 8, 1)), negative=EnergyDiscrepancy()
    )
    phase = EnergyDiscrepancy()
    data = torch.zeros(64, 6, dtype=torch.uint8)
    optimizer = torch.optim.Adam(energy.parameters(), 1e-2)
    losses = []
    for seed in range(40):
        optimizer.zero_grad()
        losses.append(phase.loss(model, data, seed))
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < losses[0] - 0.5
    states = all_states(levels, 6)
    assert int(energy.log_density(states).argmax()) == 0


@pytest.mark.parametrize("levels", [2, 3])
def test_energy_discrepancy_perturbs_twice_at_its_rate(
    levels: int,
) -> None:
    rate = 0.3
    perturbed = list[Tensor]()
    energy = SimpleNamespace(
        levels=levels, energy=lambda x: perturbed.append(x) or torch.zeros(x.shape[:-1])
    )
    data = torch.ones(20_000, 4, dtype=torch.uint8)
    EnergyDiscrepancy(rate, 1).loss(SimpleNamespace(energy=energy), data, 0)
    counts = torch.bincount(perturbed[-1].flatten().long(), minlength=levels).numpy()
    step = np.full((levels, levels), rate / (levels - 1))
    np.fill_diagonal(step, 1 - rate)
    assert stats.chisquare(counts, (step @ step)[1] * data.numel()).pvalue > 1e-3


@pytest.mark.parametrize("levels", [2, 4])
def test_log_ratios_of_learned_energies_match_brute_force(levels: int) -> None:
    energies: list[LearnedEnergy] = [EnergyNetwork(4, [8, 8], levels).double()]
    if levels == 2:
        energies.append(PairEnergy(4, learn_field=True).double())
    for energy in energies:
        with torch.no_grad():
            for weight in energy.parameters():
                weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(4)))
        x = torch.randint(levels, (9, 4), generator=torch.Generator().manual_seed(5))
        sites = torch.arange(4)
        swapped = x[:, None, None].repeat(1, 4, levels, 1)
        for site in range(4):
            swapped[:, site, :, site] = torch.arange(levels)
        expected = energy.log_density(swapped) - energy.log_density(x)[:, None, None]
        assert torch.allclose(energy.log_ratios(x), expected, atol=1e-10)
        assert torch.allclose(energy.log_ratios_at(x, sites[2:]), expected[:, 2:], atol=1e-10)


def test_the_report_estimates_log_z_and_mmd() -> None:
    energy: Target = lattice()
    weights = uniform_weights(energy, 0, 200_000)
    exact = float(torch.logsumexp(energy.log_density(all_states(2, 9)), 0))
    assert abs(float(log_mean_exp(weights)) - exact) < 0.01
    data = target_samples(Ising(3, 0.2), 600, 0, "ising")
    first = data.train
    second = data.test
    assert abs(mmd(first, second)) < 3e-3
    assert mmd(first, torch.ones_like(second)) > 0.05
    cross_kernel = torch.exp(-0.1 * (first[:50, None] != second[None, :40]).sum(-1).double())
    kernels = [
        torch.exp(-0.1 * (a[:, None] != a[None]).sum(-1).double())
        for a in (first[:50], second[:40])
    ]
    unbiased = [
        float((part.sum() - part.trace()) / (len(part) * (len(part) - 1))) for part in kernels
    ]
    assert (
        abs(mmd(first[:50], second[:40]) - (sum(unbiased) - 2 * float(cross_kernel.mean()))) < 1e-6
    )


def test_entropies_of_planar_densities_have_known_values() -> None:
    value, error = entropy("moons", 400, 4000)
    assert abs(value - 19.708) < 4 * math.hypot(error, 0.008)
    assert entropy("checkerboard")[1] == 0 and math.isnan(entropy("pinwheel")[0])


def test_energies_refuse_simulations_with_fixed_steps() -> None:
    with pytest.raises(ValueError, match="events"):
        EnergySampler(EnergyWithRates(lattice(), LESite(9, 2, 8, 1)), Leap(4))


@pytest.mark.parametrize("field", [False, True])
def test_sweeps_of_pair_energies_equal_the_generic_sweep(field: bool) -> None:
    energy = PairEnergy(9, learn_field=field)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for weight in energy.parameters():
            weight.normal_(std=0.5, generator=generator)
    x = torch.randint(0, 2, (200, 9), generator=generator, dtype=torch.uint8)
    uniforms = torch.rand(200, 9, generator=generator, dtype=torch.float64)
    assert torch.equal(
        energy.gibbs_sweep(x, uniforms, 0.7), Target.gibbs_sweep(energy, x, uniforms, 0.7)
    )
    assert not torch.equal(energy.gibbs_sweep(x, uniforms, 0.7), x)
