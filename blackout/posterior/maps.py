"""Settings of noise models: one number, or one for every element of a measurement."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

Map: TypeAlias = float | str | Sequence[float]
"""A number, or one for every element of a measurement: a list or an .npy file, in the measurement's order."""


def as_map(value: Map, name: str) -> Tensor:
    """A number or map as float64, [] or [K].

    Raises:
        ValueError: a file that is not an .npy of numbers, or anything else that is not a number.
    """
    if isinstance(value, str):
        try:
            array = np.load(Path(value), allow_pickle=False).astype(np.float64)
        except (OSError, ValueError, TypeError) as error:
            raise ValueError(f"{name}={value} is not an .npy file of numbers: {error}") from None
        return torch.from_numpy(array).flatten()
    tensor = torch.as_tensor(value, dtype=torch.float64)
    if not bool(torch.isfinite(tensor).all()):
        raise ValueError(f"{name} must be finite, not {value}")
    return tensor


def like(value: Map, y: Tensor, name: str) -> Tensor:
    """A map for measurements [n, *measured]."""
    tensor = as_map(value, name).to(y.device)
    if not tensor.ndim:
        return tensor
    if tensor.numel() != y[0].numel():
        raise ValueError(f"{name} has {tensor.numel()} elements, a measurement {y[0].numel()}")
    return tensor.view(1, *y.shape[1:])


def positive(name: str, value: Map) -> None:
    """Raises ValueError unless it is."""
    if not bool((as_map(value, name) > 0).all()):
        raise ValueError(f"{name} must be positive, not {value}")


def whole(y: Tensor) -> None:
    """Raises ValueError unless y is made of whole numbers from 0 on."""
    if not bool((torch.isfinite(y) & (y >= 0) & (y == y.round())).all()):
        raise ValueError("y must be whole numbers from 0 on")
