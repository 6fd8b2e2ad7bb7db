"""The components of `blackout.flows` that a model file may name."""

from __future__ import annotations

from blackout.addresses import Table

TABLE = Table(
    made={
        "family": ("FlowFamily",),
        "target": ("MIS", "Couplings", "EnergyNetwork", "Ising", "MaxCut", "Planar", "Potts", "SpinGlass"),
        "simulation": ("Events", "Leap", "Single"),
    },
    asked={
        "graph_problem": "target=mis or target=maxcut",
        "read_couplings": "target=couplings target.path=...",
        "read_energy": "target=energy_network with target.path=... or target.ckpt=...",
        "read_energy_network": "target=energy_network target.path=...",
        "read_planar": "target=planar target.path=...",
    },
)
