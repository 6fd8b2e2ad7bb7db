"""Distributions over codes in any number of passes of one network [Severo 2025, section 4].

A denoiser is any function of codes int64 [B, n], with n where a digit is masked, to logits [B, n, n] of every digit's
values. A partition of the digits into ordered blocks makes it a distribution: block after block, the digits of a block
are drawn independently given all before, one pass of the network each. Logits outside the support are never used, so
that with a free code (`blackout.permutations.codes`) every draw is a permutation and probabilities sum to 1, whatever
the network says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from blackout.errors import ensure
from blackout.random import RandomSource, categorical, uniform

Denoiser: TypeAlias = Callable[[Tensor], Tensor]
Blocks: TypeAlias = Sequence[Tensor]
"""Places int64 [s], or [B, s] where every sample has its own, of one pass after another."""
Choice: TypeAlias = Callable[[Tensor, Tensor, int], Tensor]
"""(log-probabilities [B, n, n], codes [B, n], passes left) -> the places [B, s] of the next pass."""


def partition(n: int, passes: int, order: Tensor | None = None) -> list[Tensor]:
    """Balanced blocks: sizes differ by at most 1, the larger first.

    Args:
        order: of the digits, int64 [n] or [B, n]; None is from left to right.

    Returns:
        `passes` tensors int64 [s] or [B, s].

    Raises:
        ValueError: passes outside 1..n, or an order of another length.
    """
    ensure(1 <= passes <= n, f"the number of passes must be 1..{n}, not {passes}")
    order = torch.arange(n) if order is None else order
    ensure(order.shape[-1] == n, f"an order of {n} digits is needed, not of {order.shape[-1]}")
    return list(order.tensor_split(passes, dim=-1))


def code_log_prob(denoiser: Denoiser, codes: Tensor, blocks: Blocks, support: Tensor) -> Tensor:
    """The exact log-probability of codes for one partition, [B]: one pass per block, earlier blocks shown.

    [Severo 2025, eq. 2].

    Args:
        codes: int64 [B, n].
        blocks: see `partition`.
        support: bool [n, n].
    """
    shown = torch.full_like(codes, codes.shape[-1])
    total = torch.zeros(len(codes), device=codes.device)
    for block in blocks:
        places = block.to(codes.device).expand(len(codes), -1)
        total = total + digit_log_probs(denoiser, shown, codes, support).gather(1, places).sum(1)
        shown = shown.scatter(1, places, codes.gather(1, places))
    return total


@torch.no_grad()
def fill_codes(
    denoiser: Denoiser,
    codes: Tensor,
    blocks: Blocks | Choice,
    passes: int,
    support: Tensor,
    generator: RandomSource = None,
    *,
    greedy: bool = False,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Fill the masked digits of codes, a block a pass [Severo 2025, section 4]; after each the codes, and log p so far.

    Args:
        codes: int64 [size, n], n where a digit is to be drawn.
        blocks: one a pass (`partition`), or a choice of the next one (`most_certain`).
        passes: how many; the last one leaves no digit masked if the blocks cover them.
        support: bool [n, n].
        greedy: take the most probable value instead of drawing.

    Yields:
        (codes, log-probability [size] of all digits drawn so far, in nats).
    """
    n, total = codes.shape[1], torch.zeros(len(codes), device=codes.device)
    for number in range(passes):
        log_probs = normalised(denoiser(codes), support)
        block = blocks(log_probs, codes, passes - number) if callable(blocks) else blocks[number].to(codes.device)
        places = block.expand(len(codes), -1)
        rows, known = log_probs.take_along_dim(places.unsqueeze(-1), 1), codes.gather(1, places)
        drawn = rows.argmax(-1) if greedy else categorical(rows.exp(), generator)
        own = rows.gather(2, drawn.unsqueeze(-1)).squeeze(-1)
        total = total + own.masked_fill(known != n, 0.0).sum(1)
        codes = codes.scatter(1, places, torch.where(known == n, drawn, known))
        yield codes, total


def most_certain(log_probs: Tensor, codes: Tensor, passes_left: int) -> Tensor:
    """The masked digits whose most probable value is most probable: a balanced share of those left, [B, s].

    [Chang 2022, section 3.2], without its noise.

    Args:
        log_probs: of every digit's values, [B, n, n].
        codes: int64 [B, n], n where masked.
        passes_left: this one included.
    """
    masked = codes == codes.shape[1]
    certainty = log_probs.amax(-1).masked_fill(~masked, -torch.inf)
    size = -(-int(masked.sum(1).max()) // passes_left)
    return certainty.argsort(dim=1, descending=True, stable=True)[:, :size]


def any_order_loss(denoiser: Denoiser, codes: Tensor, support: Tensor, generator: RandomSource = None) -> Tensor:
    """An unbiased estimate of -log p in nats averaged over all orders of digits, [B].

    m uniform on 1..n, m digits chosen uniformly are masked: (n / m) times the sum of their cross-entropies
    [Uria 2014]; it is the bound of masked diffusion with a linear schedule. At least the entropy of the data.

    Args:
        codes: int64 [B, n].
        support: bool [n, n].
    """
    size, n = codes.shape
    u = uniform((size, n + 1), generator, codes.device)
    masked_number = 1 + (u[:, :1] * n).long()
    hidden = u[:, 1:].argsort(dim=1).argsort(dim=1) < masked_number
    found = -digit_log_probs(denoiser, codes.masked_fill(hidden, n), codes, support)
    return (found.masked_fill(~hidden, 0.0).sum(1) * n) / masked_number.squeeze(1)


def autoregressive_loss(denoiser: Denoiser, codes: Tensor, support: Tensor) -> Tensor:
    """-log p in nats, digit by digit from the left, in one pass, [B] [Severo 2025, eq. 2 with blocks of one digit].

    The denoiser must be causal: its logits of digit i may depend on digits before i only. Then this is what n passes of
    `code_log_prob` from left to right give.
    """
    return -digit_log_probs(denoiser, codes, codes, support).sum(1)


def digit_log_probs(denoiser: Denoiser, shown: Tensor, codes: Tensor, support: Tensor) -> Tensor:
    """log p of every digit of codes int64 [B, n] by what a denoiser says of those shown, [B, n]."""
    return normalised(denoiser(shown), support).gather(2, codes.unsqueeze(-1)).squeeze(-1)


def normalised(logits: Tensor, support: Tensor) -> Tensor:
    """Log-softmax over the support, bool [n, n], of logits [B, n, n], of the same shape; float32 at least."""
    precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return precise.masked_fill(~support.to(logits.device), -torch.inf).log_softmax(-1)
