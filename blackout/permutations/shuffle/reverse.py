"""Reverse laws: what a network's scores mean for the step back from a shuffled list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor

from blackout.permutations.distributions import (
    GeneralizedPlackettLuce,
    InverseInsertion,
    InverseRiffle,
    InverseTransposition,
    Matching,
    OrderDistribution,
    PlackettLuce,
)
from blackout.permutations.shuffles import RandomInsertion, RandomTransposition, Riffle, Shuffle


class Reverse(Protocol):
    """From scores to a distribution over the permutations that take a list one scheduled step back."""

    places: ClassVar[bool]
    """Whether the network gives a row of scores for every place, [..., n, n], or [..., n]."""
    swap: ClassVar[bool]
    """Whether it gives one more score for the list, [..., n + 1]."""
    undoes: ClassVar[type[Shuffle] | None]
    """The only shuffle a single step of which it can undo; None if it reaches every order."""

    def __call__(self, scores: Tensor, width: int = 1) -> OrderDistribution:
        """The distribution; `width` of a beam that looks for its mode, where it needs one."""
        ...


@dataclass(frozen=True)
class ReverseGPL(Reverse):
    """Generalised Plackett-Luce: any order, a row of scores for every place."""

    places, swap, undoes = True, False, None

    def __call__(self, scores: Tensor, width: int = 1) -> OrderDistribution:
        return GeneralizedPlackettLuce(scores, width=width)


@dataclass(frozen=True)
class ReversePL(Reverse):
    """Plackett-Luce: any order, a score for every item."""

    places, swap, undoes = False, False, None

    def __call__(self, scores: Tensor, width: int = 1) -> OrderDistribution:
        return PlackettLuce(scores, width=width)


@dataclass(frozen=True)
class ReverseAssignment(Reverse):
    """Items are matched with places: a softmax for every place and the best assignment. No diffusion, a baseline.

    Args:
        iterations: of Sinkhorn's normalisation of the scores.

    Raises:
        ValueError: iterations below 0.
    """

    iterations: int = 0
    places, swap, undoes = True, False, None

    def __post_init__(self) -> None:
        if self.iterations < 0:
            raise ValueError(f"iterations of Sinkhorn's normalisation must be at least 0, not {self.iterations}")

    def __call__(self, scores: Tensor, width: int = 1) -> OrderDistribution:
        return Matching(scores, self.iterations)


@dataclass(frozen=True)
class ReverseRiffle(Reverse):
    """Items go to the left or the right packet: undoes one riffle."""

    places, swap, undoes = False, False, Riffle

    def __call__(self, scores: Tensor, width: int = 1) -> OrderDistribution:
        return InverseRiffle(scores)


@dataclass(frozen=True)
class ReverseTransposition(Reverse):
    """Two items change places, or none: undoes one transposition."""

    places, swap, undoes = False, True, RandomTransposition

    def __call__(self, scores: Tensor, width: int = 1) -> OrderDistribution:
        return InverseTransposition(scores[..., :-1], scores[..., -1])


@dataclass(frozen=True)
class ReverseInsertion(Reverse):
    """One item goes to the end: undoes one insertion."""

    places, swap, undoes = False, False, RandomInsertion

    def __call__(self, scores: Tensor, width: int = 1) -> OrderDistribution:
        return InverseInsertion(scores)
