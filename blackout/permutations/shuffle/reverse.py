"""From the scores of a network to the distribution of a reverse step: the choices of `reverse=`.

References: Zhang et al. 2025, sections 3.2.1 and 3.2.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from blackout.component import component
from blackout.errors import ensure
from blackout.permutations.distributions.base import PermutationDistribution
from blackout.permutations.distributions.generalized_plackett_luce import GeneralizedPlackettLuce
from blackout.permutations.distributions.inverse_insertion import InverseInsertion
from blackout.permutations.distributions.inverse_riffle import InverseRiffle
from blackout.permutations.distributions.inverse_transposition import InverseTransposition
from blackout.permutations.distributions.matching import Matching
from blackout.permutations.distributions.plackett_luce import PlackettLuce
from blackout.permutations.distributions.pointer import PointerDistribution
from blackout.permutations.shuffles import RandomInsertion, RandomTransposition, Riffle, Shuffle
from blackout.representation import format_arguments


class Reverse:
    """How the scores of a network become the distribution of one reverse step."""

    distribution: ClassVar[type[PermutationDistribution]]  # of these scores
    # whether scores are [..., n, n], one row per position, or [..., n]
    places: ClassVar[bool] = False
    # whether the network returns one more score per list, [..., n + 1]
    swap: ClassVar[bool] = False
    # whether the scores of a position depend on earlier choices
    prefix: ClassVar[bool] = False
    # the only shuffle that it can undo, in single steps; None if it reaches every permutation
    inverts: ClassVar[type[Shuffle] | None] = None

    __repr__ = format_arguments

    def __call__(self, scores: Tensor, width: int = 1) -> PermutationDistribution:
        """Return the distribution.

        Args:
            scores: of a network; the class attributes say of which shape.
            width: smallest width of the beam search for the mode, if it needs one.
        """
        return self.distribution(scores, width=width)


@component("reverse")
class ReverseGPL(Reverse):
    """Generalised Plackett-Luce: any permutation, one row of scores per position.

    References: Zhang et al. 2025, eq. 9.
    """

    distribution = GeneralizedPlackettLuce
    places = True


@component("reverse")
class ReversePointer(Reverse):
    """A pointer network: scores that depend on earlier choices; any distribution in a single step.

    References: Vinyals et al. 2015.
    """

    distribution = PointerDistribution
    places = True
    prefix = True


@component("reverse")
class ReversePL(Reverse):
    """Plackett-Luce: any permutation, one score per item.

    References: Zhang et al. 2025, eq. 8.
    """

    distribution = PlackettLuce


@component("reverse")
@dataclass(frozen=True)
class ReverseAssignment(Reverse):
    """Linear assignment: one softmax per position and the best matching of items.

    This is a baseline without diffusion.

    Args:
        iterations: Sinkhorn iterations that normalise the scores.

    Raises:
        ValueError: iterations < 0.

    References: Mena et al. 2018.
    """

    iterations: int = 0
    places = True

    def __post_init__(self) -> None:
        ensure(self.iterations >= 0, f"iterations must be at least 0, not {self.iterations}")

    def __call__(self, scores: Tensor, width: int = 1) -> PermutationDistribution:
        """Return the matching; `width` is ignored."""
        return Matching(scores, self.iterations)


@component("reverse")
class ReverseRiffle(Reverse):
    """Undo one riffle: every item goes to the left or the right packet.

    References: Zhang et al. 2025, section 3.2.1.
    """

    distribution = InverseRiffle
    inverts = Riffle


@component("reverse")
class ReverseTransposition(Reverse):
    """Undo one random transposition: swap two items, or none.

    References: Zhang et al. 2025, eq. 6.
    """

    swap = True
    inverts = RandomTransposition

    def __call__(self, scores: Tensor, width: int = 1) -> PermutationDistribution:
        """Return the distribution of scores whose last entry is the logit of a swap.

        `width` is ignored.
        """
        return InverseTransposition(scores[..., :-1], scores[..., -1])


@component("reverse")
class ReverseInsertion(Reverse):
    """Undo one random insertion: move one item to the end.

    References: Zhang et al. 2025, eq. 7.
    """

    distribution = InverseInsertion
    inverts = RandomInsertion
    prefix: ClassVar[bool] = False
