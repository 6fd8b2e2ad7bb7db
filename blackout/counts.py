"""What a count is throughout the package: a whole number in 0..max_count, in the smallest integer type in use.

And how a time, which every process takes beside its counts, gets to their device.
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST_COUNT = 2**31 - 1
"""The largest max_count: what int32 holds."""


def count_dtype(max_count: int) -> torch.dtype:
    """The dtype that holds 0..max_count: uint8 up to 255, int32 above; int64 for states beyond all counts."""
    if max_count > LARGEST_COUNT:
        return torch.int64
    return torch.uint8 if max_count <= 255 else torch.int32


def time_on(t: Tensor | float, device: torch.device) -> Tensor:
    """t as float64 on a device; a single one the host knows goes there as an argument, for which nothing waits."""
    known = not isinstance(t, Tensor) or (t.ndim == 0 and t.device.type == "cpu")
    if known and device.type != "cpu":
        return torch.full((), float(t), dtype=torch.float64, device=device)
    return torch.as_tensor(t, dtype=torch.float64, device=device)
