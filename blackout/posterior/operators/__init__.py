"""What is measured: one file per kind of operator."""

from blackout.posterior.operators.base import BlackBox, Identity, Operator, Separable
from blackout.posterior.operators.inpainting import Inpaint, InpaintBox, InpaintRandom
from blackout.posterior.operators.modules import Classifier, Decoded, Motif, Reward, Tilt
from blackout.posterior.operators.pairs import And, Pairs, Xor
from blackout.posterior.operators.sums import Blur, Matrix, Pool, Sums

__all__ = [
    "And", "BlackBox", "Blur", "Classifier", "Decoded", "Identity", "Inpaint", "InpaintBox", "InpaintRandom", "Matrix",
    "Motif", "Operator", "Pairs", "Pool", "Reward", "Separable", "Sums", "Tilt", "Xor",
]  # fmt: skip
