"""Parameters of noises and operators: one number, or a map with one for each element."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from blackout.data.formats import load_array
from blackout.errors import UserError, ensure

# one number, or one for each element of a measurement, in its order: a list or an .npy file
ParameterMap: TypeAlias = float | str | Sequence[float]


def to_tensor(value: ParameterMap, name: str) -> Tensor:
    """Return a parameter as float64, of shape [] or the shape of its map.

    Raises:
        ValueError: a file that is not an .npy file of numbers, or a value that is not finite.
    """
    if isinstance(value, str):
        return torch.from_numpy(read_array(value, name))
    tensor = torch.as_tensor(value, dtype=torch.float64)
    # not `ensure`, whose message is built in any case: printing a map takes longer than a step
    if not bool(torch.isfinite(tensor).all()):
        raise ValueError(f"{name} must be finite, not {value}")
    return tensor


def read_array(
    path: str, name: str, content: str = "numbers", dtype: type | None = np.float64
) -> np.ndarray:
    """Read the array of an .npy file, or the array with this name from an .npz file.

    Args:
        path: of the file.
        name: of the setting, for messages, and of the array.
        content: what the file should contain, for messages.
        dtype: of the result; None keeps the dtype of the file.

    Raises:
        ValueError: the file does not contain numbers or booleans.
    """
    message = f"{name}={path} is not an .npy file of {content}"
    try:
        array = load_array(Path(path), name)
    except UserError as error:
        raise ValueError(f"{message}: {error}") from None
    ensure(array.dtype.kind in "biuf", f"{message}: its dtype is {array.dtype}")
    return np.asarray(array, dtype)


def broadcast_map(value: ParameterMap, y: Tensor, name: str) -> Tensor:
    """Return a parameter in a shape that broadcasts with measurements.

    Args:
        value: the parameter. A map of images from a file has its channels last, as measurements in
            files have. A tensor [n, 1, ...] has one value per row; row r of y uses row r modulo n.
        y: measurements [B, *measurement].
        name: of the setting, for messages.

    Returns:
        float64 [], [1, *measurement] or [B, 1, ...].

    Raises:
        ValueError: a map of another size.
    """
    tensor = to_tensor(value, name).to(y.device)
    if tensor.ndim == 0:
        return tensor
    has_value_per_row = tensor.ndim == y.ndim and tensor[0].numel() == 1
    if has_value_per_row:
        if len(y) < len(tensor):
            return tensor
        return tensor.repeat(len(y) // len(tensor), *[1] * (y.ndim - 1))
    if tensor.numel() != y[0].numel():
        raise ValueError(
            f"{name} must have one number or {y[0].numel()}, one for each element of a "
            f"measurement, not {tensor.numel()}"
        )
    channels_first = tuple(y.shape[1:])
    channels_last = (*y.shape[2:], y.shape[1])
    if tensor.ndim == 3 and tuple(tensor.shape) == channels_last != channels_first:
        tensor = tensor.permute(2, 0, 1)
    return tensor.reshape(1, *y.shape[1:])


class Constraint(NamedTuple):
    """A condition on all numbers of a parameter.

    Attributes:
        description: completes the sentence "survival must ...".
        holds: tensor of numbers -> booleans of the same shape.
    """

    description: str
    holds: Callable[[Tensor], Tensor]


POSITIVE = Constraint("be positive and finite", lambda value: (value > 0) & (value < math.inf))
NOT_NEGATIVE = Constraint(
    "be at least 0 and finite", lambda value: (value >= 0) & (value < math.inf)
)
PROBABILITY = Constraint("be above 0 and at most 1", lambda value: (value > 0) & (value <= 1))
FINITE = Constraint("be finite", torch.isfinite)
