"""Functions of the survival probability q = e^-t of a unit, for times of any process.

    logit_survival    u = log(q / (1 - q)), in which time grids are built
    time_of_logit     its inverse, t = softplus(-u)
    step_fraction     share of the missing units that a reverse step brings back
    missing_fraction  share of the missing units that stay missing
    reverse_clock     time in which each missing unit comes back at rate 1

q and 1 - q are both needed to full relative precision, so times are computed from the logit u and
not from q. All tensors are float64.

References: Santos et al. 2023, eqs. 9, 12, 59 and 60.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def logit_survival(t: Tensor) -> Tensor:
    """Return u = logit(e^-t) = -log(e^t - 1), of t's shape and dtype; +inf at t = 0.

    References: Santos et al. 2023, eq. 59.
    """
    return -(t + torch.log(-torch.expm1(-t)))


def time_of_logit(u: Tensor) -> Tensor:
    """Return t = softplus(-u) = log(1 + e^-u), of u's shape: the inverse of `logit_survival`.

    References: Santos et al. 2023, eq. 60.
    """
    return torch.logaddexp(-u, torch.zeros_like(u))


def step_fraction(s: Tensor, t: Tensor) -> Tensor:
    """Return the probability r that a unit missing at t was present at s < t; exactly 1 at s = 0.

    r = (e^-s - e^-t) / (1 - e^-t), of the broadcast shape of s and t.

    References: Santos et al. 2023, eq. 12 and appendix D, below eq. 54.
    """
    return torch.exp(-s) * torch.expm1(s - t) / torch.expm1(-t)


def missing_fraction(s: Tensor, t: Tensor) -> Tensor:
    """Return the probability that a unit missing at t was already missing at s < t; 0 at s = 0.

    It is 1 - `step_fraction` to full relative precision, (1 - e^-s) / (1 - e^-t), of the broadcast
    shape of s and t.

    References: Santos et al. 2023, eq. 12.
    """
    return torch.expm1(-s) / torch.expm1(-t)


def reverse_clock(t: Tensor) -> Tensor:
    """Return tau = -log(1 - e^-t), the time scale on which each missing unit returns at rate 1.

    tau is the integral of a missing unit's birth rate from t on: +inf at t = 0, of t's shape. The
    function is its own inverse.

    References: Santos et al. 2023, eq. 9.
    """
    log_decay = torch.where(
        t < math.log(2), torch.log(-torch.expm1(-t)), torch.log1p(-torch.exp(-t))
    )
    return -log_decay


def half_width(final_time: float) -> float:
    """Return L = logit(1 - e^-final_time) = log(e^final_time - 1); the paper's u is in [-L, L].

    References: Santos et al. 2023, eq. 60.
    """
    return final_time + math.log(-math.expm1(-final_time))


def check_logit_range(logit_range: Sequence[float] | None, name: str) -> None:
    """Raise ValueError unless a range is None or two increasing numbers; `name` is its setting."""
    if logit_range is not None and not (len(logit_range) == 2 and logit_range[0] < logit_range[1]):
        raise ValueError(
            f"{name} must be two logits of survival, the lower one first, such as [-3, 3], "
            f"not {list(logit_range)}"
        )


def in_logit_range(logit_range: Sequence[float] | None, t: float) -> bool:
    """Return whether the logit of survival at time t lies in a range; None contains every time."""
    if logit_range is None:
        return True
    logit = float(logit_survival(torch.tensor(t, dtype=torch.float64)))
    return logit_range[0] <= logit <= logit_range[1]
