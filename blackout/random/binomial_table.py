"""Binomial draws of uint8 counts by inversion of tabulated distribution functions.

A table pays where many elements share p. It is made for the digits of n = 16 a + b: a sum of
independent binomials with one p is binomial, so that small tables for a and b suffice. Only where p
is so small that all tables are short is n looked up undivided.

References: this project; checked in tests/random/test_binomial_table.py.
"""

from __future__ import annotations

from functools import lru_cache
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from blackout.random.discrete import inverse_cdf
from blackout.random.streams import Draw, can_read_values

MIN_ELEMENTS = 64  # elements per sample from which a table is faster than a draw for each
CHUNK_ELEMENTS = 36_864  # drawn together on a CPU: with tables and temporaries they fit its cache
DEVICE_SAMPLES = 64  # samples on an accelerator with tables at once; each sample's take 0.5 MiB
SMALL_PROBABILITY = 0.04  # below this, tables of all n are short and n is not divided
MAX_NATS = 38.0  # e^-38 = 3e-17 is below the spacing of uniforms; rarer counts are not tabulated


class Digit(NamedTuple):
    """A digit of the number of trials n: (n >> shift) & mask."""

    shift: int
    mask: int


UNDIVIDED = (Digit(0, 255),)
BASE_16 = (Digit(4, 15), Digit(0, 15))


def has_table(n: Tensor, p: Tensor) -> bool:
    """Return whether a table is faster: for many uint8 counts per sample with a common p."""
    if n.dtype != torch.uint8 or n.ndim == 0 or n[:1].numel() < MIN_ELEMENTS:
        return False
    if p.ndim == 0:
        return True
    return p.ndim == n.ndim and p.numel() == p.shape[0] and p.shape[0] in (1, len(n))


def binomial_by_table(
    draw: Draw,
    n: Tensor,
    p: Tensor,
    is_flipped: Tensor,
    kernels: ModuleType | None = None,
) -> Tensor:
    """Draw Binomial(n, p) from tables; where `is_flipped`, return n minus the draw.

    Args:
        draw: random numbers.
        n: uint8 [B, ...].
        p: at most 1/2, float64; a scalar, or one per sample [B].
        is_flipped: bool of p's shape.
        kernels: `blackout.random.triton_draws`, to look up each digit in one kernel.

    Returns:
        uint8 of n's shape.
    """
    flat_n = n.reshape(len(n), -1).contiguous()
    if can_read_values(n):
        counts = _draw_sorted(draw, flat_n, p, is_flipped, kernels)
    else:
        counts = _draw_both(draw, flat_n, p, is_flipped, kernels)
    return counts.view(n.shape)


