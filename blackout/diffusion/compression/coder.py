"""A stack of bits that symbols are pushed onto and popped from, by asymmetric numeral systems.

References: Duda 2009, the range variant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Integers: TypeAlias = NDArray[np.int64]
# (slice of the symbols, a number in 0..2^24 - 1 for each) -> the symbols whose intervals contain
# the numbers, and the start and width of these intervals
Find: TypeAlias = Callable[[slice, Integers], tuple[Integers, Integers, Integers]]

PRECISION = 24  # bits: probabilities are whole multiples of 2^-24
TOTAL = 1 << PRECISION
INITIAL_SEED = 0x5EED  # of the first heads, and of the words that an empty stack returns

_BITS = np.uint64(PRECISION)
_LOW = np.uint64(31)  # a head is at least 2^31
_HIGH = np.uint64(63)  # and below 2^63
_WORD = np.uint64(32)  # bits of a word of the stack
_WORD_MASK = np.uint64(0xFFFFFFFF)


class Coder:
    """A stack of bits: last in, first out.

    Several lanes are coded at once. Lane i has a head in [2^31, 2^63), and all lanes share one
    stack of 32-bit words. The first heads are pseudo-random, and so are the words that an empty
    stack returns: symbols can be drawn before any were pushed.

    Args:
        lanes: number of symbols that are coded at once.
        content: the `content` of another coder, to be popped; None for an empty stack.
    """

    def __init__(self, lanes: int, content: bytes | None = None) -> None:
        self._initial = np.random.default_rng(INITIAL_SEED)
        self._words: list[NDArray[np.uint32]] = []
        if content is None:
            bits = self._initial.integers(0, 1 << 31, lanes, dtype=np.uint64)
            self._heads = (np.uint64(1) << _LOW) | bits
        else:
            self._heads = np.frombuffer(content[: 8 * lanes], dtype="<u8").astype(np.uint64)
            self._words.append(np.frombuffer(content[8 * lanes :], dtype="<u4").astype(np.uint32))

    @property
    def content(self) -> bytes:
        """The heads of the lanes, uint64 [lanes], followed by the words, uint32 [words]."""
        words = np.concatenate([np.zeros(0, np.uint32), *self._words])
        return self._heads.astype("<u8").tobytes() + words.astype("<u4").tobytes()

    def push(self, start: Integers, width: Integers) -> None:
        """Push symbols whose intervals are [start, start + width) of 0..2^24, int64 [n] each."""
        for lanes in self._rounds(len(start)):
            starts = start[lanes].astype(np.uint64)
            widths = width[lanes].astype(np.uint64)
            heads = self._heads[: len(starts)]
            full = heads >= widths << (_HIGH - _BITS)
            if full.any():
                self._words.append((heads[full] & _WORD_MASK).astype(np.uint32))
                heads[full] >>= _WORD
            quotient, remainder = np.divmod(heads, widths)
            heads[:] = (quotient << _BITS) + remainder + starts

    def pop(self, n: int, find: Find) -> Integers:
        """Pop n symbols that were pushed together, int64 [n].

        Args:
            n: number of symbols.
            find: finds the symbols and their intervals.
        """
        symbols = np.zeros(n, dtype=np.int64)
        for lanes in reversed(self._rounds(n)):
            heads = self._heads[: lanes.stop - lanes.start]
            points = heads & np.uint64(TOTAL - 1)
            symbols[lanes], start, width = find(lanes, points.astype(np.int64))
            heads[:] = width.astype(np.uint64) * (heads >> _BITS) + points - start.astype(np.uint64)
            low = heads < np.uint64(1) << _LOW
            if low.any():
                words = self._pop_words(int(low.sum())).astype(np.uint64)
                heads[low] = (heads[low] << _WORD) | words
        return symbols

    def _rounds(self, n: int) -> list[slice]:
        """Return the slices of n symbols that are coded at once."""
        lanes = len(self._heads)
        return [slice(first, min(n, first + lanes)) for first in range(0, n, lanes)]

    def _pop_words(self, n: int) -> NDArray[np.uint32]:
        """Return the n words at the top of the stack, uint32 [n]."""
        parts: list[NDArray[np.uint32]] = []
        while n:
            top = self._words.pop() if self._words else self._draw_words(n)
            rest, words = np.split(top, [max(0, len(top) - n)])
            if len(rest):
                self._words.append(rest)
            parts.insert(0, words)
            n -= len(words)
        return np.concatenate(parts)

    def _draw_words(self, n: int) -> NDArray[np.uint32]:
        return self._initial.integers(0, 1 << 32, n, dtype=np.uint32)


def push_uniform(coder: Coder, symbols: Integers, bits: Integers) -> None:
    """Push numbers [m] below 2^bits [m], all equally probable."""
    shift = PRECISION - bits
    coder.push(symbols << shift, np.full(len(bits), 1) << shift)


def pop_uniform(coder: Coder, bits: Integers) -> Integers:
    """Return numbers [m] that `push_uniform` pushed with these bits [m]."""

    def find(part: slice, points: Integers) -> tuple[Integers, Integers, Integers]:
        """Return the leading bits of the points, see `Find`."""
        shift = PRECISION - bits[part]
        symbols = points >> shift
        return symbols, symbols << shift, np.full(len(points), 1) << shift

    return coder.pop(len(bits), find)
