"""Networks from counts and times to raw outputs: bodies, and the wrapper that scales and labels."""

from blackout.networks.inputs import BirthDeathInputs, LevelInputs, PaperInputs, StandardisedInputs
from blackout.networks.mlp import ResidualMLP
from blackout.networks.ncsnpp import NCSNpp
from blackout.networks.unet import UNet
from blackout.networks.wrapper import CountNetwork, time_label

__all__ = [
    "BirthDeathInputs", "CountNetwork", "LevelInputs", "NCSNpp", "PaperInputs", "ResidualMLP", "StandardisedInputs",
    "UNet", "time_label",
]  # fmt: skip
