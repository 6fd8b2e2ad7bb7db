"""Poisson and binomial draws from streams, compiled for a CPU by numba.

Each element is drawn from the same addresses and by the same formulas as in `torch_draws`, so that
the counts are the same. Only log, exp and log k! may differ in their last bits, which changes a
small count about once in 10^13 draws (`triton_draws`). `compiled_draws` compares both before these
are used. `NUMBA_DISABLE_JIT=1` switches numba off.

Compiled functions are cached in numba's folder (`NUMBA_CACHE_DIR`) if it is writable.
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

from blackout.random.streams import (
    FIRST_MULTIPLIER,
    GOLDEN_GAMMA,
    INVERSION_LIMIT,
    SEARCH_LIMIT,
    SECOND_KEY,
    SECOND_MULTIPLIER,
    signed,
)

if os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
    raise ImportError("numba is switched off")

GAMMA = signed(GOLDEN_GAMMA)
MULTIPLIER_1 = signed(FIRST_MULTIPLIER)
MULTIPLIER_2 = signed(SECOND_MULTIPLIER)
SECOND_KEY_STEP = signed((SECOND_KEY + 1) * GOLDEN_GAMMA)
HALF_LOG_2PI = 0.9189385332046727
TABLE_SIZE = 65_536  # log k! is tabulated below this, where most counts are
LOG_FACTORIALS = torch.lgamma(torch.arange(1, TABLE_SIZE + 1, dtype=torch.float64)).numpy()


def cached_njit(signature: str, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function with numba, and cache the result where that is possible.

    Each function of a module must have a name that no other has. Compiled code finds functions by
    name, and numba numbers those with one name by their order in the process. Two processes that
    filled a cache together could therefore mix up two functions with one name.
    """

    def compile_function(function: Callable[..., Any]) -> Any:
        options_with_defaults = {"nogil": True, "error_model": "numpy", **options}
        try:
            return numba.njit(signature, cache=True, **options_with_defaults)(function)
        except (RuntimeError, OSError):  # no folder is writable
            return numba.njit(signature, **options_with_defaults)(function)

    return compile_function


def poisson(keys: Tensor, rate: Tensor) -> Tensor:
    """Draw Poisson(rate).

    Args:
        keys: of a draw, int64 [B].
        rate: float64 [B, ...], contiguous.

    Returns:
        Whole numbers, float64 [B, ...].

    Raises:
        ValueError: a rate is not finite, or the numbers of samples differ.
    """
    return _draw_counts(True, keys, rate, rate)


def binomial(keys: Tensor, n: Tensor, p: Tensor) -> Tensor:
    """Draw Binomial(n, p) for p <= 1/2.

    Args:
        keys: of a draw, int64 [B].
        n: whole numbers, float64 [B, ...], contiguous.
        p: float64 [B, ...].

    Returns:
        Whole numbers, float64 [B, ...].

    Raises:
        ValueError: a probability is not finite, or the numbers of samples differ.
    """
    return _draw_counts(False, keys, n, p)


def words(seed: int, first: Tensor, size: int) -> Tensor:
    """Return parts of a sequence, int64 [n, size], as `blackout.random.streams.words` does."""
    numbers = torch.empty(len(first), size, dtype=torch.int64)
    fill_words(seed, first.numpy(), numbers.numpy())
    return numbers


def _draw_counts(is_poisson: bool, keys: Tensor, n: Tensor, p: Tensor) -> Tensor:
    counts = torch.empty_like(n)
    n_rows = _sample_rows(n, keys)
    p_rows = _sample_rows(p, keys)
    count_rows = _sample_rows(counts, keys)
    if not fill_counts(is_poisson, keys.numpy(), n_rows, p_rows, count_rows, LOG_FACTORIALS):
        raise ValueError("a rate or probability is not finite")
    return counts


def _sample_rows(x: Tensor, keys: Tensor) -> np.ndarray:
    """Return a view of x as [B, E], one row per sample."""
    if x.shape[:1] != keys.shape:
        raise ValueError(f"{len(keys)} samples cannot draw {tuple(x.shape)} numbers")
    return x.detach().reshape(len(keys), math.prod(x.shape[1:])).numpy()


