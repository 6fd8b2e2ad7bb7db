"""Energies trained from data with a discrete neural flow sampler inside."""

from blackout.energy.data import planar_points
from blackout.energy.energies import NetworkEnergy, PairEnergy
from blackout.energy.family import EnergyFamily
from blackout.energy.module import EnergySampler
from blackout.energy.negative import Discrepancy, FlowSamples, PersistentChains

__all__ = [
    "Discrepancy", "EnergyFamily", "EnergySampler", "FlowSamples", "NetworkEnergy", "PairEnergy", "PersistentChains",
    "planar_points",
]  # fmt: skip
