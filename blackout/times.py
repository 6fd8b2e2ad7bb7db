"""Times on their way to a device."""

from __future__ import annotations

import torch
from torch import Tensor


def time_on(t: Tensor | float, device: torch.device) -> Tensor:
    """t as float64 on a device; a single one the host knows goes there as an argument, for which nothing waits."""
    known = not isinstance(t, Tensor) or (t.ndim == 0 and t.device.type == "cpu")
    if known and device.type != "cpu":
        return torch.full((), float(t), dtype=torch.float64, device=device)
    return torch.as_tensor(t, dtype=torch.float64, device=device)
