"""The logistic distribution discretised to whole numbers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def log_logistic(n: Tensor, location: Tensor, log_scale: Tensor, largest: Tensor | int) -> Tensor:
    """Return the log mass of a logistic distribution between n - 1/2 and n + 1/2.

    0 and `largest` also take the mass that lies beyond them.

    References: Salimans et al. 2017, section 2.1.

    Args:
        n: whole numbers.
        location: of the distribution.
        log_scale: logarithm of its scale.
        largest: the largest possible number.

    Returns:
        float32, of the shape that the arguments broadcast to.
    """
    inverse_scale = torch.exp(-log_scale)
    upper = (n + 0.5 - location).float() * inverse_scale
    lower = (n - 0.5 - location).float() * inverse_scale
    # sigma(a) - sigma(b) = sigma(a) sigma(-b) (1 - e^(b - a)): no cancellation
    is_last = n >= largest
    is_first = n <= 0
    return (
        torch.where(is_last, 0.0, F.logsigmoid(upper))
        + torch.where(is_first, 0.0, F.logsigmoid(-lower))
        + torch.where(is_first | is_last, 0.0, torch.log(-torch.expm1(-inverse_scale)))
    )
