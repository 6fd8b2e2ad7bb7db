"""Brute force on S_n for n small: shuffles by their definitions, reverse chains on all n! states.

Laws are float64 [n!], in the lexicographic order of `all_permutations`.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from blackout.permutations import all_permutations, compose, inverse
from blackout.permutations.distributions import GeneralizedPlackettLuce


def number(orders: Tensor) -> Tensor:
    """The place of every permutation [..., n] in lexicographic order, int64 [...]."""
    n = orders.shape[-1]
    digits = n ** torch.arange(n - 1, -1, -1)
    return torch.searchsorted((all_permutations(n) * digits).sum(-1), (orders * digits).sum(-1))


def point(n: int) -> Tensor:
    """All mass on the identity."""
    law = torch.zeros(math.factorial(n), dtype=torch.float64)
    law[0] = 1
    return law


def transitions(step: Tensor, n: int) -> Tensor:
    """P(compose(x, s) | x) [n!, n!] when s has the law `step`."""
    perms = all_permutations(n)
    return step[number(compose(inverse(perms)[:, None, :], perms[None, :, :]))]


def one_riffle(n: int) -> Tensor:
    """Cut by a binomial number, drop cards one by one: every sequence of drops, with its probability."""
    law = torch.zeros(math.factorial(n), dtype=torch.float64)
    for cut in range(n + 1):
        for lefts in itertools.combinations(range(n), cut):
            probability, left, right, deck = math.comb(n, cut) / 2**n, 0, cut, list[int]()
            for place in range(n):
                from_left, share = place in lefts, (cut - left) / (n - place)
                probability *= share if from_left else 1 - share
                deck.append(left if from_left else right)
                left, right = left + from_left, right + (not from_left)
            law[number(torch.tensor(deck))] += probability
    return law


def one_transposition(n: int) -> Tensor:
    """Two hands, every pair of cards."""
    law = torch.zeros(math.factorial(n), dtype=torch.float64)
    for i, j in itertools.product(range(n), repeat=2):
        deck = list(range(n))
        deck[i], deck[j] = deck[j], deck[i]
        law[number(torch.tensor(deck))] += 1 / n**2
    return law


def one_insertion(n: int) -> Tensor:
    """The last card in front of every card in turn."""
    law = torch.zeros(math.factorial(n), dtype=torch.float64)
    for i in range(n):
        deck = list(range(n - 1))
        deck.insert(i, n - 1)
        law[number(torch.tensor(deck))] += 1 / n
    return law


def bound_of_exact_reverse(steps: list[Tensor], n: int) -> float:
    """The lower bound of log p(identity), in nats, when every reverse law is the exact one.

    -log n! + E[sum over steps of log p(x_{i-1} | x_i) - log q(x_i | x_{i-1})], all data being the identity: it equals
    minus the divergence of the last law from uniform.

    Args:
        steps: the laws of the increments.
    """
    law, total = point(n), -math.lgamma(n + 1)
    for step in steps:
        forward = transitions(step, n)
        joint = law[:, None] * forward
        after = joint.sum(0)
        reverse = joint / after.clamp(min=1e-300)
        happens = joint > 0
        total += float((joint * (reverse.log() - forward.log()))[happens].sum())
        law = after
    return total


def reached_by_chain(target: Tensor, n: int) -> Tensor:
    """The law that a chain of generalised Plackett-Luce steps reaches from uniform, made to be `target`; n >= 2.

    With scores of -inf one step can lead from a state to one other, or to two that differ in the last two places, with
    any odds (Zhang et al. 2025, theorem 6, corrected: shares are of p(sigma) + p(pi)). All mass first goes to one
    carrier; pair after pair (sigma, pi) it leaves p(sigma) + p(pi) behind, which the next step splits.
    """
    perms = all_permutations(n)
    sigma = number(perms[perms[:, -2] < perms[:, -1]])
    swapped = perms[sigma].clone()
    swapped[:, -2:] = perms[sigma][:, -2:].flip(-1)
    pi = number(swapped)
    stay, whole = torch.arange(len(perms)), torch.ones(len(perms), dtype=torch.float64)
    law = whole / len(perms) @ _step(sigma[0].expand(len(perms)), whole, n)
    kept = target[sigma] + target[pi]
    left = kept.flip(0).cumsum(0).flip(0)
    for i in range(len(sigma)):
        odds, to = whole.clone(), stay.clone()
        if i + 1 < len(sigma):
            odds[sigma[i]] = _share(kept[i], left[i])
            law = law @ _step(stay, odds, n)
            to[pi[i]] = sigma[i + 1]
        odds = whole.clone()
        odds[sigma[i]] = _share(target[sigma[i]], kept[i])
        law = law @ _step(to, odds, n)
    return law


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
