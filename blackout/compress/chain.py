"""A stack of bits onto which symbols are pushed and from which they are popped, and bits back along the chain of the
Poisson sampler with T steps [Townsend 2019; Kingma 2019].

The stack is the range variant of asymmetric numeral systems [Duda 2009]. Several lanes are coded at once: lane i holds
a number in [2^31, 2^63), and all share one stack of 32-bit words. Popping from an empty stack finds pseudo-random
words, so that symbols can be drawn before any were pushed.

To encode X_0, the forward process's X_t1 is popped from the stack as if drawn, the births between them are pushed with
the sampler's probabilities, and so on to X_T, which is pushed with the Poisson start's. The stack grows by

    -log p(X_T) - sum_k log p(X_k-1 | X_k) + sum_k log q(X_k | X_k-1),

in the mean the finite-time bound [Santos 2023, eq. 15]: all that the forward process drew comes back when it is
decoded. Births are coded within what max_count leaves, and every one keeps at least 2^-24, so that nothing is
impossible.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special
from torch import Tensor

from blackout.diffusion import BlackoutDiffusion
from blackout.diffusion.processes.base import predicted
from blackout.diffusion.schedules import step_fraction

Integers: TypeAlias = NDArray[np.int64]
Find: TypeAlias = Callable[[slice, Integers], tuple[Integers, Integers, Integers]]
"""(which symbols, numbers in 0..2^24 - 1, one for each) -> the symbols in whose intervals these lie, and start and
width of the intervals."""
PRECISION = 24
"""Probabilities are whole multiples of 2^-24."""
_LOW, _WORD, _BITS = np.uint64(31), np.uint64(32), np.uint64(PRECISION)
_INITIAL = 0x5EED


class Coder:
    """A stack, last in, first out.

    Args:
        lanes: symbols that are coded at once.
        content: what `content` gave, to be popped; None for an empty stack.
    """

    def __init__(self, lanes: int, content: bytes | None = None) -> None:
        self._initial = np.random.default_rng(_INITIAL)
        self._words: list[NDArray[np.uint32]] = []
        if content is None:
            self._heads = np.full(lanes, np.uint64(1) << _LOW)
        else:
            self._heads = np.frombuffer(content[: 8 * lanes], dtype="<u8").astype(np.uint64)
            self._words.append(np.frombuffer(content[8 * lanes :], dtype="<u4").astype(np.uint32))

    @property
    def content(self) -> bytes:
        """All of it."""
        words = np.concatenate([np.zeros(0, np.uint32), *self._words])
        return self._heads.astype("<u8").tobytes() + words.astype("<u4").tobytes()

    def push(self, start: Integers, width: Integers) -> None:
        """Push symbols [n], each filling [start, start + width) of 0..2^24."""
        for part in self._rounds(len(start)):
            first, wide = start[part].astype(np.uint64), width[part].astype(np.uint64)
            heads = self._heads[: len(first)]
            full = heads >= wide << (np.uint64(63) - _BITS)
            if full.any():
                self._words.append((heads[full] & np.uint64(0xFFFFFFFF)).astype(np.uint32))
                heads[full] >>= _WORD
            whole, rest = np.divmod(heads, wide)
            heads[:] = (whole << _BITS) + rest + first

    def pop(self, n: int, find: Find) -> Integers:
        """Pop n symbols that were pushed at once: int64 [n]."""
        symbols = np.zeros(n, dtype=np.int64)
        for part in reversed(self._rounds(n)):
            heads = self._heads[: part.stop - part.start]
            bar = heads & np.uint64((1 << PRECISION) - 1)
            symbols[part], start, width = find(part, bar.astype(np.int64))
            heads[:] = width.astype(np.uint64) * (heads >> _BITS) + bar - start.astype(np.uint64)
            low = heads < np.uint64(1) << _LOW
            if low.any():
                heads[low] = (heads[low] << _WORD) | self._taken(int(low.sum())).astype(np.uint64)
        return symbols

    def _rounds(self, n: int) -> list[slice]:
        lanes = len(self._heads)
        return [slice(first, min(n, first + lanes)) for first in range(0, n, lanes)]

    def _taken(self, n: int) -> NDArray[np.uint32]:
        """The n words on top."""
        parts: list[NDArray[np.uint32]] = []
        while n:
            if not self._words:
                parts.insert(0, self._initial.integers(0, 1 << 32, n, dtype=np.uint32))
                break
            top = self._words.pop()
            rest = max(0, len(top) - n)
            if rest:
                self._words.append(top[:rest])
            parts.insert(0, top[rest:])
            n -= len(top) - rest
        return np.concatenate(parts)


_TOTAL = 1 << PRECISION
LARGEST = 1023
"""Largest max_count: the forward process is coded from tables of its distributions for every count."""


def encoded(model: BlackoutDiffusion, counts: Tensor, steps: int, coder: Coder, batch_size: int = 64) -> None:
    """Push counts [n, *shape] onto the coder, whose sampler takes `steps` steps; the last batch ends on top."""
    for first, end in _batches(len(counts), batch_size):
        batch = counts[first:end]
        x = batch.reshape(-1).long().cpu().numpy()
        for k in range(1, steps + 1):
            before = x
            x = _Survivors(model, before, steps, k).pop(coder)
            _births(model, batch.shape, x, steps, k).push(coder, before - x)
        _first(model, batch.shape, steps).push(coder, x)


def decoded(model: BlackoutDiffusion, n: int, steps: int, coder: Coder, batch_size: int = 64) -> Tensor:
    """Pop what `encoded` pushed, by the same model, steps and batch size: counts [n, *shape]."""
    batches: list[Tensor] = []
    for first, end in reversed(_batches(n, batch_size)):
        shape = torch.Size((end - first, *model.shape))
        x = _first(model, shape, steps).pop(coder)
        for k in range(steps, 0, -1):
            before = x + _births(model, shape, x, steps, k).pop(coder)
            _Survivors(model, before, steps, k).push(coder, x)
            x = before
        batches.insert(0, torch.from_numpy(x.reshape(shape)))
    return torch.cat(batches)


def _batches(n: int, batch_size: int) -> list[tuple[int, int]]:
    """(first, end) of batches of 1, 2, 4, ... up to `batch_size`: what the first ones draw has to be borrowed."""
    edges = [0]
    while edges[-1] < n:
        edges.append(min(n, edges[-1] + min(batch_size, edges[-1] + 1)))
    return list(pairwise(edges))


class _Law(ABC):
    """Laws of symbols 0..largest [n], where symbol k fills [start(k), start(k + 1)) of 0..2^24."""

    def __init__(self, largest: Integers) -> None:
        self.largest = largest

    @abstractmethod
    def start(self, which: slice | Integers, symbols: Integers) -> Integers:
        """Where the intervals of symbols start, for some of the n; 2^24 beyond the largest."""

    def push(self, coder: Coder, symbols: Integers) -> None:
        start = self.start(slice(None), symbols)
        coder.push(start, self.start(slice(None), symbols + 1) - start)

    def pop(self, coder: Coder) -> Integers:
        return coder.pop(len(self.largest), partial(self._find, self.start(slice(None), np.ones_like(self.largest))))

    def _find(self, ones: Integers, part: slice, bar: Integers) -> tuple[Integers, Integers, Integers]:
        """The last symbol whose interval starts at or before `bar`, by bisection where it is not 0."""
        symbols, start, stop = np.zeros_like(bar), np.zeros_like(bar), ones[part].copy()
        if len(some := np.flatnonzero(bar >= stop)):
            which, wanted = part.start + some, bar[some]
            low, high = np.ones_like(wanted), self.largest[which]
            while (low < high).any():
                middle = (low + high + 1) // 2
                inside = self.start(which, middle) <= wanted
                low, high = np.where(inside, middle, low), np.where(inside, high, middle - 1)
            symbols[some], start[some], stop[some] = low, self.start(which, low), self.start(which, low + 1)
        return symbols, start, stop - start


class _Poisson(_Law):
    """Of rates [n]; every number keeps 2^-24, and the largest has what lies beyond it."""

    def __init__(self, rate: NDArray[np.float64], largest: Integers) -> None:
        super().__init__(largest)
        self._rate = rate

    def start(self, which: slice | Integers, symbols: Integers) -> Integers:
        largest = self.largest[which]
        below = np.where(symbols > 0, special.pdtr(np.maximum(symbols, 1) - 1, self._rate[which]), 0.0)
        scaled = np.floor(below * (_TOTAL - largest - 1)).astype(np.int64) + symbols
        return np.where(symbols > largest, _TOTAL, scaled)


def _births(model: BlackoutDiffusion, shape: torch.Size, x: Integers, steps: int, k: int) -> _Law:
    """Of the sampler's step from time k to k - 1."""
    times = model.schedule.grid(steps)
    states = torch.from_numpy(x.reshape(shape)).to(model.device)
    with torch.no_grad():
        prediction = predicted(model.denoiser(), model.process, states, times[k])
    rate = np.exp(prediction.log_mean.double().cpu().numpy().reshape(-1)) * float(step_fraction(times[k - 1], times[k]))
    return _Poisson(rate, model.process.max_count - x)


