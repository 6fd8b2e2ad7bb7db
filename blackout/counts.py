"""What a count is throughout the package: a whole number in 0..max_count, in the smallest integer type in use."""

from __future__ import annotations

import torch

LARGEST_COUNT = 2**31 - 1
"""The largest max_count: what int32 holds."""


def count_dtype(max_count: int) -> torch.dtype:
    """The dtype that holds 0..max_count: uint8 up to 255, int32 above."""
    return torch.uint8 if max_count <= 255 else torch.int32
