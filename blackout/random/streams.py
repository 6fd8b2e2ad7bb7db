"""Counter-based random numbers: those of sample k are a function of (seed, k, step) alone.

A generator with a state makes the numbers of one sample depend on how many others were drawn before it.
Here each uniform is a hash of its address instead, so the numbers of a sample can be made again alone, in another
batch or on another device. The hash is SplitMix64 [Steele 2014], whose 64-bit key is folded from the
address (seed, sample, step, draw, attempt) one number at a time. A second key, a function of the first, is added
between the two multiplications, so that draws whose counters overlap do not share a shifted piece of one sequence.
All in all an address has 64 bits: among n draws some two are equal with a probability of about n^2 / 2^65.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import torch
from torch import Tensor

GOLDEN = 0x9E3779B97F4A7C15
MULTIPLIERS = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
SECOND_KEY = 0xD1B54A32D192ED03
INVERSION_LIMIT = 10.0
"""Largest mean of a count that is drawn by sequential search; Hoermann's hats need at least this much."""
SEARCH_LIMIT = 64
"""P(Poisson(10) > 64) < 1e-29, and uniforms have 52 bits: past it only rounding is left."""
_PARTICLES = 0x2545F4914F6CDD1D
"""Where a sample's particles are among its addresses: no step has such a number."""
_FOLDED = 0x1E37AA5C6B0F4D29
"""Likewise for the streams of a sample's outer loops."""
_MASK = (1 << 64) - 1
_CHUNK = 24_576
"""Elements hashed together on a CPU, so that the passes of the hash stay in the cache."""


def signed(value: int) -> int:
    """The two's complement int64 with the bits of an unsigned integer of 64 bits, a number (torch has no uint64)."""
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def _hash(z: int) -> int:
    """SplitMix64's finaliser on 64-bit unsigned Python integers, one to one [Steele 2014]."""
    for bits, multiplier in zip((30, 27), MULTIPLIERS, strict=True):
        z = (z ^ (z >> bits)) * multiplier & _MASK
    return z ^ (z >> 31)


def _xor_shift_(z: Tensor, bits: int) -> Tensor:
    """z ^= z >> bits with a logical shift, in place, int64 of any shape: a step of SplitMix64 [Steele 2014]."""
    return z.bitwise_xor_((z >> bits).bitwise_and_((1 << (64 - bits)) - 1))


def fold(key: Tensor, value: int) -> Tensor:
    """New int64 keys [B] from keys [B] and an integer, one to one for each; distinct values give unrelated keys.

    SplitMix64 [Steele 2014] of the key plus a multiple of its increment (tests/random/test_streams.py).
    """
    return _mix(key + signed((value + 1) * GOLDEN))


def _mix(z: Tensor) -> Tensor:
    """SplitMix64's finaliser [Steele 2014] of int64 of any shape, which are overwritten."""
    _xor_shift_(z, 30).mul_(signed(MULTIPLIERS[0]))
    _xor_shift_(z, 27).mul_(signed(MULTIPLIERS[1]))
    return _xor_shift_(z, 31)


def _uniform_(z: Tensor, second_key: Tensor) -> Tensor:
    """Float64 uniforms in (0, 1) of 52 bits from int64 addresses [b, E], which are overwritten: [b, E].

    SplitMix64's finaliser [Steele 2014] again, but its shifts keep the sign. That saves a pass each; two addresses may
    then share a number, as they may for any random function, and the sign is lost, so that 63 bits come out.
    """
    shifted = z >> 30
    z.bitwise_xor_(shifted).mul_(signed(MULTIPLIERS[0])).add_(second_key)
    torch.bitwise_right_shift(z, 27, out=shifted)
    z.bitwise_xor_(shifted).mul_(signed(MULTIPLIERS[1]))
    torch.bitwise_right_shift(z, 31, out=shifted)
    z.bitwise_xor_(shifted).bitwise_right_shift_(11)
    return z.to(torch.float64).add_(0.5).mul_(2.0**-52)


def fold_seed(seed: int, *values: int) -> int:
    """A seed in [0, 2^63) for `torch.Generator.manual_seed`, a hash of (seed, values...), integers all.

    SplitMix64 [Steele 2014], as in `fold` (tests/random/test_streams.py).
    """
    key = seed & _MASK
    for value in values:
        key = _hash((key + (value + 1) * GOLDEN) & _MASK)
    return key & (_MASK >> 1)


def words(seed: int, number: int) -> Tensor:
    """So many random int64 [number], a function of the seed: SplitMix64's sequence [Steele 2014]."""
    return _mix(torch.arange(number).mul_(signed(GOLDEN)).add_(seed))


