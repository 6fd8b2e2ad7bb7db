"""The path of laws from uniform noise to the target, p_t proportional to rho^t eta^(1 - t), eta uniform."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from blackout.flows.targets import Target


@dataclass(frozen=True)
class States:
    """States, and what the target says about each of them; evaluated once.

    Args:
        x: integers [B, d].
        log_density: log rho, float64 [B].
        ratios: log rho of every neighbour relative to it, float64 [B, d, S].
        scores: G at some time, float64 [B, d, S], where a step has left it for the next one.
    """

    x: Tensor
    log_density: Tensor
    ratios: Tensor
    scores: Tensor | None = None

    @classmethod
    def of(cls, target: Target, x: Tensor) -> States:
        """Evaluate the target at states [B, d]."""
        return cls(x, target.log_density(x).double(), target.log_ratios(x).double())

    def rows(self, which: Tensor) -> States:
        """Some of them, by number or mask."""
        scores = None if self.scores is None else self.scores[which]
        return States(self.x[which], self.log_density[which], self.ratios[which], scores)

    def updated(self, which: Tensor, others: States) -> States:
        """A copy with other states at these rows, and without scores."""
        index = torch.nonzero(which).flatten() if which.dtype == torch.bool else which
        pairs = ((self.x, others.x), (self.log_density, others.log_density), (self.ratios, others.ratios))
        return States(*(mine.index_copy(0, index, theirs) for mine, theirs in pairs))

    def without_scores(self) -> States:
        return replace(self, scores=None)


def slope(log_density: Tensor, levels: int, sites: int) -> Tensor:
    """f = d log p~_t / dt = log rho + d log S, the same at all times; [B]."""
    return log_density + sites * math.log(levels)


def log_path(log_density: Tensor, t: float, levels: int, sites: int) -> Tensor:
    """log p~_t = t log rho + (1 - t) log eta, eta normalised; [B]."""
    return t * log_density - (1 - t) * sites * math.log(levels)


def uniform_states(uniforms: Tensor, levels: int) -> Tensor:
    """States drawn from eta by uniforms of any shape: uint8."""
    return (uniforms * levels).clamp_(max=levels - 1).to(torch.uint8)