def _first(model: BlackoutDiffusion, shape: torch.Size, steps: int) -> _Law:
    """Poisson(q_T E[X_0]), where sampling starts."""
    mean = model.mean.double().cpu().expand(shape).numpy().reshape(-1)
    rate = float(torch.exp(-model.schedule.grid(steps)[-1])) * mean
    return _Poisson(rate, np.full(len(rate), model.process.max_count, dtype=np.int64))


class _Survivors(_Law):
    """Of counts [n] over the forward step from time k - 1 to k, which is as one of that length from time 0."""

    def __init__(self, model: BlackoutDiffusion, before: Integers, steps: int, k: int) -> None:
        super().__init__(before)
        times, levels = model.schedule.grid(steps), torch.arange(model.process.max_count + 1)
        pmf = model.process.pmf(levels, times[k] - times[k - 1]).numpy()  # a row for each count
        n, edges = np.arange(len(pmf))[:, None], np.arange(len(pmf) + 1)
        self._starts = np.zeros((len(pmf), len(pmf) + 1), dtype=np.int64)
        self._starts[:, 1:] = np.floor(np.cumsum(pmf, axis=1).clip(max=1.0) * (_TOTAL - n - 1)) + edges[1:]
        self._starts[edges > n] = _TOTAL

    def start(self, which: slice | Integers, symbols: Integers) -> Integers:
        return self._starts[self.largest[which], symbols]