class StepStreams:
    """The uniforms of a batch of samples within one step. `next_draw` numbers the draws of the step."""

    def __init__(self, keys: Tensor) -> None:
        self.keys = keys
        self._draws = 0

    def next_draw(self) -> Draw:
        """The address of one more draw per element; every sample of the batch must ask equally often."""
        self._draws += 1
        return Draw(fold(self.keys, self._draws))


class Draw:
    """Uniforms of one draw: as many `attempt`s per element as a rejection method may need."""

    def __init__(self, keys: Tensor) -> None:
        self.keys = keys

    def samples(self, which: slice | Tensor) -> Draw:
        """The same draw for some of the samples, int64 [b] or a slice."""
        return Draw(self.keys[which])

    def uniform(self, shape: tuple[int, ...], attempt: int = 0) -> Tensor:
        """Float64 uniforms in (0, 1) of 52 bits. Ours (tests/random/test_streams.py).

        Args:
            shape: [B, ...] of the whole draw, B the number of samples.
            attempt: which of an element's numbers.
        """
        first = fold(self.keys, attempt)
        second = fold(first, SECOND_KEY)
        elements = math.prod(shape[1:])
        counter = torch.arange(elements, device=first.device).mul_(signed(GOLDEN))
        rows = max(1, _CHUNK // max(1, elements))
        if len(first) <= rows or first.device.type != "cpu":
            return _uniform_(first[:, None] + counter, second[:, None]).view(shape)
        numbers = torch.empty(len(first), elements, dtype=torch.float64)
        for i in range(0, len(first), rows):
            part = slice(i, i + rows)
            numbers[part] = _uniform_(first[part, None] + counter, second[part, None])
        return numbers.view(shape)


class _GeneratorDraw(Draw):
    """The next numbers of a torch generator, in [0, 1); `attempt` is when they are asked for."""

    def __init__(self, generator: torch.Generator | None, device: torch.device) -> None:
        self._generator, self._device = generator, device

    def uniform(self, shape: tuple[int, ...], attempt: int = 0) -> Tensor:
        return torch.rand(shape, generator=self._generator, dtype=torch.float64, device=self._device)


class SampleStreams:
    """Random numbers for the samples named by `indices`.

    Args:
        seed: any integer.
        indices: int64 [B], the number k of each sample of the batch; its device is where numbers are made.

    Raises:
        ValueError: indices of another type or shape.
    """

    def __init__(self, seed: int, indices: Tensor) -> None:
        if indices.ndim != 1 or indices.dtype != torch.int64:
            raise ValueError(f"indices must be an int64 vector, not {indices.dtype} of shape {tuple(indices.shape)}")
        self._keys = _mix((indices + 1).mul_(signed(GOLDEN)).add_(signed(seed)))

    def at(self, step: int) -> StepStreams:
        """The numbers of one step of a sampler or of training."""
        return StepStreams(fold(self._keys, step))

    def fold(self, value: int) -> SampleStreams:
        """Streams of their own for one turn of an outer loop: a function of (seed, sample, value), and so on inwards.

        None of their numbers is a number of these streams.
        """
        return self._of(fold(fold(self._keys, _FOLDED), value))

    def rows(self, which: Tensor) -> SampleStreams:
        """The streams of some of the samples, int64 [b] or a mask [B]."""
        return self._of(self._keys[which])

    def particles(self, number: int) -> SampleStreams:
        """Streams of `number` particles of every sample, sample after sample: particle p of sample k is a function of
        (seed, k, p), however many there are.
        """
        own = fold(self._keys, _PARTICLES)  # away from the steps of the sample itself
        return self._of(torch.stack([fold(own, p) for p in range(number)], dim=1).flatten())

    @staticmethod
    def _of(keys: Tensor) -> SampleStreams:
        streams = object.__new__(SampleStreams)
        streams._keys = keys
        return streams


def can_look(x: Tensor) -> bool:
    """Whether the host can look at x without waiting for a device; else what it does must not depend on x's values."""
    return x.device.type == "cpu"


RandomSource: TypeAlias = torch.Generator | StepStreams | None
"""Where a draw takes its numbers from; None is torch's global generator."""


def next_draw(generator: RandomSource, device: torch.device) -> Draw:
    """One more draw of a source: an address of streams, or what a torch generator gives next, on `device`."""
    return generator.next_draw() if isinstance(generator, StepStreams) else _GeneratorDraw(generator, device)


def uniform(shape: tuple[int, ...], generator: RandomSource, device: torch.device) -> Tensor:
    """Float64 uniforms in [0, 1), shape [B, ...]; from streams never exactly 0."""
    return next_draw(generator, device).uniform(shape)
