"""Unnormalised distributions on discrete states."""

from blackout.flows.targets.base import (
    Target,
    TargetSource,
    WrappedTarget,
    all_states,
    can_enumerate,
    enumerate_states,
    exact_values,
    make_target,
)
from blackout.flows.targets.energy_network import EnergyNetwork, read_energy
from blackout.flows.targets.lattice import (
    Couplings,
    FixedComposition,
    Ising,
    Potts,
    SpinGlass,
    read_couplings,
)

__all__ = [
    "Couplings",
    "EnergyNetwork",
    "FixedComposition",
    "Ising",
    "Potts",
    "SpinGlass",
    "Target",
    "TargetSource",
    "WrappedTarget",
    "all_states",
    "can_enumerate",
    "enumerate_states",
    "exact_values",
    "make_target",
    "read_couplings",
    "read_energy",
]
