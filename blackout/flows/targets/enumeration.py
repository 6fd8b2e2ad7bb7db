"""Exact values of small targets, by enumeration of all states or in closed form."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from blackout.flows.targets.base import Target

MAX_ENUMERATED_STATES = 1 << 20  # targets with more states are not enumerated
STATES_PER_BATCH = 1 << 15  # states evaluated together by enumeration


def all_states(levels: int, sites: int) -> Tensor:
    """Return every state, uint8 [levels ** sites, sites]; the last site changes fastest.

    References: definition of the function.

    Example:
        >>> all_states(2, 2).tolist()
        [[0, 0], [0, 1], [1, 0], [1, 1]]
    """
    values = torch.arange(levels, dtype=torch.uint8)
    return torch.cartesian_prod(*[values] * sites).view(-1, sites)


def enumerate_states(target: Target) -> tuple[Tensor, Tensor]:
    """Return all states, uint8 [n, d], and log rho, float64 [n], on the target's device.

    References: definition of the function.

    Example:
        >>> from blackout.flows import Ising
        >>> states, log_density = enumerate_states(Ising(2))
        >>> states.shape, log_density.shape
        (torch.Size([16, 4]), torch.Size([16]))
    """
    states = all_states(target.levels, target.sites).to(target.device)
    batches = states.split(STATES_PER_BATCH)
    return states, torch.cat([target.log_density(batch).double() for batch in batches])


def can_enumerate(target: Target) -> bool:
    """Return whether the target has at most `MAX_ENUMERATED_STATES` states.

    References: definition of the function.

    Example:
        >>> from blackout.flows import Ising
        >>> can_enumerate(Ising(3)), can_enumerate(Ising(10))
        (True, False)
    """
    return target.sites * math.log2(target.levels) <= math.log2(MAX_ENUMERATED_STATES)


def exact_values(target: Target, t: float = 1.0) -> dict[str, float] | None:
    """Compute `log_z`, `mean_energy` and, by enumeration, the mean of each statistic of rho^t.

    The energy is -log rho whatever t is.

    References: this project; checked in tests/flows/test_targets.py.

    Returns:
        Values by name; None where neither enumeration nor a closed form is available.

    Example:
        >>> from blackout.flows import Ising
        >>> round(exact_values(Ising(3, coupling=0.0))["log_z"], 4)  # 9 log 2
        6.2383
    """
    if not can_enumerate(target):
        return target.closed_form() if t == 1 else target.closed_form(t)
    states, log_density = enumerate_states(target)
    log_z = torch.logsumexp(t * log_density, 0)
    probabilities = (t * log_density - log_z).exp()
    # states of zero density have zero probability
    mean_log_density = float(probabilities @ log_density.nan_to_num(neginf=0.0))
    values = {"log_z": float(log_z), "mean_energy": -mean_log_density}
    for name, value in target.statistics(states).items():
        values[f"mean_{name}"] = float(probabilities @ value.double())
    return values
