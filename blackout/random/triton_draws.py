"""Poisson and binomial draws from streams, and look-ups in tables, each in one Triton kernel: for CUDA.

The draws of `blackout.random.counts` are made of dozens of small kernels, and rejection asks the device how many
elements are left. Here every element walks to its own end inside one kernel, from the same addresses and by the same
formulas, so that the counts are the same. Only exp, log and log k! may differ, in their last bits; that could move a
small count about once in 10^13 draws, and one of 10^9, where log k! has seven digits after the point, once in 10^6.

Triton comes with PyTorch's CUDA builds. Before they are used on a device the kernels must have drawn there what the
general path draws (`counts.kernels_agree`).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from blackout.random.streams import GOLDEN, INVERSION_LIMIT, MULTIPLIERS, SEARCH_LIMIT, SECOND_KEY, signed

_BLOCK = 256
_OPTIONS = {"enable_fp_fusion": False}
"""Products and sums rounded one by one, as elsewhere."""
_GOLDEN = tl.constexpr(signed(GOLDEN))
_FIRST = tl.constexpr(signed(MULTIPLIERS[0]))
_SECOND = tl.constexpr(signed(MULTIPLIERS[1]))
_TO_SECOND = tl.constexpr(signed((SECOND_KEY + 1) * GOLDEN))
_LOW = tl.constexpr(INVERSION_LIMIT)
_STEPS = tl.constexpr(SEARCH_LIMIT)


def poisson(keys: Tensor, rate: Tensor) -> Tensor:
    """Poisson(rate): `counts.poisson` from the draw with these keys.

    Args:
        keys: int64 [B], of a draw.
        rate: float64 [B, ...], contiguous.

    Returns:
        Float64 whole numbers of rate's shape; NaN where the rate is negative or not finite.
    """
    return _drawn(keys, rate, rate, True)


def binomial(keys: Tensor, n: Tensor, p: Tensor) -> Tensor:
    """Binomial(n, p) for p <= 1/2: float64 [B, ...] like n (contiguous) and p; NaN where they are not finite."""
    return _drawn(keys, n, p.contiguous(), False)


def _drawn(keys: Tensor, n: Tensor, p: Tensor, rates: bool) -> Tensor:
    """Counts float64 [B, ...] of `poisson`, or of `binomial`, with these keys [B]."""
    drawn, elements = torch.empty_like(n), n.numel() // max(1, len(n))
    _counts[_programs(n)](keys, n, p, drawn, elements, n.numel(), rates, _BLOCK, **_OPTIONS)
    return drawn


def bisect(keys: Tensor, table: Tensor, rows: Tensor, attempt: int) -> Tensor:
    """The first k with U < table[s, row, k], or the last, for uniforms U of the draw's given attempt.

    As in `counts._look_up`.

    Args:
        keys: int64 [B], of a draw.
        table: float64 [1 or B, rows, columns], distribution functions over k; contiguous.
        rows: uint8 [B, E], which row each element uses; contiguous.

    Returns:
        uint8 [B, E].
    """
    drawn = torch.empty_like(rows)
    samples, height, columns = table.shape
    stride = height * columns if samples > 1 else 0
    arguments = keys, table, rows, drawn, rows.shape[1], rows.numel(), stride, columns, attempt
    _bisect[_programs(rows)](*arguments, _BLOCK, **_OPTIONS)
    return drawn


def _programs(x: Tensor) -> tuple[int]:
    return (triton.cdiv(x.numel(), _BLOCK),)


@triton.jit
def _mix(z):
    """SplitMix64's finaliser [Steele 2014] of a block of integers; shifts are logical."""
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * _FIRST
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * _SECOND
    return z ^ ((z >> 31) & 0x1FFFFFFFF)


@triton.jit
def _uniform(key, attempt, element):
    """`Draw.uniform`: of an attempt (int64) of elements (int64) of samples with these keys, a block each."""
    first = _mix(key + (attempt + 1) * _GOLDEN)
    second = _mix(first + _TO_SECOND)
    z = element * _GOLDEN + first
    z = (z ^ (z >> 30)) * _FIRST + second
    z = (z ^ (z >> 27)) * _SECOND
    z = (z ^ (z >> 31)) >> 11
    return (z.to(tl.float64) + 0.5) * 2.220446049250313e-16


@triton.jit
def _log_factorial(k):
    """log k! of a block of numbers, by Stirling's series at k + 9, where its next term is below 3e-15.

    Ours (tests/random/test_fused.py).
    """
    x = k + 1
    product = x * (x + 1) * (x + 2) * (x + 3) * (x + 4) * (x + 5) * (x + 6) * (x + 7)
    y = x + 8
    r = 1 / (y * y)
    tail = 1 / 1188.0 - r * (691 / 360360.0)
    tail = 1 / 12.0 - r * (1 / 360.0 - r * (1 / 1260.0 - r * (1 / 1680.0 - r * tail)))
    return (y - 0.5) * tl.log(y) - y + 0.9189385332046727 + tail / y - tl.log(product)


@triton.jit
def _log1p_minus(p):
    """log(1 - p) of a block of numbers, to the last bits also where p is small: Kahan's trick
    (tests/random/test_fused.py).
    """
    rest = 1 - p
    exact = tl.where(rest == 1, 1.0, rest - 1)
    return tl.where(rest == 1, -p, tl.log(rest) * (-p / exact))


