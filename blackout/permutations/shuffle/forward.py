"""The forward process: a shuffle, looked at after scheduled numbers of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from blackout.permutations.group import inverse
from blackout.permutations.mixing import (
    MIXED,
    denoising_schedule,
    first_mixed,
    insertion_variation,
    transposition_variation,
)
from blackout.permutations.shuffles import RandomInsertion, RandomTransposition, Riffle, Shuffle, trajectory
from blackout.permutations.transpositions import LARGEST
from blackout.random import RandomSource

_FIRST = 0.46
"""The distance from uniform at which a schedule without a rule of its own looks first."""
_MOST_SHUFFLES = 100_000


@dataclass(frozen=True)
class ForwardProcess:
    """X_t = X_0[pi_t] after t shuffles, at times 0 = t_0 < t_1 < ... < t_k.

    Args:
        law: the shuffle.
        schedule: the times, numbers of shuffles.

    Raises:
        ValueError: a schedule that is not whole and rising from 0.
    """

    law: Shuffle
    schedule: Sequence[float]

    def __post_init__(self) -> None:
        given = list(self.schedule)
        whole = all(type(t) is int for t in given)
        if not whole or len(given) < 2 or given[0] != 0 or any(b <= a for a, b in pairwise(given)):
            raise ValueError(f"schedule must be whole numbers rising from 0, such as [0,3,5,9], not {given}")
        limit = 40 if isinstance(self.law, Riffle) else _MOST_SHUFFLES
        if given[-1] > limit:
            raise ValueError(f"schedule must end at {limit} shuffles at most, not {given[-1]}")

    @property
    def times(self) -> list[int]:
        """t_1, ..., t_k."""
        return [int(t) for t in self.schedule[1:]]

    @property
    def steps(self) -> int:
        """k."""
        return len(self.schedule) - 1

    @property
    def merged(self) -> bool:
        """Whether some step is of several shuffles."""
        return any(b - a > 1 for a, b in pairwise(self.schedule))

    def walks(self, n: int, size: int, number: int, generator: RandomSource) -> tuple[Tensor, Tensor]:
        """`number` walks of each of `size` lists: states pi_t and the steps back, int64 [size, number, k, n] each."""
        states, back = trajectory(self.law, [0, *self.times], n, (size, number), generator)
        return states.movedim(0, 2), back.movedim(0, 2)

    def log_prob(self, back: Tensor) -> Tensor:
        """log q of the steps whose inverses are back [..., k, n], summed over the k, float64 [...]."""
        sigma = inverse(back)
        gaps = [b - a for a, b in pairwise([0, *self.times])]
        return torch.stack([self.law.log_prob(sigma[..., i, :], gap) for i, gap in enumerate(gaps)]).sum(0)


def default_schedule(law: Shuffle, n: int, every_step: bool) -> list[int]:
    """The scheduled times for n items.

    To where the distance from uniform is nearest to .005 for riffles, and has fallen to it for the others (for
    transpositions of more than 30 items: n/2 ln n of them). In between, riffles are looked at by the rule of
    `denoising_schedule`, others where the distance has fallen to .46.

    Args:
        every_step: look after every single shuffle.
    """
    if n == 1:
        return [0, 1]
    if isinstance(law, Riffle):
        looks = denoising_schedule(n)
    else:
        first, last = (_mixed(law, n, target) for target in (_FIRST, MIXED))
        looks = sorted({0, max(first, 1), max(last, 1)})
    return list(range(looks[-1] + 1)) if every_step else looks


def _mixed(law: Shuffle, n: int, target: float) -> int:
    if isinstance(law, RandomInsertion):
        return first_mixed(insertion_variation, n, target)
    assert isinstance(law, RandomTransposition)
    if n <= LARGEST:
        return first_mixed(transposition_variation, n, target)
    return math.ceil(n / 2 * math.log(n) * (0.75 if target == _FIRST else 1.0))
