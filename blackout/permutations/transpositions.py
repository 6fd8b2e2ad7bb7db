"""The random walk by transpositions on cycle types: its law after t steps, without enumerating S_n.

Every step multiplies by a random element of a law that is constant on conjugacy classes, so the cycle type is a Markov
chain of its own: a transposition of elements of two cycles joins them, one within a cycle splits it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from blackout.permutations.counting import class_size, partitions
from blackout.permutations.group import cycle_labels

LARGEST = 30
"""Most cards whose cycle types are enumerated: 5,604 of them."""


def type_probabilities(n: int, times: int) -> dict[tuple[int, ...], float]:
    """The probability of every cycle type after `times` random transpositions of n cards, from the identity.

    Raises:
        ValueError: n outside 1..30.
    """
    if not 1 <= n <= LARGEST:
        raise ValueError(f"the law of several transpositions is known for 1 to {LARGEST} cards, not {n}")
    types, source, target, weight = _transitions(n)
    law: np.ndarray = np.zeros(len(types))
    law[types.index((1,) * n)] = 1.0
    for _ in range(times):
        law = np.bincount(target, weights=law[source] * weight, minlength=len(types))
    return dict(zip(types, law.tolist(), strict=True))


@lru_cache(maxsize=4)
def _transitions(n: int) -> tuple[list[tuple[int, ...]], np.ndarray, np.ndarray, np.ndarray]:
    """The cycle types, and the moves between them: from, to, probability."""
    types = partitions(n)
    number = {cycles: i for i, cycles in enumerate(types)}
    moves = [(i, number[to], p) for i, cycles in enumerate(types) for to, p in _moves(cycles).items()]
    source, target, weight = (np.array(column) for column in zip(*moves, strict=True))
    return types, source, target, weight


def _moves(cycles: tuple[int, ...]) -> dict[tuple[int, ...], float]:
    """Where one step leads from a cycle type: both hands choose one of the n cards, independently."""
    n, many, found = sum(cycles), Counter(cycles), defaultdict[tuple[int, ...], float](float)
    found[cycles] += 1 / n
    for a in many:
        for k in range(1, a):
            found[_replace(cycles, (a,), (k, a - k))] += many[a] * a / n**2
        for b in many:
            pairs = many[a] * (many[b] - (a == b))
            if pairs:
                found[_replace(cycles, (a, b), (a + b,))] += pairs * a * b / n**2
    return found


def _replace(cycles: tuple[int, ...], old: tuple[int, ...], new: tuple[int, ...]) -> tuple[int, ...]:
    left = Counter(cycles)
    left.subtract(old)
    return tuple(sorted([*left.elements(), *new], reverse=True))


def log_prob_after(sigma: Tensor, times: int) -> Tensor:
    """log q(sigma) after `times` random transpositions, float64 [...] for permutations [..., n], n at most 30."""
    n = sigma.shape[-1]
    flat = sigma.reshape(-1, n)
    lengths = torch.zeros_like(flat).scatter_add_(-1, cycle_labels(flat), torch.ones_like(flat))
    kinds, which = lengths.sort(-1, descending=True).values.unique(dim=0, return_inverse=True)
    law, logs = type_probabilities(n, times), []
    for kind in kinds.tolist():
        cycles = tuple(length for length in kind if length)
        mass = law[cycles]
        logs.append(math.log(mass) - math.log(class_size(cycles)) if mass > 0 else -math.inf)
    return torch.tensor(logs, dtype=torch.float64, device=sigma.device)[which].view(sigma.shape[:-1])
