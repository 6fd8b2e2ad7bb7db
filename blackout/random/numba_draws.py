"""Poisson and binomial draws from streams, compiled for a CPU by numba; `counts.py` says when.

Element by element, from the same addresses and by the same formulas as in `blackout.random.counts`, so that the counts
are the same. Only logarithms, exp and log k! may differ, in their last bits, which moves a count as seldom as
`blackout.random.triton_draws` says. Before they are used they must have drawn what the general path draws
(`counts.kernels_agree`). `NUMBA_DISABLE_JIT=1` leaves numba out.

Functions are compiled once and kept where numba keeps them (`NUMBA_CACHE_DIR`), if it can write there.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from blackout.random.streams import GOLDEN, INVERSION_LIMIT, MULTIPLIERS, SEARCH_LIMIT, SECOND_KEY, signed

if os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
    raise ImportError("numba is switched off")

_GOLDEN = signed(GOLDEN)
_FIRST, _SECOND = (signed(multiplier) for multiplier in MULTIPLIERS)
_TO_SECOND = signed((SECOND_KEY + 1) * GOLDEN)
_LOG_FACTORIAL = torch.lgamma(torch.arange(1, 65_537, dtype=torch.float64)).numpy()
"""log k! as the general path has it, where counts usually are."""


def compiled(signature: str, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function, whose name must be its own.

    Compiled code finds other functions by name, and numba numbers those of one name by their order in a process: from
    a cache that two processes had filled together, counts by rates called the rejection of shares, and never ended.
    """

    def compiled(function: Callable[..., Any]) -> Any:
        try:
            return numba.njit(signature, cache=True, nogil=True, error_model="numpy", **options)(function)
        except (RuntimeError, OSError):  # no folder to keep it in
            return numba.njit(signature, nogil=True, error_model="numpy", **options)(function)

    return compiled


def poisson(keys: Tensor, rate: Tensor) -> Tensor:
    """Poisson(rate): `counts.poisson` from the draw with these keys.

    Args:
        keys: int64 [B], of a draw.
        rate: float64 [B, ...], contiguous.

    Returns:
        Float64 whole numbers of rate's shape.

    Raises:
        ValueError: a rate is not finite, or there are not B of them.
    """
    return _drawn(True, keys, rate, rate)


def binomial(keys: Tensor, n: Tensor, p: Tensor) -> Tensor:
    """Binomial(n, p) for p <= 1/2: float64 [B, ...] like n (contiguous) and p; errors as of `poisson`."""
    return _drawn(False, keys, n, p)


def _drawn(rates: bool, keys: Tensor, n: Tensor, p: Tensor) -> Tensor:
    """Counts float64 [B, ...] of `poisson`, or of `binomial`, with these keys [B]."""
    drawn = torch.empty_like(n)
    if not _counts(rates, keys.numpy(), *(_rows(x, keys) for x in (n, p, drawn)), _LOG_FACTORIAL):
        raise ValueError("a rate or probability is not finite")
    return drawn


def _rows(x: Tensor, keys: Tensor) -> np.ndarray:
    """[B, E], one row per sample."""
    if x.shape[:1] != keys.shape:
        raise ValueError(f"{len(keys)} samples cannot draw {tuple(x.shape)} numbers")
    return x.detach().reshape(len(keys), math.prod(x.shape[1:])).numpy()


@compiled("i8(i8)")
def mixed(z: int) -> int:
    """SplitMix64's finaliser [Steele 2014] of a number; shifts are logical."""
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * _FIRST
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * _SECOND
    return z ^ ((z >> 31) & 0x1FFFFFFFF)


@compiled("UniTuple(i8, 2)(i8, i8)")
def pair_of(key: int, attempt: int) -> tuple[int, int]:
    """The key of an attempt of one sample and the second one made from it, as in `Draw.uniform`: two integers."""
    first = mixed(key + (attempt + 1) * _GOLDEN)
    return first, mixed(first + _TO_SECOND)


@compiled("f8(UniTuple(i8, 2), i8)")
def uniform_of(pair: tuple[int, int], element: int) -> float:
    """`Draw.uniform` of one element, a number."""
    z = element * _GOLDEN + pair[0]
    z = (z ^ (z >> 30)) * _FIRST + pair[1]
    z = (z ^ (z >> 27)) * _SECOND
    z = (z ^ (z >> 31)) >> 11
    return (z + 0.5) * 2.220446049250313e-16


@compiled("void(i8, i8, f8[::1])")
def _uniforms(key: int, attempt: int, numbers: np.ndarray) -> None:
    """`Draw.uniform` of all elements of a sample, into numbers [E]."""
    pair = pair_of(key, attempt)
    for element in range(numbers.size):
        numbers[element] = uniform_of(pair, element)


