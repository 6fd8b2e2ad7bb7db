"""Training on samples some of whose entries are missing: the likelihood of what was seen, under pure death."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from blackout.diffusion.predictions import CountPrediction, Denoiser
from blackout.diffusion.processes.base import expand_time

_IMPOSSIBLE = 1e-30
"""E[X_0] that stands for "never a unit": its logarithm is finite."""


def at_expectation(xt: Tensor, t: Tensor, seen: Tensor, mean: Tensor) -> Tensor:
    """What a network reads: X_t where seen, else what is expected of it, e^-t E[X_0], which tells it nothing.

    Args:
        xt: counts [B, *shape].
        t: float64, a scalar or [B].
        seen: bool [B, *shape].
        mean: E[X_0], [*shape].

    Returns:
        float32 [B, *shape].
    """
    expected = torch.exp(-expand_time(t, xt)).float() * mean
    return torch.where(seen, xt.float(), expected)


@dataclass(frozen=True)
class SeenDenoiser:
    """A denoiser for likelihoods of what was seen: where X_0 is missing, and 0, nothing is predicted to be missing.

    Every term of the bounds is then 0 there.

    Args:
        denoiser: of all entries.
        seen: bool [B, *shape].
        mean: E[X_0], [*shape].
    """

    denoiser: Denoiser
    seen: Tensor
    mean: Tensor

    def __call__(self, xt: Tensor, t: Tensor) -> CountPrediction:
        prediction = self.denoiser(at_expectation(xt, t, self.seen, self.mean), t)
        assert isinstance(prediction, CountPrediction)
        mean = torch.where(self.seen, prediction.mean, 0.0)
        return dataclasses.replace(prediction, mean=mean, log_mean=torch.where(self.seen, prediction.log_mean, -1e4))


def of_seen(
    seen: Tensor | None, denoiser: Denoiser, start: Tensor, mean: Tensor
) -> tuple[Denoiser, Tensor, Tensor | float]:
    """What a likelihood bound needs in place of a denoiser and the start's mean, and the share of entries it is of.

    Args:
        seen: bool [B, *shape]; None where all entries were.
        denoiser: of all entries.
        start: E[X_0] of where sampling starts, broadcastable to [B, *shape].
        mean: E[X_0], [*shape].
    """
    if seen is None:
        return denoiser, start, 1.0
    share = seen.double().flatten(1).mean(1).clamp(min=1 / seen[0].numel())
    return SeenDenoiser(denoiser, seen, mean), torch.where(seen, start, _IMPOSSIBLE), share
