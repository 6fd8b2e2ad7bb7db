"""Binomial draws of counts up to 255, looked up in tables of their distribution functions.

All counts of a sample (while sampling, of a whole batch) share one probability p, so a table of the distribution
functions of Binomial(n, p) for n = 0, 1, ... serves thousands of draws. A draw is one uniform and a bisection: nothing
is rejected and no length depends on the numbers drawn, so on an accelerator nothing waits for the host.
"""

from __future__ import annotations

from functools import lru_cache
from types import ModuleType
from typing import TypeAlias

import torch
from torch import Tensor

from blackout.random.streams import Draw, can_look

_CHUNK = 36_864
"""Elements drawn together on a CPU: with their tables and temporaries they stay in a core's cache."""
_TOGETHER = 64
"""Samples on an accelerator whose tables of all n, half a megabyte each, are there at once."""
_SMALL = 0.04
"""Below this probability all n have short tables and are not divided."""
_NEVER = 38.0
"""e^-38 = 3e-17 is below the spacing of the uniforms: counts rarer than that are not tabulated."""
_WHOLE = ((0, 255),)
_DIVIDED = ((4, 15), (0, 15))
"""Digits of n as (shift, mask). n = 16 a + b needs only small tables: a sum of independent binomials is binomial."""

Digits: TypeAlias = tuple[tuple[int, int], ...]


def binomial_by_table(draw: Draw, n: Tensor, p: Tensor, flipped: Tensor, kernels: ModuleType | None = None) -> Tensor:
    """Binomial(n, p) by inversion, or n less that where `flipped`.

    Args:
        draw: uniforms of a draw of n's shape.
        n: uint8 [B, ...].
        p: float64, at most 1/2; a scalar, or one per sample [B].
        flipped: bool of p's shape.
        kernels: `blackout.random.triton_draws` or `.numba_draws`, to look up in one kernel per digit of n.

    Returns:
        uint8 of n's shape.
    """
    flat = n.reshape(len(n), -1).contiguous()
    if not can_look(n):
        return _without_looking(draw, flat, p, flipped, kernels).view(n.shape)
    drawn, size = torch.empty_like(flat), max(1, _CHUNK // max(1, flat.shape[1]))
    largest = int(n.max()) if n.numel() else 0
    if p.ndim == 0:
        digits = _WHOLE if p < _SMALL else _DIVIDED
        tables = _tables(p.view(1), largest, digits)
        for i in range(0, len(flat), size):
            part = slice(i, i + size)
            drawn[part] = _look_up(draw.samples(part), flat[part], flipped, digits, tables, kernels)
        return drawn.view(n.shape)
    order, few = p.argsort(), int((p < _SMALL).sum())  # tables of like length are made together
    for digits, ranks in ((_WHOLE, order[:few]), (_DIVIDED, order[few:])):
        for which in ranks.split(size) if len(ranks) else ():
            tables = _tables(p[which], largest, digits)
            some = flat.index_select(0, which)
            found = _look_up(draw.samples(which), some, flipped[which], digits, tables, kernels)
            drawn.index_copy_(0, which, found)
    return drawn.view(n.shape)


def _without_looking(draw: Draw, n: Tensor, p: Tensor, flipped: Tensor, kernels: ModuleType | None) -> Tensor:
    """What a CPU draws, where asking which probabilities are small would be a wait: both ways, of which one counts."""
    drawn, size = torch.empty_like(n), _TOGETHER if p.ndim else max(1, len(n))
    for i in range(0, len(n), size):
        part = slice(i, i + size)
        own, turned = (p[part], flipped[part]) if p.ndim else (p, flipped)
        whole, divided = (
            _look_up(draw.samples(part), n[part], turned, digits, _tables(own.view(-1), 255, digits), kernels)
            for digits in (_WHOLE, _DIVIDED)
        )
        drawn[part] = torch.where((own < _SMALL)[..., None], whole, divided)
    return drawn


def _tables(p: Tensor, largest: int, digits: Digits) -> list[Tensor]:
    """P(Binomial(n, p) <= k) for each digit of n = 0 .. largest, float64 [len(p), rows, columns] over (p, n, k)."""
    stays = torch.log1p(-p)[:, None, None]
    log_odds = torch.log(p.clamp(min=1e-300))[:, None, None] - stays
    greatest = float(p.max()) if can_look(p) else None
    ways, counts = _log_ways(p.device), _counts(p.device)
    tables = []
    for shift, mask in digits:
        rows = min(mask, largest >> shift) + 1
        most = (rows - 1) << shift
        columns = most + 1 if greatest is None else _columns(greatest, most)
        n = slice(0, most + 1, 1 << shift)
        log_mass = (ways[n, :columns] + counts[n, None] * stays).add_(counts[:columns] * log_odds)
        tables.append(log_mass.exp_().cumsum_(-1))
    return tables


def _look_up(
    draw: Draw, n: Tensor, flipped: Tensor, digits: Digits, tables: list[Tensor], kernels: ModuleType | None = None
) -> Tensor:
    """One bisection per digit of n, uint8 [B, E], each with uniforms of its own."""
    drawn = torch.zeros_like(n)
    for attempt, ((shift, mask), table) in enumerate(zip(digits, tables, strict=True)):
        samples, rows, columns = table.shape
        if columns == 1:
            continue
        if kernels:
            drawn += kernels.bisect(draw.keys, table, (n >> shift) & mask, attempt)
            continue
        start = ((n >> shift) & mask).to(torch.int32).mul_(columns)
        if samples > 1:
            start += torch.arange(samples, dtype=torch.int32, device=n.device)[:, None] * (rows * columns)
        drawn += _bisect(table, start, draw.uniform(tuple(n.shape), attempt))
    drawn = torch.minimum(drawn, n)  # where P(X <= n) fell short of 1 by rounding
    return torch.where(flipped[..., None], n - drawn, drawn)


@lru_cache
def _counts(device: torch.device) -> Tensor:
    return torch.arange(256, dtype=torch.float64, device=device)


@lru_cache
def _log_ways(device: torch.device) -> Tensor:
    """log(n! / k! (n - k)!) [256, 256] over (n, k), -inf for k > n."""
    k = _counts(device)
    n = k[:, None]
    ways = torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma((n - k).clamp_(min=0) + 1)
    return ways.masked_fill_(k > n, -torch.inf)


def _bisect(table: Tensor, start: Tensor, uniform: Tensor) -> Tensor:
    """The least k with uniform <= P(X <= k), or the last; `start` is where P(X <= 0) is in `table` [..., columns]."""
    values, at, uniform = table.view(-1), start.view(-1), uniform.view(-1)
    drawn = torch.zeros_like(at, dtype=torch.uint8)
    left = table.shape[-1]
    while left > 1:
        half = left // 2
        above = values.index_select(0, at + (half - 1)) < uniform
        at.add_(above, alpha=half)
        drawn.add_(above, alpha=half)
        left -= half
    return drawn.view(start.shape)


def _columns(p: float, largest: int) -> int:
    """How many k to tabulate: P(Binomial(largest, p) >= columns) < e^-38 by Chernoff's bound, for p <= 1/2."""
    if p * largest == 0:
        return 1
    least = int(p * largest) + 1
    x = torch.arange(least, largest + 1, dtype=torch.float64) / largest
    exponent = largest * (torch.xlogy(x, x / p) + torch.xlogy(1 - x, (1 - x) / (1 - p)))  # rises with x from p on
    return least + int((exponent <= _NEVER).sum())
