"""Unnormalised distributions on discrete states: the targets of flows and of annealing.

- `base` has the interface `Target`.
- Lattices: `ising` and `potts`, on `lattice`, which also has exact free energies.
- Others: `couplings` between any pairs, `energy_network`, and `fixed_composition`, which restricts
  another target.
- `enumeration` has exact values of small targets.
"""

from blackout.flows.targets.base import Target, TargetSource, WrappedTarget, make_target
from blackout.flows.targets.couplings import Couplings, SpinGlass, read_couplings
from blackout.flows.targets.energy_network import EnergyNetwork, read_energy
from blackout.flows.targets.enumeration import (
    all_states,
    can_enumerate,
    enumerate_states,
    exact_values,
)
from blackout.flows.targets.fixed_composition import FixedComposition
from blackout.flows.targets.ising import Ising
from blackout.flows.targets.potts import Potts

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
