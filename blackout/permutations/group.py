"""Permutations as tensors: composition, inverses, distance, all of them, and exact numbers that count them.

A permutation of n items is int64 [..., n] with values 0..n-1. It acts by gather: p takes the list x to x[p], whose
entry i is x[p[i]]. So `compose(p, q)` first rearranges by p, then rearranges the result by q.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import chain, pairwise, permutations

import numpy as np
import torch
from torch import Tensor

from blackout.errors import ensure


def identity_like(p: Tensor) -> Tensor:
    """0, 1, ..., n - 1, int64 of p's shape and device; a view."""
    return torch.arange(p.shape[-1], device=p.device).expand(p.shape)


def compose(p: Tensor, q: Tensor) -> Tensor:
    """i -> p[q[i]], int64 of the common shape [..., n]: how permutations act by gather.

    Ours (tests/permutations/test_group.py).
    """
    p, q = torch.broadcast_tensors(p, q)
    return p.gather(-1, q)


def inverse(p: Tensor) -> Tensor:
    """The permutation that undoes p [..., n], of that shape. Ours (tests/permutations/test_group.py)."""
    return torch.empty_like(p, memory_format=torch.contiguous_format).scatter_(-1, p, identity_like(p))


def is_permutation(x: Tensor) -> Tensor:
    """Whether 0..n-1 all occur, bool [...] for integers [..., n]: the definition of a permutation.

    Ours (tests/permutations/test_group.py).
    """
    inside = (x >= 0) & (x < x.shape[-1])
    seen = torch.zeros(x.shape, dtype=torch.bool, device=x.device)
    seen.scatter_(-1, x.clamp(0, x.shape[-1] - 1).long(), True)
    return seen.all(-1) & inside.all(-1)


def descents(p: Tensor) -> Tensor:
    """How often the next entry of p [..., n] is less, int64 [...] [Bayer 1992].

    The rising sequences of p number 1 + descents(inverse(p)).
    """
    return (p[..., 1:] < p[..., :-1]).sum(-1)


def kendall_distance(p: Tensor, q: Tensor | None = None) -> Tensor:
    """The number of pairs i < j that p and q, read as ranks of the places, put in opposite order [Kendall 1938].

    It does not change when the places of both are rearranged alike: d(p r, q r) = d(p, q). Of *orders* (lists of items)
    it is the distance of their inverses. Against the identity both readings agree: the number of inversions.

    Args:
        p: int64 [..., n].
        q: the same or broadcastable; None is the identity.

    Returns:
        int64 [...], from 0 to n (n - 1) / 2.
    """
    return smaller_behind(p if q is None else compose(p, inverse(q))).sum(-1)


def smaller_behind(x: Tensor) -> Tensor:
    """How many smaller values follow each, int64 of the shape of permutations x [..., n] [Severo 2025, eq. 1]."""
    y = places_first(x)
    for i in range(len(y) - 1):  # later values move down past this one, which leaves their order as it is
        later = y[i + 1 :]
        later -= (later > y[i]).view(torch.uint8)
    return places_last(y, x)


def places_first(x: Tensor) -> Tensor:
    """A copy [n, samples] of x [..., n], contiguous, in the narrowest integers that hold n."""
    n = x.shape[-1]
    narrow = torch.uint8 if n <= 256 else torch.int16 if n <= 2**15 else torch.int32
    return x.reshape(-1, n).T.to(narrow, memory_format=torch.contiguous_format, copy=True).contiguous()


def places_last(y: Tensor, like: Tensor) -> Tensor:
    """int64 of `like`'s shape, from [n, samples]."""
    return y.T.to(torch.int64, memory_format=torch.contiguous_format).view(like.shape)


def cycle_labels(p: Tensor) -> Tensor:
    """The least element of every element's cycle, int64 [..., n]; ours, checked in `tests.permutations.test_group`."""
    label, step, reached = identity_like(p), p, 1
    while reached < p.shape[-1]:
        label = torch.minimum(label, label.gather(-1, step))
        step, reached = step.gather(-1, step), 2 * reached
    return label


def num_cycles(p: Tensor) -> Tensor:
    """The number of cycles of p [..., n], fixed points among them, int64 [...].

    Ours (tests/permutations/test_group.py).
    """
    return (cycle_labels(p) == identity_like(p)).sum(-1)


def all_permutations(n: int) -> Tensor:
    """All of S_n in lexicographic order, int64 [n!, n].

    Ours (tests/permutations/test_group.py).

    Raises:
        ValueError: n < 1, or so large (n > 10) that they would fill gigabytes.
    """
    ensure(1 <= n <= 10, f"all permutations are enumerated for n from 1 to 10, not {n}")
    entries = np.fromiter(chain.from_iterable(permutations(range(n))), np.int64, n * math.factorial(n))
    return torch.from_numpy(entries.reshape(-1, n))


def number(orders: Tensor) -> Tensor:
    """The place of every permutation [..., n] in lexicographic order, that of `all_permutations`, int64 [...], n to 20.

    Its digits, to the bases n, n - 1, ..., 1, say how many smaller items follow: the Lehmer code [Severo 2025, eq. 1].
    Ours (tests/permutations/test_group.py).
    """
    weights = [math.factorial(left) for left in reversed(range(orders.shape[-1]))]
    return (smaller_behind(orders) * torch.tensor(weights, device=orders.device)).sum(-1)


@lru_cache
def eulerian_numbers(n: int) -> tuple[int, ...]:
    """How many permutations of n have r = 1, ..., n rising sequences (r - 1 descents) [Zhang 2025, appendix F].

    A(n, r) = r A(n - 1, r) + (n - r + 1) A(n - 1, r - 1).

    Raises:
        ValueError: n < 1.
    """
    ensure(n >= 1, f"n must be at least 1, not {n}")
    row = [1]
    for m in range(2, n + 1):
        row = [r * after + (m - r + 1) * before for r, (before, after) in enumerate(pairwise([0, *row, 0]), 1)]
    return tuple(row)


@lru_cache
def stirling_numbers(t: int, most: int) -> tuple[int, ...]:
    """Into how many ways t elements fall into m = 0, ..., most non-empty sets (Stirling's second kind) [Diaconis 1992].

    By inclusion and exclusion over sets that stay empty, so that a large t costs no more than its powers; SciPy fills a
    table of t rows, 14 s for t = 4000. Ours (tests/permutations/test_mixing.py): integers [most + 1].
    """
    powers = [j**t for j in range(most + 1)]
    onto = [sum((-1) ** (m - j) * math.comb(m, j) * powers[j] for j in range(m + 1)) for m in range(most + 1)]
    return tuple(ways // math.factorial(m) for m, ways in enumerate(onto))


def partitions(n: int, largest: int | None = None) -> list[tuple[int, ...]]:
    """The ways of writing n as a sum of positive integers, each falling: the cycle types of S_n.

    Ours (tests/permutations/test_mixing.py).
    """
    if n == 0:
        return [()]
    most = n if largest is None else min(n, largest)
    return [(part, *rest) for part in range(most, 0, -1) for rest in partitions(n - part, part)]


def class_size(cycle_type: tuple[int, ...]) -> int:
    """How many permutations have these cycle lengths: n! over the product of k^m m! for m cycles of length k.

    [Diaconis 1988]; counted in `tests.permutations.test_mixing`; an integer, of lengths [m].
    """
    centraliser = math.prod(k ** (m := cycle_type.count(k)) * math.factorial(m) for k in set(cycle_type))
    return math.factorial(sum(cycle_type)) // centraliser
