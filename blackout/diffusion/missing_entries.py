"""Missing entries of samples: input of a network for them, and bounds of the observed entries."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from blackout.counts import expand_time
from blackout.diffusion.predictions import NEVER, CountPrediction, Denoiser

NEVER_MEAN = 1e-30  # E[X_0] of an element that never has a unit; its logarithm is finite


def fill_missing_with_mean(xt: Tensor, t: Tensor, observed: Tensor, data_mean: Tensor) -> Tensor:
    """Replace missing entries of X_t by their mean e^-t E[X_0], which carries no information.

    References: this project; checked in tests/diffusion/test_missing_entries.py.

    Args:
        xt: counts [B, *shape].
        t: float64, a scalar or [B].
        observed: bool [B, *shape].
        data_mean: E[X_0], [*shape].

    Returns:
        float32 [B, *shape].
    """
    return torch.where(observed, xt.float(), torch.exp(-expand_time(t, xt)).float() * data_mean)


def mask_missing_entries(
    observed: Tensor | None, denoiser: Denoiser, start_mean: Tensor, data_mean: Tensor
) -> tuple[Denoiser, Tensor, Tensor | float]:
    """Return arguments of a likelihood bound that restrict it to the observed entries.

    Where X_0 is missing, and stored as 0, no units are predicted to be missing from X_t, so that
    every term of the bounds is 0 there.

    References: this project; checked in tests/diffusion/test_missing_entries.py.

    Args:
        observed: bool [B, *shape]; None if no entry is missing.
        denoiser: of all entries.
        start_mean: E[X_0] of the Poisson start, broadcastable to [B, *shape].
        data_mean: E[X_0], [*shape].

    Returns:
        denoiser: of the observed entries.
        start_mean: E[X_0] of the Poisson start, nearly 0 for missing entries.
        share: of entries that are observed, float64 [B].
    """
    if observed is None:
        return denoiser, start_mean, 1.0
    share = observed.double().flatten(1).mean(1).clamp(min=1 / observed[0].numel())

    def denoise_observed(xt: Tensor, t: Tensor) -> CountPrediction:
        """Predict given states [B, *shape], with nothing missing from unobserved entries."""
        prediction = denoiser(fill_missing_with_mean(xt, t, observed, data_mean), t)
        assert isinstance(prediction, CountPrediction)
        mean_prediction = torch.where(observed, prediction.mean, 0.0)
        log_mean = torch.where(observed, prediction.log_mean, NEVER)
        return replace(prediction, mean=mean_prediction, log_mean=log_mean)

    return denoise_observed, torch.where(observed, start_mean, NEVER_MEAN), share
