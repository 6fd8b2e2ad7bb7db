"""The family of factorised codes, which can represent any distribution over permutations.

A sample takes any number of passes of one network.
"""

from blackout.permutations.coded.data import PermutationData
from blackout.permutations.coded.datasets.cycles import cycles
from blackout.permutations.coded.datasets.mallows import mallows
from blackout.permutations.coded.datasets.plackett_luce import plackett_luce
from blackout.permutations.coded.datasets.ratings import rankings, synthetic_rankings
from blackout.permutations.coded.datasets.votes import permutations
from blackout.permutations.coded.family import CodeFamily
from blackout.permutations.coded.model import CodeModel
from blackout.permutations.coded.network import CodeTransformer
from blackout.permutations.coded.scores import CodeScorer

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
