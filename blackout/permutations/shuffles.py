"""Card shuffles as random walks on permutations: exact draws and exact laws of several of them at once.

A shuffle takes a list x to x[sigma], sigma drawn anew. Several of them compose to one permutation, pi_t = compose(
pi_{t-1}, sigma_t), which is drawn directly here: t riffles are one 2^t-shuffle, t insertions one draw of t cards. What
takes a step back is the inverse of its permutation; `sample_inverse` gives it as it comes, with the same law as
`inverse(sample(...))`. All laws are checked in tests/verification.

How far from uniform t of them are is exact too: riffles after [Bayer 1992], insertions by the first run of the inverse,
both in whole numbers; transpositions by the walk on cycle types, to 30 cards. The rule for schedules follows [Zhang
2025, section 3.4, appendix F]: end where the distance is about .005, look where neighbouring laws are about .3 apart.
The forward process of a diffusion, `ForwardProcess`, is a shuffle that is looked at after the scheduled numbers of it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from blackout.component import component
from blackout.errors import ensure
from blackout.permutations.group import (
    class_size,
    cycle_labels,
    descents,
    eulerian_numbers,
    identity_like,
    inverse,
    partitions,
    stirling_numbers,
)
from blackout.random import RandomSource, StepStreams, uniform

Size: TypeAlias = int | tuple[int, ...]
MOST_RIFFLES = 40
"""Labels of so many bits, with the place, fit whole numbers; uniforms have 52 bits."""
_MOST_SHUFFLES = 100_000
LARGEST = 30
"""Most cards whose cycle types are enumerated: 5,604 of them."""


class Shuffle(ABC):
    """A random walk on permutations. `size` is the shape of a draw; from streams its first axis is the samples."""

    def sample(self, n: int, size: Size, times: int = 1, generator: RandomSource = None) -> Tensor:
        """The composition of `times` shuffles of n cards, int64 [*size, n].

        Raises:
            ValueError: n < 1, times < 0, or more than 40 riffles at once.
        """
        return inverse(self.sample_inverse(n, size, times, generator))

    @abstractmethod
    def sample_inverse(self, n: int, size: Size, times: int = 1, generator: RandomSource = None) -> Tensor:
        """The inverse of such a composition, int64 [*size, n]; errors as `sample`."""

    def steps_back(self, n: int, size: Size, times: Sequence[int], generator: RandomSource = None) -> Tensor:
        """Independent inverses, of times[0], times[1], ... shuffles, int64 [len(times), *size, n]."""
        return torch.stack([self.sample_inverse(n, size, t, generator) for t in times])

    @abstractmethod
    def log_prob(self, sigma: Tensor, times: int = 1) -> Tensor:
        """log q(sigma) after `times` shuffles from the identity, float64 [...] for sigma int64 [..., n]."""

    @abstractmethod
    def classes(self, n: int, times: int) -> tuple[Sequence[int], Sequence[Any]]:
        """How many permutations of n cards there are of each kind that the law does not tell apart, and the probability
        of one of them after `times` shuffles; exact where these are fractions.
        """

    def variation(self, n: int, t: int, s: int | None = None) -> float:
        """The total variation between the laws of t shuffles of n cards and of s shuffles, or the uniform law.

        Half the sum over permutations of |q_t - q_s|, kind by kind: a float [Zhang 2025, eqs. 13 and 14].

        Raises:
            ValueError: n < 1 (or more than 30 for transpositions), or a negative number of shuffles.
        """
        _check(n, min(t, s or 0))
        sizes, law = self.classes(n, t)
        other = [Fraction(1, math.factorial(n))] * len(law) if s is None else self.classes(n, s)[1]
        return sum(float(size * abs(p - q)) for size, p, q in zip(sizes, law, other, strict=True)) / 2


@component("law")
class Riffle(Shuffle):
    """Gilbert, Shannon and Reeds: cut binomially, drop cards in proportion to what is left of each packet.

    One of them is [Zhang 2025, eq. 3]. `times` riffles are one a-shuffle with a = 2^times: every card draws one of a
    labels, the deck sorted stably by labels is the inverse. Its law depends on the rising sequences r alone,
    q = C(n + a - r, n) / a^n [Bayer 1992, theorem 1].
    """

    def sample_inverse(self, n: int, size: Size, times: int = 1, generator: RandomSource = None) -> Tensor:
        """As `Shuffle.sample_inverse`: int64 [*size, n]."""
        return self.steps_back(n, size, [times], generator)[0]

    def steps_back(self, n: int, size: Size, times: Sequence[int], generator: RandomSource = None) -> Tensor:
        """As `Shuffle.steps_back`, int64 [len(times), *size, n], all in one sort of labels: see the class."""
        shape = (size,) if isinstance(size, int) else size
        places, powers = _places_and_powers(n, tuple(times), _device(generator))
        # the label is the leading `times` bits: 2^times u rounded down, as it is by a whole type
        labels = _uniforms(n, n, (*shape, len(times)), generator).mul_(powers).to(places.dtype)
        return _places_by_key(torch.add(places, labels, alpha=n)).movedim(-2, 0)

    def log_prob(self, sigma: Tensor, times: int = 1) -> Tensor:
        """As `Shuffle.log_prob`, of sigma [..., n] float64 [...]: -inf where there are more rising sequences than
        labels.

        [Bayer 1992, theorem 1].
        """
        n, a = sigma.shape[-1], 2.0**times
        rising = (1 + descents(inverse(sigma))).double().unsqueeze(-1)
        drawn = torch.arange(1, n + 1, dtype=torch.float64, device=sigma.device)
        return torch.log(((a - rising + drawn) / a).clamp(min=0)).sum(-1) - math.lgamma(n + 1)

    def classes(self, n: int, times: int) -> tuple[Sequence[int], Sequence[Any]]:
        """As `Shuffle.classes`: with r = 1..n rising sequences [Zhang 2025, eqs 13-14]."""
        a = 2**times
        law = [Fraction(math.comb(n + a - r, n) if r <= a else 0, a**n) for r in range(1, n + 1)]
        return eulerian_numbers(n), law


@component("law")
class RandomInsertion(Shuffle):
    """The last card goes in front of a card chosen uniformly, itself included: each outcome has probability 1 / n.

    [Zhang 2025, section 3.1.1]. Backwards, a card chosen uniformly moves to the end. After t such moves the cards never
    chosen lie first, in their order, then the others in the order of their last choice. So the inverse is one sort, and
    its law follows from the length of its first rising run [Diaconis 1992]: q = n^-t sum of S(t, m) over the numbers m
    of chosen cards that leave no more than the run, S(t, m) of Stirling's second kind.
    """

    def sample_inverse(self, n: int, size: Size, times: int = 1, generator: RandomSource = None) -> Tensor:
        """As `Shuffle.sample_inverse`: int64 [*size, n]."""
        _check(n, times)
        chosen = _integers(n, times, size, generator)
        last = torch.full((*chosen.shape[:-1], n), -1, device=chosen.device)
        last.scatter_reduce_(-1, chosen, identity_like(chosen), "amax")
        return _places_by_key(last.add_(1).mul_(n).add_(torch.arange(n, device=last.device)))

    def log_prob(self, sigma: Tensor, times: int = 1) -> Tensor:
        """As `Shuffle.log_prob`, float64 [...] of sigma [..., n] [Diaconis 1992].

        Raises:
            ValueError: times < 0.
        """
        n, back = sigma.shape[-1], inverse(sigma)
        _check(n, times)
        run = 1 + (back[..., 1:] > back[..., :-1]).long().cumprod(-1).sum(-1)
        logs = [math.log(ways) - times * math.log(n) if ways else -math.inf for ways in _insertion_ways(n, times)]
        return torch.tensor(logs, dtype=torch.float64, device=sigma.device)[run - 1]

    def classes(self, n: int, times: int) -> tuple[Sequence[int], Sequence[Any]]:
        """As `Shuffle.classes`: with a first rising run of 1..n in the inverse [Diaconis 1992]."""
        as_long = [math.factorial(n) // math.factorial(run) for run in range(1, n + 1)]
        sizes = [here - longer for here, longer in pairwise([*as_long, 0])]
        return sizes, [Fraction(ways, n**times) for ways in _insertion_ways(n, times)]


@lru_cache
def _insertion_ways(n: int, times: int) -> list[int]:
    """In how many of n^times ways a permutation comes about whose inverse has a first rising run of 1..n.

    Integers [n], sums of Stirling numbers as in `RandomInsertion` [Diaconis 1992].
    """
    ways = stirling_numbers(times, n)
    return [sum(ways[n - run : n + 1]) for run in range(1, n + 1)]


@component("law")
class RandomTransposition(Shuffle):
    """Two hands choose one card each, independently, and swap: the identity with probability 1 / n, a swap 2 / n^2.

    [Zhang 2025, section 3.1.1].
    """

    def sample_inverse(self, n: int, size: Size, times: int = 1, generator: RandomSource = None) -> Tensor:
        """As `Shuffle.sample_inverse`: int64 [*size, n]. A swap undoes itself, and swaps come in any order alike."""
        _check(n, times)
        hands = _integers(n, 2 * times, size, generator)
        sigma = torch.arange(n, device=hands.device).expand(*hands.shape[:-1], n).contiguous()
        for pair in hands.split(2, -1):
            sigma.scatter_(-1, pair, sigma.gather(-1, pair).flip(-1))
        return sigma

    def log_prob(self, sigma: Tensor, times: int = 1) -> Tensor:
        """As `Shuffle.log_prob`, of sigma [..., n] float64 [...]: one step of any deck; several by the walk on cycle
        types, to 30 cards.

        Raises:
            ValueError: times < 0, or more than one step with more than 30 cards.
        """
        _check(n := sigma.shape[-1], times)
        if times <= 1:
            moved = (sigma != identity_like(sigma)).sum(-1)
            law = torch.full((n + 1,), -math.inf, dtype=torch.float64, device=sigma.device)
            law[0] = 0.0 if times == 0 else -math.log(n)
            if times == 1 and n > 1:
                law[2] = math.log(2) - 2 * math.log(n)
            return law[moved]
        flat = sigma.reshape(-1, n)
        lengths = torch.zeros_like(flat).scatter_add_(-1, cycle_labels(flat), torch.ones_like(flat))
        kinds, which = lengths.sort(-1, descending=True).values.unique(dim=0, return_inverse=True)
        of = type_probabilities(n, times)
        found = torch.tensor([of[tuple(filter(None, kind))] for kind in kinds.tolist()], dtype=torch.float64).log()
        return found.to(sigma.device)[which].view(sigma.shape[:-1])

    def classes(self, n: int, times: int) -> tuple[Sequence[int], Sequence[Any]]:
        """As `Shuffle.classes`: by cycle types, to 30 cards. Ours (tests/permutations/test_mixing.py)."""
        law = type_probabilities(n, times)
        return [class_size(cycles) for cycles in law], list(law.values())


def type_probabilities(n: int, times: int) -> dict[tuple[int, ...], float]:
    """The probability of a permutation of every cycle type after `times` random transpositions of n cards.

    Every step multiplies by a random element of a law that is constant on conjugacy classes, so the cycle type is a
    Markov chain of its own [Diaconis 1981]: no S_n is enumerated. Floats by lengths of cycles [m].

    Raises:
        ValueError: n outside 1..30.
    """
    ensure(1 <= n <= LARGEST, f"the law of several transpositions is known for 1 to {LARGEST} cards, not {n}")
    types, source, target, weight = _transitions(n)
    law: np.ndarray = np.zeros(len(types))
    law[types.index((1,) * n)] = 1.0
    for _ in range(times):
        law = np.bincount(target, weights=law[source] * weight, minlength=len(types))
    return {cycles: mass / class_size(cycles) for cycles, mass in zip(types, law.tolist(), strict=True)}


@lru_cache(maxsize=4)
def _transitions(n: int) -> tuple[list[tuple[int, ...]], np.ndarray, np.ndarray, np.ndarray]:
    """The cycle types, and the moves between them: from, to, probability, [moves] each [Diaconis 1981]."""
    types = partitions(n)
    number = {cycles: i for i, cycles in enumerate(types)}
    moves = [(i, number[to], p) for i, cycles in enumerate(types) for to, p in _moves(cycles).items()]
    source, target, weight = (np.array(column) for column in zip(*moves, strict=True))
    return types, source, target, weight


def _moves(cycles: tuple[int, ...]) -> dict[tuple[int, ...], float]:
    """Where one step leads from a cycle type: elements of two cycles join them, two of one split it.

    Probabilities by cycle type, of lengths [m] [Diaconis 1981].
    """
    n, many, found = sum(cycles), Counter(cycles), defaultdict[tuple[int, ...], float](float)

    def to(old: Counter[int], *new: int) -> tuple[int, ...]:
        """The cycle type with lengths in place of others, [m]."""
        return tuple(sorted([*(many - old).elements(), *new], reverse=True))

    found[cycles] += 1 / n
    for a in many:
        for k in range(1, a):
            found[to(Counter([a]), k, a - k)] += many[a] * a / n**2
        for b in many:
            if pairs := many[a] * (many[b] - (a == b)):
                found[to(Counter([a, b]), a + b)] += pairs * a * b / n**2
    return found


def _places_by_key(keys: Tensor) -> Tensor:
    """The order, int64 [..., n], of whole keys [..., n] whose last digit to the base n is the place; keys are lost.

    No two keys are equal, so they hold their order themselves: numpy sorts whole numbers in a twentieth of the time in
    which torch finds the order of others.

    As `Riffle` and `RandomInsertion` need it.
    """
    if keys.device.type != "cpu":
        return keys.argsort(dim=-1)
    keys.numpy().sort(axis=-1)
    return keys.remainder_(keys.shape[-1]).long()


# small tensors that every draw needs: to make them anew takes longer than to sort a short deck
@lru_cache
def _places_and_powers(n: int, times: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """0..n-1 in a type that holds a label of as many bits and a place, and 2^times, float64 [k, 1].

    As `Riffle` needs them.
    """
    least, most = min(times), max(times)
    if not 0 <= least <= most <= MOST_RIFFLES:
        raise ValueError(f"riffles are drawn 0 to {MOST_RIFFLES} at once, not {least if least < 0 else most}")
    places = torch.arange(n, dtype=torch.int32 if n << most < 2**31 else torch.int64, device=device)
    return places, torch.tensor([[2.0**t] for t in times], dtype=torch.float64, device=device)


def _uniforms(n: int, last: int, size: Size, generator: RandomSource) -> Tensor:
    """Uniforms [*size, last] on the device of their source."""
    _check(n)
    shape = (size, last) if isinstance(size, int) else (*size, last)
    return uniform(shape, generator, _device(generator))


def _integers(n: int, last: int, size: Size, generator: RandomSource) -> Tensor:
    """Uniform on 0..n-1, int64 [*size, last]."""
    return _uniforms(n, last, size, generator).mul_(n).long()


def _device(generator: RandomSource) -> torch.device:
    """Where a source makes its numbers."""
    if isinstance(generator, StepStreams):
        return generator.keys.device
    return torch.device("cpu") if generator is None else generator.device


MIXED = 0.005
"""The distance from uniform at which a schedule ends."""
_FIRST = 0.46
"""The first look is where the distance from uniform has fallen to this."""
_APART = 0.29
"""Least distance between the laws of one look and the next."""


def denoising_schedule(n: int) -> list[int]:
    """Numbers of riffles 0 = t_0 < t_1 < ... < t_k = T after which n cards are looked at.

    T is where the distance from uniform is nearest to .005 (in logarithm); t_1 the first with at most .46; from there
    on always the next whose law is at least .29 from that of the look before; at last T. Ours, so that it gives the
    schedules of [Zhang 2025, tables 9 and 11] for 9, 25, 36 and 100 items (tests/permutations/test_mixing.py).

    Raises:
        ValueError: n < 2.
    """
    ensure(n >= 2, f"a schedule needs at least 2 cards, not {n}")
    riffle = Riffle()
    mixed = first_mixed(riffle, n, MIXED)
    final = min((mixed - 1, mixed), key=lambda t: abs(math.log(riffle.variation(n, t) / MIXED)))
    looks = [0, first_mixed(riffle, n, _FIRST)]
    for t in range(looks[-1] + 1, final):
        if riffle.variation(n, looks[-1], t) >= _APART:
            looks.append(t)
    return looks if looks[-1] == final else [*looks, final]


def first_mixed(law: Shuffle, n: int, target: float) -> int:
    """The least number of shuffles after which the distance from uniform is at most `target`, by bisection.

    An integer [Zhang 2025, section 3.4].
    """
    most = 1
    while law.variation(n, most) > target:
        most *= 2
    return bisect_left(range(most), -target, most // 2, key=lambda t: -law.variation(n, t))


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
        whole = len(given) > 1 and all(type(t) is int for t in given)
        rises = whole and given[0] == 0 and all(a < b for a, b in pairwise(given))
        ensure(rises, f"schedule must be whole numbers rising from 0, such as [0,3,5,9], not {given}")
        limit = MOST_RIFFLES if isinstance(self.law, Riffle) else _MOST_SHUFFLES
        ensure(given[-1] <= limit, f"schedule must end at {limit} shuffles at most, not {given[-1]}")

    @property
    def times(self) -> list[int]:
        """t_1, ..., t_k."""
        return [int(t) for t in self.schedule[1:]]

    @property
    def gaps(self) -> list[int]:
        """How many shuffles every step is of, t_i - t_{i-1}: k integers."""
        return [b - a for a, b in pairwise([0, *self.times])]

    def walks(self, n: int, size: int, number: int, generator: RandomSource) -> tuple[Tensor, Tensor]:
        """`number` walks of each of `size` lists, looked at only at scheduled times [Zhang 2025, section 3.4].

        Returns:
            pi int64 [size, number, k, n]: the permutations at t_1, ..., t_k, X_t = X_0[pi]; and back, the steps that
            lead back, of the same shape, with compose(pi at t_i, back_i) = pi at t_{i-1}.
        """
        back = self.law.steps_back(n, (size, number), self.gaps, generator)
        states = torch.stack(list(accumulate(inverse(back), lambda state, step: state.gather(-1, step))))
        return states.movedim(0, 2), back.movedim(0, 2)

    def log_prob(self, back: Tensor) -> Tensor:
        """log q of the steps whose inverses are back [..., k, n], summed over the k, float64 [...].

        Of the bound [Zhang 2025, eq. 12] what does not depend on the network.
        """
        steps = zip(inverse(back).unbind(-2), self.gaps, strict=True)
        return torch.stack([self.law.log_prob(sigma, gap) for sigma, gap in steps]).sum(0)


def default_schedule(law: Shuffle, n: int, every_step: bool) -> list[int]:
    """The scheduled times for n items, integers; ours (tests/permutations/test_mixing.py), after
    [Zhang 2025, section 3.4].

    To where the distance from uniform is nearest to .005 for riffles, and has fallen to it for the others (for
    transpositions of more than 30 items: n/2 ln n of them). In between, riffles are looked at by the rule of
    `denoising_schedule`, others where the distance has fallen to .46.

    Args:
        every_step: look after every single shuffle.
    """
    if isinstance(law, Riffle):
        looks = denoising_schedule(n)
    else:
        if isinstance(law, RandomTransposition) and n > LARGEST:
            cutoff = n / 2 * math.log(n)
            mixed = [math.ceil(0.75 * cutoff), math.ceil(cutoff)]
        else:
            mixed = [first_mixed(law, n, target) for target in (_FIRST, MIXED)]
        looks = sorted({0, *(max(t, 1) for t in mixed)})
    return list(range(looks[-1] + 1)) if every_step else looks


def _check(n: int, t: int = 0) -> None:
    ensure(n >= 1 and t >= 0, f"a deck has at least one card, and shuffles must not be negative in number: {n}, {t}")