@compiled("f8(f8, f8[::1])")
def _log_factorial(k: float, table: np.ndarray) -> float:
    """log k! of a number, from the table or by Stirling's series, where its next term is below 1e-18.

    Ours (tests/random/test_compiled.py).
    """
    if k < table.size:
        return table[np.uintp(k)]
    y = k + 1
    return (y - 0.5) * math.log(y) - y + 0.9189385332046727 + (1 / 12 - 1 / (360 * y * y)) / y


@compiled("f8(f8, f8, f8, f8, f8)")
def _search(left: float, mass: float, most: float, falls: float, odds: float) -> float:
    """Inversion from P(0) = `mass`, where P(k + 1) / P(k) = (most - falls k) odds / (k + 1); see `counts._search`.

    Of numbers, a count.
    """
    k = 0.0
    while left > mass and mass > 0 and k < SEARCH_LIMIT:
        left -= mass
        mass *= (most - falls * k) * odds / (k + 1)
        k += 1
    return k


@compiled("f8(b1, i8, i8, f8, f8, f8, f8, f8, f8[::1])")
def _rejection(
    rates: bool, key: int, element: int, u: float, v: float, n: float, p: float, log_odds: float, table: np.ndarray
) -> float:
    """PTRS of `rates` p or BTRS, see `counts._transformed_rejection`; u and v are the uniforms of the first attempt.

    Of numbers, a count [Hoermann 1993].
    """
    if rates:
        deviation = math.sqrt(p)
        b = 0.931 + 2.53 * deviation
        a = -0.059 + 0.02483 * b
        centre, squeeze = p + 0.43, 0.9277 - 3.6224 / (b - 2)
    else:
        deviation = math.sqrt(n * p * (1 - p))
        b = 1.15 + 2.53 * deviation
        a = -0.0873 + 0.0248 * b + 0.01 * p
        centre, squeeze = n * p + 0.5, 0.92 - 4.2 / b
    attempt = 1
    while True:
        u -= 0.5
        edge = 0.5 - abs(u)
        k = np.floor((2 * a / edge + b) * u + centre)
        if edge >= 0.07 and v <= squeeze:
            return k
        if k >= 0 and (rates or k <= n):
            if rates:
                hat = 1.1239 + 1.1328 / (b - 3.4)
                density = k * math.log(p) - p - _log_factorial(k, table)
            else:
                hat = (2.83 + 5.1 / b) * deviation
                mode = np.floor((n + 1) * p)
                ways = _log_factorial(mode, table) + _log_factorial(n - mode, table)
                density = ways - _log_factorial(k, table) - _log_factorial(n - k, table) + (k - mode) * log_odds
            if math.log(v * hat / (a / (edge * edge) + b)) <= density:
                return k
        attempt += 2
        u, v = uniform_of(pair_of(key, attempt), element), uniform_of(pair_of(key, attempt + 1), element)


@compiled("b1(b1, i8[::1], f8[:, ::1], f8[:, :], f8[:, ::1], f8[::1])")
def _counts(
    rates: bool, keys: np.ndarray, sizes: np.ndarray, shares: np.ndarray, drawn: np.ndarray, table: np.ndarray
) -> bool:
    """Poisson counts where the shares are `rates`, else binomial ones; returns whether all are finite.

    Into drawn [B, E], of keys [B], sizes and shares [B, E], as in `counts._poisson_from` and `counts._binomial_from`.
    """
    finite = True
    p = odds = log_stays = log_odds = 0.0  # most often many elements share p
    uniforms = np.empty((3, sizes.shape[1]))
    for sample in range(keys.size):
        own = shares[sample]
        large = np.any(own >= INVERSION_LIMIT) if rates else np.any(sizes[sample] * own >= INVERSION_LIMIT)
        for attempt in range(3 if large else 1):
            _uniforms(keys[sample], attempt, uniforms[attempt])
        for element in range(sizes.shape[1]):
            share, n, u = own[element], sizes[sample, element], uniforms[0, element]
            if not rates and share != p:
                p = share
                odds, log_stays = p / (1 - p), math.log1p(-p)
                log_odds = math.log(p) - log_stays
            mean = share if rates else n * share
            if not mean < np.inf:
                finite = False
            elif mean >= INVERSION_LIMIT:
                u, v = uniforms[1, element], uniforms[2, element]
                drawn[sample, element] = _rejection(rates, keys[sample], element, u, v, n, share, log_odds, table)
            elif rates:
                drawn[sample, element] = _search(u, math.exp(-share), share, 0.0, 1.0)
            else:
                drawn[sample, element] = _search(u, math.exp(n * log_stays), n, 1.0, odds)
    return finite


@compiled("void(i8, i8[::1])")
def _fill_words(seed: int, numbers: Any) -> None:
    """Fill `numbers`, int64 [n], with the words of a seed, as `blackout.random.streams.words` does."""
    for k in range(numbers.size):
        numbers[k] = mixed(seed + k * _GOLDEN)


def words(seed: int, number: int) -> Tensor:
    """Return what `blackout.random.streams.words` does, int64 [number]."""
    numbers = torch.empty(number, dtype=torch.int64)
    _fill_words(seed, numbers.numpy())
    return numbers
