"""Counter-based random numbers: what sample k draws is a function of (seed, k, step) and of nothing else.

A generator with a state makes the numbers of one sample depend on how many others were drawn before it.
Here each uniform is a hash of its address instead, so a sample can be made again alone, in another batch or
on another device. The hash is SplitMix64 (Steele, Lea & Flood, OOPSLA 2014) with a second 64-bit key added
between its two multiplications, so that the 128-bit keys of two streams do not fall on one shared sequence.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import torch
from torch import Tensor


def _signed(value: int) -> int:
    """The two's complement int64 with the bits of a 64-bit unsigned integer (torch has no uint64 arithmetic)."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MULTIPLIER_1 = _signed(0xBF58476D1CE4E5B9)
_MULTIPLIER_2 = _signed(0x94D049BB133111EB)
_SECOND_KEY = _signed(0xD1B54A32D192ED03)


def _xor_shift_(z: Tensor, bits: int) -> Tensor:
    """z ^= z >> bits with a logical shift, in place."""
    return z.bitwise_xor_((z >> bits).bitwise_and_((1 << (64 - bits)) - 1))


def _hash_(z: Tensor, second_key: Tensor | int) -> Tensor:
    """SplitMix64's finaliser in place, with `second_key` added half-way."""
    _xor_shift_(z, 30).mul_(_MULTIPLIER_1).add_(second_key)
    _xor_shift_(z, 27).mul_(_MULTIPLIER_2)
    return _xor_shift_(z, 31)


def fold(key: Tensor, value: Tensor | int) -> Tensor:
    """A new int64 key from a key and an integer; shapes broadcast. Distinct values give unrelated keys."""
    return _hash_(key + (torch.as_tensor(value, device=key.device) + 1) * _GOLDEN, 0)


def fold_seed(seed: int, *values: int) -> int:
    """A seed in [0, 2^63) for `torch.Generator.manual_seed`, a hash of (seed, values...)."""
    key = torch.tensor(_signed(seed))
    for value in values:
        key = fold(key, _signed(value))
    return int(key) & ((1 << 63) - 1)


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
        self._keys = keys

    def uniform(self, shape: tuple[int, ...], attempt: int = 0, where: Tensor | None = None) -> Tensor:
        """Float64 uniforms in (0, 1) of 53 bits, for all elements or only those at flat indices `where`.

        Args:
            shape: [B, ...] of the whole draw, B the number of samples.
            attempt: which of an element's numbers.
            where: int64 [M], flat indices into `shape`; an element's number does not depend on who else is asked for.
        """
        first = fold(self._keys, attempt)
        second = fold(first, _SECOND_KEY)
        elements = math.prod(shape[1:])
        if where is None:
            place = torch.arange(elements, device=first.device).mul_(_GOLDEN)
            z = _hash_((first[:, None] + place).view(shape), second.view(-1, *[1] * (len(shape) - 1)))
        else:
            sample = where // elements
            z = _hash_((where - sample * elements).mul_(_GOLDEN).add_(first[sample]), second[sample])
        return (z >> 11).bitwise_and_((1 << 53) - 1).to(torch.float64).add_(0.5).mul_(2.0**-53)


class SampleStreams:
    """Random numbers for the samples named by `indices`.

    Args:
        seed: any integer.
        indices: int64 [B], the number k of each sample of the batch; its device is where numbers are made.
    """

    def __init__(self, seed: int, indices: Tensor) -> None:
        if indices.ndim != 1 or indices.dtype != torch.int64:
            raise ValueError(f"indices must be an int64 vector, not {indices.dtype} of shape {tuple(indices.shape)}")
        self._keys = fold(torch.full_like(indices, _signed(seed)), indices)

    def at(self, step: int) -> StepStreams:
        """The numbers of one step (a sampler's level, a training step)."""
        return StepStreams(fold(self._keys, step))


RandomSource: TypeAlias = torch.Generator | StepStreams | None
