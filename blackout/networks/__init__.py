"""Networks from counts and times to raw outputs: bodies, and the wrapper that scales and labels."""

from blackout.networks.mlp import ResidualMLP
from blackout.networks.ncsnpp import NCSNpp
from blackout.networks.unet import UNet
from blackout.networks.wrapper import CountNetwork, PaperInputs, StandardisedInputs, time_label

__all__ = ["CountNetwork", "NCSNpp", "PaperInputs", "ResidualMLP", "StandardisedInputs", "UNet", "time_label"]
