"""Permutations as tensors: composition, inverses, Kendall distance, enumeration and exact counts.

A permutation of n items is int64 [..., n] with values 0..n-1. It acts by gather: p takes the list x
to x[p], whose entry i is x[p[i]]. So `compose(p, q)` first rearranges by p, then rearranges the
result by q.

Example:
    >>> import torch
    >>> p = torch.tensor([2, 0, 1])
    >>> compose(p, inverse(p)).tolist()
    [0, 1, 2]
    >>> kendall_distance(p).item()
    2
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import chain, pairwise, permutations

import numpy as np
import torch
from torch import Tensor

from blackout.errors import ensure

MAX_ENUMERATED = 10  # items of which all permutations fit in memory (290 MB)


def identity_like(p: Tensor) -> Tensor:
    """Return the identity 0, 1, ..., n - 1 as a view with the shape and device of p, int64."""
    return torch.arange(p.shape[-1], device=p.device).expand(p.shape)


def compose(p: Tensor, q: Tensor) -> Tensor:
    """Return the composition i -> p[q[i]], int64 [..., n] of the common shape.

    As actions by gather, p comes first and then q.

    References: definition of the composition.

    Example:
        >>> compose(torch.tensor([2, 0, 1]), torch.tensor([1, 2, 0])).tolist()
        [0, 1, 2]
    """
    p, q = torch.broadcast_tensors(p, q)
    return p.gather(-1, q)


def inverse(p: Tensor) -> Tensor:
    """Return the inverse permutations of p, int64 [..., n].

    References: definition of the inverse.

    Example:
        >>> inverse(torch.tensor([2, 0, 1])).tolist()
        [1, 2, 0]
    """
    result = torch.empty_like(p, memory_format=torch.contiguous_format)
    return result.scatter_(-1, p, identity_like(p))


def is_permutation(x: Tensor) -> Tensor:
    """Return whether each of 0..n-1 occurs, bool [...], for integers [..., n]."""
    in_range = (x >= 0) & (x < x.shape[-1])
    occurs = torch.zeros(x.shape, dtype=torch.bool, device=x.device)
    occurs.scatter_(-1, x.clamp(0, x.shape[-1] - 1).long(), True)
    return occurs.all(-1) & in_range.all(-1)


def descents(p: Tensor) -> Tensor:
    """Return the number of descents of p [..., n], int64 [...].

    A descent is a place where the next entry is smaller. The number of rising sequences of p is 1 +
    descents(inverse(p)).

    References: Bayer and Diaconis 1992.
    """
    return (p[..., 1:] < p[..., :-1]).sum(-1)


def kendall_distance(p: Tensor, q: Tensor | None = None) -> Tensor:
    """Return the Kendall tau distance: the number of pairs that p and q rank in opposite order.

    p and q are ranks, one for each position. The distance does not change when the positions of
    both are permuted alike: d(p r, q r) = d(p, q). For *orders* (lists of items) it is the distance
    of their inverses. Against the identity both readings agree: the number of inversions.

    Args:
        p: int64 [..., n].
        q: the same, or broadcastable; None for the identity.

    Returns:
        int64 [...], from 0 to n (n - 1) / 2.

    References: Kendall 1938.

    Example:
        >>> kendall_distance(torch.tensor([2, 0, 1])).item()
        2
    """
    return count_smaller_after(p if q is None else compose(p, inverse(q))).sum(-1)


def count_smaller_after(x: Tensor) -> Tensor:
    """Return how many smaller entries follow each entry, int64 [..., n].

    Of permutations this is the Lehmer code.

    References: Severo et al. 2025, eq. 1.
    """
    y = to_positions_first(x)
    for i in range(len(y) - 1):
        # later values above this one move down by 1, which leaves their order as it is
        later = y[i + 1 :]
        later -= (later > y[i]).view(torch.uint8)
    return from_positions_first(y, x)


def to_positions_first(x: Tensor) -> Tensor:
    """Return a contiguous copy [n, samples] of x [..., n].

    Its type is the narrowest integer that holds n.
    """
    n = x.shape[-1]
    if n <= 256:
        dtype = torch.uint8
    elif n <= 2**15:
        dtype = torch.int16
    else:
        dtype = torch.int32
    rows = x.reshape(-1, n).T
    return rows.to(dtype, memory_format=torch.contiguous_format, copy=True).contiguous()


def from_positions_first(y: Tensor, template: Tensor) -> Tensor:
    """Return y [n, samples] as int64 with the shape of a template [..., n]."""
    return y.T.to(torch.int64, memory_format=torch.contiguous_format).view(template.shape)


def cycle_labels(p: Tensor) -> Tensor:
    """Return the smallest element of the cycle of every element, int64 [..., n].

    The method is pointer doubling.

    References: this project; checked in tests/permutations/test_group.py.
    """
    label = identity_like(p)
    step = p  # the permutation to the power `length`
    length = 1
    while length < p.shape[-1]:
        label = torch.minimum(label, label.gather(-1, step))
        step = step.gather(-1, step)
        length = 2 * length
    return label


def num_cycles(p: Tensor) -> Tensor:
    """Return the number of cycles of p [..., n], fixed points included, int64 [...]."""
    return (cycle_labels(p) == identity_like(p)).sum(-1)


def all_permutations(n: int) -> Tensor:
    """Return all permutations in lexicographic order, int64 [n!, n].

    Raises:
        ValueError: n outside 1..10.

    References: definition of the function.

    Example:
        >>> all_permutations(3)[:3].tolist()
        [[0, 1, 2], [0, 2, 1], [1, 0, 2]]
    """
    ensure(
        1 <= n <= MAX_ENUMERATED,
        f"all permutations are enumerated for n from 1 to {MAX_ENUMERATED}, not {n}",
    )
    entries = chain.from_iterable(permutations(range(n)))
    array = np.fromiter(entries, np.int64, n * math.factorial(n))
    return torch.from_numpy(array.reshape(-1, n))


def lexicographic_rank(orders: Tensor) -> Tensor:
    """Return the index of permutations [..., n] in `all_permutations`, int64 [...]; n at most 20.

    The Lehmer code holds its digits in the factorial number system.

    References: Severo et al. 2025, eq. 1; checked in tests/permutations/test_group.py.
    """
    weights = [math.factorial(remaining) for remaining in reversed(range(orders.shape[-1]))]
    digits = count_smaller_after(orders)
    return (digits * torch.tensor(weights, device=orders.device)).sum(-1)


@lru_cache
def eulerian_numbers(n: int) -> tuple[int, ...]:
    """Return how many permutations of n items have r = 1, ..., n rising sequences (r - 1 descents).

    A(n, r) = r A(n - 1, r) + (n - r + 1) A(n - 1, r - 1).

    Raises:
        ValueError: n < 1.

    References: Zhang et al. 2025, appendix F.
    """
    ensure(n >= 1, f"n must be at least 1, not {n}")
    numbers = [1]
    for m in range(2, n + 1):
        neighbours = pairwise([0, *numbers, 0])  # A(m - 1, r - 1) and A(m - 1, r)
        numbers = [
            r * current + (m - r + 1) * previous
            for r, (previous, current) in enumerate(neighbours, 1)
        ]
    return tuple(numbers)


@lru_cache
def stirling_numbers(t: int, max_sets: int) -> tuple[int, ...]:
    """Return the Stirling numbers of the second kind S(t, m) for m = 0, ..., `max_sets`.

    S(t, m) is the number of partitions of t elements into m non-empty sets. It is computed by
    inclusion and exclusion, so that a large t costs no more than its powers; SciPy fills a table of
    t rows (14 s for t = 4000).

    References: Diaconis et al. 1992; checked in tests/permutations/test_mixing.py.
    """
    powers = [j**t for j in range(max_sets + 1)]
    surjections = [
        sum((-1) ** (m - j) * math.comb(m, j) * powers[j] for j in range(m + 1))
        for m in range(max_sets + 1)
    ]
    return tuple(ways // math.factorial(m) for m, ways in enumerate(surjections))


def integer_partitions(n: int, largest: int | None = None) -> list[tuple[int, ...]]:
    """Return the partitions of the integer n, each in falling order: the cycle types of S_n.

    Args:
        n: at least 0.
        largest: largest part that is allowed; None for any.
    """
    if n == 0:
        return [()]
    limit = n if largest is None else min(n, largest)
    return [
        (part, *rest) for part in range(limit, 0, -1) for rest in integer_partitions(n - part, part)
    ]


def conjugacy_class_size(cycle_type: tuple[int, ...]) -> int:
    """Return how many permutations have these cycle lengths.

    The number is n! / product of k^m m!, for m cycles of length k.

    References: Diaconis 1988; checked in tests/permutations/test_mixing.py.
    """
    counts = {length: cycle_type.count(length) for length in set(cycle_type)}
    centraliser = math.prod(k**m * math.factorial(m) for k, m in counts.items())
    return math.factorial(sum(cycle_type)) // centraliser
