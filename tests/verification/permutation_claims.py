"""Claims about permutations, checked against enumeration.

They cover shuffles, reverse distributions, codes and classical families: shuffles of few cards by
their definitions, and reverse chains on all n! states. Distributions are float64 [n!], in the
lexicographic order of `all_permutations`.

References: this project; checked in tests/verification/test_permutation_claims.py.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Size, Tensor

from blackout.permutations import all_permutations, compose, inverse, kendall_distance
from blackout.permutations.coded.decoding import balanced_blocks
from blackout.permutations.coded.likelihood import code_log_prob
from blackout.permutations.codes import Code, FisherYates, Inline, Insertion, Lehmer
from blackout.permutations.distributions import (
    GeneralizedPlackettLuce,
    InverseInsertion,
    InverseRiffle,
    InverseTransposition,
    Mallows,
    PermutationDistribution,
    PlackettLuce,
)
from blackout.permutations.group import lexicographic_rank, num_cycles
from blackout.permutations.shuffles import RandomInsertion, RandomTransposition, Riffle, Shuffle
from blackout.random import SampleStreams
from blackout.verification.draws import p_value
from tests.verification.claim import Claim


def point(n: int) -> Tensor:
    """Return the distribution with all mass on the identity."""
    distribution = torch.zeros(math.factorial(n), dtype=torch.float64)
    distribution[0] = 1
    return distribution


def transitions(step: Tensor, n: int) -> Tensor:
    """Return P(compose(x, s) | x) [n!, n!] when s has the distribution `step`."""
    perms = all_permutations(n)
    return step[lexicographic_rank(compose(inverse(perms)[:, None, :], perms[None, :, :]))]


def riffle_distribution(n: int) -> Tensor:
    """Return the distribution of one riffle shuffle.

    Every card is dropped from the left or the right hand, with all 2^n sequences equally likely.

    References: Bayer and Diaconis 1992.
    """
    is_left = torch.cartesian_prod(*[torch.tensor([False, True])] * n).view(-1, n)
    position = is_left.sum(1, keepdim=True) + (~is_left).cumsum(1)
    return _uniform_over(torch.where(is_left, is_left.cumsum(1), position) - 1)


def transposition_distribution(n: int) -> Tensor:
    """Return the distribution of a random transposition: two hands, every pair of cards."""
    decks = torch.arange(n).repeat(n * n, 1)
    for deck, (i, j) in zip(decks, itertools.product(range(n), repeat=2), strict=True):
        deck[i] = j
        deck[j] = i
    return _uniform_over(decks)


def insertion_distribution(n: int) -> Tensor:
    """Return the distribution of a random insertion: the last card in front of every card in
    turn."""
    return _uniform_over(torch.tensor([[*range(i), n - 1, *range(i, n - 1)] for i in range(n)]))


def _uniform_over(decks: Tensor) -> Tensor:
    """Return the distribution of a uniformly chosen deck among decks [m, n]."""
    return torch.bincount(
        lexicographic_rank(decks), minlength=math.factorial(decks.shape[1])
    ).double() / len(decks)


def chain_distributions(target: Tensor, n: int) -> Tensor:
    """Return the distributions [steps + 1, n!] of a chain from uniform to `target`.

    The steps are generalised Plackett-Luce distributions. With scores of -inf one step can lead
    from a state to one other, or to two that differ in the last two places, with any odds. All mass
    first goes to one carrier state. Pair after pair (sigma, pi), it leaves p(sigma) + p(pi) behind,
    which the next step splits. Requires n >= 2.

    References: Zhang et al. 2025, theorem 6, corrected: shares are of p(sigma) + p(pi).
    """
    perms = all_permutations(n)
    sigma = lexicographic_rank(perms[perms[:, -2] < perms[:, -1]])
    swapped = perms[sigma].clone()
    swapped[:, -2:] = perms[sigma][:, -2:].flip(-1)
    pi = lexicographic_rank(swapped)
    stay = torch.arange(len(perms))
    ones = torch.ones(len(perms), dtype=torch.float64)
    distributions = [ones / len(perms)]
    distributions.append(distributions[-1] @ _step(sigma[0].expand(len(perms)), ones, n))
    pair_mass = target[sigma] + target[pi]
    remaining_mass = pair_mass.flip(0).cumsum(0).flip(0)
    for i in range(len(sigma)):
        odds = ones.clone()
        destination = stay.clone()
        if i + 1 < len(sigma):
            odds[sigma[i]] = _share(pair_mass[i], remaining_mass[i])
            distributions.append(distributions[-1] @ _step(stay, odds, n))
            destination[pi[i]] = sigma[i + 1]
        odds = ones.clone()
        odds[sigma[i]] = _share(target[sigma[i]], pair_mass[i])
        distributions.append(distributions[-1] @ _step(destination, odds, n))
    return torch.stack(distributions)


def _share(part: Tensor, total: Tensor) -> Tensor:
    """Return part / whole, or 1 where the whole is 0."""
    return part / total if total > 0 else torch.ones_like(part)


def _step(destination: Tensor, odds: Tensor, n: int) -> Tensor:
    """Return a step [n!, n!] that reaches state `destination` with probability `odds`.

    Otherwise it reaches that state with its last two places swapped.
    """
    perms = all_permutations(n)
    relative = compose(inverse(perms), perms[destination])
    scores = torch.full((len(perms), n, n), -torch.inf, dtype=torch.float64)
    scores.scatter_(2, relative.unsqueeze(-1), 0.0)
    scores[:, -2].scatter_(1, relative[:, -2:], torch.stack([odds, 1 - odds], 1).log())
    scores[:, -1].scatter_(1, relative[:, -2:], 0.0)
    relative_positions = compose(inverse(perms)[None, :, :], perms[:, None, :])
    return GeneralizedPlackettLuce(scores).log_prob(relative_positions).exp().T


_SHUFFLES: dict[str, tuple[Shuffle, Callable[[int], Tensor]]] = {
    "riffle": (Riffle(), riffle_distribution),
    "transposition": (RandomTransposition(), transposition_distribution),
    "insertion": (RandomInsertion(), insertion_distribution),
}
_UNCONSTRAINED_CODES: tuple[type[Code], ...] = (Lehmer, FisherYates, Insertion)


def reverse_distributions(n: int) -> dict[str, PermutationDistribution]:
    """Return one distribution of each kind, with random scores in float64."""
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
    """Yield every claim about permutations."""
    yield from _shuffles(5)
    yield from _reverse(6)
    yield from _codes(6)
    yield from _families(5)
    yield from _draws(4, 40_000)


def _shuffles(n: int) -> Iterator[Claim]:
    perms = all_permutations(n)
    for name, (shuffle, definition) in _SHUFFLES.items():
        distribution = point(n)
        matrix = transitions(definition(n), n)
        errors = list[float]()
        for times in range(5):
            errors.append(_max_difference(shuffle.log_prob(perms, times).exp(), distribution))
            distribution = distribution @ matrix
        yield Claim(f"{name}: 0 to 4 repetitions match the definition, n = {n}", max(errors), 1e-12)


def _reverse(n: int) -> Iterator[Claim]:
    perms = all_permutations(n)
    for name, distribution in reverse_distributions(n).items():
        yield Claim(
            f"{name}: sum over S_{n}",
            abs(float(distribution.log_prob(perms).exp().sum()) - 1),
            1e-10,
        )
    zero = InverseRiffle(torch.zeros(n, dtype=torch.float64)).log_prob(perms).exp()
    riffle = Riffle().log_prob(inverse(perms)).exp()
    yield Claim(
        "inverse riffle with zero scores is the inverted riffle",
        _max_difference(zero, riffle),
        1e-12,
    )
    for m in (3, 4):
        target = torch.rand(
            math.factorial(m), generator=torch.Generator().manual_seed(m), dtype=torch.float64
        )
        target /= target.sum()
        reached = chain_distributions(target, m)[-1]
        yield Claim(
            f"chain of generalised Plackett-Luce to any distribution on S_{m}",
            _max_difference(reached, target),
            1e-12,
        )


def _codes(n: int) -> Iterator[Claim]:
    perms = all_permutations(n)
    logits = torch.randn(n, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for code in _UNCONSTRAINED_CODES:
        digits = code.encode(perms)
        errors = len(perms) - len(digits.unique(dim=0)) + int((code.decode(digits) != perms).sum())
        yield Claim(f"{code.__name__}: bijective onto its support, n = {n}", errors, 0)
        # logits that depend on the revealed digits
        probabilities = code_log_prob(
            lambda revealed: logits * (1 + revealed[:, :, None] % 3),
            digits,
            balanced_blocks(n, 3),
            code.support(n),
        ).exp()
        yield Claim(
            f"{code.__name__}: a network's probabilities sum to 1 in 3 passes",
            abs(float(probabilities.sum()) - 1),
            1e-10,
        )
    inversions = kendall_distance(perms)
    mismatches = Lehmer.encode(perms).sum(-1) != inversions
    mismatches |= (FisherYates.encode(perms) == 0).sum(-1) != num_cycles(perms)
    inverses = inverse(perms)
    # larger earlier values
    left_lehmer = (inverses.unsqueeze(-2) > inverses.unsqueeze(-1)).tril(-1).sum(-1)
    mismatches |= (Insertion.encode(perms) != torch.arange(n) - left_lehmer).any(-1)
    yield Claim(
        "sums are inversions, zeros cycles, insertion left Lehmer of the inverse",
        int(mismatches.sum()),
        0,
    )
    for m, share, inline in ((4, 0.3889, 0.0741), (5, 0.3038, 0.0234)):
        cycles = all_permutations(m)[num_cycles(all_permutations(m)) == 1]
        codes = FisherYates, Lehmer, Insertion, Inline
        encoded = [torch.nn.functional.one_hot(code.encode(cycles), m).double() for code in codes]
        # share of valid codes from a network with perfect marginals
        shares = [float((digits * digits.mean(0)).sum(-1).prod(-1).sum()) for digits in encoded]
        yield Claim(
            f"share of {m}-cycles sampled in one pass",
            _max_abs_error(shares, (1.0, share, share, inline)),
            5e-5,
        )


def _families(n: int) -> Iterator[Claim]:
    perms = all_permutations(n)
    distance = kendall_distance(perms).double()
    yield Claim(
        "Mallows",
        _max_difference(Mallows(n, 0.7).log_prob(perms).exp(), _normalise(0.7**distance)),
        1e-9,
    )
    rows = 0.7 ** (torch.arange(n)[:, None] - torch.arange(n)).double() * Insertion.support(n)
    rows = rows / rows.sum(-1, keepdim=True)
    insertion = rows.log()[torch.arange(n), Insertion.encode(perms)].sum(-1).exp()
    yield Claim(
        "repeated insertion as Mallows", _max_difference(insertion, _normalise(0.7**distance)), 1e-9
    )


def _draws(n: int, size: int) -> Iterator[Claim]:
    perms = all_permutations(n)
    streams = SampleStreams(0, torch.arange(size))
    for name, (shuffle, _) in _SHUFFLES.items():
        samples = shuffle.sample(n, size, 2, streams.step(0))
        yield Claim(f"samples: {name}, twice", _p_value(samples, shuffle.log_prob(perms, 2)), None)
    classical: dict[str, PermutationDistribution] = {"Mallows": Mallows(n, 0.5)}
    for step, (name, distribution) in enumerate((reverse_distributions(n) | classical).items(), 1):
        samples = distribution.sample(Size([size]), streams.step(step))
        yield Claim(f"samples: {name}", _p_value(samples, distribution.log_prob(perms)), None)


def _p_value(samples: Tensor, log_probs: Tensor) -> float:
    """Return the chi-square p-value of sampled permutations."""
    counts = np.bincount(lexicographic_rank(samples).numpy(), minlength=len(log_probs))
    return p_value(counts, log_probs.exp().numpy())


def _max_difference(probabilities: Tensor, expected: Tensor) -> float:
    return float((probabilities - expected).abs().max())


def _max_abs_error(values: Sequence[float], expected: Sequence[float]) -> float:
    return max(abs(a - b) for a, b in zip(values, expected, strict=True))


def _normalise(weights: Tensor) -> Tensor:
    return weights / weights.sum()
