"""Permutations as limits of matrices with a gradient, for networks that put things in order: outside a trainer too.

Matrices are [..., n, n], rows places and columns items; those of sorts put numbers in rising order as they get steep.
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from blackout.errors import ensure
from blackout.random import RandomSource, uniform

Layout: TypeAlias = Literal["odd_even", "bitonic"]
_MOST_ITEMS = 20


def sinkhorn(scores: Tensor, iterations: int) -> Tensor:
    """log of a matrix [..., n, n] whose rows sum to 1, and its columns ever more nearly.

    [Sinkhorn 1964], in logarithms [Mena 2018, section 2].

    Args:
        scores: [..., n, n], divided by a temperature if there is one.
        iterations: normalisations of rows and columns in turn, before the last one of rows.

    Raises:
        ValueError: iterations below 0.
    """
    ensure(iterations >= 0, f"iterations of Sinkhorn's normalisation must be at least 0, not {iterations}")
    for _ in range(iterations):
        scores = scores.log_softmax(-1)
        scores = scores - scores.logsumexp(-2, keepdim=True)  # quicker than log_softmax of columns
    return scores.log_softmax(-1)


def gumbel_sinkhorn(scores: Tensor, temperature: float, iterations: int, generator: RandomSource = None) -> Tensor:
    """log of a random matrix [..., n, n]: `sinkhorn` of scores with Gumbel noise over a temperature [Mena 2018, eq. 9].

    Raises:
        ValueError: a temperature that is not positive, or iterations below 0.
    """
    _check_positive(temperature, "temperature")
    noise = uniform(tuple(scores.shape), generator, scores.device).log_().neg_().log_().neg_()
    return sinkhorn((scores + noise.to(scores.dtype)) / temperature, iterations)


def soft_sort(values: Tensor, temperature: float) -> Tensor:
    """Shares of values [..., n] at the places of their sort, by distance from what is there [Prillo 2020, eq. 2].

    Raises:
        ValueError: a temperature that is not positive.
    """
    _check_positive(temperature, "temperature")
    distance = values.sort(dim=-1).values.unsqueeze(-1) - values.unsqueeze(-2)
    return torch.softmax(distance.abs_().div_(-temperature), -1)


def neural_sort(values: Tensor, temperature: float) -> Tensor:
    """The same by a formula for sums of the largest: rows have the right largest entry at any temperature.

    [Grover 2019, eq. 5], of numbers [..., n] turned round, since theirs fall: [..., n, n].

    Raises:
        ValueError: a temperature that is not positive.
    """
    _check_positive(temperature, "temperature")
    n = values.shape[-1]
    apart = (values.unsqueeze(-1) - values.unsqueeze(-2)).abs_().sum(-1, keepdim=True).transpose(-1, -2)
    weight = torch.arange(1 - n, n, 2, dtype=values.dtype, device=values.device).unsqueeze(-1)
    return torch.softmax(torch.addcmul(-apart, weight, values.unsqueeze(-2)).div_(temperature), -1)


def relaxed_sort(values: Tensor, steepness: float, layout: Layout = "odd_even", error_free: bool = False) -> Tensor:
    """How much of which number is at every place after a sorting network: doubly stochastic, [..., n, n].

    A comparator leaves its numbers a, b as they are with weight 1/2 + arctan(steepness (b - a)) / pi, and changes them
    with the rest [Petersen 2022, section 4].

    Args:
        values: [..., n].
        steepness: of comparators, above 0.
        layout: of the network.
        error_free: the numbers themselves are sorted exactly, with the gradient of the relaxed ones [Kim 2024]; else
            they are mixed, and differences shrink from layer to layer.

    Raises:
        ValueError: a steepness that is not positive, or another layout.
    """
    _check_positive(steepness, "steepness")
    n = values.shape[-1]
    matrix = torch.eye(n, dtype=values.dtype, device=values.device).expand(*values.shape, n)
    for lower, upper in comparators(n, layout):
        other, sign = torch.arange(n, device=values.device), values.new_ones(n)
        other[lower + upper] = other[upper + lower]
        sign[upper] = -1
        away = values[..., other]
        stays = 0.5 + torch.atan(steepness * sign * (away - values)) / math.pi
        mixed = torch.lerp(away, values, stays)
        if error_free:
            sorted_pair = torch.where(sign > 0, torch.minimum(values, away), torch.maximum(values, away))
            mixed = mixed + (sorted_pair - mixed).detach()
        values, matrix = mixed, torch.lerp(matrix[..., other, :], matrix, stays.unsqueeze(-1))
    return matrix


def comparators(n: int, layout: Layout) -> list[tuple[list[int], list[int]]]:
    """The layers of a network that sorts n numbers, each (lower places, upper places) that are compared at once.

    The layouts of [Petersen 2022], lists of integers; tests/permutations/test_relaxations.py sorts by them.

    Args:
        n: at least 1.
        layout: odd_even, n layers of neighbours, or bitonic, log n (log n + 1) / 2 layers [Batcher 1968].

    Raises:
        ValueError: another layout.
    """
    if layout == "odd_even":
        pairs = [[(i, i + 1) for i in range(layer % 2, n - 1, 2)] for layer in range(n)]
    elif layout == "bitonic":
        # for the next power of two; all comparators point up, so that those of numbers above all can be left out
        size, pairs = 1 << (n - 1).bit_length(), []
        for exponent in range(1, size.bit_length()):
            # a block's ends are compared inwards, then ever nearer neighbours
            for distance in (2**exponent - 1, *(2**e for e in reversed(range(exponent - 1)))):
                pairs.append([(i, i ^ distance) for i in range(size) if i < i ^ distance < n])
    else:
        raise ValueError(f"layout must be odd_even or bitonic, not {layout}")
    return [([i for i, _ in layer], [j for _, j in layer]) for layer in pairs if layer]


def log_permanent(log_weights: Tensor) -> Tensor:
    """log of the permanent of matrices exp(log_weights) [..., n, n], up to 20 items: [...], in the weights' dtype.

    It normalises a law of matchings, p(order) proportional to the product of its entries, and its gradient are P(item
    at place). Place after place for all sets of items, sums of what is not negative: without the cancellation of the
    formula of inclusion and exclusion. Ours; tests/permutations/test_relaxations.py.

    Raises:
        ValueError: matrices that are not square, or more than 20 items.
    """
    n = log_weights.shape[-1]
    if log_weights.ndim < 2 or log_weights.shape[-2] != n or n > _MOST_ITEMS:
        raise ValueError(f"[..., n, n] with n at most {_MOST_ITEMS} is needed, not {list(log_weights.shape)}")
    largest = log_weights.detach().amax(-1, keepdim=True).clamp(min=torch.finfo(log_weights.dtype).min)
    weights = (log_weights - largest).exp()
    sets = torch.arange(2**n, device=weights.device)
    size = torch.stack([sets >> item & 1 for item in range(n)]).sum(0)
    number = torch.empty_like(sets)  # of every set among those of its size
    sums = torch.ones_like(weights[..., 0, :1])
    for place in range(n):
        own = (size == place + 1).nonzero().squeeze(1)
        further = weights.new_zeros((*weights.shape[:-2], len(own)))
        for item in range(n):
            where = (own >> item & 1).nonzero().squeeze(1)
            before = sums[..., number[own[where] - 2**item]] if place else sums
            further.index_add_(-1, where, weights[..., place, item, None] * before)
        number[own], sums = torch.arange(len(own), device=own.device), further
    return sums[..., -1].log() + largest.sum((-1, -2))


def _check_positive(number: float, name: str) -> None:
    ensure(0 < number < math.inf, f"{name} must be positive, not {number}")
