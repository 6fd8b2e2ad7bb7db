"""Heads for processes other than pure death: what they predict is E[target | X_t] of their process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from blackout.diffusion.heads import Prediction, log_softplus
from blackout.diffusion.processes import Process
from blackout.diffusion.processes.base import expand_time


@dataclass(frozen=True)
class BirthDeathHead:
    """E[X_0 - S | X_t] and E[I | X_t] of `BirthDeath`: (1 - q) C softplus(f), one output each, [B, 2, ...].

    Args:
        mean: C, the mean count of the data and of the stationary law.
    """

    mean: float
    outputs: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if not self.mean > 0:
            raise ValueError(f"the head needs a positive mean count, not {self.mean}: is the data all zeros?")

    def __call__(self, raw: Tensor, xt: Tensor, t: Tensor) -> Prediction:
        f = raw.float()
        t = expand_time(t, xt)
        factor = (-torch.expm1(-t) * self.mean)[:, None] if t.ndim else -torch.expm1(-t) * self.mean
        return Prediction(factor.float() * F.softplus(f), torch.log(factor).float() + log_softplus(f))


@dataclass(frozen=True)
class LevelHead:
    """P(X_0 = o | X_t) for every data level o: one logit per level, [B, max_count + 1, ...].

    Args:
        process: gives the likelihood of every level.
        max_count: largest data level.
        likelihood: add log P(X_t,i | X_0,i = o) to the logits, so that the network predicts only what the other
            elements tell about element i, which is smooth in time and finite at t -> 0; without it the logits are all
            there is, as in D3PM and tauLDR.
    """

    process: Process
    max_count: int
    likelihood: bool = True

    @property
    def outputs(self) -> int:
        return self.max_count + 1

    def __call__(self, raw: Tensor, xt: Tensor, t: Tensor) -> Prediction:
        return _posterior(raw.float(), self.process, xt, t, self.likelihood)


@dataclass(frozen=True)
class LogisticHead:
    """P(X_0 = o | X_t) from two outputs, whatever the number of levels: a discretised logistic law.

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

    def __call__(self, raw: Tensor, xt: Tensor, t: Tensor) -> Prediction:
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


def _posterior(logits: Tensor, process: Process, xt: Tensor, t: Tensor, likelihood: bool) -> Prediction:
    if likelihood:
        logits = logits + process.log_likelihood(xt, t).float()
    log_probs = F.log_softmax(logits, dim=1)
    return Prediction(torch.exp(log_probs), log_probs)
