"""Permutations: shuffles that mix them, distributions over them, codes whose digits are free, classical families."""

from blackout.permutations.group import all_permutations, compose, inverse, kendall_distance

__all__ = ["all_permutations", "compose", "inverse", "kendall_distance"]
