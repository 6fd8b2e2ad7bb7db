"""Random words on a CPU, by numba where it is available and many are needed."""

from __future__ import annotations

from torch import Tensor

from blackout.random import streams

MIN_COMPILED_WORDS = 16_384  # below this, PyTorch takes no longer than numba


def random_words(seed: int, size: int) -> Tensor:
    """Return the words of a seed, int64 [size], as `blackout.random.streams.words` does.

    Example:
        >>> random_words(0, 2).shape
        torch.Size([2])
    """
    if size < MIN_COMPILED_WORDS:
        return streams.words(seed, size)
    try:
        from blackout.random import numba_draws  # only here: numba takes long to load
    except ImportError:  # numba is switched off
        return streams.words(seed, size)
    return numba_draws.words(seed, size)