@cached_njit("i8(i8)")
def mix(z: int) -> int:
    """Apply SplitMix64's finaliser to an int64; shifts are logical."""
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * MULTIPLIER_1
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * MULTIPLIER_2
    return z ^ ((z >> 31) & 0x1FFFFFFFF)


@cached_njit("UniTuple(i8, 2)(i8, i8)")
def attempt_keys(key: int, attempt: int) -> tuple[int, int]:
    """Return the first and second key of an attempt of one sample, as in `Draw.uniform`."""
    first_key = mix(key + (attempt + 1) * GAMMA)
    return first_key, mix(first_key + SECOND_KEY_STEP)


@cached_njit("f8(UniTuple(i8, 2), i8)")
def element_uniform(keys: tuple[int, int], element: int) -> float:
    """Return `Draw.uniform` of one element, for the keys of an attempt."""
    z = element * GAMMA + keys[0]
    z = (z ^ (z >> 30)) * MULTIPLIER_1 + keys[1]
    z = (z ^ (z >> 27)) * MULTIPLIER_2
    z = (z ^ (z >> 31)) >> 11
    return (z + 0.5) * 2.220446049250313e-16  # 2^-52


@cached_njit("void(i8, i8, f8[::1])")
def fill_uniforms(key: int, attempt: int, uniforms: np.ndarray) -> None:
    """Fill `uniforms`, [E], with `Draw.uniform` of all elements of a sample."""
    keys = attempt_keys(key, attempt)
    for element in range(uniforms.size):
        uniforms[element] = element_uniform(keys, element)


@cached_njit("f8(f8, f8[::1])")
def log_factorial(k: float, table: np.ndarray) -> float:
    """Return log k!, from the table or by Stirling's series, whose next term is below 1e-18."""
    if k < table.size:
        return table[np.uintp(k)]
    y = k + 1
    series = (1 / 12 - 1 / (360 * y * y)) / y
    return (y - 0.5) * math.log(y) - y + HALF_LOG_2PI + series


@cached_njit("f8(f8, f8, f8, f8, f8)")
def sequential_search(
    remainder: float,
    mass: float,
    start: float,
    slope: float,
    odds: float,
) -> float:
    """Draw a count by inversion, as `torch_draws` does.

    Args:
        remainder: the uniform.
        mass: P(0).
        start: a of the ratio P(k + 1) / P(k) = (a - b k) c / (k + 1).
        slope: b of this ratio.
        odds: c of this ratio.
    """
    k = 0.0
    while remainder > mass and mass > 0 and k < SEARCH_LIMIT:
        remainder -= mass
        mass *= (start - slope * k) * odds / (k + 1)
        k += 1
    return k


@cached_njit("f8(b1, i8, i8, UniTuple(f8, 2), UniTuple(f8, 3), f8[::1])")
def transformed_rejection(
    is_poisson: bool,
    key: int,
    element: int,
    uniforms: tuple[float, float],
    parameters: tuple[float, float, float],
    table: np.ndarray,
) -> float:
    """Draw a count by transformed rejection, as `torch_draws` does.

    Args:
        is_poisson: PTRS with rate p; else BTRS with n and p.
        key: of the sample.
        element: its number.
        uniforms: of the first proposal.
        parameters: n, p and log(p / (1 - p)); PTRS uses p only.
        table: of log k!.

    References: Hoermann 1993, algorithms PTRS and BTRS.
    """
    u, v = uniforms
    n, p, log_odds = parameters
    if is_poisson:
        std = math.sqrt(p)
        b = 0.931 + 2.53 * std
        a = -0.059 + 0.02483 * b
        center = p + 0.43
        squeeze = 0.9277 - 3.6224 / (b - 2)
    else:
        std = math.sqrt(n * p * (1 - p))
        b = 1.15 + 2.53 * std
        a = -0.0873 + 0.0248 * b + 0.01 * p
        center = n * p + 0.5
        squeeze = 0.92 - 4.2 / b
    attempt = 1
    while True:
        u -= 0.5
        edge = 0.5 - abs(u)
        k = np.floor((2 * a / edge + b) * u + center)
        if edge >= 0.07 and v <= squeeze:
            return k
        if k >= 0 and (is_poisson or k <= n):
            if is_poisson:
                hat = 1.1239 + 1.1328 / (b - 3.4)
                log_pmf = k * math.log(p) - p - log_factorial(k, table)
            else:
                hat = (2.83 + 5.1 / b) * std
                mode = np.floor((n + 1) * p)
                log_mode = log_factorial(mode, table) + log_factorial(n - mode, table)
                log_k = log_factorial(k, table)
                log_pmf = log_mode - log_k - log_factorial(n - k, table) + (k - mode) * log_odds
            if math.log(v * hat / (a / (edge * edge) + b)) <= log_pmf:
                return k
        attempt += 2
        u = element_uniform(attempt_keys(key, attempt), element)
        v = element_uniform(attempt_keys(key, attempt + 1), element)


