"""Random words and bits by number: a hash of (seed, number), in any order and on any device."""

from __future__ import annotations

import torch
from torch import Tensor

from blackout.random import streams
from blackout.random.streams import GOLDEN_GAMMA, mix_, signed

MIN_COMPILED_WORDS = 16_384  # below this, PyTorch takes no longer than numba
INT16_PER_WORD = 4  # a word has 64 bits


def random_words(seed: int, first: Tensor, size: int) -> Tensor:
    """Return rows of random words, as `blackout.random.streams.words`; by numba where faster.

    Args:
        seed: of the sequence.
        first: number of the first word of each row, int64 [n], on a CPU.
        size: words in a row.

    Returns:
        int64 [n, size].

    Example:
        >>> random_words(0, torch.tensor([0, 5]), 2).shape
        torch.Size([2, 2])
    """
    if len(first) * size < MIN_COMPILED_WORDS:
        return streams.words(seed, first, size)
    try:
        from blackout.random import numba_draws  # only here: numba takes long to load
    except ImportError:  # numba is switched off
        return streams.words(seed, first, size)
    return numba_draws.words(seed, first, size)


def random_bits(seed: int, first: Tensor, size: int) -> Tensor:
    """Return rows of 16 random bits, of which each word of a sequence has four.

    Args:
        seed: of the sequence.
        first: number of the first 16 bits of each row, int64 [n], on a CPU.
        size: numbers of 16 bits in a row.

    Returns:
        int16 [n, size].
    """
    shift = first % INT16_PER_WORD
    num_words = -(-(size + int(shift.max())) // INT16_PER_WORD)
    bits = random_words(seed, first // INT16_PER_WORD, num_words).view(torch.int16)
    if not shift.any():
        return bits[:, :size]
    return bits.gather(1, shift[:, None] + torch.arange(size))


def bits_at(seed: Tensor, number: Tensor) -> Tensor:
    """Return the 16 random bits of every number, by operations that work on any device.

    Args:
        seed: int64 scalar, on the device of `number`.
        number: of the 16 bits, int64 of any shape.

    Returns:
        int64 of the shape of `number`, in -32,768..32,767: those of `random_bits`.
    """
    word = mix_((number >> 2) * signed(GOLDEN_GAMMA) + seed)
    bits = (word >> (16 * (number & 3))) & 0xFFFF
    return bits - ((bits & 0x8000) << 1)
