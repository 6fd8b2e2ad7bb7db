"""From a shuffle to its steps back: reverse laws, a network applied to lists in any order.

A reverse law says what a network's scores mean for the step back from a shuffled list. A denoiser is a network and a
reverse law, for lists in any order. What they undo is the forward process, see `blackout.permutations.shuffles`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from blackout.component import component
from blackout.errors import ensure
from blackout.permutations.distributions import (
    GeneralizedPlackettLuce,
    InverseInsertion,
    InverseRiffle,
    InverseTransposition,
    Matching,
    OrderDistribution,
    PlackettLuce,
    PointerLaw,
)
from blackout.permutations.shuffles import RandomInsertion, RandomTransposition, Riffle, Shuffle
from blackout.training.model import finite_output


class Reverse(ABC):
    """From scores to a distribution over the permutations that take a list one scheduled step back."""

    places: ClassVar[bool] = False
    """Whether the network gives a row of scores for every place, [..., n, n], or [..., n]."""
    swap: ClassVar[bool] = False
    """Whether it gives one more score for the list, [..., n + 1]."""
    prefix: ClassVar[bool] = False
    """Whether a place's scores depend on what is at the places before it."""
    undoes: ClassVar[type[Shuffle] | None] = None
    """The only shuffle a single step of which it can undo; None if it reaches every order."""

    @abstractmethod
    def __call__(self, scores: Tensor, width: int = 1) -> OrderDistribution:
        """The distribution; `width` of a beam that looks for its mode, where it needs one."""


@component("reverse")
class ReverseGPL(Reverse):
    """Generalised Plackett-Luce [Zhang 2025, eq. 9]: any order, a row of scores for every place."""

    places = True

    def __call__(self, scores: Tensor, width: int = 1) -> OrderDistribution:
        """The law of scores [..., n, n] with `places`, [..., n] without, one more with `swap`: see `Reverse`."""
        return GeneralizedPlackettLuce(scores, width=width)


@component("reverse")
class ReversePointer(Reverse):
    """Place by place by what is at the places before [Vinyals 2015]: any law in a single step."""

    places, prefix = True, True

    def __call__(self, scores: Tensor, width: int = 1) -> OrderDistribution:
        """The law of scores [..., n, n] with `places`, [..., n] without, one more with `swap`: see `Reverse`."""
        raise ValueError("scores for places do not say what they depend on")


@component("reverse")
class ReversePL(Reverse):
    """Plackett-Luce [Zhang 2025, eq. 8]: any order, a score for every item."""

    def __call__(self, scores: Tensor, width: int = 1) -> OrderDistribution:
        """The law of scores [..., n, n] with `places`, [..., n] without, one more with `swap`: see `Reverse`."""
        return PlackettLuce(scores, width=width)


@component("reverse")
@dataclass(frozen=True)
class ReverseAssignment(Reverse):
    """Items are matched with places: a softmax for every place and the best assignment. No diffusion, a baseline.

    Args:
        iterations: of Sinkhorn's normalisation of the scores.

    Raises:
        ValueError: iterations below 0.
    """

    iterations: int = 0
    places = True

    def __post_init__(self) -> None:
        ensure(self.iterations >= 0, f"iterations must be at least 0, not {self.iterations}")

    def __call__(self, scores: Tensor, width: int = 1) -> OrderDistribution:
        """The law of scores [..., n, n] with `places`, [..., n] without, one more with `swap`: see `Reverse`."""
        return Matching(scores, self.iterations)


@component("reverse")
class ReverseRiffle(Reverse):
    """Items go to the left or the right packet: undoes one riffle [Zhang 2025, section 3.2.1]."""

    undoes = Riffle

    def __call__(self, scores: Tensor, width: int = 1) -> OrderDistribution:
        """The law of scores [..., n, n] with `places`, [..., n] without, one more with `swap`: see `Reverse`."""
        return InverseRiffle(scores)


@component("reverse")
class ReverseTransposition(Reverse):
    """Two items change places, or none: undoes one transposition [Zhang 2025, eq. 6]."""

    swap, undoes = True, RandomTransposition

    def __call__(self, scores: Tensor, width: int = 1) -> OrderDistribution:
        """The law of scores [..., n, n] with `places`, [..., n] without, one more with `swap`: see `Reverse`."""
        return InverseTransposition(scores[..., :-1], scores[..., -1])


@component("reverse")
class ReverseInsertion(Reverse):
    """One item goes to the end: undoes one insertion [Zhang 2025, eq. 7]."""

    undoes = RandomInsertion

    def __call__(self, scores: Tensor, width: int = 1) -> OrderDistribution:
        """The law of scores [..., n, n] with `places`, [..., n] without, one more with `swap`: see `Reverse`."""
        return InverseInsertion(scores)


@dataclass(frozen=True)
class Denoiser:
    """Steps back for the lists of one batch [Zhang 2025, section 3.3].

    Orders are of the items that may move, m of them: all n, or all but the first.

    Args:
        network: with `scores`, see `blackout.networks.SetTransformer`.
        reverse: the law.
        features: of the items, [b, n, width], in the order that states refer to.
        first_fixed: whether the first item stays where it is.
        items: what the features are of, [b, n, ...], for decoders that look at them.
        sharpness: what scores are multiplied by, but not a pointer network's.
    """

    network: nn.Module
    reverse: Reverse
    features: Tensor
    first_fixed: bool
    items: Tensor
    sharpness: float = 1.0

    def of(self, i: int) -> Denoiser:
        """That of list i alone."""
        return replace(self, features=self.features[i : i + 1], items=self.items[i : i + 1])

    @property
    def free(self) -> int:
        """m."""
        return self.features.shape[1] - int(self.first_fixed)

    def __call__(self, states: Tensor, t: Tensor | int, width: int = 1) -> OrderDistribution:
        """The law of the permutation that takes lists one scheduled step back.

        Args:
            states: int64 [b, r, m], the lists: features[state].
            t: numbers of shuffles, [b, r] or one for all.
            width: of a beam in search of the mode.
        """
        b, r, _ = states.shape
        full = with_first(states, self.first_fixed)
        rows = torch.arange(b, device=full.device).view(b, 1, 1)
        lists = self.features[rows, full].flatten(0, 1)
        times = torch.as_tensor(t, device=full.device).expand(b, r).reshape(-1)
        if self.reverse.prefix:
            pointers = self.network.pointers(lists, times)  # type: ignore[operator]
            finite_output(pointers.items)
            return PointerLaw(pointers, pointers.items.new_zeros(b, r, self.free), width)
        scores = finite_output(self.network.scores(lists, times)).unflatten(0, (b, r))  # type: ignore[operator]
        if self.first_fixed:
            scores = scores[..., 1:, 1:] if self.reverse.places else scores[..., 1:]
        return self.reverse(scores * self.sharpness, width)


def with_first(orders: Tensor, first_fixed: bool) -> Tensor:
    """Orders [..., m] of the items that may move as orders of all n: the first, where it is fixed, comes first."""
    return torch.cat([torch.zeros_like(orders[..., :1]), orders + 1], -1) if first_fixed else orders


def moving(orders: Tensor, first_fixed: bool) -> Tensor:
    """The inverse of `with_first`: orders [..., n] as orders of the items that may move."""
    return orders[..., 1:] - 1 if first_fixed else orders
