"""What is claimed of permutations: shuffles, reverse laws, codes and classical families, against enumeration.

Shuffles of few cards by their definitions, and reverse chains on all n! states. Laws are float64 [n!], in the
lexicographic order of `all_permutations`. Ours.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Size, Tensor

from blackout.permutations import all_permutations, compose, inverse, kendall_distance
from blackout.permutations.classical import Mallows
from blackout.permutations.coded.model import balanced_blocks, code_log_prob
from blackout.permutations.codes import Code, FisherYates, Inline, Insertion, Lehmer
from blackout.permutations.distributions import (
    GeneralizedPlackettLuce,
    InverseInsertion,
    InverseRiffle,
    InverseTransposition,
    PermutationDistribution,
    PlackettLuce,
)
from blackout.permutations.group import lexicographic_rank, num_cycles
from blackout.permutations.shuffles import RandomInsertion, RandomTransposition, Riffle, Shuffle
from blackout.random import SampleStreams
from blackout.verification.draws import p_value
from tests.verification.claim import Claim


def point(n: int) -> Tensor:
    """All mass on the identity."""
    law = torch.zeros(math.factorial(n), dtype=torch.float64)
    law[0] = 1
    return law


def transitions(step: Tensor, n: int) -> Tensor:
    """P(compose(x, s) | x) [n!, n!] when s has the law `step`."""
    perms = all_permutations(n)
    return step[lexicographic_rank(compose(inverse(perms)[:, None, :], perms[None, :, :]))]


def one_riffle(n: int) -> Tensor:
    """Every card is dropped from the left or the right hand, all 2^n sequences being equally likely [Bayer 1992]."""
    left = torch.cartesian_prod(*[torch.tensor([False, True])] * n).view(-1, n)
    right = left.sum(1, keepdim=True) + (~left).cumsum(1)
    return _one_of(torch.where(left, left.cumsum(1), right) - 1)


def one_transposition(n: int) -> Tensor:
    """Two hands, every pair of cards."""
    decks = torch.arange(n).repeat(n * n, 1)
    for deck, (i, j) in zip(decks, itertools.product(range(n), repeat=2), strict=True):
        deck[i], deck[j] = j, i
    return _one_of(decks)


def one_insertion(n: int) -> Tensor:
    """The last card in front of every card in turn."""
    return _one_of(torch.tensor([[*range(i), n - 1, *range(i, n - 1)] for i in range(n)]))


def _one_of(decks: Tensor) -> Tensor:
    """The law of one of the decks [m, n], all equally likely."""
    return torch.bincount(lexicographic_rank(decks), minlength=math.factorial(decks.shape[1])).double() / len(decks)


def laws_of_chain(target: Tensor, n: int) -> Tensor:
    """The laws [steps + 1, n!] that a chain of generalised Plackett-Luce steps goes through from uniform to `target`.

    With scores of -inf one step can lead from a state to one other, or to two that differ in the last two places, with
    any odds [Zhang 2025, theorem 6], corrected: shares are of p(sigma) + p(pi). All mass first goes to one
    carrier; pair after pair (sigma, pi) it leaves p(sigma) + p(pi) behind, which the next step splits. n >= 2.
    """
    perms = all_permutations(n)
    sigma = lexicographic_rank(perms[perms[:, -2] < perms[:, -1]])
    swapped = perms[sigma].clone()
    swapped[:, -2:] = perms[sigma][:, -2:].flip(-1)
    pi = lexicographic_rank(swapped)
    stay, whole = torch.arange(len(perms)), torch.ones(len(perms), dtype=torch.float64)
    laws = [whole / len(perms)]
    laws.append(laws[-1] @ _step(sigma[0].expand(len(perms)), whole, n))
    kept = target[sigma] + target[pi]
    left = kept.flip(0).cumsum(0).flip(0)
    for i in range(len(sigma)):
        odds, to = whole.clone(), stay.clone()
        if i + 1 < len(sigma):
            odds[sigma[i]] = _share(kept[i], left[i])
            laws.append(laws[-1] @ _step(stay, odds, n))
            to[pi[i]] = sigma[i + 1]
        odds = whole.clone()
        odds[sigma[i]] = _share(target[sigma[i]], kept[i])
        laws.append(laws[-1] @ _step(to, odds, n))
    return torch.stack(laws)


def _share(part: Tensor, whole: Tensor) -> Tensor:
    """part / whole; 1 where there is nothing to share."""
    return part / whole if whole > 0 else torch.ones_like(part)


def _step(to: Tensor, odds: Tensor, n: int) -> Tensor:
    """From every state to state `to` with probability `odds`, else to that with its last two places swapped."""
    perms = all_permutations(n)
    relative = compose(inverse(perms), perms[to])
    scores = torch.full((len(perms), n, n), -torch.inf, dtype=torch.float64)
    scores.scatter_(2, relative.unsqueeze(-1), 0.0)
    scores[:, -2].scatter_(1, relative[:, -2:], torch.stack([odds, 1 - odds], 1).log())
    scores[:, -1].scatter_(1, relative[:, -2:], 0.0)
    every = compose(inverse(perms)[None, :, :], perms[:, None, :])
    return GeneralizedPlackettLuce(scores).log_prob(every).exp().T


_SHUFFLES: dict[str, tuple[Shuffle, Callable[[int], Tensor]]] = {
    "riffle": (Riffle(), one_riffle),
    "transposition": (RandomTransposition(), one_transposition),
    "insertion": (RandomInsertion(), one_insertion),
}
_FREE: tuple[type[Code], ...] = (Lehmer, FisherYates, Insertion)


def reverse_laws(n: int) -> dict[str, PermutationDistribution]:
    """One of each, with random scores in float64."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(n, n, generator=generator, dtype=torch.float64)
    swap = torch.tensor(0.4, dtype=torch.float64)
    return {
        "Plackett-Luce": PlackettLuce(rows[0]),
        "generalised Plackett-Luce": GeneralizedPlackettLuce(rows),
        "inverse riffle": InverseRiffle(rows[0]),
        "inverse transposition": InverseTransposition(rows[0], swap),
        "inverse insertion": InverseInsertion(rows[0]),
    }


