"""Exact draws of binomial, Poisson and finite laws (categories), from a torch generator or from counter-based streams.

Binomials of uint8 counts whose elements share p are looked up in tables, exact in law for p per sample. For the
rest torch's own kernels draw from a `torch.Generator`; from streams (`blackout.random.streams`) it is inversion by
sequential search where the mean is small and transformed rejection ([Hoermann 1993], "BTRS" and "PTRS") where it is
large. All are exact in distribution (tests/random/test_counts.py and test_binomial_table.py) and computed in float64,
whatever the dtype of the counts.

On a CPU a search and a rejection end with the last element that needs them. To know when that is, other devices would
have to be waited for: there all elements take as many turns as any could need, to the same result.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
import warnings
from collections.abc import Callable
from functools import lru_cache
from types import ModuleType
from typing import TypeAlias

import torch
from torch import Tensor

from blackout.random.streams import (
    INVERSION_LIMIT,
    SEARCH_LIMIT,
    Draw,
    RandomSource,
    SampleStreams,
    StepStreams,
    can_look,
    uniform,
)

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

_FEW = 1 << 22
"""Elements of a process on a CPU that are drawn in about the second that it takes to load numba."""

Digits: TypeAlias = tuple[tuple[int, int], ...]


def binomial_by_table(draw: Draw, n: Tensor, p: Tensor, flipped: Tensor, kernels: ModuleType | None = None) -> Tensor:
    """Binomial(n, p) by inversion, or n less that where `flipped`. Ours (tests/random/test_binomial_table.py).

    Args:
        draw: uniforms of a draw of n's shape.
        n: uint8 [B, ...].
        p: float64, at most 1/2; a scalar, or one per sample [B].
        flipped: bool of p's shape.
        kernels: `blackout.random.triton_draws`, to look up in one kernel per digit of n.

    Returns:
        uint8 of n's shape.
    """
    flat = n.reshape(len(n), -1).contiguous()
    if not can_look(n):
        return _without_looking(draw, flat, p, flipped, kernels).view(n.shape)
    drawn, size = torch.empty_like(flat), max(1, _CHUNK // max(1, flat.shape[1]))
    largest = int(n.max()) if n.numel() else 0
    order, few = torch.arange(len(n)), len(n) * int(p.ndim == 0 and p < _SMALL)
    if p.ndim:
        order, few = p.argsort(), int((p < _SMALL).sum())  # tables of like length are made together
    for digits, ranks in ((_WHOLE, order[:few]), (_DIVIDED, order[few:])):
        for which in ranks.split(size) if len(ranks) else ():
            own, turned = (p[which], flipped[which]) if p.ndim else (p.view(1), flipped)
            some, tables = flat.index_select(0, which), _tables(own, largest, digits)
            drawn.index_copy_(0, which, _look_up(draw.samples(which), some, turned, digits, tables, kernels))
    return drawn.view(n.shape)


def _without_looking(draw: Draw, n: Tensor, p: Tensor, flipped: Tensor, kernels: ModuleType | None) -> Tensor:
    """What a CPU draws, where asking which probabilities are small would be a wait: both ways, of which one counts.

    Of n [B, E], uint8 [B, E]; ours, as in `binomial_by_table`.
    """
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
    """P(Binomial(n, p) <= k) for each digit of n = 0 .. largest, float64 [len(p), rows, columns] over (p, n, k).

    Of p [samples]; a binomial's distribution function by definition (tests/random/test_binomial_table.py).
    """
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
    """One bisection per digit of n, uint8 [B, E], each with uniforms of its own: of n [B, E] and tables by `_tables`.

    Ours, as in `binomial_by_table`.
    """
    drawn = torch.zeros_like(n)
    for attempt, ((shift, mask), table) in enumerate(zip(digits, tables, strict=True)):
        samples, rows, columns = table.shape
        if columns == 1:
            continue
        if kernels:
            drawn += kernels.bisect(draw.keys, table, (n >> shift) & mask, attempt)
            continue
        row = ((n >> shift) & mask).to(torch.int32)
        if samples > 1:
            row += torch.arange(samples, dtype=torch.int32, device=n.device)[:, None] * rows
        drawn += invert_rows(table.view(-1, columns), row, draw.uniform(tuple(n.shape), attempt))
    drawn = torch.minimum(drawn, n)  # where P(X <= n) fell short of 1 by rounding
    return torch.where(flipped[..., None], n - drawn, drawn)


@lru_cache
def _counts(device: torch.device) -> Tensor:
    return torch.arange(256, dtype=torch.float64, device=device)


@lru_cache
def _log_ways(device: torch.device) -> Tensor:
    """log(n! / k! (n - k)!) [256, 256] over (n, k), -inf for k > n: by definition
    (tests/random/test_binomial_table.py).
    """
    k = _counts(device)
    n = k[:, None]
    ways = torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma((n - k).clamp_(min=0) + 1)
    return ways.masked_fill_(k > n, -torch.inf)


def _columns(p: float, largest: int) -> int:
    """How many k to tabulate: P(Binomial(largest, p) >= columns) < e^-38 by Chernoff's bound, for p <= 1/2.

    Ours (tests/random/test_binomial_table.py): of two numbers, a number.
    """
    if p * largest == 0:
        return 1
    least = int(p * largest) + 1
    x = torch.arange(least, largest + 1, dtype=torch.float64) / largest
    exponent = largest * (torch.xlogy(x, x / p) + torch.xlogy(1 - x, (1 - x) / (1 - p)))  # rises with x from p on
    return least + int((exponent <= _NEVER).sum())


_TABLE_ELEMENTS = 64
"""From so many elements per sample on, a table is quicker than a draw for each."""
_ATTEMPTS = 36
"""At most 30 % of a rejection's proposals are refused, and 0.3^36 < 2^-62."""


