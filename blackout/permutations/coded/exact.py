"""What a network says about a few items exactly, in every order of its digits, by all partly masked codes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor

from blackout.permutations.factorized import Denoiser, normalised, partition

MOST_ITEMS = 7
"""Most items for which all partly masked codes are looked at."""
_TABLE_AT_ONCE = 4096


def every_mask_nll(denoiser: Denoiser, codes: Tensor, support: Tensor) -> Tensor:
    """-log p in nats averaged over all orders of digits, exactly: `any_order_loss` without its noise, [B].

    A set M of masked digits counts with 1 / (|M| C(n, |M|)), summed over its cross-entropies. 2^n - 1 evaluations.
    [Uria 2014], summed over the masks; ours, checked in `tests.permutations.coded.test_model`.

    Args:
        codes: int64 [B, n].
        support: bool [n, n].
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

    [Severo 2025, eq. 2]. Every partly masked code is looked at once: at most 40,320 evaluations for 7 items (inline:
    those of permutations).

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
        partly = codes.unsqueeze(1).masked_fill(all_masks(n).to(codes.device), n)  # [M, 2^n, n]
        weights = (n + 1) ** torch.arange(n, device=codes.device)
        keys, which = (partly * weights).sum(-1).unique(return_inverse=True)
        states = (keys.unsqueeze(-1) // weights) % (n + 1)
        table = [normalised(denoiser(part), support).double() for part in states.split(_TABLE_AT_ONCE)]
        places = torch.arange(n, device=codes.device)
        self._terms = torch.cat(table)[which.unsqueeze(-1), places, codes.unsqueeze(1)]  # [M, 2^n, n]
        self.length = n

    def log_prob(self, blocks: Sequence[Tensor]) -> Tensor:
        """log p of every code for one partition into blocks, float64 [M]."""
        hidden, total = 2**self.length - 1, torch.zeros(len(self._terms), dtype=torch.float64)
        for block in blocks:
            total = total + self._terms[:, hidden, block.to(self._terms.device)].sum(1).cpu()
            hidden -= int((1 << block).sum())
        return total

    def mixture(self, passes: int, random: bool = True) -> Tensor:
        """p of every code where each sample has a random order of its own, float64 [M]; or for that from the left."""
        return torch.stack([self.log_prob(way).exp() for way in partitions(self.length, passes, random)]).mean(0)


def partitions(n: int, passes: int, random: bool = True) -> list[list[Tensor]]:
    """All ordered partitions of 0..n-1 into balanced blocks; or only that from left to right."""
    left_to_right = partition(n, passes)
    if not random:
        return [left_to_right]
    found: list[list[Tensor]] = [[]]
    for block in left_to_right:
        found = [
            [*before, torch.tensor(chosen)]
            for before in found
            for chosen in combinations(
                sorted(set(range(n)) - {i for part in before for i in part.tolist()}), len(block)
            )
        ]
    return found
