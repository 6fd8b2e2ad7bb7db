"""From a shuffle to its steps back: reverse laws, a network applied to lists in any order, the forward process.

A reverse law says what a network's scores mean for the step back from a shuffled list. A denoiser is a network and a
reverse law, for lists in any order. The forward process is a shuffle, looked at after scheduled numbers of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar, Protocol

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
from blackout.permutations.group import inverse
from blackout.permutations.shuffles import (
    LARGEST,
    MIXED,
    RandomInsertion,
    RandomTransposition,
    Riffle,
    Shuffle,
    denoising_schedule,
    first_mixed,
    insertion_variation,
    trajectory,
    transposition_variation,
)
from blackout.random import RandomSource
from blackout.training.model import finite_output

_FIRST = 0.46
"""The distance from uniform at which a schedule without a rule of its own looks first."""
_MOST_SHUFFLES = 100_000


class Reverse(Protocol):
    """From scores to a distribution over the permutations that take a list one scheduled step back."""

    places: ClassVar[bool]
    """Whether the network gives a row of scores for every place, [..., n, n], or [..., n]."""
    swap: ClassVar[bool]
    """Whether it gives one more score for the list, [..., n + 1]."""
    prefix: ClassVar[bool] = False
    """Whether a place's scores depend on what is at the places before it."""
    undoes: ClassVar[type[Shuffle] | None]
    """The only shuffle a single step of which it can undo; None if it reaches every order."""

    def __call__(self, scores: Tensor, width: int = 1) -> OrderDistribution:
        """The distribution; `width` of a beam that looks for its mode, where it needs one."""
        ...


@component("reverse")
@dataclass(frozen=True)
class ReverseGPL(Reverse):
    """Generalised Plackett-Luce [Zhang 2025, eq. 9]: any order, a row of scores for every place."""

    places, swap, undoes = True, False, None

    def __call__(self, scores: Tensor, width: int = 1) -> OrderDistribution:
        """The law of scores [..., n, n] with `places`, [..., n] without, one more with `swap`: see `Reverse`."""
        return GeneralizedPlackettLuce(scores, width=width)


@component("reverse")
@dataclass(frozen=True)
class ReversePointer(Reverse):
    """Place by place by what is at the places before [Vinyals 2015]: any law in a single step."""

    places, swap, prefix, undoes = True, False, True, None

    def __call__(self, scores: Tensor, width: int = 1) -> OrderDistribution:
        """The law of scores [..., n, n] with `places`, [..., n] without, one more with `swap`: see `Reverse`."""
        raise ValueError("scores for places do not say what they depend on")


@component("reverse")
@dataclass(frozen=True)
class ReversePL(Reverse):
    """Plackett-Luce [Zhang 2025, eq. 8]: any order, a score for every item."""

    places, swap, undoes = False, False, None

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
    places, swap, undoes = True, False, None

    def __post_init__(self) -> None:
        if self.iterations < 0:
            raise ValueError(f"iterations of Sinkhorn's normalisation must be at least 0, not {self.iterations}")

    def __call__(self, scores: Tensor, width: int = 1) -> OrderDistribution:
        """The law of scores [..., n, n] with `places`, [..., n] without, one more with `swap`: see `Reverse`."""
        return Matching(scores, self.iterations)


@component("reverse")
@dataclass(frozen=True)
class ReverseRiffle(Reverse):
    """Items go to the left or the right packet: undoes one riffle [Zhang 2025, section 3.2.1]."""

    places, swap, undoes = False, False, Riffle

    def __call__(self, scores: Tensor, width: int = 1) -> OrderDistribution:
        """The law of scores [..., n, n] with `places`, [..., n] without, one more with `swap`: see `Reverse`."""
        return InverseRiffle(scores)


