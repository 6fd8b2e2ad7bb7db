"""The family of factorised codes, which can represent any distribution over permutations.

A sample takes any number of passes of one network.
"""

from blackout.permutations.coded.data import (
    PermutationData,
    cycles,
    mallows,
    permutations,
    plackett_luce,
)
from blackout.permutations.coded.family import CodeFamily
from blackout.permutations.coded.model import CodeModel, CodeTransformer
from blackout.permutations.coded.ratings import rankings, synthetic_rankings
from blackout.permutations.coded.report import CodeScorer

__all__ = [
    "CodeFamily",
    "CodeModel",
    "CodeScorer",
    "CodeTransformer",
    "PermutationData",
    "cycles",
    "mallows",
    "permutations",
    "plackett_luce",
    "rankings",
    "synthetic_rankings",
]
