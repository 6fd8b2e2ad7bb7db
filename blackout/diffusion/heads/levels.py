"""Heads of finitely many states: the distribution of X_0 over all data levels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from blackout.component import component
from blackout.counts import per_row
from blackout.diffusion.heads.discretised_logistic import log_logistic
from blackout.diffusion.predictions import CategoricalPrediction
from blackout.diffusion.processes import Process


@dataclass(frozen=True)
class _PosteriorHead:
    """A head for logits of all data levels, with or without the likelihood of X_t itself."""

    process: Process
    max_count: int
    likelihood: bool = True

    def _normalise(self, logits: Tensor, xt: Tensor, t: Tensor) -> CategoricalPrediction:
        """Return P(X_0 = o | X_t) from logits [B, S, ...], with the likelihood by Bayes' rule.

        References: Austin et al. 2021, section 3.3, for the logits alone; the likelihood is this
            project's, checked in tests/diffusion/test_level_heads.py.
        """
        if self.likelihood:
            logits = logits + self.process.log_likelihood(xt, t).float()
        return CategoricalPrediction(F.log_softmax(logits, dim=1))


@component("head", "base")
class LevelHead(_PosteriorHead):
    """Head with one logit per level o, for P(X_0 = o | X_t), [B, max_count + 1, ...].

    References: Austin et al. 2021, section 3.3; Campbell et al. 2022.

    Args:
        process: gives the likelihood of every level.
        max_count: largest data level.
        likelihood: add log P(X_t,i | X_0,i = o) to the logits, so that the network predicts only
            what the other elements say about element i, which is smooth in time and finite at
            t -> 0. Without it the network's logits stand alone, as in D3PM and tauLDR.
    """

    @property
    def outputs(self) -> int:
        """One logit per level."""
        return self.max_count + 1

    def __call__(self, raw: Tensor, xt: Tensor, t: Tensor) -> CategoricalPrediction:
        """Return P(X_0 = o | X_t), [B, max_count + 1, ...]; arguments as for `Head`."""
        return self._normalise(raw.float(), xt, t)


@component("head", "base")
class LogisticHead(_PosteriorHead):
    """Head for P(X_0 = o | X_t) as a discretised logistic distribution, with two outputs.

    Its location is affine in the first output and its log scale in the second; levels take the mass
    of their unit interval, the outermost all that is beyond.

    References: Austin et al. 2021, appendix A.8.

    Args:
        process: gives the likelihood of every level.
        max_count: largest data level.
        likelihood: as for `LevelHead`.
    """

    outputs: ClassVar[int] = 2

    def __call__(self, raw: Tensor, xt: Tensor, t: Tensor) -> CategoricalPrediction:
        """Return P(X_0 = o | X_t), [B, max_count + 1, ...]; arguments as for `Head`."""
        half = self.max_count / 2
        location = half * (1 + raw[:, :1].float())
        log_scale = math.log(half / 2) + raw[:, 1:2].float().clamp(-12.0, 6.0)
        levels = per_row(torch.arange(self.max_count + 1, device=raw.device), xt)
        logits = log_logistic(levels, location, log_scale, self.max_count)
        return self._normalise(logits, xt, t)