@component("reverse")
@dataclass(frozen=True)
class ReverseTransposition(Reverse):
    """Two items change places, or none: undoes one transposition [Zhang 2025, eq. 6]."""

    places, swap, undoes = False, True, RandomTransposition

    def __call__(self, scores: Tensor, width: int = 1) -> OrderDistribution:
        """The law of scores [..., n, n] with `places`, [..., n] without, one more with `swap`: see `Reverse`."""
        return InverseTransposition(scores[..., :-1], scores[..., -1])


@component("reverse")
@dataclass(frozen=True)
class ReverseInsertion(Reverse):
    """One item goes to the end: undoes one insertion [Zhang 2025, eq. 7]."""

    places, swap, undoes = False, False, RandomInsertion

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
    items: Tensor | None = None
    sharpness: float = 1.0

    def of(self, i: int) -> Denoiser:
        """That of list i alone."""
        items = None if self.items is None else self.items[i : i + 1]
        return replace(self, features=self.features[i : i + 1], items=items)

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
    if not first_fixed:
        return orders
    return torch.cat([torch.zeros_like(orders[..., :1]), orders + 1], -1)


def moving(orders: Tensor, first_fixed: bool) -> Tensor:
    """The inverse of `with_first`: orders [..., n] as orders of the items that may move."""
    return orders[..., 1:] - 1 if first_fixed else orders


@component("shuffle")
@dataclass(frozen=True)
class ForwardProcess:
    """X_t = X_0[pi_t] after t shuffles, at times 0 = t_0 < t_1 < ... < t_k [Zhang 2025, section 3.4, eq. 11].

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
        rises = len(given) > 1 and given[0] == 0 and all(type(b) is int and b > a for a, b in pairwise(given))
        if not rises or type(given[0]) is not int:
            raise ValueError(f"schedule must be whole numbers rising from 0, such as [0,3,5,9], not {given}")
        limit = 40 if isinstance(self.law, Riffle) else _MOST_SHUFFLES
        ensure(given[-1] <= limit, f"schedule must end at {limit} shuffles at most, not {given[-1]}")

    @property
    def times(self) -> list[int]:
        """t_1, ..., t_k."""
        return [int(t) for t in self.schedule[1:]]

    @property
    def steps(self) -> int:
        """k."""
        return len(self.schedule) - 1

    @property
    def gaps(self) -> list[int]:
        """How many shuffles every step is of."""
        return [b - a for a, b in pairwise([0, *self.times])]

    @property
    def merged(self) -> bool:
        """Whether some step is of several shuffles."""
        return max(self.gaps) > 1

    def walks(self, n: int, size: int, number: int, generator: RandomSource) -> tuple[Tensor, Tensor]:
        """`number` walks of each of `size` lists: states pi_t and the steps back, int64 [size, number, k, n] each."""
        states, back = trajectory(self.law, [0, *self.times], n, (size, number), generator)
        return states.movedim(0, 2), back.movedim(0, 2)

    def log_prob(self, back: Tensor) -> Tensor:
        """log q of the steps whose inverses are back [..., k, n], summed over the k, float64 [...].

        Of the bound [Zhang 2025, eq. 12] what does not depend on the network.
        """
        steps = zip(inverse(back).unbind(-2), self.gaps, strict=True)
        return torch.stack([self.law.log_prob(sigma, gap) for sigma, gap in steps]).sum(0)


def default_schedule(law: Shuffle, n: int, every_step: bool) -> list[int]:
    """The scheduled times for n items; ours, after [Zhang 2025, section 3.4].

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
        if isinstance(law, RandomTransposition) and n > LARGEST:
            cutoff = n / 2 * math.log(n)
            mixed = [math.ceil(0.75 * cutoff), math.ceil(cutoff)]
        else:
            variation = insertion_variation if isinstance(law, RandomInsertion) else transposition_variation
            mixed = [first_mixed(variation, n, target) for target in (_FIRST, MIXED)]
        looks = sorted({0, *(max(t, 1) for t in mixed)})
    return list(range(looks[-1] + 1)) if every_step else looks
