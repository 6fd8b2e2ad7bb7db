"""Types of counts and times, and how times broadcast over batches of counts.

A count is a whole number from 0 to max_count, in the smallest integer type in use.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from blackout.errors import ensure

LARGEST_COUNT = 2**31 - 1  # the largest max_count: what int32 holds
Shape: TypeAlias = tuple[int, ...]
"""Shape of an array of counts, of one sample or of a batch."""
Time: TypeAlias = Tensor | float
"""A time of a process: float64, a scalar, one per sample [B], or broadcastable to the counts."""


def count_dtype(max_count: int) -> torch.dtype:
    """Return the smallest dtype for counts 0..max_count: uint8 up to 255, else int32.

    States beyond all counts, such as letters numbered from 2^31 on, need int64.
    """
    if max_count > LARGEST_COUNT:
        return torch.int64
    return torch.uint8 if max_count <= 255 else torch.int32


def time_on(t: Time, device: torch.device) -> Tensor:
    """Return t, of any shape, as float64 on a device.

    A scalar that the host knows is passed as an argument, so that the host does not wait for the
    device. Compiled code, in which its value would be a constant, copies it.
    """
    is_host_scalar = not isinstance(t, Tensor) or (t.ndim == 0 and t.device.type == "cpu")
    if is_host_scalar and device.type != "cpu" and not torch.compiler.is_compiling():
        return torch.full((), float(t), dtype=torch.float64, device=device)
    return torch.as_tensor(t, dtype=torch.float64, device=device)


def per_row(values: Tensor, x: Tensor) -> Tensor:
    """Reshape values [B] to [B, 1, ...], so that they broadcast over x [B, ...]."""
    return values.view(-1, *[1] * (x.ndim - 1))


def per_sample(x: Tensor) -> Tensor:
    """Sum over the elements of every sample, [B, ...] -> [B]."""
    return x.flatten(1).sum(1)


def expand_time(t: Time, x: Tensor) -> Tensor:
    """Return times as float64 on the device of x, shaped to broadcast over x [B, ...].

    Raises:
        ValueError: t is neither a scalar, nor [B], nor broadcastable to x.
    """
    t = time_on(t, x.device)
    if t.ndim == 1 and x.ndim > 1 and len(t) == len(x):
        return per_row(t, x)
    try:
        np.broadcast_shapes(t.shape, x.shape)  # torch's version imports sympy, half a second
    except ValueError:
        raise ValueError(
            f"times of shape {tuple(t.shape)} do not broadcast to counts of shape {tuple(x.shape)}"
        ) from None
    return t


def per_sample_time(t: Time, x: Tensor) -> Tensor:
    """Return t as float64 [1] or [B] on the device of x.

    Raises:
        ValueError: t is neither one time, nor one per sample.
    """
    t = time_on(t, x.device).reshape(-1)
    is_one_or_all = len(t) in (1, len(x))
    ensure(
        is_one_or_all,
        f"this process needs one time or one per sample ({len(x)}), not {len(t)}",
    )
    return t
