"""Poisson and binomial draws from streams, and table look-ups, as Triton kernels for CUDA.

`torch_draws` needs dozens of small kernels. Here each element is drawn completely inside one
kernel, from the same addresses and by the same formulas, so that the counts are the same. Only log,
exp and log k! may differ in their last bits. That changes a small count about once in 10^13 draws,
and a count of 10^9, whose log k! has seven digits after the point, once in 10^6.

Triton comes with PyTorch's CUDA builds. `compiled_draws` compares these draws with those of
`torch_draws` on the device before they are used.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from blackout.random.streams import (
    FIRST_MULTIPLIER,
    GOLDEN_GAMMA,
    INVERSION_LIMIT,
    SEARCH_LIMIT,
    SECOND_KEY,
    SECOND_MULTIPLIER,
    signed,
)

BLOCK_SIZE = 256  # elements of one program
OPTIONS = {"enable_fp_fusion": False}  # products and sums are rounded one by one, as elsewhere
GAMMA = tl.constexpr(signed(GOLDEN_GAMMA))
MULTIPLIER_1 = tl.constexpr(signed(FIRST_MULTIPLIER))
MULTIPLIER_2 = tl.constexpr(signed(SECOND_MULTIPLIER))
SECOND_KEY_STEP = tl.constexpr(signed((SECOND_KEY + 1) * GOLDEN_GAMMA))
MAX_INVERSION_MEAN = tl.constexpr(INVERSION_LIMIT)
MAX_SEARCH_STEPS = tl.constexpr(SEARCH_LIMIT)


def poisson(keys: Tensor, rate: Tensor) -> Tensor:
    """Draw Poisson(rate).

    Args:
        keys: of a draw, int64 [B].
        rate: float64 [B, ...], contiguous.

    Returns:
        Whole numbers, float64 [B, ...]; NaN where the rate is negative or not finite.
    """
    return _draw_counts(keys, rate, rate, is_poisson=True)


def binomial(keys: Tensor, n: Tensor, p: Tensor) -> Tensor:
    """Draw Binomial(n, p) for p <= 1/2.

    Args:
        keys: of a draw, int64 [B].
        n: whole numbers, float64 [B, ...], contiguous.
        p: float64 [B, ...].

    Returns:
        Whole numbers, float64 [B, ...]; NaN where n p is negative or not finite.
    """
    return _draw_counts(keys, n, p.contiguous(), is_poisson=False)


def inverse_cdf(keys: Tensor, table: Tensor, rows: Tensor, attempt: int) -> Tensor:
    """Return the first k with u < table[s, row, k], or the last k, for uniforms of an attempt.

    Args:
        keys: of a draw, int64 [B].
        table: distribution functions over k, float64 [1 or B, rows, columns], contiguous.
        rows: row of each element, uint8 [B, E], contiguous.
        attempt: of the draw.

    Returns:
        uint8 [B, E].
    """
    counts = torch.empty_like(rows)
    num_tables, num_rows, num_columns = table.shape
    stride = num_rows * num_columns if num_tables > 1 else 0
    inverse_cdf_kernel[_grid(rows)](
        keys,
        table,
        rows,
        counts,
        rows.shape[1],
        rows.numel(),
        stride,
        num_columns,
        attempt,
        BLOCK_SIZE,
        **OPTIONS,
    )
    return counts


def keep_mask(seed: Tensor, first: Tensor, threshold: int, keep: Tensor) -> None:
    """Fill a mask with whether the 16 random bits of an element reach a threshold, see `bits_at`.

    Args:
        seed: int64 scalar.
        first: number of the first element of each row, int64 [B].
        threshold: from -32,768 to 32,767.
        keep: bool [B, ...], dense, with the rows outermost.
    """
    keep_mask_kernel[_grid(keep)](
        seed,
        first,
        keep.view(torch.uint8),
        keep.numel() // max(1, len(keep)),
        keep.numel(),
        threshold,
        BLOCK_SIZE,
        **OPTIONS,
    )


def _draw_counts(keys: Tensor, n: Tensor, p: Tensor, is_poisson: bool) -> Tensor:
    counts = torch.empty_like(n)
    num_elements = n.numel() // max(1, len(n))
    counts_kernel[_grid(n)](
        keys,
        n,
        p,
        counts,
        num_elements,
        n.numel(),
        is_poisson,
        BLOCK_SIZE,
        **OPTIONS,
    )
    return counts


def _grid(x: Tensor) -> tuple[int]:
    return (triton.cdiv(x.numel(), BLOCK_SIZE),)


@triton.jit
def mix(z):
    """Apply SplitMix64's finaliser to a block of int64; shifts are logical."""
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * MULTIPLIER_1
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * MULTIPLIER_2
    return z ^ ((z >> 31) & 0x1FFFFFFFF)


