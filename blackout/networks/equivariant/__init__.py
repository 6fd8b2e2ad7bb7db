"""Locally equivariant networks, whose one evaluation gives the rates to and from all neighbours of a state."""

from blackout.networks.equivariant.base import Hollow, LocallyEquivariant
from blackout.networks.equivariant.convolution import LEConvolution
from blackout.networks.equivariant.graph_batch import CLASSES, GraphBatch, distance_classes
from blackout.networks.equivariant.graph_transformer import LEGraphTransformer
from blackout.networks.equivariant.simple import LEMLP, LEAttention
from blackout.networks.equivariant.sitewise import LESite
from blackout.networks.equivariant.transformer import LETransformer

__all__ = [
    "CLASSES", "LEMLP", "GraphBatch", "Hollow", "LEAttention", "LEConvolution", "LEGraphTransformer", "LESite",
    "LETransformer", "LocallyEquivariant", "distance_classes",
]  # fmt: skip
