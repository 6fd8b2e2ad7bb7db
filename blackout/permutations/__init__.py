"""Permutations: card shuffles, distributions, factorised codes, relaxations, classical models."""

from blackout.permutations.forward_process import ForwardProcess
from blackout.permutations.group import all_permutations, compose, inverse, kendall_distance
from blackout.permutations.relaxations import (
    gumbel_sinkhorn,
    log_permanent,
    neural_sort,
    relaxed_sort,
    sinkhorn,
    soft_sort,
)
from blackout.permutations.shuffles import RandomInsertion, RandomTransposition, Riffle

__all__ = [
    "ForwardProcess",
    "RandomInsertion",
    "RandomTransposition",
    "Riffle",
    "all_permutations",
    "compose",
    "gumbel_sinkhorn",
    "inverse",
    "kendall_distance",
    "log_permanent",
    "neural_sort",
    "relaxed_sort",
    "sinkhorn",
    "soft_sort",
]