@triton.jit
def element_uniform(key, attempt, element):
    """Return `Draw.uniform` of a block of elements; attempt and element are int64."""
    first_key = mix(key + (attempt + 1) * GAMMA)
    second_key = mix(first_key + SECOND_KEY_STEP)
    z = element * GAMMA + first_key
    z = (z ^ (z >> 30)) * MULTIPLIER_1 + second_key
    z = (z ^ (z >> 27)) * MULTIPLIER_2
    z = (z ^ (z >> 31)) >> 11
    return (z.to(tl.float64) + 0.5) * 2.220446049250313e-16  # 2^-52


@triton.jit
def log_factorial(k):
    """Return log k! of a block, by Stirling's series at k + 9, whose next term is below 3e-15."""
    x = k + 1
    product = x * (x + 1) * (x + 2) * (x + 3) * (x + 4) * (x + 5) * (x + 6) * (x + 7)
    y = x + 8
    r = 1 / (y * y)
    tail = 1 / 1188.0 - r * (691 / 360360.0)
    tail = 1 / 12.0 - r * (1 / 360.0 - r * (1 / 1260.0 - r * (1 / 1680.0 - r * tail)))
    return (y - 0.5) * tl.log(y) - y + 0.9189385332046727 + tail / y - tl.log(product)


@triton.jit
def log1p_minus(p):
    """Return log(1 - p) of a block, accurate for small p.

    References: Kahan's formula, Goldberg 1991, theorem 4.
    """
    q = 1 - p
    rounded_p = tl.where(q == 1, 1.0, q - 1)  # minus the p that q was computed with
    return tl.where(q == 1, -p, tl.log(q) * (-p / rounded_p))


