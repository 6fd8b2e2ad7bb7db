"""Functions of random pairs of binary elements: exclusive or, and logical and."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from blackout.counts import Shape
from blackout.errors import ensure
from blackout.posterior.noise import Flips
from blackout.posterior.operators.base import Operator


@dataclass(frozen=True)
class Pairs(Operator):
    """A function of random pairs of elements, the same pairs for all measurements.

    Args:
        ratio: pairs per element; no pair occurs twice.
        seed: seed of the pairs.

    Raises:
        ValueError: a ratio that is not positive.

    References: Chu et al. 2025, eq. 15.
    """

    ratio: float = 0.5
    seed: int = 0
    binary: ClassVar[bool] = True
    noise = Flips()

    def __post_init__(self) -> None:
        ensure(0 < self.ratio < math.inf, f"ratio must be positive, not {self.ratio}")

    def measurement_shape(self, shape: Shape) -> Shape:
        """Return the number of pairs."""
        return (self.pairs(shape).shape[1],)

    def pairs(self, shape: Shape) -> Tensor:
        """Return the indices of both elements of every pair, int64 [2, pairs]."""
        return draw_pairs(math.prod(shape), self.ratio, self.seed)

    def pair_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the values of the first and second elements, float64 [n, pairs] each."""
        first, second = self.pairs(tuple(x.shape[1:])).to(x.device)
        flat = x.double().flatten(1)
        return flat[:, first], flat[:, second]

    def incidence(self, shape: Shape) -> Tensor | None:
        """Return the two elements of every pair, int64 [2, 2 pairs]."""
        pairs = self.pairs(shape)
        pair_index = torch.arange(pairs.shape[1]).repeat(2)
        return torch.stack([pair_index, pairs.flatten()])


class Xor(Pairs):
    """Exclusive or: 1 where the two elements of a pair differ.

    References: Chu et al. 2025, eq. 15.

    Example:
        >>> x = torch.tensor([[0, 1, 1, 0]])
        >>> Xor(0.5).pairs((4,)).tolist()
        [[1, 0], [3, 3]]
        >>> Xor(0.5)(x).tolist()
        [[1.0, 0.0]]
    """

    def __call__(self, x: Tensor) -> Tensor:
        """Return |a - b| of every pair (a, b), float64 [n, pairs].

        References: Chu et al. 2025, eq. 15.
        """
        a, b = self.pair_values(x)
        return (a - b).abs()


class And(Pairs):
    """Logical and: 1 where both elements of a pair are 1.

    References: Chu et al. 2025, eq. 15.

    Example:
        >>> x = torch.tensor([[0, 1, 1, 1]])
        >>> And(0.5).pairs((4,)).tolist()
        [[1, 0], [3, 3]]
        >>> And(0.5)(x).tolist()
        [[1.0, 0.0]]
    """

    def __call__(self, x: Tensor) -> Tensor:
        """Return a b of every pair (a, b), float64 [n, pairs].

        References: Chu et al. 2025, eq. 15.
        """
        a, b = self.pair_values(x)
        return a * b


@lru_cache(maxsize=8)
def draw_pairs(num_elements: int, ratio: float, seed: int) -> Tensor:
    """Draw ratio x num_elements pairs of different elements, without repetition.

    Returns:
        int64 [2, pairs].

    Raises:
        ValueError: no pair, or more pairs than there are.

    References: Chu et al. 2025, eq. 15; the numbering of pairs: this project, checked in
        tests/posterior/test_operators.py.
    """
    num_pairs = round(ratio * num_elements)
    max_pairs = num_elements * (num_elements - 1) // 2
    if not 1 <= num_pairs <= max_pairs:
        raise ValueError(
            f"ratio={ratio} gives {num_pairs} pairs of {num_elements} elements; the number of "
            f"pairs (ratio times elements, rounded) must be from 1 to {max_pairs}"
        )
    number = np.random.default_rng(seed).choice(max_pairs, num_pairs, replace=False)
    # pair (i, j), i < j, has the number j (j - 1) / 2 + i; rounding may give one j too many
    j = ((1 + np.sqrt(8 * number + 1)) / 2).astype(np.int64)
    j = np.where(j * (j - 1) // 2 > number, j - 1, j)
    i = number - j * (j - 1) // 2
    return torch.from_numpy(np.stack([i, j]))