@triton.jit
def _addresses(keys, elements, total, BLOCK: tl.constexpr):
    """Of this program's elements: flat index, whether there is one, key and number within the sample."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    sample = at // elements
    inside = at < total
    return at, inside, tl.load(keys + sample, mask=inside, other=0), at - sample * elements


@triton.jit
def _search(key, element, log_mass, most, odds, going, RATES: tl.constexpr):
    """Inversion from the logarithm of P(0) where `going`, else 0, of a block of numbers; see `counts._search`."""
    count = tl.zeros_like(most)
    left = _uniform(key, tl.full([1], 0, tl.int64), element)
    mass = tl.where(going, tl.exp(tl.where(going, log_mass, 0.0)), 1.0)
    going = going & (left > mass)
    step = 0
    while (tl.max(going.to(tl.int32), 0) > 0) & (step < _STEPS):
        count = tl.where(going, step + 1.0, count)
        left -= mass
        if RATES:
            mass *= most / (step + 1.0)
        else:
            mass *= (most - step) * odds / (step + 1.0)
        going = going & (left > mass) & (mass > 0)
        step += 1
    return count


@triton.jit
def _rejection(key, element, n, p, todo, RATES: tl.constexpr):
    """PTRS of rates p, or BTRS, where `todo`, else 0, of a block of numbers; see `counts._transformed_rejection`."""
    count = tl.zeros_like(n)
    if RATES:
        p = tl.where(todo, p, _LOW)
        b = 0.931 + 2.53 * tl.sqrt(p)
        a = -0.059 + 0.02483 * b
        centre = p + 0.43
        squeeze = 0.9277 - 3.6224 / (b - 2)
        log_p = tl.log(p)
        log_hat = tl.log(1.1239 + 1.1328 / (b - 3.4))
    else:
        n = tl.where(todo, n, 40.0)
        p = tl.where(todo, p, 0.5)
        deviation = tl.sqrt(n * p * (1 - p))
        b = 1.15 + 2.53 * deviation
        a = -0.0873 + 0.0248 * b + 0.01 * p
        centre = n * p + 0.5
        squeeze = 0.92 - 4.2 / b
        log_odds = tl.log(p) - _log1p_minus(p)
        log_hat = tl.log((2.83 + 5.1 / b) * deviation)
        mode = tl.floor((n + 1) * p)
        log_mode = _log_factorial(mode) + _log_factorial(n - mode)
    attempt = tl.full([1], 1, tl.int64)
    while tl.max(todo.to(tl.int32), 0) > 0:
        u = _uniform(key, attempt, element) - 0.5
        v = _uniform(key, attempt + 1, element)
        edge = 0.5 - tl.abs(u)
        k = tl.floor((2 * a / edge + b) * u + centre)
        inside = k >= 0
        if not RATES:
            inside = inside & (k <= n)
        possible = tl.where(inside, k, 0.0)
        height = tl.log(v) - tl.log(a / (edge * edge) + b)
        if RATES:
            density = possible * log_p - p - _log_factorial(possible) - log_hat
        else:
            ways = log_mode - _log_factorial(possible) - _log_factorial(n - possible)
            density = ways + (possible - mode) * log_odds - log_hat
        accepted = ((edge >= 0.07) & (v <= squeeze)) | (inside & (height <= density))
        count = tl.where(todo & accepted, k, count)
        todo = todo & (accepted == 0)
        attempt += 2
    return count


@triton.jit
def _counts(keys, sizes, shares, drawn, elements, total, RATES: tl.constexpr, BLOCK: tl.constexpr):
    """Poisson counts where the shares are RATES, else binomial ones, into drawn [total], of sizes and shares [total].

    As in `counts._poisson_from` and `counts._binomial_from`.
    """
    at, inside, key, element = _addresses(keys, elements, total, BLOCK)
    n = tl.load(sizes + at, mask=inside, other=0.0)
    p = tl.load(shares + at, mask=inside, other=0.0)
    if RATES:
        mean = p
        odds = p
        log_mass = -p
    else:
        mean = n * p
        odds = p / (1 - p)
        log_mass = n * _log1p_minus(p)
    sound = (mean >= 0) & (mean < float("inf"))
    count = _search(key, element, log_mass, n, odds, sound & (mean < _LOW), RATES)
    count += _rejection(key, element, n, p, sound & (mean >= _LOW), RATES)
    tl.store(drawn + at, tl.where(sound, count, float("nan")), mask=inside)


@triton.jit
def _bisect(keys, table, rows, drawn, elements, total, stride, columns, attempt, BLOCK: tl.constexpr):
    """`bisect` of a block of elements, into drawn [total], of rows [total] of tables."""
    at, inside, key, element = _addresses(keys, elements, total, BLOCK)
    uniform = _uniform(key, tl.full([1], 0, tl.int64) + attempt, element)
    row = tl.load(rows + at, mask=inside, other=0).to(tl.int64)
    start = at // elements * stride + row * columns
    count = tl.zeros([BLOCK], dtype=tl.int64)
    left = columns
    while left > 1:
        half = left // 2
        above = tl.load(table + start + count + (half - 1), mask=inside, other=1.0) <= uniform
        count += tl.where(above, half, 0)
        left -= half
    tl.store(drawn + at, count.to(tl.uint8), mask=inside)