def claims() -> Iterator[Claim]:
    """Everything that is claimed."""
    yield from _shuffles(5)
    yield from _reverse(6)
    yield from _codes(6)
    yield from _families(5)
    yield from _draws(4, 40_000)


def _shuffles(n: int) -> Iterator[Claim]:
    perms = all_permutations(n)
    for name, (shuffle, definition) in _SHUFFLES.items():
        law, matrix, errors = point(n), transitions(definition(n), n), list[float]()
        for times in range(5):
            errors.append(_apart(shuffle.log_prob(perms, times).exp(), law))
            law = law @ matrix
        yield Claim(f"{name}: 0 to 4 of them against the definition, n = {n}", max(errors), 1e-12)


def _reverse(n: int) -> Iterator[Claim]:
    perms = all_permutations(n)
    for name, distribution in reverse_laws(n).items():
        yield Claim(f"{name}: sum over S_{n}", abs(float(distribution.log_prob(perms).exp().sum()) - 1), 1e-10)
    zero = InverseRiffle(torch.zeros(n, dtype=torch.float64)).log_prob(perms).exp()
    riffle = Riffle().log_prob(inverse(perms)).exp()
    yield Claim("inverse riffle of scores 0 is the riffle inverted", _apart(zero, riffle), 1e-12)
    for m in (3, 4):
        target = torch.rand(math.factorial(m), generator=torch.Generator().manual_seed(m), dtype=torch.float64)
        target /= target.sum()
        reached = laws_of_chain(target, m)[-1]
        yield Claim(f"chain of generalised Plackett-Luce to any law on S_{m}", _apart(reached, target), 1e-12)


