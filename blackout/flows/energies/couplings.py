"""Couplings that were learned, against those that the data come from."""

from __future__ import annotations

import torch
from torch import Tensor

from blackout.family import Source
from blackout.flows.energies.energies import PairEnergy


def couplings_found(target: PairEnergy, source: Source) -> dict[str, float]:
    """-log RMSE over all d^2 couplings, and that of J = 0, which says what the number is worth."""
    truth = truth_of(source)
    if truth is None:
        return {}
    found = target.couplings.detach().cpu().double()
    error, nothing = (float(-(part - truth).square().mean().sqrt().log()) for part in (found, torch.zeros_like(found)))
    return {"minus_log_rmse": error, "minus_log_rmse_of_zero": nothing}


def truth_of(source: Source) -> Tensor | None:
    """J of the law that the data are samples of, symmetric without diagonal, float64 [d, d]."""
    truth = getattr(source, "truth", None)
    pair: Tensor | None = getattr(truth, "pair", None)
    return None if pair is None else pair.cpu().double() / 2
