"""The components of `blackout.networks` that a model file may name."""

from __future__ import annotations

from blackout.addresses import Table

TABLE = Table(
    made={
        "network": ("CountNetwork", "LEAttention", "LEConvolution", "LEMLP", "LESite", "LETransformer"),
        "inputs": ("BirthDeathInputs", "LevelInputs", "PaperInputs", "StandardisedInputs"),
        "body": ("NCSNpp", "ResidualMLP", "UNet"),
    }
)
