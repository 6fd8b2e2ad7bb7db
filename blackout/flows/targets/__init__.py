"""Unnormalised laws on discrete states."""

from blackout.flows.targets.base import Target, Wrapped
from blackout.flows.targets.couplings import Couplings, SpinGlass, read_couplings
from blackout.flows.targets.energies import EnergyNetwork, read_energy_network, save_energy_network
from blackout.flows.targets.exact import all_states, can_enumerate, enumerated, exact_values
from blackout.flows.targets.ising import Ising
from blackout.flows.targets.lattice import Potts

__all__ = [
    "Couplings", "EnergyNetwork", "Ising", "Potts", "SpinGlass", "Target", "Wrapped", "all_states", "can_enumerate",
    "enumerated", "exact_values", "read_couplings", "read_energy_network", "save_energy_network",
]  # fmt: skip
