"""Sorting networks whose comparators are relaxed, so that they can be differentiated.

Petersen et al. (ICML 2021, ICLR 2022); without error in the values, Kim, Yoon and Cho (ICLR 2024).
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import torch
from torch import Tensor

Layout: TypeAlias = Literal["odd_even", "bitonic"]
Pairs: TypeAlias = list[tuple[int, int]]
"""(lower place, upper place) of comparators."""


def comparators(n: int, layout: Layout) -> list[tuple[list[int], list[int]]]:
    """The layers of a network that sorts n numbers, each (lower places, upper places) that are compared at once.

    Args:
        n: at least 1.
        layout: odd_even, n layers of neighbours, or bitonic, log n (log n + 1) / 2 layers.

    Raises:
        ValueError: another layout.
    """
    makers = {"odd_even": _odd_even, "bitonic": _bitonic}
    if layout not in makers:
        raise ValueError(f"layout must be odd_even or bitonic, not {layout}")
    kept = [[(i, j) for i, j in layer if j < n] for layer in makers[layout](n)]
    return [([i for i, _ in layer], [j for _, j in layer]) for layer in kept if layer]


def _odd_even(n: int) -> list[Pairs]:
    return [[(i, i + 1) for i in range(layer % 2, n - 1, 2)] for layer in range(n)]


def _bitonic(n: int) -> list[Pairs]:
    """For the next power of two; all comparators point up, so that those of numbers above all can be left out."""
    size, layers = 1 << (n - 1).bit_length(), list[Pairs]()
    for exponent in range(1, size.bit_length()):
        # a block's ends are compared inwards, then ever nearer neighbours
        for distance in (2**exponent - 1, *(2**e for e in reversed(range(exponent - 1)))):
            layers.append([(i, i ^ distance) for i in range(size) if i < i ^ distance])
    return layers


def relaxed_sort(values: Tensor, steepness: float, layout: Layout = "odd_even", error_free: bool = False) -> Tensor:
    """How much of which number is at every place after sorting upwards: doubly stochastic, [..., n, n], rows places.

    A comparator leaves its numbers a, b as they are with weight 1/2 + arctan(steepness (b - a)) / pi, and changes them
    with the rest.

    Args:
        values: [..., n].
        steepness: of comparators, above 0.
        layout: of the network.
        error_free: the numbers themselves are sorted exactly, with the gradient of the relaxed ones; else they are
            mixed, and differences shrink from layer to layer.
    """
    n = values.shape[-1]
    matrix = torch.eye(n, dtype=values.dtype, device=values.device).expand(*values.shape, n)
    for lower, upper in comparators(n, layout):
        a, b = values[..., lower], values[..., upper]
        stays = 0.5 + torch.atan(steepness * (b - a)) / math.pi
        low, high = stays * a + (1 - stays) * b, (1 - stays) * a + stays * b
        if error_free:
            low, high = low + (torch.minimum(a, b) - low).detach(), high + (torch.maximum(a, b) - high).detach()
        values = values.clone()
        values[..., lower], values[..., upper] = low, high
        weight, top, bottom = stays.unsqueeze(-1), matrix[..., lower, :], matrix[..., upper, :]
        matrix = matrix.clone()
        matrix[..., lower, :] = weight * top + (1 - weight) * bottom
        matrix[..., upper, :] = (1 - weight) * top + weight * bottom
    return matrix