def binomial(n: Tensor, p: Tensor, generator: RandomSource = None, complement: Tensor | None = None) -> Tensor:
    """Binomial(n, p), elementwise: by one of the ways that are named above (tests/random/test_counts.py).

    Args:
        n: non-negative integers, any shape [B, ...].
        p: success probabilities, broadcastable to n.
        generator: where randomness comes from; None is torch's global generator.
        complement: 1 - p where the caller knows it to more digits than 1 - p in float64 has.

    Returns:
        Counts with the dtype and shape of n.
    """
    p = p.to(n.device, torch.float64)
    q = 1 - p if complement is None else complement.to(n.device, torch.float64)
    flipped, rare = p > q, torch.minimum(p, q)
    if _tabulated(n, rare):
        if rare.ndim:
            flipped, rare = (x.expand(len(n), *x.shape[1:]).reshape(-1) for x in (flipped, rare))
        return binomial_by_table(_draw(generator, n), n, rare, flipped, None if n.is_cpu else _kernels(n.device))
    size, rare = n.to(torch.float64).contiguous(), rare.expand(n.shape)
    if isinstance(generator, StepStreams):
        draw, kernels = generator.next_draw(), _worth_loading(n)
        drawn = kernels.binomial(draw.keys, size, rare) if kernels else _binomial_from(draw, size, rare)
    else:
        drawn = torch.binomial(size, rare, generator=generator)
    if can_look(flipped) and not bool(flipped.any()):
        return drawn.to(n.dtype)
    return torch.where(flipped, n - drawn, drawn).to(n.dtype)


def poisson(rate: Tensor, generator: RandomSource = None) -> Tensor:
    """Poisson(rate), elementwise: by one of the ways that are named above (tests/random/test_counts.py).

    Args:
        rate: non-negative, any shape [B, ...].

    Returns:
        Float64 whole numbers of rate's shape (a count may exceed any integer type chosen).
    """
    rate = rate.to(torch.float64).contiguous()
    if isinstance(generator, StepStreams):
        draw, kernels = generator.next_draw(), _worth_loading(rate)
        return kernels.poisson(draw.keys, rate) if kernels else _poisson_from(draw, rate)
    return torch.poisson(rate, generator=generator)


