"""Locally equivariant networks, whose one evaluation gives the rates to and from all neighbours of a state."""

from blackout.networks.equivariant.base import CLASSES, GraphBatch, Hollow, LocallyEquivariant, distance_classes
from blackout.networks.equivariant.sitewise import LEMLP, LEAttention, LEConvolution, LESite
from blackout.networks.equivariant.transformer import LEGraphTransformer, LETransformer

__all__ = [
    "CLASSES", "LEMLP", "GraphBatch", "Hollow", "LEAttention", "LEConvolution", "LEGraphTransformer", "LESite",
    "LETransformer", "LocallyEquivariant", "distance_classes",
]  # fmt: skip
