"""Time grids: float64 tensors `times` [T + 1] that increase from times[0] = 0.

    fisher_times      uniform in u between symmetric ends: the paper's grid
    logit_times       uniform in u between any ends
    logistic_times    denser in u where images take shape
    step_times        steps of a chain in discrete time

u is the logit of the survival probability e^-t (`blackout.diffusion.survival`). Ends that the
settings leave null are chosen from the data (`blackout.diffusion.grid_ends`).

References: Santos et al. 2023, eqs. 56 to 60.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blackout.component import Stats, component
from blackout.diffusion.survival import half_width, time_of_logit
from blackout.errors import ensure

FORGOTTEN_LOGIT = -7.0  # of survival, at which every process has forgotten nearly everything
INTERPOLATION_POINTS = 20_001  # of the distribution function that `logistic_times` inverts


def choose_ends(settings: Mapping[str, Any], stats: Stats) -> dict[str, float]:
    """Return the ends of a grid from the data, for those settings that are present and null."""
    ends = stats.get("grid_ends", {})
    return _choices_for_null(settings, ends)


def choose_logistic_times(settings: Mapping[str, Any], stats: Stats) -> dict[str, float]:
    """Return arguments of `logistic_times` from the data, for settings that are present and null.

    The grid is dense where counts of this size take shape: from the time at which about one unit
    survives, q E[X^2] / E[X] = 1, to the time at which half of them do. In logits, this is the
    range from u = -log(1 + E[X^2] / E[X]) to u = 0. `location` is its middle. `scale` is a fifth
    of its length plus 1, the scale of q as a logistic function of u.

    References: this project; checked in tests/diffusion/test_time_grids.py.
    """
    ends = stats.get("grid_ends")
    if ends is None or not stats["mean"] > 0:
        return choose_ends(settings, stats)
    log_size = math.log1p(stats["mean"] + stats["std"] ** 2 / stats["mean"])
    choices = {
        "first": ends["first"] + 1,
        "last": min(ends["last"], FORGOTTEN_LOGIT),
        "location": -log_size / 2,
        "scale": 1 + log_size / 5,
    }
    return _choices_for_null(settings, choices)


def _choices_for_null(
    settings: Mapping[str, Any], choices: Mapping[str, float]
) -> dict[str, float]:
    """Return the choices for those settings that are present and null."""
    return {
        name: value
        for name, value in choices.items()
        if name in settings and settings[name] is None
    }


@component(partial_for=("grid",), call_arguments=("num_steps",), from_stats=choose_ends)
def fisher_times(num_steps: int = 1000, final_time: float = 15.0) -> Tensor:
    """Return the paper's grid, uniform in the logit u and so in Fisher information.

    u_k = L (1 - 2 (k - 1) / (T - 1)).

    References: Santos et al. 2023, eqs. 56 to 60.

    Args:
        num_steps: T.
        final_time: times[T].

    Returns:
        float64 [T + 1], times[0] = 0, times[T] = final_time.

    Raises:
        ValueError: num_steps < 1, or final_time <= log 2 (the grid would not increase).

    Example:
        >>> [round(t, 3) for t in fisher_times(4).tolist()]
        [0.0, 0.0, 0.007, 5.007, 15.0]
    """
    ensure(
        math.log(2) < final_time < math.inf,
        f"final_time must be finite and above log 2 = 0.693 for the Fisher grid, not {final_time}",
    )
    limit = half_width(final_time)
    return logit_times(num_steps, limit, -limit)


@component(partial_for=("grid",), call_arguments=("num_steps",), from_stats=choose_ends)
def logit_times(num_steps: int, first: float = 5.0, last: float = -8.0) -> Tensor:
    """Return times that are uniform in u, the logit of survival.

    References: Santos et al. 2023, eq. 60, between any two ends.

    Args:
        num_steps: T.
        first: u of the first time after 0.
        last: u of the final time.

    Returns:
        float64 [T + 1].

    Raises:
        ValueError: num_steps < 1, or first <= last.
    """
    _check_num_steps(num_steps)
    ensure(
        first > last,
        f"the logit must fall along the grid: first = {first} is not above last = {last}",
    )
    u = torch.linspace(first, last, num_steps, dtype=torch.float64)
    u[-1] = last  # a single step ends there, too
    return torch.cat([torch.zeros(1, dtype=torch.float64), time_of_logit(u)])


@component(partial_for=("grid",), call_arguments=("num_steps",), from_stats=choose_logistic_times)
def logistic_times(
    num_steps: int = 1000,
    first: float = 6.0,
    last: float = -7.0,
    location: float = -1.0,
    scale: float = 1.3,
    floor: float = 0.1,
) -> Tensor:
    """Return times that are denser where images take shape.

    u follows a truncated logistic distribution, mixed with a uniform floor. As a training schedule
    this is importance sampling: the weights of its short steps shrink as its density grows.

    References: this project; checked in tests/diffusion/test_time_grids.py.

    Args:
        num_steps: T.
        first: u of the first time after 0.
        last: u of the final time.
        location: centre of the logistic distribution of u.
        scale: width of the logistic distribution of u.
        floor: share of the uniform distribution in the mixture.

    Returns:
        float64 [T + 1].

    Raises:
        ValueError: first <= last, scale not positive, or floor outside (0, 1].
    """
    _check_num_steps(num_steps)
    if not first > last or not scale > 0 or not 0 < floor <= 1:
        raise ValueError(
            "need first > last, scale > 0 and floor in (0, 1], "
            f"not {first}, {last}, {scale}, {floor}"
        )

    # 1. Distribution function of u on a fine grid.
    u = torch.linspace(last, first, INTERPOLATION_POINTS, dtype=torch.float64)
    logistic = torch.sigmoid((u - location) / scale)
    logistic = (logistic - logistic[0]) / (logistic[-1] - logistic[0])
    uniform = (u - last) / (first - last)
    mixture = (1 - floor) * logistic + floor * uniform

    # 2. Its quantiles.
    if num_steps > 1:
        share = torch.linspace(1.0, 0.0, num_steps, dtype=torch.float64)
    else:
        share = torch.zeros(1, dtype=torch.float64)
    quantiles = torch.from_numpy(np.interp(share.numpy(), mixture.numpy(), u.numpy()))
    return torch.cat([torch.zeros(1, dtype=torch.float64), time_of_logit(quantiles)])


@component(partial_for=("grid",), call_arguments=("num_steps",))
def step_times(num_steps: int, length: int) -> Tensor:
    """Return evenly spaced times of a chain in discrete time, rounded to its steps 0..length.

    References: this project; checked in tests/diffusion/test_time_grids.py.

    Args:
        num_steps: T.
        length: number of steps of the chain.

    Returns:
        float64 [T + 1], whole numbers.

    Raises:
        ValueError: more steps than the chain has.
    """
    _check_num_steps(num_steps)
    ensure(
        num_steps <= length,
        f"num_steps must be at most {length}, the steps of the chain, not {num_steps}",
    )
    return torch.linspace(0, length, num_steps + 1, dtype=torch.float64).round()


def _check_num_steps(num_steps: int) -> None:
    """Raise ValueError unless a grid has a step."""
    ensure(num_steps >= 1, f"num_steps must be at least 1, not {num_steps}")
