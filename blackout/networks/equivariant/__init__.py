"""Locally equivariant networks, whose one evaluation gives the rates to and from all neighbours of a state."""

from blackout.networks.equivariant.base import Hollow, LocallyEquivariant
from blackout.networks.equivariant.convolution import LEConvolution
from blackout.networks.equivariant.simple import LEMLP, LEAttention
from blackout.networks.equivariant.sitewise import LESite
from blackout.networks.equivariant.transformer import LETransformer

__all__ = ["LEMLP", "Hollow", "LEAttention", "LEConvolution", "LESite", "LETransformer", "LocallyEquivariant"]