def bernoulli(p: Tensor, generator: RandomSource = None) -> Tensor:
    """True with probability p, elementwise: bool of p's shape [B, ...], u < p for uniforms u
    (tests/random/test_counts.py).
    """
    return uniform(tuple(p.shape), generator, p.device) < p


def compiled_by() -> str:
    """What compiles the draws of streams: numba with its version, or none where it is switched off."""
    used = os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"
    return f"numba {importlib.metadata.version('numba')}" if used else "none"


_drawn = [0]
"""How many elements this process has drawn on a CPU without numba."""


def _worth_loading(x: Tensor) -> ModuleType | None:
    """`_kernels`, on a CPU once numba is there, or so much was drawn in general that a second to load it is little."""
    if x.is_cpu and _drawn[0] < _FEW and "blackout.random.numba_draws" not in sys.modules:
        _drawn[0] += x.numel()
        return None
    return _kernels(x.device)


@lru_cache
def _kernels(device: torch.device) -> ModuleType | None:
    """Triton's kernels on CUDA, numba's on a CPU, once they have drawn there what this file draws."""
    kernels: ModuleType
    try:
        if device.type == "cuda" and torch.cuda.is_available():
            from blackout.random import triton_draws

            kernels, size = triton_draws, (64, 512)
        elif device.type == "cpu":
            from blackout.random import numba_draws

            kernels, size = numba_draws, (4, 64)
        else:
            return None
        agree = kernels_agree(kernels, device, *size)
    except ImportError:
        return None
    except Exception as error:  # a compiler or a driver that does not fit: the general path needs neither
        warnings.warn(f"compiled draws do not run on {device}, the general ones do: {error}", stacklevel=3)
        return None
    if not agree:
        warnings.warn(f"compiled draws differ from the general ones on {device} and are not used", stacklevel=3)
    return kernels if agree else None


def kernels_agree(kernels: ModuleType, device: torch.device, samples: int, elements: int) -> bool:
    """Whether the `kernels` draw the same Poisson and binomial counts [samples, elements] as the general path."""
    streams = SampleStreams(0, torch.arange(samples, device=device)).at(0)
    rate = torch.logspace(-1, 3, elements, dtype=torch.float64, device=device).repeat(samples, 1)
    n, p = torch.floor(9 * rate) + 1, torch.full_like(rate, 0.3)
    levels, straight = (9 * rate).clamp(max=255).byte(), torch.zeros_like(p[:, 0], dtype=torch.bool)
    shared = torch.where(torch.arange(samples, device=device) % 2 == 0, 0.3, 0.01).double()  # of either kind of table
    draws = [streams.next_draw() for _ in range(3)]
    return (
        torch.equal(kernels.poisson(draws[0].keys, rate), _poisson_from(draws[0], rate))
        and torch.equal(kernels.binomial(draws[1].keys, n, p), _binomial_from(draws[1], n, p))
        and (
            device.type == "cpu"  # where nothing is looked up by kernels
            or torch.equal(*(binomial_by_table(draws[2], levels, shared, straight, one) for one in (kernels, None)))
        )
    )


def _tabulated(n: Tensor, p: Tensor) -> bool:
    """Whether tables pay: many uint8 counts [B, ...] in a sample, and one p for all or one per sample."""
    if n.dtype != torch.uint8 or n.ndim == 0 or n[:1].numel() < _TABLE_ELEMENTS:
        return False
    return p.ndim == 0 or (p.ndim == n.ndim and p.numel() == p.shape[0] and p.shape[0] in (1, len(n)))


def _draw(generator: RandomSource, n: Tensor) -> Draw:
    """The next draw of streams, or one keyed by a generator's next numbers."""
    if isinstance(generator, StepStreams):
        return generator.next_draw()
    keys = torch.empty(len(n), dtype=torch.int64, device=n.device if generator is None else generator.device)
    return Draw(keys.random_(generator=generator).to(n.device))


