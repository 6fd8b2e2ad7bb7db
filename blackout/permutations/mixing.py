"""How far from uniform shuffled cards are, exactly, and when to look.

Riffles after [Bayer 1992], insertions by the first run of the inverse, both in whole numbers; transpositions by the
walk on cycle types, to 30 cards. The rule for schedules follows [Zhang 2025, section 3.4, appendix F]: end where the
distance is about .005, look where neighbouring laws are about .3 apart.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from fractions import Fraction

from blackout.permutations.group import class_size, eulerian_numbers, stirling_numbers
from blackout.permutations.shuffles import type_probabilities

MIXED = 0.005
"""The distance from uniform at which a schedule ends."""
_FIRST = 0.46
"""The first look is where the distance from uniform has fallen to this."""
_APART = 0.29
"""Least distance between the laws of one look and the next."""


def total_variation(n: int, t: int, s: int | None = None) -> float:
    """Between the laws of t riffles of n cards and of s riffles, or the uniform law.

    Half the sum over r of A(n, r) |C(n + 2^t - r, n) / 2^(t n) - ...|, A Eulerian numbers, in exact arithmetic
    [Zhang 2025, eqs 13-14].

    Raises:
        ValueError: n < 1, or a negative number of riffles.
    """
    sizes, law = eulerian_numbers(n), _riffle_law(n, t)
    other = [Fraction(1, math.factorial(n))] * n if s is None else _riffle_law(n, s)
    return float(sum((a * abs(p - q) for a, p, q in zip(sizes, law, other, strict=True)), Fraction(0)) / 2)


def _riffle_law(n: int, t: int) -> list[Fraction]:
    """The probability of one permutation with r = 1..n rising sequences after t riffles."""
    _check(n, t)
    a = 2**t
    return [Fraction(math.comb(n + a - r, n) if r <= a else 0, a**n) for r in range(1, n + 1)]


def insertion_variation(n: int, t: int) -> float:
    """Between the law of t random insertions of n cards and the uniform law [Diaconis 1992].

    Raises:
        ValueError: n < 1, or t < 0.
    """
    _check(n, t)
    ways, distance = [*stirling_numbers(t), *[0] * n], Fraction(0)
    uniform = Fraction(1, math.factorial(n))
    for run in range(1, n + 1):
        longer = 0 if run == n else Fraction(1, math.factorial(run + 1))
        share = Fraction(1, math.factorial(run)) - longer  # of all permutations start with exactly this rising run
        distance += share / uniform * abs(Fraction(sum(ways[n - run : n + 1]), n**t) - uniform)
    return float(distance / 2)


def transposition_variation(n: int, t: int) -> float:
    """Between the law of t random transpositions of n cards and the uniform law, by the walk on cycle types.

    Ours; checked by enumeration in `tests.permutations.test_mixing`.

    Raises:
        ValueError: n outside 1..30, or t < 0.
    """
    _check(n, t)
    law = type_probabilities(n, t)
    return sum(abs(mass - class_size(cycles) / math.factorial(n)) for cycles, mass in law.items()) / 2


def denoising_schedule(n: int) -> list[int]:
    """Numbers of riffles 0 = t_0 < t_1 < ... < t_k = T after which n cards are looked at.

    T is where the distance from uniform is nearest to .005 (in logarithm); t_1 the first with at most .46; from there
    on always the next whose law is at least .29 from that of the look before; at last T. Ours, so that it gives the
    schedules of [Zhang 2025, table 9] for 9, 25, 36 and 100 items.

    Raises:
        ValueError: n < 2.
    """
    if n < 2:
        raise ValueError(f"a schedule needs at least 2 cards, not {n}")
    distances = [total_variation(n, 0)]
    while distances[-1] > MIXED:
        distances.append(total_variation(n, len(distances)))
    final = min(range(len(distances)), key=lambda t: abs(math.log(distances[t] / MIXED)))
    looks = [0, next(t for t, distance in enumerate(distances) if distance <= _FIRST)]
    for t in range(looks[-1] + 1, final):
        if total_variation(n, looks[-1], t) >= _APART:
            looks.append(t)
    return looks if looks[-1] == final else [*looks, final]


def first_mixed(variation: Callable[[int, int], float], n: int, target: float) -> int:
    """The least number of shuffles after which the distance from uniform is at most `target`, by bisection."""
    most = 1
    while variation(n, most) > target:
        most *= 2
    return bisect_left(range(most), -target, key=lambda t: -variation(n, t))


def _check(n: int, t: int) -> None:
    if n < 1 or t < 0:
        raise ValueError(f"need at least one card and no negative number of shuffles, not n = {n}, t = {t}")
