"""What is known exactly: enumeration of all states, or what a target knows by itself."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from blackout.flows.targets.base import Target

MOST_STATES = 1 << 20
"""States that are enumerated."""
_AT_ONCE = 1 << 15


def all_states(levels: int, sites: int) -> Tensor:
    """Every state, uint8 [levels ** sites, sites]; the last site changes fastest."""
    number = torch.arange(levels**sites)
    power = levels ** torch.arange(sites - 1, -1, -1)
    return ((number[:, None] // power) % levels).to(torch.uint8)


def enumerated(target: Target) -> tuple[Tensor, Tensor]:
    """All states, uint8 [n, d], and their log rho, float64 [n]."""
    states = all_states(target.levels, target.sites)
    return states, torch.cat([target.log_density(part).double() for part in states.split(_AT_ONCE)])


def can_enumerate(target: Target) -> bool:
    """Whether there are few enough states."""
    return target.sites * math.log2(target.levels) <= math.log2(MOST_STATES)


def exact_values(target: Target) -> dict[str, float] | None:
    """`log_z`, `mean_log_density` and, by enumeration, the mean of every statistic; None if out of reach."""
    if not can_enumerate(target):
        return target.exact()
    states, log_density = enumerated(target)
    log_z = torch.logsumexp(log_density, 0)
    weight = (log_density - log_z).exp()
    values = {"log_z": float(log_z), "mean_log_density": float(weight @ log_density)}
    for name, value in target.statistics(states).items():
        values[f"mean_{name}"] = float(weight @ value.double())
    return values