def _binomial_from(draw: Draw, n: Tensor, p: Tensor) -> Tensor:
    """Binomial(n, p) with p <= 1/2 from streams; n, p and the counts are float64 of one shape [B, ...].

    Inversion below a mean of 10, else [Hoermann 1993, algorithm BTRS].
    """
    small = n * p < INVERSION_LIMIT
    odds = p / (1 - p)
    start = torch.where(small, torch.exp(n * torch.log1p(-p)), 1.0)
    # P(k + 1) / P(k) = (n - k) / (k + 1) * p / (1 - p)
    drawn = _search(draw, start, lambda k: (n - k).mul_(odds).div_(k + 1))
    if can_look(drawn) and bool(small.all()):
        return drawn
    # BTRS for n p >= 10, p <= 1/2 [Hoermann 1993, algorithm BTRS], whose constants these are
    deviation = torch.sqrt(n * p * (1 - p))
    b = 1.15 + 2.53 * deviation
    a = -0.0873 + 0.0248 * b + 0.01 * p
    mode, log_hat = torch.floor((n + 1) * p), torch.log((2.83 + 5.1 / b) * deviation)
    log_mode, log_odds = torch.lgamma(mode + 1) + torch.lgamma(n - mode + 1), torch.log(p) - torch.log1p(-p)

    def log_density(k: Tensor) -> Tensor:
        """log of the mass at whole numbers k [B, ...] over that at the mode, less the hat's [Hoermann 1993, BTRS]:
        [B, ...].
        """
        return log_mode - torch.lgamma(k + 1) - torch.lgamma(n - k + 1) + (k - mode) * log_odds - log_hat

    return _transformed_rejection(draw, drawn, ~small, a, b, n * p + 0.5, 0.92 - 4.2 / b, n, log_density)


def _poisson_from(draw: Draw, rate: Tensor) -> Tensor:
    """Poisson(rate) from streams, float64 as the rates and of their shape [B, ...].

    Inversion below a mean of 10, else [Hoermann 1993, algorithm PTRS].
    """
    small = rate < INVERSION_LIMIT
    start = torch.where(small, torch.exp(-rate), 1.0)
    drawn = _search(draw, start, lambda k: rate / (k + 1))
    if can_look(drawn) and bool(small.all()):
        return drawn
    # PTRS for rates >= 10 [Hoermann 1993, algorithm PTRS], whose constants these are
    b = 0.931 + 2.53 * torch.sqrt(rate)
    a = -0.059 + 0.02483 * b
    log_hat, log_rate = torch.log(1.1239 + 1.1328 / (b - 3.4)), torch.log(rate)

    def log_density(k: Tensor) -> Tensor:
        """log of the Poisson mass at whole numbers k [B, ...], less the hat's [Hoermann 1993, PTRS]: [B, ...]."""
        return k * log_rate - rate - torch.lgamma(k + 1) - log_hat

    squeeze, largest = 0.9277 - 3.6224 / (b - 2), torch.full_like(rate, torch.inf)
    return _transformed_rejection(draw, drawn, ~small, a, b, rate + 0.43, squeeze, largest, log_density)


def _search(draw: Draw, start: Tensor, ratio: Callable[[int], Tensor]) -> Tensor:
    """Inversion: walk up the pmf from P(0) = `start` [B, ...] until it has used up the uniform: counts, float64
    [B, ...].

    `ratio(k)` is P(k + 1) / P(k). Elements with start = 1 stay 0. Ours (tests/random/test_counts.py).
    """
    drawn, mass, left = torch.zeros_like(start), start.clone(), draw.uniform(tuple(start.shape))
    for k in range(SEARCH_LIMIT):  # once left <= mass it stays so, since then left <= 0
        # mass = 0: the support has ended and what is left of the uniform is rounding
        going = (left > mass) & (mass > 0)
        if can_look(start) and not bool(going.any()):
            break
        drawn.add_(going)
        left.sub_(mass)
        mass.mul_(ratio(k))
    return drawn


