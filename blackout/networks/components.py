"""The components of `blackout.networks` that a model file may name."""

from __future__ import annotations

from blackout.addresses import Table

TABLE = Table(
    made={
        "network": (
            "CountNetwork",
            "LEAttention",
            "LEConvolution",
            "LEGraphTransformer",
            "LEMLP",
            "LESite",
            "LETransformer",
            "SetTransformer",
        ),
        "inputs": (
            "BirthDeathInputs",
            "CountInputs",
            "LevelInputs",
            "PaperInputs",
            "StandardisedInputs",
            "StateInputs",
        ),
        "encoder": ("EdgeEncoder", "ItemEncoder", "PieceEncoder", "PointEncoder", "StripEncoder", "TokenEncoder"),
        "body": ("ElementwiseMLP", "NCSNpp", "ResidualMLP", "SequenceConvolution", "UNet"),
    }
)
