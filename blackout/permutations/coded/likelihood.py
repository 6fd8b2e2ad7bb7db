"""Exact likelihoods of codes that are drawn block after block, as in `decoding.py`.

References: Severo et al. 2025, eq. 2.
"""

from __future__ import annotations

import math
from itertools import combinations
from typing import Literal

import torch
from torch import Tensor

from blackout.errors import ensure
from blackout.permutations.coded.decoding import BlockRule, Blocks, balanced_blocks
from blackout.permutations.coded.denoiser import Denoiser, digit_log_probs, log_softmax_on_support

LikelihoodKind = Literal["exact", "upper bound"]

MAX_EXACT_ITEMS = 7  # items up to which all 2^n sets of masked digits are enumerated
TABLE_BATCH = 4096  # partly masked codes in one network evaluation of `exact_mixture`


def code_log_prob(
    denoiser: Denoiser,
    codes: Tensor,
    blocks: Blocks | BlockRule,
    support: Tensor,
    passes: int | None = None,
) -> Tensor:
    """Return the exact log-probability of codes that are drawn block by block, [B], in nats.

    Args:
        denoiser: codes [B, n] -> logits [B, n, n], see `Denoiser`.
        codes: int64 [B, n].
        blocks: one per pass (`balanced_blocks`), or a rule for the next one
            (`most_certain_digits`), which depends on the earlier digits.
        support: bool [n, n].
        passes: number of passes; needed with a rule only.

    References: Severo et al. 2025, eq. 2.
    """
    partial = torch.full_like(codes, codes.shape[-1])
    total = torch.zeros(len(codes), device=codes.device)
    num_passes = passes if callable(blocks) else len(blocks)
    assert num_passes is not None
    for i in range(num_passes):
        log_probs = log_softmax_on_support(denoiser(partial), support)
        block = blocks(log_probs, partial, num_passes - i) if callable(blocks) else blocks[i]
        positions = block.to(codes.device).expand(len(codes), -1)
        digits = codes.gather(1, positions)
        rows = log_probs.expand(len(codes), -1, -1).take_along_dim(positions.unsqueeze(-1), 1)
        total = total + rows.gather(2, digits.unsqueeze(-1)).squeeze(-1).sum(1)
        partial = partial.scatter(1, positions, digits)
    return total


def mixture_nll(denoiser: Denoiser, codes: Tensor, support: Tensor, passes: int) -> Tensor:
    """Return -log p of codes whose digits are drawn in a random order, float64 [B], nats.

    Every code has its own random order, and perhaps its own context. The result is exact, with
    2^n - 1 network evaluations per code.

    Args:
        denoiser: codes [B, n] -> logits [B, n, n], see `Denoiser`.
        codes: int64 [B, n].
        support: bool [n, n].
        passes: 1..n.

    Raises:
        ValueError: more than 7 items.

    References: Severo et al. 2025, eq. 2, summed; checked in
        tests/permutations/coded/test_model.py.
    """
    n = codes.shape[1]
    _check_enumerable(n)
    terms = torch.zeros(len(codes), 2**n, n, dtype=torch.float64)
    for row, is_masked in enumerate(all_masks(n).to(codes.device)):
        if row == 0:
            continue  # no digit is masked
        partial = codes.masked_fill(is_masked, n)
        terms[:, row] = digit_log_probs(denoiser, partial, codes, support).double().cpu()
    return -log_mixture(terms, passes, random_order=True).to(codes.device)


def exact_mixture(
    denoiser: Denoiser, codes: Tensor, support: Tensor, passes: int, *, random_order: bool = True
) -> Tensor:
    """Return the probability of codes when every sample has a random order of digits, float64 [M].

    Every partly masked code is evaluated once, at most 40,320 for 7 items (130,922 of inline
    codes); then see `log_mixture`.

    Args:
        denoiser: codes [B, n] -> logits [B, n, n], with one context or none.
        codes: int64 [M, n]; the probabilities of all codes of a free code sum to 1.
        support: bool [n, n].
        passes: 1..n.
        random_order: whether orders are random; else from left to right.

    Raises:
        ValueError: more than 7 items.

    References: Severo et al. 2025, eq. 2, averaged over ordered partitions into balanced blocks.
    """
    n = codes.shape[1]
    _check_enumerable(n)
    # 1. distinct partly masked codes, by a key to the base n + 1
    partial = codes.unsqueeze(1).masked_fill(all_masks(n).to(codes.device), n)  # [M, 2^n, n]
    weights = (n + 1) ** torch.arange(n, device=codes.device)
    keys, index = (partial * weights).sum(-1).unique(return_inverse=True)
    states = (keys.unsqueeze(-1) // weights) % (n + 1)
    # 2. log-probabilities of all their digits
    table = torch.cat(
        [
            log_softmax_on_support(denoiser(part), support).double()
            for part in states.split(TABLE_BATCH)
        ]
    )
    digits = torch.arange(n, device=codes.device)
    terms = table[index.unsqueeze(-1), digits, codes.unsqueeze(1)].cpu()  # [M, 2^n, n]
    # 3. average over orders
    return log_mixture(terms, passes, random_order=random_order).exp()


def _check_enumerable(n: int) -> None:
    """Refuse more items than all sets of masked digits are enumerated for."""
    ensure(
        n <= MAX_EXACT_ITEMS,
        f"exact probabilities are available for at most {MAX_EXACT_ITEMS} items, not {n}",
    )


def log_mixture(terms: Tensor, passes: int, *, random_order: bool) -> Tensor:
    """Return the log-probability of codes, averaged over ordered partitions into balanced blocks.

    Dynamic programming over sets of masked digits, from all digits to none.

    Args:
        terms: log-probability of every digit when the digits in the bits of row r are masked,
            float64 [M, 2^n, n].
        passes: number of blocks.
        random_order: whether all orders count equally; else the order is from left to right.

    Returns:
        float64 [M].

    References: Severo et al. 2025, eq. 2; checked in tests/permutations/coded/test_model.py.
    """
    n = terms.shape[-1]
    # {masked digits: log-probability of the digits drawn so far}
    log_masses: dict[tuple[int, ...], Tensor] = {tuple(range(n)): terms.new_zeros(len(terms))}
    for block in balanced_blocks(n, passes):
        previous = log_masses
        log_masses = {}
        for masked, log_mass in previous.items():
            size = len(block)
            subsets = list(combinations(masked, size)) if random_order else [masked[:size]]
            digit_terms = terms[:, sum(1 << i for i in masked)]
            for subset in subsets:
                still_masked = tuple(sorted({*masked} - {*subset}))
                block_log_prob = digit_terms[:, list(subset)].sum(1)
                new_log_mass = log_mass + block_log_prob - math.log(len(subsets))
                if still_masked in log_masses:
                    new_log_mass = torch.logaddexp(log_masses[still_masked], new_log_mass)
                log_masses[still_masked] = new_log_mass
    return log_masses[()]


def all_masks(n: int) -> Tensor:
    """Return all sets of masked digits, bool [2^n, n]; row r has the bits of r."""
    return (torch.arange(2**n).unsqueeze(-1) >> torch.arange(n)) % 2 == 1
