"""A stack of bits onto which symbols are pushed and from which they are popped (range variant of ANS; Duda 2009).

Several lanes are coded at once, as in the vectorised coder of Townsend, Bird and Barber (2019): lane i holds a number
in [2^31, 2^63), and all share one stack of 32-bit words. Popping from an empty stack finds pseudo-random words, so that
symbols can be drawn before any were pushed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
PRECISION = 24
"""Probabilities are whole multiples of 2^-24."""
_LOW, _WORD = np.uint64(31), np.uint64(32)
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
    def lanes(self) -> int:
        """Symbols that are coded at once."""
        return len(self._heads)

    @property
    def content(self) -> bytes:
        """All of it."""
        words = np.concatenate([np.zeros(0, np.uint32), *self._words])
        return self._heads.astype("<u8").tobytes() + words.astype("<u4").tobytes()

    def push(self, start: Integers, width: Integers) -> None:
        """Push symbols that fill [start, start + width) of 0..2^24, at most one per lane: arrays [n], n <= lanes."""
        heads, n = self._heads, len(start)
        first, wide = start.astype(np.uint64), width.astype(np.uint64)
        full = heads[:n] >= wide << (np.uint64(63) - np.uint64(PRECISION))
        if full.any():
            self._words.append((heads[:n][full] & np.uint64(0xFFFFFFFF)).astype(np.uint32))
            heads[:n][full] >>= _WORD
        whole, rest = np.divmod(heads[:n], wide)
        heads[:n] = (whole << np.uint64(PRECISION)) + rest + first

    def pop(self, n: int, find: Callable[[Integers], tuple[Integers, Integers, Integers]]) -> Integers:
        """Pop n <= lanes symbols.

        Args:
            n: how many.
            find: numbers in 0..2^24 - 1, [n] -> the symbols whose intervals they lie in, and start and width of these.
        """
        heads = self._heads
        bar = heads[:n] & np.uint64((1 << PRECISION) - 1)
        symbol, start, width = find(bar.astype(np.int64))
        heads[:n] = width.astype(np.uint64) * (heads[:n] >> np.uint64(PRECISION)) + bar - start.astype(np.uint64)
        low = heads[:n] < np.uint64(1) << _LOW
        if low.any():
            heads[:n][low] = (heads[:n][low] << _WORD) | self._taken(int(low.sum())).astype(np.uint64)
        return symbol

    def _taken(self, n: int) -> NDArray[np.uint32]:
        parts: list[NDArray[np.uint32]] = []
        while n:
            if not self._words:
                parts.insert(0, self._initial.integers(0, 1 << 32, n, dtype=np.uint32))
                break
            top = self._words.pop()
            used = min(n, len(top))
            if used < len(top):
                self._words.append(top[: len(top) - used])
            parts.insert(0, top[len(top) - used :])
            n -= used
        return np.concatenate(parts)