@cached_njit("b1(b1, i8[::1], f8[:, ::1], f8[:, :], f8[:, ::1], f8[::1])")
def fill_counts(
    is_poisson: bool,
    keys: np.ndarray,
    n_rows: np.ndarray,
    p_rows: np.ndarray,
    counts: np.ndarray,
    table: np.ndarray,
) -> bool:
    """Fill `counts` with draws, and return whether all parameters are finite.

    Args:
        is_poisson: Poisson counts with rates p; else binomial counts with n and p.
        keys: int64 [B].
        n_rows: numbers of trials n, float64 [B, E]; of Poisson counts only its shape
            matters.
        p_rows: probabilities or rates p, float64 [B, E].
        counts: float64 [B, E].
        table: of log k!.
    """
    all_finite = True
    # most elements share p with the one before, so that its functions are kept
    p = 0.0
    odds = 0.0
    log_failure = 0.0
    log_odds = 0.0
    uniforms = np.empty((3, n_rows.shape[1]))
    for sample in range(keys.size):
        sample_p = p_rows[sample]
        # 1. Uniforms of all elements: of the search, and of the first proposal of a rejection.
        if is_poisson:
            has_large = np.any(sample_p >= INVERSION_LIMIT)
        else:
            has_large = np.any(n_rows[sample] * sample_p >= INVERSION_LIMIT)
        for attempt in range(3 if has_large else 1):
            fill_uniforms(keys[sample], attempt, uniforms[attempt])

        # 2. Counts, element by element.
        for element in range(n_rows.shape[1]):
            element_p = sample_p[element]
            n = n_rows[sample, element]
            u = uniforms[0, element]
            if not is_poisson and element_p != p:
                p = element_p
                odds = p / (1 - p)
                log_failure = math.log1p(-p)
                log_odds = math.log(p) - log_failure
            mean = element_p if is_poisson else n * element_p
            if not mean < np.inf:
                all_finite = False
            elif mean >= INVERSION_LIMIT:
                counts[sample, element] = transformed_rejection(
                    is_poisson,
                    keys[sample],
                    element,
                    (uniforms[1, element], uniforms[2, element]),
                    (n, element_p, log_odds),
                    table,
                )
            elif is_poisson:
                count = sequential_search(u, math.exp(-element_p), element_p, 0.0, 1.0)
                counts[sample, element] = count
            else:
                count = sequential_search(u, math.exp(n * log_failure), n, 1.0, odds)
                counts[sample, element] = count
    return all_finite


@cached_njit("void(i8, i8[::1], i8[:, ::1])")
def fill_words(seed: int, first: Any, numbers: Any) -> None:
    """Fill `numbers`, int64 [n, size], with the words of a seed from number first[i] on."""
    for row in range(len(first)):
        start = seed + first[row] * GAMMA
        for k in range(numbers.shape[1]):
            numbers[row, k] = mix(start + k * GAMMA)
