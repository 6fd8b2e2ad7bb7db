"""Networks: bodies, the wrapper that scales counts, set transformers, locally equivariant networks.

A body maps scaled data and time indices to raw outputs. `CountNetwork` wraps a body: it scales the
counts and converts times to time indices. A `SetTransformer` scores how to rearrange the items of a
list, and a `LocallyEquivariant` network gives the rates of a flow.
"""

from blackout.networks.automatic import body_for
from blackout.networks.elements import Elements
from blackout.networks.equivariant import LEMLP, LEConvolution, LocallyEquivariant
from blackout.networks.equivariant_sitewise import LESite
from blackout.networks.equivariant_transformer import LETransformer
from blackout.networks.graph_batch import GraphBatch
from blackout.networks.inputs import (
    ArcsineInputs,
    BirthDeathInputs,
    CountInputs,
    CountNetwork,
    LevelInputs,
    PaperInputs,
    StandardisedInputs,
    StateInputs,
    set_elements,
    time_index,
)
from blackout.networks.item_encoders import (
    EdgeEncoder,
    ItemEncoder,
    PieceEncoder,
    PointEncoder,
    StripEncoder,
    TokenEncoder,
)
from blackout.networks.mlp import ResidualMLP, SequenceConvolution
from blackout.networks.ncsnpp import NCSNpp
from blackout.networks.published_encoders import PublishedPieceEncoder, PublishedStripEncoder
from blackout.networks.set_transformer import SetTransformer
from blackout.networks.transformer import Transformer
from blackout.networks.unet import UNet

__all__ = [
    "LEMLP",
    "ArcsineInputs",
    "BirthDeathInputs",
    "CountInputs",
    "CountNetwork",
    "EdgeEncoder",
    "Elements",
    "GraphBatch",
    "ItemEncoder",
    "LEConvolution",
    "LESite",
    "LETransformer",
    "LevelInputs",
    "LocallyEquivariant",
    "NCSNpp",
    "PaperInputs",
    "PieceEncoder",
    "PointEncoder",
    "PublishedPieceEncoder",
    "PublishedStripEncoder",
    "ResidualMLP",
    "SequenceConvolution",
    "SetTransformer",
    "StandardisedInputs",
    "StateInputs",
    "StripEncoder",
    "TokenEncoder",
    "Transformer",
    "UNet",
    "body_for",
    "set_elements",
    "time_index",
]
