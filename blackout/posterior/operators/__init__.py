"""Forward operators: what is measured, m = G(x), before noise; a family in each file.

    Identity, Inpaint, InpaintBox, InpaintRandom   x, or its observed elements
    Pool, Blur, Matrix                             weighted sums of elements, m = A x
    Xor, And                                       functions of pairs of binary elements
    Function                                       a black box
    Decoded                                        an operator on decoded data

A custom operator derives from `Operator`, `Separable`, `LinearOperator` or `Pairs`.
"""

from blackout.posterior.operators.base import Operator, SampleSet
from blackout.posterior.operators.black_box import Function
from blackout.posterior.operators.decoded import Decoded
from blackout.posterior.operators.linear import Blur, LinearOperator, Matrix, Pool
from blackout.posterior.operators.pairs import And, Pairs, Xor
from blackout.posterior.operators.separable import (
    Identity,
    Inpaint,
    InpaintBox,
    InpaintRandom,
    Separable,
)

__all__ = [
    "And",
    "Blur",
    "Decoded",
    "Function",
    "Identity",
    "Inpaint",
    "InpaintBox",
    "InpaintRandom",
    "LinearOperator",
    "Matrix",
    "Operator",
    "Pairs",
    "Pool",
    "SampleSet",
    "Separable",
    "Xor",
]
