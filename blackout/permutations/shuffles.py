"""Card shuffles as random walks on permutations.

A shuffle takes a list x to x[sigma] with a random permutation sigma. Several shuffles compose to
one permutation, pi_t = compose(pi_{t-1}, sigma_t), which is drawn directly: t riffles are one
2^t-shuffle, t insertions are one draw of t cards. A reverse step is the inverse of the permutation
of a forward step; `sample_inverse` draws it directly, with the distribution of
`inverse(sample(...))`.

The total variation distance from uniform is exact: in integers for riffles and insertions, by the
Markov chain on cycle types for transpositions of up to 30 cards.

Example:
    >>> round(Riffle().total_variation(4, 7), 4)
    0.0091

References: Zhang et al. 2025 (SymmetricDiffusers), section 3.1 and appendix F; Bayer and Diaconis
1992; Diaconis et al. 1992; Diaconis and Shahshahani 1981. Exact checks are in tests/verification.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from blackout.component import component
from blackout.errors import ensure
from blackout.permutations.group import (
    conjugacy_class_size,
    cycle_labels,
    descents,
    eulerian_numbers,
    identity_like,
    integer_partitions,
    inverse,
    stirling_numbers,
)
from blackout.random import RandomSource, StepStreams, uniform
from blackout.representation import format_arguments

Size: TypeAlias = int | tuple[int, ...]

MAX_RIFFLES = 40  # in one draw: labels have one bit per riffle, and uniforms have 52 bits
MAX_TRANSPOSED_CARDS = 30  # with 5,604 cycle types, all of which are enumerated


class Shuffle(ABC):
    """A random walk on permutations.

    `size` is the shape of a draw. With streams, its first dimension is the index of the sample.
    """

    __repr__ = format_arguments

    def sample(self, n: int, size: Size, times: int = 1, generator: RandomSource = None) -> Tensor:
        """Draw the composition of `times` shuffles of n cards, int64 [*size, n].

        Raises:
            ValueError: n < 1, times < 0, or more than 40 riffles at once.
        """
        return inverse(self.sample_inverse(n, size, times, generator))

    @abstractmethod
    def sample_inverse(
        self, n: int, size: Size, times: int = 1, generator: RandomSource = None
    ) -> Tensor:
        """Draw the inverse of such a composition, int64 [*size, n]; errors as in `sample`."""

    def sample_inverses(
        self, n: int, size: Size, times: Sequence[int], generator: RandomSource = None
    ) -> Tensor:
        """Draw independent inverses of several numbers of shuffles, int64 [len(times), *size, n].

        The first are inverses of times[0] shuffles, the next of times[1], and so on.
        """
        return torch.stack([self.sample_inverse(n, size, t, generator) for t in times])

    @abstractmethod
    def log_prob(self, sigma: Tensor, times: int = 1) -> Tensor:
        """Return log q(sigma) after `times` shuffles of the identity.

        Args:
            sigma: int64 [..., n].
            times: number of shuffles.

        Returns:
            float64 [...], in nats.
        """

    @abstractmethod
    def equiprobable_classes(self, n: int, times: int) -> tuple[Sequence[int], Sequence[Any]]:
        """Return the classes of permutations that have equal probabilities.

        Args:
            n: cards.
            times: number of shuffles.

        Returns:
            The number of permutations of each class, and the probability of a single one of them.
            Probabilities that are fractions are exact.
        """

    def total_variation(self, n: int, t: int, s: int | None = None) -> float:
        """Return the total variation distance between the distributions after t and s shuffles.

        It is half the sum of |q_t - q_s| over all permutations.

        Args:
            n: cards.
            t: number of shuffles.
            s: number of shuffles; None for the uniform distribution.

        Raises:
            ValueError: n < 1 (or n > 30 for transpositions), or a negative number of shuffles.

        References: Zhang et al. 2025, eqs. 13 and 14.
        """
        _check_deck(n, min(t, s or 0))
        sizes, probabilities = self.equiprobable_classes(n, t)
        if s is None:
            reference: Sequence[Any] = [Fraction(1, math.factorial(n))] * len(probabilities)
        else:
            reference = self.equiprobable_classes(n, s)[1]
        terms = zip(sizes, probabilities, reference, strict=True)
        return sum(float(size * abs(p - q)) for size, p, q in terms) / 2


@component("method")
class Riffle(Shuffle):
    """The riffle shuffle of Gilbert, Shannon and Reeds.

    The deck is cut binomially, and cards drop from the two packets with probabilities in proportion
    to their sizes. `times` riffles are one a-shuffle with a = 2^times: every card draws one of a
    labels, and the deck sorted stably by label is the inverse. The probability depends on the
    number of rising sequences r alone, q = C(n + a - r, n) / a^n.

    References: Zhang et al. 2025, eq. 3; Bayer and Diaconis 1992, theorem 1.

    Example:
        >>> round(Riffle().total_variation(52, 7), 3)  # seven riffles of 52 cards
        0.334
    """

    def sample_inverse(
        self, n: int, size: Size, times: int = 1, generator: RandomSource = None
    ) -> Tensor:
        """Draw the inverse of `times` riffles, int64 [*size, n]."""
        return self.sample_inverses(n, size, [times], generator)[0]

    def sample_inverses(
        self, n: int, size: Size, times: Sequence[int], generator: RandomSource = None
    ) -> Tensor:
        """Draw independent inverses, int64 [len(times), *size, n], with a single sort of labels."""
        shape = (size,) if isinstance(size, int) else size
        positions, num_labels = _positions_and_num_labels(
            n, tuple(times), _source_device(generator)
        )
        # the label is the leading `times` bits of the uniform: 2^times u, rounded down by the cast
        u = _draw_uniforms(n, n, (*shape, len(times)), generator)
        labels = u.mul_(num_labels).to(positions.dtype)
        keys = torch.add(positions, labels, alpha=n)
        return _argsort_keys(keys).movedim(-2, 0)

    def log_prob(self, sigma: Tensor, times: int = 1) -> Tensor:
        """Return log q(sigma), float64 [...]; -inf for more rising sequences than labels.

        Raises:
            ValueError: times < 0.

        References: Bayer and Diaconis 1992, theorem 1.
        """
        n = sigma.shape[-1]
        _check_deck(n, times)
        a = 2.0**times
        rising_sequences = (1 + descents(inverse(sigma))).double().unsqueeze(-1)
        card = torch.arange(1, n + 1, dtype=torch.float64, device=sigma.device)
        factors = ((a - rising_sequences + card) / a).clamp(min=0)
        return torch.log(factors).sum(-1) - math.lgamma(n + 1)

    def equiprobable_classes(self, n: int, times: int) -> tuple[Sequence[int], Sequence[Any]]:
        """Return the classes of permutations with r = 1..n rising sequences.

        References: Zhang et al. 2025, eqs. 13 and 14.
        """
        a = 2**times
        numerators = [math.comb(n + a - r, n) if r <= a else 0 for r in range(1, n + 1)]
        return eulerian_numbers(n), [Fraction(numerator, a**n) for numerator in numerators]


@component("method")
class RandomInsertion(Shuffle):
    """The random insertion: the last card moves in front of a uniformly chosen card.

    The chosen card may be the last card itself.

    Backwards, a card chosen uniformly moves to the end. After t moves, the cards never chosen come
    first, in their order, and then the others in the order of their last choice. So the inverse is
    a single sort. Its probability depends on the length of the first rising run of the inverse. It
    is n^-t times a sum of Stirling numbers of the second kind S(t, m), over the numbers m of chosen
    cards that leave no more cards than the run.

    References: Zhang et al. 2025, section 3.1.1; Diaconis et al. 1992.

    Example:
        >>> round(RandomInsertion().log_prob(torch.arange(4)).exp().item(), 3)
        0.25
    """

    def sample_inverse(
        self, n: int, size: Size, times: int = 1, generator: RandomSource = None
    ) -> Tensor:
        """Draw the inverse of `times` insertions, int64 [*size, n]."""
        _check_deck(n, times)
        cards = _draw_integers(n, times, size, generator)
        last_choice = torch.full((*cards.shape[:-1], n), -1, device=cards.device)
        last_choice.scatter_reduce_(-1, cards, identity_like(cards), "amax")
        positions = torch.arange(n, device=last_choice.device)
        return _argsort_keys(last_choice.add_(1).mul_(n).add_(positions))

    def log_prob(self, sigma: Tensor, times: int = 1) -> Tensor:
        """Return log q(sigma), float64 [...].

        Raises:
            ValueError: times < 0.

        References: Diaconis et al. 1992.
        """
        n = sigma.shape[-1]
        _check_deck(n, times)
        back = inverse(sigma)
        run_length = 1 + (back[..., 1:] > back[..., :-1]).long().cumprod(-1).sum(-1)
        log_probs = [
            math.log(ways) - times * math.log(n) if ways else -math.inf
            for ways in _insertion_ways(n, times)
        ]
        return torch.tensor(log_probs, dtype=torch.float64, device=sigma.device)[run_length - 1]

    def equiprobable_classes(self, n: int, times: int) -> tuple[Sequence[int], Sequence[Any]]:
        """Return the classes of permutations whose inverse has a first rising run of 1..n cards.

        References: Diaconis et al. 1992.
        """
        at_least = [math.factorial(n) // math.factorial(run) for run in range(1, n + 1)]
        sizes = [count - longer for count, longer in pairwise([*at_least, 0])]
        return sizes, [Fraction(ways, n**times) for ways in _insertion_ways(n, times)]


@lru_cache
def _insertion_ways(n: int, times: int) -> list[int]:
    """Return in how many of n^times ways a permutation arises, by its first rising run.

    Entry k - 1 is for permutations whose inverse has a first rising run of k cards, k = 1..n.

    References: Diaconis et al. 1992; sums of Stirling numbers, see `RandomInsertion`.
    """
    ways = stirling_numbers(times, n)
    return [sum(ways[n - run : n + 1]) for run in range(1, n + 1)]


@component("method")
class RandomTransposition(Shuffle):
    """The random transposition: two cards, chosen independently, change places.

    The identity has the probability 1 / n, every transposition 2 / n^2.

    References: Zhang et al. 2025, section 3.1.1.

    Example:
        >>> round(RandomTransposition().log_prob(torch.arange(4)).exp().item(), 3)
        0.25
    """

    def sample_inverse(
        self, n: int, size: Size, times: int = 1, generator: RandomSource = None
    ) -> Tensor:
        """Draw the inverse of `times` transpositions, int64 [*size, n].

        It has the distribution of the composition itself: a swap is its own inverse.
        """
        _check_deck(n, times)
        cards = _draw_integers(n, 2 * times, size, generator)
        sigma = torch.arange(n, device=cards.device).expand(*cards.shape[:-1], n).contiguous()
        for pair in cards.split(2, -1):
            sigma.scatter_(-1, pair, sigma.gather(-1, pair).flip(-1))
        return sigma

    def log_prob(self, sigma: Tensor, times: int = 1) -> Tensor:
        """Return log q(sigma), float64 [...]; for several steps by the Markov chain on cycle types.

        Raises:
            ValueError: times < 0, or more than one step with more than 30 cards.
        """
        n = sigma.shape[-1]
        _check_deck(n, times)
        if times <= 1:
            return self._single_step_log_prob(sigma, times)
        permutations = sigma.reshape(-1, n)
        labels = cycle_labels(permutations)
        cycle_lengths = torch.zeros_like(permutations).scatter_add_(
            -1, labels, torch.ones_like(permutations)
        )
        cycle_lengths = cycle_lengths.sort(-1, descending=True).values
        cycle_types, index = cycle_lengths.unique(dim=0, return_inverse=True)
        probabilities = cycle_type_probabilities(n, times)
        values = [probabilities[tuple(filter(None, lengths))] for lengths in cycle_types.tolist()]
        log_probs = torch.tensor(values, dtype=torch.float64).log()
        return log_probs.to(sigma.device)[index].view(sigma.shape[:-1])

    @staticmethod
    def _single_step_log_prob(sigma: Tensor, times: int) -> Tensor:
        """Return log q(sigma) after 0 or 1 transpositions.

        It depends on the number of cards that moved.
        """
        n = sigma.shape[-1]
        num_moved = (sigma != identity_like(sigma)).sum(-1)
        log_probs = torch.full((n + 1,), -math.inf, dtype=torch.float64, device=sigma.device)
        log_probs[0] = 0.0 if times == 0 else -math.log(n)
        if times == 1 and n > 1:
            log_probs[2] = math.log(2) - 2 * math.log(n)
        return log_probs[num_moved]

    def equiprobable_classes(self, n: int, times: int) -> tuple[Sequence[int], Sequence[Any]]:
        """Return the conjugacy classes, up to 30 cards.

        References: Diaconis and Shahshahani 1981; checked in tests/permutations/test_mixing.py.
        """
        probabilities = cycle_type_probabilities(n, times)
        sizes = [conjugacy_class_size(cycle_type) for cycle_type in probabilities]
        return sizes, list(probabilities.values())


def cycle_type_probabilities(n: int, times: int) -> dict[tuple[int, ...], float]:
    """Return the probability of a single permutation of every cycle type.

    It is the probability after `times` random transpositions.

    Every step multiplies by a random permutation whose distribution is constant on conjugacy
    classes. So the cycle type is a Markov chain, and S_n need not be enumerated.

    Args:
        n: cards.
        times: number of transpositions.

    Returns:
        {cycle lengths in falling order: probability}.

    Raises:
        ValueError: n outside 1..30.

    References: Diaconis and Shahshahani 1981.
    """
    ensure(
        1 <= n <= MAX_TRANSPOSED_CARDS,
        "the distribution after several transpositions is available for "
        f"1 to {MAX_TRANSPOSED_CARDS} cards, not {n}",
    )
    cycle_types, source, target, probability = _cycle_type_transitions(n)
    mass: np.ndarray = np.zeros(len(cycle_types))
    mass[cycle_types.index((1,) * n)] = 1.0
    for _ in range(times):
        mass = np.bincount(target, weights=mass[source] * probability, minlength=len(cycle_types))
    masses = zip(cycle_types, mass.tolist(), strict=True)
    return {cycle_type: total / conjugacy_class_size(cycle_type) for cycle_type, total in masses}


@lru_cache(maxsize=4)
def _cycle_type_transitions(
    n: int,
) -> tuple[list[tuple[int, ...]], np.ndarray, np.ndarray, np.ndarray]:
    """Return all cycle types, and the transitions between them by one transposition.

    Transitions are arrays of source, target and probability, [transitions] each.

    References: Diaconis and Shahshahani 1981.
    """
    cycle_types = integer_partitions(n)
    index = {cycle_type: i for i, cycle_type in enumerate(cycle_types)}
    transitions = [
        (i, index[target], probability)
        for i, cycle_type in enumerate(cycle_types)
        for target, probability in _next_cycle_types(cycle_type).items()
    ]
    source, target, probability = (np.array(column) for column in zip(*transitions, strict=True))
    return cycle_types, source, target, probability


def _next_cycle_types(cycle_type: tuple[int, ...]) -> dict[tuple[int, ...], float]:
    """Return the probabilities of the cycle types after one transposition.

    Two cards of different cycles join these, and two cards of one cycle split it.

    References: Diaconis and Shahshahani 1981.
    """
    n = sum(cycle_type)
    counts = Counter(cycle_type)  # cycles of every length
    probabilities = defaultdict[tuple[int, ...], float](float)

    def replace_cycles(removed: Counter[int], *added: int) -> tuple[int, ...]:
        """Return the cycle type with some lengths replaced by others."""
        return tuple(sorted([*(counts - removed).elements(), *added], reverse=True))

    probabilities[cycle_type] += 1 / n  # the same card twice
    for a in counts:
        for k in range(1, a):
            split = replace_cycles(Counter([a]), k, a - k)
            probabilities[split] += counts[a] * a / n**2
        for b in counts:
            num_pairs = counts[a] * (counts[b] - (a == b))
            if num_pairs:
                joined = replace_cycles(Counter([a, b]), a + b)
                probabilities[joined] += num_pairs * a * b / n**2
    return probabilities


def _argsort_keys(keys: Tensor) -> Tensor:
    """Return the argsort of integer keys [..., n], which it overwrites.

    The last digit of a key to the base n is its position. No two keys are equal, and the sorted
    keys themselves contain the order. NumPy sorts integers in a twentieth of the time of torch's
    argsort on a CPU.
    """
    if keys.device.type != "cpu":
        return keys.argsort(dim=-1)
    keys.numpy().sort(axis=-1)
    return keys.remainder_(keys.shape[-1]).long()


# cached, because making these small tensors takes longer than sorting a short deck
@lru_cache
def _positions_and_num_labels(
    n: int, times: tuple[int, ...], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return the positions 0..n-1 and the numbers of labels 2^times, float64 [k, 1], of riffles.

    The type of the positions, int32 or int64 [n], holds a key of label and position.
    """
    smallest = min(times)
    largest = max(times)
    if not 0 <= smallest <= largest <= MAX_RIFFLES:
        refused = smallest if smallest < 0 else largest
        raise ValueError(f"riffles are drawn 0 to {MAX_RIFFLES} at once, not {refused}")
    dtype = torch.int32 if n << largest < 2**31 else torch.int64
    positions = torch.arange(n, dtype=dtype, device=device)
    return positions, torch.tensor([[2.0**t] for t in times], dtype=torch.float64, device=device)


def _draw_uniforms(n: int, num_draws: int, size: Size, generator: RandomSource) -> Tensor:
    """Draw uniforms [*size, num_draws] on the device of their source, for decks of n cards."""
    _check_deck(n)
    shape = (size, num_draws) if isinstance(size, int) else (*size, num_draws)
    return uniform(shape, generator, _source_device(generator))


def _draw_integers(n: int, num_draws: int, size: Size, generator: RandomSource) -> Tensor:
    """Draw integers uniform on 0..n-1, int64 [*size, num_draws]."""
    return _draw_uniforms(n, num_draws, size, generator).mul_(n).long()


def _source_device(generator: RandomSource) -> torch.device:
    """Return the device on which a source makes random numbers."""
    if isinstance(generator, StepStreams):
        return generator.keys.device
    return torch.device("cpu") if generator is None else generator.device


def _check_deck(n: int, times: int = 0) -> None:
    """Refuse empty decks and negative numbers of shuffles."""
    ensure(n >= 1, f"a deck must have at least one card, not {n}")
    ensure(times >= 0, f"the number of shuffles must be at least 0, not {times}")