def _transformed_rejection(
    draw: Draw, drawn: Tensor, wanted: Tensor, a: Tensor, b: Tensor, centre: Tensor, squeeze: Tensor, largest: Tensor,
    log_density: Callable[[Tensor], Tensor],
) -> Tensor:  # fmt: skip
    """`drawn` [B, ...], where `wanted` by transformed rejection with squeeze: the first accepted proposal.

    [Hoermann 1993]; all tensors are of one shape, and `log_density` is that of whole numbers [B, ...] over the hat's.
    """
    if can_look(a) and not bool(torch.isfinite(centre).all()):  # none of it would ever be accepted
        raise ValueError("a rate or probability is not finite")
    drawn = torch.where(wanted, torch.nan, drawn)
    for attempt in range(_ATTEMPTS):
        u = draw.uniform(tuple(a.shape), 1 + 2 * attempt).sub_(0.5)
        v = draw.uniform(tuple(a.shape), 2 + 2 * attempt)
        edge = 0.5 - u.abs()
        # k = floor((2 a / (1/2 - |U|) + b) U + c)
        k = torch.floor((2 * a / edge + b) * u + centre)
        below = torch.log(v) - torch.log(a / edge**2 + b) <= log_density(k)
        accepted = ((edge >= 0.07) & (v <= squeeze)) | ((k >= 0) & (k <= largest) & below)
        drawn, wanted = torch.where(wanted & accepted, k, drawn), wanted & ~accepted
        if can_look(a) and not bool(wanted.any()):
            break
    return drawn


_WEIGHTS = 1 << 24
"""Largest number of weights whose running sums are formed at once: 128 MiB."""


def categorical(weights: Tensor, generator: RandomSource = None) -> Tensor:
    """An index of the last axis with probability proportional to its weight, by inversion of the running sums.

    Ours (tests/random/test_counts.py).

    Args:
        weights: non-negative [B, ..., S], not all zero.

    Returns:
        int64 [B, ...].
    """
    u = uniform(tuple(weights.shape[:-1]), generator, weights.device)
    flat, drawn = weights.reshape(-1, weights.shape[-1]), []
    rows = max(1, _WEIGHTS // weights.shape[-1])
    for part, v in zip(flat.split(rows), u.reshape(-1).split(rows), strict=True):
        drawn.append(torch.searchsorted(cumulative(part), v[:, None], right=True).squeeze(1))
    return torch.cat(drawn).view(u.shape).clamp_(max=weights.shape[-1] - 1)


def cumulative(weights: Tensor) -> Tensor:
    """Running sums over the last axis of [..., S], divided by the last: float64 [..., S], ending at exactly 1
    (tests/random/test_counts.py).
    """
    sums = weights.double().cumsum(-1)
    return sums / sums[..., -1:]


def systematic(weights: Tensor, u: Tensor) -> Tensor:
    """Who takes each of P places, with weight w for P w of them on average, and never a whole one more or less.

    Systematic resampling [Carpenter 1999; Kitagawa 1996].

    Args:
        weights: [..., P], of any positive sum.
        u: uniforms [..., 1], one for a group.

    Returns:
        int64 [..., P], in order.
    """
    places = (u + torch.arange(weights.shape[-1], device=u.device)) / weights.shape[-1]
    return torch.searchsorted(cumulative(weights), places, right=True).clamp_(max=weights.shape[-1] - 1)


def invert_rows(cumulative_rows: Tensor, row: Tensor, u: Tensor) -> Tensor:
    """The first k with u < cumulative_rows[row, k], or the last, by bisection without gathering whole rows.

    Ours (tests/random/test_counts.py).

    Args:
        cumulative_rows: [R, S], non-decreasing.
        row: int32 or int64, any shape.
        u: uniforms of that shape.

    Returns:
        Integers like `row`, in 0..S - 1.
    """
    left = cumulative_rows.shape[-1]
    values, start, u = cumulative_rows.reshape(-1), (row * left).reshape(-1), u.reshape(-1)
    at = start.clone()
    while left > 1:
        half = left // 2
        at.add_(values.index_select(0, at + (half - 1)) <= u, alpha=half)
        left -= half
    return at.sub_(start).view(row.shape)
