"""Networks: from counts and times to raw outputs, with the wrapper that scales and labels; locally equivariant ones."""

from blackout.networks.equivariant import LEMLP, LEAttention, LEConvolution, LESite, LETransformer, LocallyEquivariant
from blackout.networks.inputs import BirthDeathInputs, LevelInputs, PaperInputs, StandardisedInputs
from blackout.networks.mlp import ResidualMLP
from blackout.networks.ncsnpp import NCSNpp
from blackout.networks.unet import UNet
from blackout.networks.wrapper import CountNetwork, time_label

__all__ = [
    "LEMLP", "BirthDeathInputs", "CountNetwork", "LEAttention", "LEConvolution", "LESite", "LETransformer",
    "LevelInputs", "LocallyEquivariant", "NCSNpp", "PaperInputs", "ResidualMLP", "StandardisedInputs", "UNet",
    "time_label",
]  # fmt: skip
