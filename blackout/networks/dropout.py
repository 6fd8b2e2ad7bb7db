"""Dropout whose masks do not depend on how many processes share a batch.

The mask of a row is a function of a seed and of the row's position in the global batch. A process
therefore draws the masks of its own rows only, however many other processes there are.

References: this project; checked in tests/networks/test_dropout.py.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor, nn

from blackout.random import compiled_draws
from blackout.random.words import bits_at, random_bits

NUM_VALUES = 65_536  # values of 16 random bits
INT16_OFFSET = 32_768  # int16 values are -32,768..32,767
MAX_SEED = 2**63 - 1  # largest seed of a mask


class BatchShard(NamedTuple):
    """Part of a batch on one of W processes: every W-th sample."""

    rank: int = 0
    num_processes: int = 1
    num_samples: int = 1  # of this process


class Dropout(nn.Dropout):
    """Dropout whose masks are 16 bits per element of a counter-based hash.

    The hash's seed comes from PyTorch's generator. Element j of the sample at position k of the
    global batch has the number k E + j, with E elements per sample, in the order of its memory. The
    probability is `p` rounded to a multiple of 2^-16.

    - On a CPU the bits are drawn in blocks of whole samples. A fused group norm uses them too.
    - On a CUDA device with Triton, one kernel makes the mask.
    - Elsewhere, and in compiled code, the mask is made of element-wise operations, which the
      compiler fuses with what surrounds them.

    References: this project; checked in tests/networks/test_dropout.py.
    """

    shard: BatchShard = BatchShard()

    @property
    def num_dropped(self) -> int:
        """Number of 16-bit values, out of 65,536, for which an element is dropped."""
        return round(NUM_VALUES * self.p) if self.training else 0

    @property
    def threshold(self) -> int:
        """Smallest int16 value for which an element is kept."""
        return self.num_dropped - INT16_OFFSET

    @property
    def keep_scale(self) -> float:
        """Factor of the elements that are kept, 1 / (1 - p)."""
        return NUM_VALUES / max(1, NUM_VALUES - self.num_dropped)

    def forward(self, x: Tensor) -> Tensor:
        """Drop elements of x [b m, ...], with m rows per sample, and scale the others.

        Other numbers of rows than multiples of the samples get the same mask in all processes.
        """
        if not 0 < self.num_dropped < NUM_VALUES:
            return super().forward(x)
        if x.device.type == "cpu" and not torch.compiler.is_compiling():
            keep = torch.empty_like(x.detach(), dtype=torch.bool)
            bits = self.random_bits(x).as_strided(x.shape, keep.stride())
            torch.ge(bits, self.threshold, out=keep)
            return x * keep.to(x.dtype).mul_(self.keep_scale)
        return torch.where(self._mask_on_device(x.detach()), x * self.keep_scale, 0.0)

    def random_bits(self, x: Tensor) -> Tensor:
        """Draw a random int16 for every element of x on a CPU, in the order of its memory.

        Returns:
            int16 [x.numel()]; empty, with the generator left alone, if nothing is dropped.
        """
        if not self.num_dropped:
            return x.new_empty(0, dtype=torch.int16)
        seed = int(torch.empty((), dtype=torch.int64).random_())
        rank, num_processes, num_samples = self._shard_of(x)
        if num_processes == 1:
            return random_bits(seed, torch.zeros(1, dtype=torch.int64), x.numel()).flatten()
        positions = torch.arange(rank, num_processes * num_samples, num_processes)
        size = x.numel() // num_samples
        return random_bits(seed, size * positions, size).flatten()

    def _shard_of(self, x: Tensor) -> BatchShard:
        """Return the share that decides the masks of x's rows."""
        return BatchShard() if len(x) % self.shard.num_samples else self.shard

    def _mask_on_device(self, x: Tensor) -> Tensor:
        """Return whether each element of x [b m, ...] is kept, bool of the same shape.

        The seed stays on the device, so that the host does not wait for it.
        """
        # 1. Number of the first element of every row.
        seed = torch.randint(MAX_SEED, (), device=x.device)
        rank, num_processes, num_samples = self._shard_of(x)
        rows_per_sample = len(x) // num_samples if num_processes > 1 else 1
        row = torch.arange(len(x), device=x.device)
        position = rank + num_processes * (row // rows_per_sample)
        row_size = math.prod(x.shape[1:])
        first = (position * rows_per_sample + row % rows_per_sample) * row_size

        # 2. The mask, in the memory order of x.
        strides = torch.empty_like(x[0]).stride()
        kernels = None if torch.compiler.is_compiling() else _kernels(x.device)
        if kernels is not None:
            keep = torch.empty_strided(
                x.shape, (row_size, *strides), dtype=torch.bool, device=x.device
            )
            kernels.keep_mask(seed, first, self.threshold, keep)
            return keep
        number = first.view(-1, *[1] * (x.ndim - 1))
        for axis, stride in enumerate(strides, 1):
            index = torch.arange(x.shape[axis], device=x.device) * stride
            number = number + index.view(-1, *[1] * (x.ndim - 1 - axis))
        return bits_at(seed, number) >= self.threshold


def _kernels(device: torch.device) -> ModuleType | None:
    """Return the compiled draws of a CUDA device, or None for other devices."""
    return compiled_draws.load(device) if device.type == "cuda" else None