@triton.jit
def block_addresses(keys, num_elements, total, BLOCK: tl.constexpr):
    """Return flat index, whether it exists, key and number within the sample, of a block."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    sample = index // num_elements
    exists = index < total
    return (
        index,
        exists,
        tl.load(keys + sample, mask=exists, other=0),
        index - sample * num_elements,
    )


@triton.jit
def sequential_search(key, element, log_prob_zero, n, odds, pending, IS_POISSON: tl.constexpr):
    """Draw counts by inversion where `pending`, else 0, as `torch_draws` does."""
    count = tl.zeros_like(n)
    remainder = element_uniform(key, tl.full([1], 0, tl.int64), element)
    mass = tl.where(pending, tl.exp(tl.where(pending, log_prob_zero, 0.0)), 1.0)
    pending = pending & (remainder > mass)
    step = 0
    while (tl.max(pending.to(tl.int32), 0) > 0) & (step < MAX_SEARCH_STEPS):
        count = tl.where(pending, step + 1.0, count)
        remainder -= mass
        if IS_POISSON:
            mass *= n / (step + 1.0)
        else:
            mass *= (n - step) * odds / (step + 1.0)
        pending = pending & (remainder > mass) & (mass > 0)
        step += 1
    return count


@triton.jit
def transformed_rejection(key, element, n, p, pending, IS_POISSON: tl.constexpr):
    """Draw counts by PTRS with rates p, or BTRS, where `pending`, else 0, as `torch_draws` does."""
    count = tl.zeros_like(n)
    if IS_POISSON:
        p = tl.where(pending, p, MAX_INVERSION_MEAN)
        b = 0.931 + 2.53 * tl.sqrt(p)
        a = -0.059 + 0.02483 * b
        center = p + 0.43
        squeeze = 0.9277 - 3.6224 / (b - 2)
        log_p = tl.log(p)
        log_hat = tl.log(1.1239 + 1.1328 / (b - 3.4))
    else:
        n = tl.where(pending, n, 40.0)  # any parameters will do where nothing is drawn
        p = tl.where(pending, p, 0.5)
        std = tl.sqrt(n * p * (1 - p))
        b = 1.15 + 2.53 * std
        a = -0.0873 + 0.0248 * b + 0.01 * p
        center = n * p + 0.5
        squeeze = 0.92 - 4.2 / b
        log_odds = tl.log(p) - log1p_minus(p)
        log_hat = tl.log((2.83 + 5.1 / b) * std)
        mode = tl.floor((n + 1) * p)
        log_mode = log_factorial(mode) + log_factorial(n - mode)
    attempt = tl.full([1], 1, tl.int64)
    while tl.max(pending.to(tl.int32), 0) > 0:
        u = element_uniform(key, attempt, element) - 0.5
        v = element_uniform(key, attempt + 1, element)
        edge = 0.5 - tl.abs(u)
        k = tl.floor((2 * a / edge + b) * u + center)
        is_possible = k >= 0
        if not IS_POISSON:
            is_possible = is_possible & (k <= n)
        possible_k = tl.where(is_possible, k, 0.0)
        log_height = tl.log(v) - tl.log(a / (edge * edge) + b)
        if IS_POISSON:
            log_ratio = possible_k * log_p - p - log_factorial(possible_k) - log_hat
        else:
            log_binomial = log_mode - log_factorial(possible_k) - log_factorial(n - possible_k)
            log_ratio = log_binomial + (possible_k - mode) * log_odds - log_hat
        in_squeeze = (edge >= 0.07) & (v <= squeeze)
        accepted = in_squeeze | (is_possible & (log_height <= log_ratio))
        count = tl.where(pending & accepted, k, count)
        pending = pending & (accepted == 0)
        attempt += 2
    return count


@triton.jit
def counts_kernel(  # noqa: PLR0913 - a Triton kernel
    keys,
    n_values,
    p_values,
    counts,
    num_elements,
    total,
    IS_POISSON: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Fill counts, [total], with Poisson draws of rates p, or binomial draws of n and p."""
    index, exists, key, element = block_addresses(keys, num_elements, total, BLOCK)
    n = tl.load(n_values + index, mask=exists, other=0.0)
    p = tl.load(p_values + index, mask=exists, other=0.0)
    if IS_POISSON:
        mean = p
        odds = p
        log_prob_zero = -p
    else:
        mean = n * p
        odds = p / (1 - p)
        log_prob_zero = n * log1p_minus(p)
    is_valid = (mean >= 0) & (mean < float("inf"))
    is_small = is_valid & (mean < MAX_INVERSION_MEAN)
    is_large = is_valid & (mean >= MAX_INVERSION_MEAN)
    count = sequential_search(key, element, log_prob_zero, n, odds, is_small, IS_POISSON)
    count += transformed_rejection(key, element, n, p, is_large, IS_POISSON)
    tl.store(counts + index, tl.where(is_valid, count, float("nan")), mask=exists)


@triton.jit
def inverse_cdf_kernel(  # noqa: PLR0913 - a Triton kernel
    keys,
    table,
    rows,
    counts,
    num_elements,
    total,
    stride,
    columns,
    attempt,
    BLOCK: tl.constexpr,
):
    """Fill counts, [total], by bisection in the rows, [total], of tables."""
    index, exists, key, element = block_addresses(keys, num_elements, total, BLOCK)
    uniform = element_uniform(key, tl.full([1], 0, tl.int64) + attempt, element)
    row = tl.load(rows + index, mask=exists, other=0).to(tl.int64)
    start = index // num_elements * stride + row * columns
    count = tl.zeros([BLOCK], dtype=tl.int64)
    remaining = columns
    while remaining > 1:
        half = remaining // 2
        is_above = tl.load(table + start + count + (half - 1), mask=exists, other=1.0) <= uniform
        count += tl.where(is_above, half, 0)
        remaining -= half
    tl.store(counts + index, count.to(tl.uint8), mask=exists)


@triton.jit
def keep_mask_kernel(seed, first, keep, num_elements, total, threshold, BLOCK: tl.constexpr):
    """Fill keep, uint8 [total], with whether the bits of each element reach the threshold."""
    index, exists, start, element = block_addresses(first, num_elements, total, BLOCK)
    number = start + element
    word = mix((number >> 2) * GAMMA + tl.load(seed))
    bits = ((word >> (16 * (number & 3))) & 0xFFFF).to(tl.int32)
    bits = bits - ((bits & 0x8000) << 1)
    tl.store(keep + index, (bits >= threshold).to(tl.uint8), mask=exists)