def _draw_sorted(
    draw: Draw,
    n: Tensor,
    p: Tensor,
    is_flipped: Tensor,
    kernels: ModuleType | None,
) -> Tensor:
    """Draw in chunks of samples with similar p, whose tables have similar lengths; uint8 [B, E]."""
    counts = torch.empty_like(n)
    chunk_samples = max(1, CHUNK_ELEMENTS // max(1, n.shape[1]))
    max_n = int(n.max()) if n.numel() else 0
    if p.ndim:
        order = p.argsort()
        num_small = int((p < SMALL_PROBABILITY).sum())
    else:
        order = torch.arange(len(n))
        num_small = len(n) if p < SMALL_PROBABILITY else 0

    for digits, rows in ((UNDIVIDED, order[:num_small]), (BASE_16, order[num_small:])):
        if len(rows) == 0:
            continue
        for chunk in rows.split(chunk_samples):
            chunk_p = p[chunk] if p.ndim else p.view(1)
            chunk_flipped = is_flipped[chunk] if p.ndim else is_flipped
            tables = binomial_tables(chunk_p, max_n, digits)
            chunk_n = n.index_select(0, chunk)
            chunk_draw = draw.select(chunk)
            chunk_counts = look_up(chunk_draw, chunk_n, chunk_flipped, digits, tables, kernels)
            counts.index_copy_(0, chunk, chunk_counts)
    return counts


def _draw_both(
    draw: Draw,
    n: Tensor,
    p: Tensor,
    is_flipped: Tensor,
    kernels: ModuleType | None,
) -> Tensor:
    """Draw with both kinds of digits, and select by p on the device; uint8 [B, E]."""
    counts = torch.empty_like(n)
    chunk_samples = DEVICE_SAMPLES if p.ndim else max(1, len(n))
    for start in range(0, len(n), chunk_samples):
        rows = slice(start, start + chunk_samples)
        chunk_p = p[rows] if p.ndim else p
        chunk_flipped = is_flipped[rows] if p.ndim else is_flipped
        counts_of_digits = []
        for digits in (UNDIVIDED, BASE_16):
            tables = binomial_tables(chunk_p.view(-1), 255, digits)
            chunk_draw = draw.select(rows)
            counts_of_digits.append(
                look_up(chunk_draw, n[rows], chunk_flipped, digits, tables, kernels)
            )
        is_small = (chunk_p < SMALL_PROBABILITY)[..., None]
        counts[rows] = torch.where(is_small, counts_of_digits[0], counts_of_digits[1])
    return counts


def binomial_tables(p: Tensor, max_n: int, digits: tuple[Digit, ...]) -> list[Tensor]:
    """Tabulate the distribution functions P(Binomial(n, p) <= k) for every digit.

    Args:
        p: at most 1/2, float64 [B].
        max_n: largest n.
        digits: of n.

    Returns:
        For each digit, float64 [B, rows, columns] over (p, value of the digit, k).
    """
    log_failure = torch.log1p(-p)[:, None, None]
    log_odds = torch.log(p.clamp(min=1e-300))[:, None, None] - log_failure
    max_p = float(p.max()) if can_read_values(p) else None
    log_binomials = _log_binomials(p.device)
    values = _values(p.device)

    tables = []
    for shift, mask in digits:
        num_rows = min(mask, max_n >> shift) + 1
        row_n = (num_rows - 1) << shift  # n of the last row
        num_columns = row_n + 1 if max_p is None else _num_columns(max_p, row_n)
        rows = slice(0, row_n + 1, 1 << shift)
        log_pmf = log_binomials[rows, :num_columns] + values[rows, None] * log_failure
        log_pmf = log_pmf.add_(values[:num_columns] * log_odds)
        tables.append(log_pmf.exp_().cumsum_(-1))
    return tables


def look_up(
    draw: Draw,
    n: Tensor,
    is_flipped: Tensor,
    digits: tuple[Digit, ...],
    tables: list[Tensor],
    kernels: ModuleType | None = None,
) -> Tensor:
    """Draw counts, uint8 [B, E], from tables: one bisection per digit, with uniforms of its own.

    Args:
        draw: random numbers; digit d uses attempt d.
        n: uint8 [B, E].
        is_flipped: bool [B] or a scalar; there, n minus the count is returned.
        digits: of n.
        tables: of `binomial_tables`, for B samples or for one that is shared.
        kernels: as in `binomial_by_table`.
    """
    counts = torch.zeros_like(n)
    for attempt, ((shift, mask), table) in enumerate(zip(digits, tables, strict=True)):
        num_tables, num_rows, num_columns = table.shape
        if num_columns == 1:
            continue
        if kernels:
            counts += kernels.inverse_cdf(draw.keys, table, (n >> shift) & mask, attempt)
            continue
        rows = ((n >> shift) & mask).to(torch.int32)
        if num_tables > 1:
            offsets = torch.arange(num_tables, dtype=torch.int32, device=n.device) * num_rows
            rows += offsets[:, None]
        uniforms = draw.uniform(tuple(n.shape), attempt)
        counts += inverse_cdf(table.view(-1, num_columns), rows, uniforms)
    counts = torch.minimum(counts, n)  # rounding may leave P(X <= n) below 1
    return torch.where(is_flipped[..., None], n - counts, counts)


@lru_cache
def _values(device: torch.device) -> Tensor:
    """Return the values 0, ..., 255 of a uint8, float64 [256]."""
    return torch.arange(256, dtype=torch.float64, device=device)


@lru_cache
def _log_binomials(device: torch.device) -> Tensor:
    """Return log(n! / (k! (n - k)!)), float64 [256, 256] over (n, k); -inf for k > n."""
    k = _values(device)
    n = k[:, None]
    difference = (n - k).clamp_(min=0)
    log_binomials = torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(difference + 1)
    return log_binomials.masked_fill_(k > n, -torch.inf)


def _num_columns(p: float, n: int) -> int:
    """Return how many k to tabulate, so that P(Binomial(n, p) >= columns) < e^-38, for p <= 1/2.

    References: Chernoff 1952, the bound exp(-n KL(k/n || p)) on the upper tail.
    """
    if p * n == 0:
        return 1
    min_k = int(p * n) + 1
    x = torch.arange(min_k, n + 1, dtype=torch.float64) / n
    nats = n * (torch.xlogy(x, x / p) + torch.xlogy(1 - x, (1 - x) / (1 - p)))  # rises with x
    return min_k + int((nats <= MAX_NATS).sum())
