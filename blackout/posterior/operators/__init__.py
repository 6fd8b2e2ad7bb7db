"""What is measured: one file per kind of operator."""

from blackout.posterior.operators.base import BlackBox, Identity, Operator, Separable
from blackout.posterior.operators.learned import Classifier, Decoded, Motif, Reward, Tilt
from blackout.posterior.operators.linear import (
    And,
    Blur,
    Inpaint,
    InpaintBox,
    InpaintRandom,
    Matrix,
    Pairs,
    Pool,
    Sums,
    Xor,
)

__all__ = [
    "And", "BlackBox", "Blur", "Classifier", "Decoded", "Identity", "Inpaint", "InpaintBox", "InpaintRandom", "Matrix",
    "Motif", "Operator", "Pairs", "Pool", "Reward", "Separable", "Sums", "Tilt", "Xor",
]  # fmt: skip
