"""Numbers that count permutations, as exact integers."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise


@lru_cache
def eulerian_numbers(n: int) -> tuple[int, ...]:
    """How many permutations of n have r = 1, ..., n rising sequences (r - 1 descents).

    A(n, r) = r A(n - 1, r) + (n - r + 1) A(n - 1, r - 1).

    Raises:
        ValueError: n < 1.
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, not {n}")
    row = [1]
    for m in range(2, n + 1):
        row = [r * after + (m - r + 1) * before for r, (before, after) in enumerate(_pairs(row), 1)]
    return tuple(row)


@lru_cache
def stirling_numbers(t: int) -> tuple[int, ...]:
    """Into how many ways t elements fall into m = 0, ..., t non-empty sets (Stirling's second kind)."""
    row = [1]
    for _ in range(t):
        row = [m * after + before for m, (before, after) in enumerate(_pairs(row))]
    return tuple(row)


def _pairs(row: list[int]) -> list[tuple[int, int]]:
    """Neighbours in a row of a triangle of numbers, 0 beyond its ends."""
    return list(pairwise([0, *row, 0]))


def partitions(n: int, largest: int | None = None) -> list[tuple[int, ...]]:
    """The ways of writing n as a sum of positive integers, each falling: the cycle types of S_n."""
    if n == 0:
        return [()]
    most = n if largest is None else min(n, largest)
    return [(part, *rest) for part in range(most, 0, -1) for rest in partitions(n - part, part)]


def class_size(cycle_type: tuple[int, ...]) -> int:
    """How many permutations have these cycle lengths: n! over the product of k^m m! for m cycles of length k."""
    centraliser = math.prod(k ** (m := cycle_type.count(k)) * math.factorial(m) for k in set(cycle_type))
    return math.factorial(sum(cycle_type)) // centraliser
