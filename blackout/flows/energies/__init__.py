"""Energies learned from data, with a discrete neural flow sampler inside.

`data` has the data, `pair_energy` an energy, `negative` the training losses, `model` the energy
with its flow, `evaluation` the likelihoods of test data, and `family` builds all from settings.
"""

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
