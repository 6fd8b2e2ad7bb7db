"""What a network says about a few items exactly, in every order of its digits, by all partly masked codes."""

from __future__ import annotations

import math
from itertools import combinations

import torch
from torch import Tensor

from blackout.permutations.factorized import Denoiser, normalised, product_law

_AT_ONCE = 4096
MOST_ITEMS = 7
"""Most items for which all partly masked codes are looked at."""


def every_mask_nll(denoiser: Denoiser, codes: Tensor, support: Tensor) -> Tensor:
    """-log p in nats averaged over all orders of digits, exactly: `any_order_loss` without its noise, [B].

    A set M of masked digits counts with 1 / (|M| C(n, |M|)), summed over its cross-entropies. 2^n - 1 evaluations.
    """
    size, n = codes.shape
    total = torch.zeros(size, dtype=torch.float64, device=codes.device)
    for hidden in all_masks(n).to(codes.device)[1:]:
        log_probs = normalised(denoiser(codes.masked_fill(hidden, n)), support)
        found = -log_probs.gather(2, codes.unsqueeze(-1)).squeeze(-1).double()
        masked = int(hidden.sum())
        total += found[:, hidden].sum(1) / (masked * math.comb(n, masked))
    return total


def all_masks(n: int) -> Tensor:
    """Every set of n digits, bool [2^n, n]; row r holds the bits of r."""
    return (torch.arange(2**n).unsqueeze(-1) >> torch.arange(n)) % 2 == 1


class ExactLaw:
    """The probabilities that a network gives codes, for every order and number of passes, from one table.

    Every partly masked code is looked at once: at most 40,320 evaluations for 7 items (inline: those of permutations).

    Args:
        denoiser: of `blackout.permutations.factorized`.
        codes: those of interest, int64 [M, n]; all of a free code make a law whose sum is 1.
        support: bool [n, n].

    Raises:
        ValueError: more than 7 items.
    """

    def __init__(self, denoiser: Denoiser, codes: Tensor, support: Tensor) -> None:
        n = codes.shape[1]
        if n > MOST_ITEMS:
            raise ValueError(f"laws are exact to {MOST_ITEMS} items, not for {n}")
        masks = all_masks(n).to(codes.device)
        partly = codes.unsqueeze(1).masked_fill(masks, n)  # [M, 2^n, n]
        weights = (n + 1) ** torch.arange(n, device=codes.device)
        keys, which = (partly * weights).sum(-1).unique(return_inverse=True)
        states = (keys.unsqueeze(-1) // weights) % (n + 1)
        table = [normalised(denoiser(part), support).double() for part in states.split(_AT_ONCE)]
        places = torch.arange(n, device=codes.device)
        self._terms = torch.cat(table)[which.unsqueeze(-1), places, codes.unsqueeze(1)]  # [M, 2^n, n]
        self.length = n

    def log_prob(self, blocks: list[list[int]]) -> Tensor:
        """log p of every code for one partition into blocks, float64 [M]."""
        hidden, total = 2**self.length - 1, torch.zeros(len(self._terms), dtype=torch.float64)
        for block in blocks:
            total = total + self._terms[:, hidden, block].sum(1).cpu()
            hidden -= sum(1 << place for place in block)
        return total

    def mixture(self, passes: int, random: bool = True) -> Tensor:
        """p of every code where each sample has a random order of its own, float64 [M]; or for that from the left."""
        ways = partitions(self.length, passes) if random else [left_to_right(self.length, passes)]
        return torch.stack([self.log_prob(blocks).exp() for blocks in ways]).mean(0)


def left_to_right(n: int, passes: int) -> list[list[int]]:
    """Balanced blocks of 0..n-1."""
    return [block.tolist() for block in torch.arange(n).tensor_split(passes)]


def partitions(n: int, passes: int) -> list[list[list[int]]]:
    """All ordered partitions of 0..n-1 into balanced blocks."""
    found: list[list[list[int]]] = [[]]
    for block in left_to_right(n, passes):
        found = [
            [*before, list(chosen)]
            for before in found
            for chosen in combinations(sorted(set(range(n)) - {i for part in before for i in part}), len(block))
        ]
    return found


def perfect_mass(codes: Tensor, passes: int, points: Tensor | None = None, random: bool = True) -> float:
    """What a perfect network gives `points` (the data's codes [M, n] themselves), averaged over random orders."""
    n = codes.shape[1]
    ways = partitions(n, passes) if random else [left_to_right(n, passes)]
    masses = [float(product_law(codes, [torch.tensor(b) for b in blocks], points).sum()) for blocks in ways]
    return sum(masses) / len(masses)
