"""Functions of what is left of a count whose averages are the Poisson probabilities of the whole."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor


@lru_cache(maxsize=256)
def thinned_table(exposure: float, background: float, survival: float, most: int, largest: int) -> Tensor:
    """log g_y(z) of `ThinnedPoisson`, float64 [most + 1, largest + 1]."""
    z = torch.arange(largest + 1, dtype=torch.float64)
    g = z * math.log1p(math.expm1(-exposure) / survival)
    rows = [g]
    for _ in range(most):
        before = torch.cat([torch.full((1,), -math.inf, dtype=torch.float64), g[:-1]])
        g = z.log() + torch.logaddexp(g, before + math.log(1 / survival - 1))
        rows.append(g)
    y = torch.arange(most + 1, dtype=torch.float64)
    table = torch.stack(rows) + (y * math.log(exposure) - torch.lgamma(y + 1))[:, None]
    if background == 0:
        return table
    dark = torch.special.xlogy(y, torch.full_like(y, background)) - background - torch.lgamma(y + 1)
    return torch.stack([torch.logsumexp(table[: k + 1] + dark[: k + 1].flip(0)[:, None], 0) for k in range(most + 1)])
