"""Boolean functions of random pairs of pixels (Chu et al. 2025, section 5.3)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from blackout.posterior.noise import Flips, Noise
from blackout.posterior.operators.base import BlackBox, Shape


@dataclass(frozen=True)
class Pairs(BlackBox):
    """A function of ratio x D pairs of different elements, none of them twice; the same for all measurements.

    Args:
        ratio: pairs per element.
        seed: of the choice.

    Raises:
        ValueError: ratio is not positive.
    """

    ratio: float = 0.5
    seed: int = 0
    binary: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 < self.ratio < math.inf:
            raise ValueError(f"ratio must be positive, not {self.ratio}")

    @property
    def noise(self) -> Noise:
        """A violated pair costs three nats."""
        return Flips()

    def measured(self, shape: Shape) -> Shape:
        """[pairs]."""
        return (self.pairs(shape).shape[1],)

    def pairs(self, shape: Shape) -> Tensor:
        """Both elements of every pair, int64 [2, pairs]."""
        return _pairs(math.prod(shape), self.ratio, self.seed)

    def ends(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The values of both, [n, pairs] each."""
        first, second = self.pairs(tuple(x.shape[1:])).to(x.device)
        flat = x.double().flatten(1)
        return flat[:, first], flat[:, second]

    def incidence(self, shape: Shape) -> Tensor | None:
        """Each pair on its two elements."""
        pairs = self.pairs(shape)
        number = torch.arange(pairs.shape[1])
        return torch.cat([torch.stack([number, end]) for end in pairs], 1)


class Xor(Pairs):
    """1 where the two differ."""

    def __call__(self, x: Tensor) -> Tensor:
        """|a - b|, float64 [n, pairs]."""
        a, b = self.ends(x)
        return (a - b).abs()


class And(Pairs):
    """1 where both are 1."""

    def __call__(self, x: Tensor) -> Tensor:
        """a b, float64 [n, pairs]."""
        a, b = self.ends(x)
        return a * b


@lru_cache(maxsize=8)
def _pairs(elements: int, ratio: float, seed: int) -> Tensor:
    number, all_pairs = round(ratio * elements), elements * (elements - 1) // 2
    if not 1 <= number <= all_pairs:
        raise ValueError(f"ratio={ratio} asks for {number} pairs of {elements} elements; there are {all_pairs}")
    chosen = np.random.default_rng(seed).choice(all_pairs, number, replace=False)
    # pair c is (i, j), i < j, with c = j (j - 1) / 2 + i
    j = ((1 + np.sqrt(8 * chosen + 1)) / 2).astype(np.int64)
    j = np.where(j * (j - 1) // 2 > chosen, j - 1, j)
    return torch.from_numpy(np.stack([chosen - j * (j - 1) // 2, j]))
