"""Energies learned from data, with a discrete neural flow sampler inside."""

from blackout.flows.energies.data import planar_points
from blackout.flows.energies.family import EnergyFamily
from blackout.flows.energies.model import EnergySampler, PairEnergy
from blackout.flows.energies.negative import EnergyDiscrepancy, FlowSamples, PersistentChains

__all__ = [
    "EnergyDiscrepancy",
    "EnergyFamily",
    "EnergySampler",
    "FlowSamples",
    "PairEnergy",
    "PersistentChains",
    "planar_points",
]
