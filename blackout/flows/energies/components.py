"""The components of `blackout.flows.energies` that a model file may name."""

from __future__ import annotations

from blackout.addresses import Table

TABLE = Table(
    made={
        "family": ("EnergyFamily",),
        "energy": ("NetworkEnergy", "PairEnergy"),
        "target": ("NetworkEnergy", "PairEnergy"),
        "dataset": ("planar_points",),
    },
)
