"""Brute force on S_n for n small: numbers of permutations, chi-square, products of laws."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from blackout.laws.draws import p_value
from blackout.permutations import all_permutations, compose


def number(orders: Tensor) -> Tensor:
    """The place of every permutation [..., n] in lexicographic order, int64 [...]; n so small that n^n fits."""
    n = orders.shape[-1]
    digits = n ** torch.arange(n - 1, -1, -1)
    keys = (all_permutations(n) * digits).sum(-1)
    where = torch.searchsorted(keys, (orders * digits).sum(-1)).clamp(max=len(keys) - 1)
    assert torch.equal(all_permutations(n)[where], orders)
    return where


def assert_draws(orders: Tensor, law: Tensor) -> None:
    """Chi-square of draws [N, n] against probabilities [n!] in lexicographic order."""
    counts = np.bincount(number(orders).numpy(), minlength=len(law))
    assert p_value(counts, law.double().numpy()) > 1e-4


def convolve(law: Tensor, step: Tensor, n: int) -> Tensor:
    """The law [n!] of compose(p, s), p and s independent of these laws."""
    perms = all_permutations(n)
    to = number(compose(perms[:, None, :], perms[None, :, :]))
    return torch.zeros_like(law).index_add_(0, to.flatten(), (law[:, None] * step[None, :]).flatten())


def point(n: int) -> Tensor:
    """All mass on the identity, float64 [n!]."""
    law = torch.zeros(math.factorial(n), dtype=torch.float64)
    law[0] = 1
    return law
