"""Networks: from counts and times to raw outputs (bodies, and the wrapper that scales and labels); on sets of items;
locally equivariant ones.
"""

from blackout.networks.automatic import body_for
from blackout.networks.elements import Elements
from blackout.networks.equivariant import LEMLP, GraphBatch, LEConvolution, LETransformer, LocallyEquivariant
from blackout.networks.equivariant_sitewise import LESite
from blackout.networks.inputs import (
    BirthDeathInputs,
    CountInputs,
    CountNetwork,
    LevelInputs,
    PaperInputs,
    StandardisedInputs,
    StateInputs,
    set_elements,
    time_label,
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
from blackout.networks.set_transformer import SetTransformer
from blackout.networks.transformer import Transformer
from blackout.networks.unet import UNet

__all__ = [
    "LEMLP", "BirthDeathInputs", "CountInputs", "CountNetwork", "EdgeEncoder", "Elements",
    "GraphBatch", "ItemEncoder", "LEConvolution", "LESite", "LETransformer",
    "LevelInputs", "LocallyEquivariant", "NCSNpp", "PaperInputs", "PieceEncoder", "PointEncoder", "ResidualMLP",
    "SequenceConvolution", "SetTransformer", "StandardisedInputs", "StateInputs", "StripEncoder",
    "TokenEncoder", "Transformer", "UNet", "body_for", "set_elements", "time_label",
]  # fmt: skip
