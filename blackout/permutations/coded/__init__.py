"""The family of factorised codes: any distribution over permutations, in any number of passes of one network."""

from blackout.permutations.coded.anagrams import words
from blackout.permutations.coded.data import PermutationData
from blackout.permutations.coded.family import CodeFamily
from blackout.permutations.coded.laws import cycles, mallows, permutations, plackett_luce
from blackout.permutations.coded.module import CodeModel
from blackout.permutations.coded.network import CodeTransformer
from blackout.permutations.coded.scores import CodeScorer
from blackout.permutations.coded.user_rankings import rankings, synthetic_rankings

__all__ = [
    "CodeFamily", "CodeModel", "CodeScorer", "CodeTransformer", "PermutationData", "cycles", "mallows", "permutations",
    "plackett_luce", "rankings", "synthetic_rankings", "words",
]  # fmt: skip
