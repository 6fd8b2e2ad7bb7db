"""Differentiable relaxations of permutations.

Sinkhorn normalisation, soft sorting, sorting networks, and permanents.

Matrices are [..., n, n]; rows are positions and columns are items. Sorts are in rising order.

Example:
    >>> import torch
    >>> matrix = soft_sort(torch.tensor([3.0, 1.0, 2.0]), temperature=0.01)
    >>> matrix.argmax(-1).tolist()
    [1, 2, 0]
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from blackout.errors import ensure
from blackout.random import RandomSource, uniform

Layout: TypeAlias = Literal["odd_even", "bitonic"]

MAX_PERMANENT_ITEMS = 20  # with 2^20 sets of items


def sinkhorn(scores: Tensor, iterations: int) -> Tensor:
    """Return the log of exp(scores) after Sinkhorn normalisation, [..., n, n].

    Its rows sum to 1, and its columns more nearly with every iteration.

    Args:
        scores: [..., n, n], divided by a temperature if there is one.
        iterations: normalisations of rows and columns in turn, before a last one of rows.

    Raises:
        ValueError: iterations < 0.

    References: Sinkhorn 1964; Mena et al. 2018, section 2.

    Example:
        >>> matrix = sinkhorn(torch.tensor([[2.0, 0.0], [1.0, 0.0]]), iterations=100).exp()
        >>> [[round(p, 3) for p in row] for row in matrix.tolist()]
        [[0.622, 0.378], [0.378, 0.622]]
    """
    ensure(
        iterations >= 0,
        f"iterations of Sinkhorn's normalisation must be at least 0, not {iterations}",
    )
    for _ in range(iterations):
        scores = scores.log_softmax(-1)
        # faster than log_softmax along columns
        scores = scores - scores.logsumexp(-2, keepdim=True)
    return scores.log_softmax(-1)


def gumbel_sinkhorn(
    scores: Tensor, temperature: float, iterations: int, generator: RandomSource = None
) -> Tensor:
    """Draw from the Gumbel-Sinkhorn distribution.

    A draw is `sinkhorn` of (scores + Gumbel noise) / temperature.

    Args:
        scores: [..., n, n].
        temperature: positive.
        iterations: of Sinkhorn normalisation.
        generator: source of random numbers.

    Returns:
        Logs of matrices [..., n, n].

    Raises:
        ValueError: a temperature that is not positive, or iterations < 0.

    References: Mena et al. 2018, eq. 9.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> log_p = gumbel_sinkhorn(torch.zeros(3, 3), 0.1, 20, generator)
        >>> [round(p, 3) for p in log_p.exp().sum(1).tolist()]
        [1.0, 1.0, 1.0]
    """
    _check_positive(temperature, "temperature")
    noise = uniform(tuple(scores.shape), generator, scores.device).log_().neg_().log_().neg_()
    return sinkhorn((scores + noise.to(scores.dtype)) / temperature, iterations)


def soft_sort(values: Tensor, temperature: float) -> Tensor:
    """Return the SoftSort relaxation of the sorting permutation of values [..., n], [..., n, n].

    Raises:
        ValueError: a temperature that is not positive.

    References: Prillo and Eisenschlos 2020, eq. 2.

    Example:
        >>> matrix = soft_sort(torch.tensor([3.0, 1.0, 2.0]), temperature=0.01)
        >>> matrix.argmax(-1).tolist()  # the smallest value first
        [1, 2, 0]
    """
    _check_positive(temperature, "temperature")
    distance = values.sort(dim=-1).values.unsqueeze(-1) - values.unsqueeze(-2)
    return torch.softmax(distance.abs_().div_(-temperature), -1)


def neural_sort(values: Tensor, temperature: float) -> Tensor:
    """Return the NeuralSort relaxation of the sorting permutation of values [..., n], [..., n, n].

    At any temperature the largest entry of a row is the right one. The paper sorts in falling
    order; here the order is reversed.

    Raises:
        ValueError: a temperature that is not positive.

    References: Grover et al. 2019, eq. 5.

    Example:
        >>> matrix = neural_sort(torch.tensor([3.0, 1.0, 2.0]), temperature=0.01)
        >>> matrix.argmax(-1).tolist()  # the smallest value first
        [1, 2, 0]
    """
    _check_positive(temperature, "temperature")
    n = values.shape[-1]
    differences = (values.unsqueeze(-1) - values.unsqueeze(-2)).abs_()
    total_difference = differences.sum(-1, keepdim=True).transpose(-1, -2)
    coefficient = torch.arange(1 - n, n, 2, dtype=values.dtype, device=values.device).unsqueeze(-1)
    logits = torch.addcmul(-total_difference, coefficient, values.unsqueeze(-2))
    return torch.softmax(logits.div_(temperature), -1)


def relaxed_sort(
    values: Tensor, steepness: float, layout: Layout = "odd_even", *, error_free: bool = False
) -> Tensor:
    """Return the relaxed permutation of a differentiable sorting network, [..., n, n].

    It is doubly stochastic. A comparator keeps its numbers a, b with weight 1/2 + arctan(steepness
    (b - a)) / pi, and swaps them with the rest.

    Args:
        values: [..., n].
        steepness: of comparators, positive.
        layout: of the network.
        error_free: sort the numbers exactly, with the gradient of the relaxed ones (Kim et al.
            2024). Otherwise they are mixed, and differences shrink from layer to layer.

    Raises:
        ValueError: a steepness that is not positive, or another layout.

    References: Petersen et al. 2022, section 4; Kim et al. 2024.

    Example:
        >>> matrix = relaxed_sort(torch.tensor([3.0, 1.0, 2.0]), steepness=1000.0)
        >>> matrix.argmax(-1).tolist()  # the smallest value first
        [1, 2, 0]
    """
    _check_positive(steepness, "steepness")
    n = values.shape[-1]
    matrix = torch.eye(n, dtype=values.dtype, device=values.device).expand(*values.shape, n)
    for lower, upper in comparators(n, layout):
        # 1. the partner of every position; unpaired positions are their own
        partner = torch.arange(n, device=values.device)
        partner[lower + upper] = partner[upper + lower]
        sign = values.new_ones(n)
        sign[upper] = -1
        # 2. relaxed comparison
        partner_values = values[..., partner]
        keep = 0.5 + torch.atan(steepness * sign * (partner_values - values)) / math.pi
        mixed = torch.lerp(partner_values, values, keep)
        if error_free:
            smaller = torch.minimum(values, partner_values)
            larger = torch.maximum(values, partner_values)
            exact = torch.where(sign > 0, smaller, larger)
            mixed = mixed + (exact - mixed).detach()
        values = mixed
        matrix = torch.lerp(matrix[..., partner, :], matrix, keep.unsqueeze(-1))
    return matrix


def comparators(n: int, layout: Layout) -> list[tuple[list[int], list[int]]]:
    """Return the layers of a sorting network, each as (lower positions, upper positions).

    Args:
        n: numbers, at least 1.
        layout: odd_even, n layers of neighbours, or bitonic, log n (log n + 1) / 2 layers.

    Raises:
        ValueError: another layout.

    References: Batcher 1968; Petersen et al. 2022; checked in
        tests/permutations/test_relaxations.py.
    """
    if layout == "odd_even":
        layers = [[(i, i + 1) for i in range(layer % 2, n - 1, 2)] for layer in range(n)]
    elif layout == "bitonic":
        # for the next power of two: all comparators point up, so that those beyond n can be left
        # out
        size = 1 << (n - 1).bit_length()
        layers = []
        for exponent in range(1, size.bit_length()):
            # the ends of a block are compared inwards, then ever nearer neighbours
            distances = (2**exponent - 1, *(2**e for e in reversed(range(exponent - 1))))
            for distance in distances:
                layers.append([(i, i ^ distance) for i in range(size) if i < i ^ distance < n])
    else:
        raise ValueError(f"layout must be odd_even or bitonic, not {layout}")
    return [([i for i, _ in layer], [j for _, j in layer]) for layer in layers if layer]


def log_permanent(log_weights: Tensor) -> Tensor:
    """Return the log of the permanent of exp(log_weights), [...], in the dtype of the weights.

    It normalises the distribution of matchings with p(order) proportional to the product of
    entries, and its gradient is P(item at position). Dynamic programming over sets of items adds
    non-negative terms only, without the cancellation of Ryser's formula.

    Args:
        log_weights: [..., n, n], n at most 20.

    Raises:
        ValueError: matrices that are not square, or more than 20 items.

    References: this project; checked in tests/permutations/test_relaxations.py.

    Example:
        >>> round(log_permanent(torch.zeros(3, 3)).exp().item(), 3)  # 3! matchings of weight 1
        6.0
    """
    n = log_weights.shape[-1]
    if log_weights.ndim < 2 or log_weights.shape[-2] != n or n > MAX_PERMANENT_ITEMS:
        raise ValueError(
            f"[..., n, n] with n at most {MAX_PERMANENT_ITEMS} is needed, "
            f"not {list(log_weights.shape)}"
        )
    # 1. scale rows
    lowest = torch.finfo(log_weights.dtype).min
    largest = log_weights.detach().amax(-1, keepdim=True).clamp(min=lowest)
    weights = (log_weights - largest).exp()
    # 2. sums over the assignments of the first positions to every set of items, size by size
    sets = torch.arange(2**n, device=weights.device)
    size = torch.stack([sets >> item & 1 for item in range(n)]).sum(0)
    index = torch.empty_like(sets)  # of every set among those of its size
    sums = torch.ones_like(weights[..., 0, :1])
    for position in range(n):
        layer = (size == position + 1).nonzero().squeeze(1)
        layer_sums = weights.new_zeros((*weights.shape[:-2], len(layer)))
        for item in range(n):
            with_item = (layer >> item & 1).nonzero().squeeze(1)
            previous = sums[..., index[layer[with_item] - 2**item]] if position else sums
            terms = weights[..., position, item, None] * previous
            layer_sums.index_add_(-1, with_item, terms)
        index[layer] = torch.arange(len(layer), device=layer.device)
        sums = layer_sums
    return sums[..., -1].log() + largest.sum((-1, -2))


def _check_positive(number: float, name: str) -> None:
    """Refuse numbers that are not positive and finite."""
    ensure(0 < number < math.inf, f"{name} must be positive, not {number}")
