"""Networks: from counts and times to raw outputs (bodies, and the wrapper that scales and labels); on sets of items;
locally equivariant ones.
"""

from blackout.networks.encoders import ItemEncoder, PieceEncoder, PointEncoder, StripEncoder, TokenEncoder
from blackout.networks.equivariant import (
    LEMLP,
    GraphBatch,
    LEAttention,
    LEConvolution,
    LEGraphTransformer,
    LESite,
    LETransformer,
    LocallyEquivariant,
)
from blackout.networks.inputs import BirthDeathInputs, LevelInputs, PaperInputs, StandardisedInputs
from blackout.networks.mlp import ResidualMLP
from blackout.networks.ncsnpp import NCSNpp
from blackout.networks.sets import SetTransformer
from blackout.networks.unet import UNet
from blackout.networks.wrapper import CountNetwork, time_label

__all__ = [
    "LEMLP", "BirthDeathInputs", "CountNetwork", "GraphBatch", "ItemEncoder", "LEAttention", "LEConvolution",
    "LEGraphTransformer", "LESite",
    "LETransformer", "LevelInputs", "LocallyEquivariant", "NCSNpp", "PaperInputs", "PieceEncoder", "PointEncoder",
    "ResidualMLP",
    "SetTransformer", "StandardisedInputs", "StripEncoder", "TokenEncoder", "UNet",
    "time_label",
]  # fmt: skip
