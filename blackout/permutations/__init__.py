"""Permutations: shuffles that mix them, distributions over them, codes whose digits are free, classical families."""

from blackout.permutations.group import all_permutations, compose, inverse, kendall_distance
from blackout.permutations.shuffles import RandomInsertion, RandomTransposition, Riffle

__all__ = [
    "RandomInsertion", "RandomTransposition", "Riffle", "all_permutations", "compose", "inverse", "kendall_distance",
]  # fmt: skip
