"""Unnormalised laws on discrete states."""

from blackout.flows.targets.base import (
    EnergySource,
    Target,
    Wrapped,
    all_states,
    can_enumerate,
    enumerated,
    exact_values,
    make_target,
)
from blackout.flows.targets.energy_network import EnergyNetwork, read_energy
from blackout.flows.targets.lattice import Conserved, Couplings, Ising, Potts, SpinGlass, read_couplings

__all__ = [
    "Conserved", "Couplings", "EnergyNetwork", "EnergySource", "Ising", "Potts", "SpinGlass", "Target", "Wrapped",
    "all_states", "can_enumerate", "enumerated", "exact_values", "make_target", "read_couplings", "read_energy",
]  # fmt: skip
