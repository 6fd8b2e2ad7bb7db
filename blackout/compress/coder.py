"""A stack of bits onto which symbols are pushed and from which they are popped: the range variant of asymmetric numeral
systems [Duda 2009].

Several lanes are coded at once [Townsend 2019]: lane i holds a number in [2^31, 2^63), and all share one
stack of 32-bit words. Popping from an empty stack finds pseudo-random words, so that symbols can be drawn before any
were pushed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

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