def _codes(n: int) -> Iterator[Claim]:
    perms = all_permutations(n)
    logits = torch.randn(n, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for code in _FREE:
        digits = code.encode(perms)
        missed = len(perms) - len(digits.unique(dim=0)) + int((code.decode(digits) != perms).sum())
        yield Claim(f"{code.__name__}: one to one onto its supports, n = {n}", missed, 0)
        # logits that move with what is shown
        law = code_log_prob(
            lambda shown: logits * (1 + shown[:, :, None] % 3), digits, balanced_blocks(n, 3), code.support(n)
        ).exp()
        yield Claim(f"{code.__name__}: a network's law sums to 1 in 3 passes", abs(float(law.sum()) - 1), 1e-10)
    inversions = kendall_distance(perms)
    wrong = Lehmer.encode(perms).sum(-1) != inversions
    wrong |= (FisherYates.encode(perms) == 0).sum(-1) != num_cycles(perms)
    back = inverse(perms)
    left_lehmer = (back.unsqueeze(-2) > back.unsqueeze(-1)).tril(-1).sum(-1)  # larger values before
    wrong |= (Insertion.encode(perms) != torch.arange(n) - left_lehmer).any(-1)
    yield Claim("sums are inversions, zeros cycles, insertion left Lehmer of the inverse", int(wrong.sum()), 0)
    for m, share, inline in ((4, 0.3889, 0.0741), (5, 0.3038, 0.0234)):
        cycles = all_permutations(m)[num_cycles(all_permutations(m)) == 1]
        codes = FisherYates, Lehmer, Insertion, Inline
        encoded = [torch.nn.functional.one_hot(code.encode(cycles), m).double() for code in codes]
        found = [float((one * one.mean(0)).sum(-1).prod(-1).sum()) for one in encoded]  # by a perfect network
        yield Claim(f"share of {m}-cycles in one pass", _worst(found, (1.0, share, share, inline)), 5e-5)


def _families(n: int) -> Iterator[Claim]:
    perms = all_permutations(n)
    distance = kendall_distance(perms).double()
    yield Claim("Mallows", _apart(Mallows(n, 0.7).log_prob(perms).exp(), _normal(0.7**distance)), 1e-9)
    rows = 0.7 ** (torch.arange(n)[:, None] - torch.arange(n)).double() * Insertion.support(n)
    rows = rows / rows.sum(-1, keepdim=True)
    insertion = rows.log()[torch.arange(n), Insertion.encode(perms)].sum(-1).exp()
    yield Claim("repeated insertion as Mallows", _apart(insertion, _normal(0.7**distance)), 1e-9)


def _draws(n: int, size: int) -> Iterator[Claim]:
    perms, streams = all_permutations(n), SampleStreams(0, torch.arange(size))
    for name, (shuffle, _) in _SHUFFLES.items():
        drawn = shuffle.sample(n, size, 2, streams.step(0))
        yield Claim(f"draws: {name}, twice", _p(drawn, shuffle.log_prob(perms, 2)), None)
    others: dict[str, PermutationDistribution] = {"Mallows": Mallows(n, 0.5)}
    for step, (name, distribution) in enumerate((reverse_laws(n) | others).items(), 1):
        drawn = distribution.sample(Size([size]), streams.step(step))
        yield Claim(f"draws: {name}", _p(drawn, distribution.log_prob(perms)), None)


def _p(drawn: Tensor, log_law: Tensor) -> float:
    counts = np.bincount(lexicographic_rank(drawn).numpy(), minlength=len(log_law))
    return p_value(counts, log_law.exp().numpy())


def _apart(law: Tensor, other: Tensor) -> float:
    return float((law - other).abs().max())


def _worst(found: Sequence[float], expected: Sequence[float]) -> float:
    return max(abs(a - b) for a, b in zip(found, expected, strict=True))


def _normal(weights: Tensor) -> Tensor:
    return weights / weights.sum()
