"""Brute force on S_n for n small: shuffles by their definitions, reverse chains on all n! states.

Laws are float64 [n!], in the lexicographic order of `all_permutations`.
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import torch
from torch import Tensor

from blackout.files import replacing
from blackout.permutations import all_permutations, compose, inverse
from blackout.permutations.distributions import GeneralizedPlackettLuce
from blackout.permutations.group import number


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


def laws_of_chain(target: Tensor, n: int) -> Tensor:
    """The laws [steps + 1, n!] that a chain of generalised Plackett-Luce steps goes through from uniform to `target`.

    With scores of -inf one step can lead from a state to one other, or to two that differ in the last two places, with
    any odds (Zhang et al. 2025, theorem 6, corrected: shares are of p(sigma) + p(pi)). All mass first goes to one
    carrier; pair after pair (sigma, pi) it leaves p(sigma) + p(pi) behind, which the next step splits. n >= 2.
    """
    perms = all_permutations(n)
    sigma = number(perms[perms[:, -2] < perms[:, -1]])
    swapped = perms[sigma].clone()
    swapped[:, -2:] = perms[sigma][:, -2:].flip(-1)
    pi = number(swapped)
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


def plot_chain(target: Tensor, n: int, path: Path) -> None:
    """Draw the laws of `laws_of_chain`, a row of bars for each step."""
    from matplotlib.figure import Figure  # only here: importing it takes a second

    laws, names = laws_of_chain(target, n), ["".join(map(str, p)) for p in (all_permutations(n) + 1).tolist()]
    figure = Figure(figsize=(1.3 * len(laws), 2.2), layout="constrained")
    for step, (axes, law) in enumerate(zip(figure.subplots(1, len(laws), sharey=True), laws.tolist(), strict=True)):
        axes.bar(names, law, color="tab:blue" if step + 1 < len(laws) else "tab:green")
        axes.bar(names, target.tolist(), fill=False, edgecolor="black", linewidth=0.7)
        axes.tick_params("x", rotation=90, labelsize=7)
        axes.set_title("uniform" if step == 0 else f"step {step}", fontsize=9)
    with replacing(path) as part:
        figure.savefig(part, format="png", dpi=110)


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
