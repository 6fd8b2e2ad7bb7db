"""The choice between compiled draws (`numba_draws`, `triton_draws`) and those of `torch_draws`."""

from __future__ import annotations

import importlib.metadata
import os
import sys
import warnings
from functools import lru_cache
from types import ModuleType

import torch
from torch import Tensor

from blackout.random import torch_draws
from blackout.random.binomial_table import binomial_by_table
from blackout.random.streams import SampleStreams
from blackout.random.words import bits_at

MIN_ELEMENTS = 1 << 22  # drawn on a CPU by torch in about the second that it takes to load numba
CUDA_CHECK_SHAPE = (64, 512)  # samples and elements of the comparison before kernels are used
CPU_CHECK_SHAPE = (4, 64)
MASK_SEED = 0x5DEECE66D1234567  # any number of 63 bits

_num_drawn = [0]  # elements that this process has drawn on a CPU without numba


def compiler_version() -> str:
    """Return the compiler of random draws on a CPU, such as "numba 0.61.0", or "none".

    `NUMBA_DISABLE_JIT=1` switches numba off.
    """
    is_enabled = os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"
    return f"numba {importlib.metadata.version('numba')}" if is_enabled else "none"


def load_if_worthwhile(x: Tensor) -> ModuleType | None:
    """Return the module of compiled draws for the device of x; None where torch is faster.

    On a CPU, numba takes about a second to load. It is loaded only after so many elements were
    drawn that this is little, unless it is there already.
    """
    is_loaded = "blackout.random.numba_draws" in sys.modules
    if x.is_cpu and not is_loaded and _num_drawn[0] < MIN_ELEMENTS:
        _num_drawn[0] += x.numel()
        return None
    return load(x.device)


@lru_cache
def load(device: torch.device) -> ModuleType | None:
    """Return `triton_draws` for CUDA or `numba_draws` for a CPU, or None if they cannot be used.

    Before they are used on a device, they must have drawn there what `torch_draws` draws.

    Warns:
        UserWarning: they fail or differ on this device.
    """
    kernels: ModuleType
    try:
        if device.type == "cuda" and torch.cuda.is_available():
            from blackout.random import triton_draws  # only here: Triton comes with CUDA builds

            kernels = triton_draws
            shape = CUDA_CHECK_SHAPE
        elif device.type == "cpu":
            from blackout.random import numba_draws  # only here: numba takes a second to load

            kernels = numba_draws
            shape = CPU_CHECK_SHAPE
        else:
            return None
        agree = kernels_agree(kernels, device, *shape)
    except ImportError:
        return None
    except Exception as error:  # a compiler or driver that does not fit; torch's draws need neither
        message = f"compiled random numbers fail on {device}; PyTorch's are used instead: {error}"
        warnings.warn(message, stacklevel=3)
        return None
    if not agree:
        message = f"compiled random numbers differ on {device}; PyTorch's are used instead"
        warnings.warn(message, stacklevel=3)
        return None
    return kernels


def kernels_agree(
    kernels: ModuleType,
    device: torch.device,
    num_samples: int,
    num_elements: int,
) -> bool:
    """Test whether compiled draws [num_samples, num_elements] equal those of `torch_draws`."""
    streams = SampleStreams(0, torch.arange(num_samples, device=device)).step(0)
    draws = [streams.next_draw() for _ in range(3)]

    # 1. Poisson counts of both methods: means from 0.1 to 1000.
    rate = torch.logspace(-1, 3, num_elements, dtype=torch.float64, device=device)
    rate = rate.repeat(num_samples, 1)
    if not torch.equal(kernels.poisson(draws[0].keys, rate), torch_draws.poisson(draws[0], rate)):
        return False

    # 2. Binomial counts of both methods.
    n = torch.floor(9 * rate) + 1
    p = torch.full_like(rate, 0.3)
    compiled_counts = kernels.binomial(draws[1].keys, n, p)
    if not torch.equal(compiled_counts, torch_draws.binomial(draws[1], n, p)):
        return False
    if device.type == "cpu":  # tables have no compiled version there
        return True

    # 3. Look-ups in both kinds of tables.
    uint8_n = (9 * rate).clamp(max=255).byte()
    even = torch.arange(num_samples, device=device) % 2 == 0
    sample_p = torch.where(even, 0.3, 0.01).double()
    flipped = torch.zeros_like(even)
    compiled_counts = binomial_by_table(draws[2], uint8_n, sample_p, flipped, kernels)
    counts = binomial_by_table(draws[2], uint8_n, sample_p, flipped, None)
    if not torch.equal(compiled_counts, counts):
        return False

    # 4. Masks of dropout.
    seed = torch.full((), MASK_SEED, dtype=torch.int64, device=device)
    first = torch.arange(num_samples, device=device) * num_elements
    keep = torch.empty((num_samples, num_elements), dtype=torch.bool, device=device)
    kernels.keep_mask(seed, first, 0, keep)
    number = first[:, None] + torch.arange(num_elements, device=device)
    return torch.equal(keep, bits_at(seed, number) >= 0)
