"""What a count is throughout the package: a whole number in 0..max_count, in the smallest integer type in use.

And how a time, which every process takes beside its counts, gets to their device.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from blackout.errors import ensure

LARGEST_COUNT = 2**31 - 1
"""The largest max_count: what int32 holds."""
Shape: TypeAlias = tuple[int, ...]
"""Of an array of counts, of one sample or of a batch."""
Time: TypeAlias = Tensor | float
"""A time of a process: float64, a scalar, one per sample [B] or broadcastable to the counts."""


def count_dtype(max_count: int) -> torch.dtype:
    """The dtype that holds 0..max_count: uint8 up to 255, int32 above; int64 for states beyond all counts."""
    if max_count > LARGEST_COUNT:
        return torch.int64
    return torch.uint8 if max_count <= 255 else torch.int32


def time_on(t: Tensor | float, device: torch.device) -> Tensor:
    """t, of any shape, as float64 on a device; a single one the host knows goes there as an argument: nothing waits."""
    known = not isinstance(t, Tensor) or (t.ndim == 0 and t.device.type == "cpu")
    if known and device.type != "cpu":
        return torch.full((), float(t), dtype=torch.float64, device=device)
    return torch.as_tensor(t, dtype=torch.float64, device=device)


def per_row(values: Tensor, x: Tensor) -> Tensor:
    """Values [B], one for each of x [B, ...], shaped to broadcast over it."""
    return values.view(-1, *[1] * (x.ndim - 1))


def per_sample(x: Tensor) -> Tensor:
    """The sum over the elements of every sample, [B, ...] -> [B]."""
    return x.flatten(1).sum(1)


def expand_time(t: Time, x: Tensor) -> Tensor:
    """t as float64 on x's device, with one per sample [B] shaped to broadcast over [B, ...].

    Raises:
        ValueError: t is neither a scalar, nor [B], nor broadcastable to x.
    """
    t = time_on(t, x.device)
    if t.ndim == 1 and x.ndim > 1 and len(t) == len(x):
        return per_row(t, x)
    try:
        np.broadcast_shapes(t.shape, x.shape)  # torch's imports sympy, half a second
    except ValueError:
        raise ValueError(
            f"times of shape {tuple(t.shape)} do not broadcast to counts of shape {tuple(x.shape)}"
        ) from None
    return t


def per_sample_time(t: Time, x: Tensor) -> Tensor:
    """t as float64 [1] or [B] on x's device.

    Raises:
        ValueError: t is not one time, nor one per sample.
    """
    t = time_on(t, x.device).reshape(-1)
    ensure(len(t) in (1, len(x)), f"this process needs one time or one per sample ({len(x)}), not {len(t)}")
    return t
