"""The quantities of the tables of learned energies are what their definitions say."""

import math
from types import SimpleNamespace

import torch

from benchmarks.planar import gibbs_samples, mmd, nll_by_chain, nll_by_uniform_states
from blackout.flows.energies.data import target_samples
from blackout.flows.energies.model import EnergySampler, EnergyWithRates
from blackout.flows.energies.pair_energy import PairEnergy
from blackout.flows.simulation import Events
from blackout.flows.targets import EnergyNetwork, Ising, all_states, exact_values
from blackout.networks import LESite

SITES = 9


def lattice(coupling=0.2):
    """Return a learned energy with the couplings of a 3x3 Ising model."""
    energy = PairEnergy(SITES)
    with torch.no_grad():
        pair = Ising(3, coupling).pair
        energy.upper.copy_(pair[*torch.triu_indices(SITES, SITES, 1)])
    return energy


def test_of_a_flat_energy_and_a_chain_without_jumps_both_nlls_are_those_of_uniform_states():
    energy = EnergyNetwork(32, [4])
    with torch.no_grad():
        for weight in energy.parameters():
            weight.zero_()
    states = torch.randint(0, 2, (20, 32), generator=torch.Generator().manual_seed(0)).byte()
    still = SimpleNamespace(
        target=energy,
        rates=lambda: lambda states, t: torch.zeros(len(states.x), 32, 2, dtype=torch.float64),
        simulation=Events(4),
        device=torch.device("cpu"),
    )
    uniform = 32 * math.log(2)
    assert abs(nll_by_chain(still, states, 0)[0] - uniform) < 1e-9
    value, error = nll_by_uniform_states(energy, states, 0)
    assert abs(value - uniform) < 1e-6 and error < 1e-4


def test_the_chain_bounds_the_exact_nll_from_above():
    torch.manual_seed(0)
    energy = lattice()
    model = EnergySampler(EnergyWithRates(energy, LESite(SITES, 2, 8, 1)), Events(8))
    test = target_samples(Ising(3, 0.2), 500, 0, "ising").test.flatten(1)
    exact = float(energy.energy(test).double().mean().detach()) + exact_values(energy)["log_z"]
    bound, error = nll_by_chain(model, test, 0)
    assert bound > exact - 3 * error
    assert nll_by_uniform_states(energy, test, 0)[0] - exact < 0.01


def test_gibbs_chains_reach_the_energy_s_distribution():
    energy = lattice(0.6)
    log_density = energy.log_density(all_states(2, SITES))
    rows = torch.multinomial(
        log_density.softmax(0), 2000, True, generator=torch.Generator().manual_seed(1)
    )
    exact = all_states(2, SITES)[rows]
    assert abs(mmd(gibbs_samples(energy, 2000, 50, 0), exact)) < 3e-3
    assert mmd(gibbs_samples(energy, 2000, 0, 0), exact) > 0.02
