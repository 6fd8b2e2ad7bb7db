"""Heads that predict a distribution over the data levels, for processes on finitely many states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from blackout.diffusion.predictions import CategoricalPrediction
from blackout.diffusion.processes import Process


@dataclass(frozen=True)
class LevelHead:
    """P(X_0 = o | X_t) for every data level o: one logit per level, [B, max_count + 1, ...].

    Args:
        process: gives the likelihood of every level.
        max_count: largest data level.
        likelihood: add log P(X_t,i | X_0,i = o) to the logits, so that the network predicts only what the other
            elements say about element i, which is smooth in time and finite at t -> 0; without it the logits are all
            there is, as in D3PM and tauLDR.
    """

    process: Process
    max_count: int
    likelihood: bool = True

    @property
    def outputs(self) -> int:
        """One logit per level."""
        return self.max_count + 1

    def __call__(self, raw: Tensor, xt: Tensor, t: Tensor) -> CategoricalPrediction:
        return _posterior(raw.float(), self.process, xt, t, self.likelihood)


@dataclass(frozen=True)
class LogisticHead:
    """P(X_0 = o | X_t) from two outputs, whatever the number of levels: a discretised logistic distribution.

    Its location is affine in the first output and its log scale in the second; levels take the mass of their unit
    interval, the outermost all that is beyond.

    Args:
        process: gives the likelihood of every level.
        max_count: largest data level.
        likelihood: as for `LevelHead`.
    """

    process: Process
    max_count: int
    likelihood: bool = True
    outputs: ClassVar[int] = 2

    def __call__(self, raw: Tensor, xt: Tensor, t: Tensor) -> CategoricalPrediction:
        half = self.max_count / 2
        location = half * (1 + raw[:, :1].float())
        scale = half / 2 * torch.exp(raw[:, 1:2].float().clamp(-12.0, 6.0))
        edges = torch.arange(self.max_count, device=raw.device).view(-1, *[1] * (raw.ndim - 2)) + 0.5
        z = (edges - location) / scale
        below, above = F.logsigmoid(z), F.logsigmoid(-z)
        # log(sigmoid(b) - sigmoid(a)) = logsigmoid(b) + logsigmoid(-a) + log(1 - e^(a - b))
        inner = below[:, 1:] + above[:, :-1] + torch.log(-torch.expm1(-(1 / scale).clamp(min=1e-6)))
        logits = torch.cat([below[:, :1], inner, above[:, -1:]], dim=1)
        return _posterior(logits, self.process, xt, t, self.likelihood)


def _posterior(logits: Tensor, process: Process, xt: Tensor, t: Tensor, likelihood: bool) -> CategoricalPrediction:
    """Logits [B, S, ...] normalised over the levels, after the likelihood was added if it is wanted."""
    if likelihood:
        logits = logits + process.log_likelihood(xt, t).float()
    return CategoricalPrediction(F.log_softmax(logits, dim=1))
