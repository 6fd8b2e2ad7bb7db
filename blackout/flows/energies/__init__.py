"""Energies learned from data, with a discrete neural flow sampler inside."""

from blackout.flows.energies.data import planar_points
from blackout.flows.energies.family import EnergyFamily
from blackout.flows.energies.model import EnergySampler
from blackout.flows.energies.negative import EnergyDiscrepancy, FlowSamples, PersistentChains
from blackout.flows.energies.pair_energy import PairEnergy

__all__ = [
    "EnergyDiscrepancy",
    "EnergyFamily",
    "EnergySampler",
    "FlowSamples",
    "PairEnergy",
    "PersistentChains",
    "planar_points",
]
