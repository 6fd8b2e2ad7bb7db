"""The path of laws from uniform noise to the target, p_t proportional to rho^t eta^(1 - t), eta uniform."""

from __future__ import annotations

from dataclasses import dataclass

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
        target: the law, or the laws of the rows.
        scores: G at some time, float64 [B, d, S], where a step has left it for the next one.
    """

    x: Tensor
    log_density: Tensor
    ratios: Tensor
    target: Target
    scores: Tensor | None = None

    @classmethod
    def of(cls, target: Target, x: Tensor) -> States:
        """Evaluate the target at states [B, d]."""
        return cls(x, target.log_density(x).double(), target.log_ratios(x).double(), target)

    @classmethod
    def uniform(cls, target: Target, uniforms: Tensor) -> States:
        """States drawn from eta by uniforms [B, d]."""
        return cls.of(target, target.uniform(uniforms))

    @property
    def slopes(self) -> Tensor:
        """f = d log p~_t / dt = log rho + log of the number of states, the same at all times; [B]."""
        return self.log_density + self.target.log_volume

    def rows(self, which: Tensor) -> States:
        """Some of them, by number or mask."""
        scores = None if self.scores is None else self.scores[which]
        return States(self.x[which], self.log_density[which], self.ratios[which], self.target.rows(which), scores)

    def updated(self, which: Tensor, others: States) -> States:
        """A copy with other states at these rows, and without scores."""
        index = torch.nonzero(which).flatten() if which.dtype == torch.bool else which
        pairs = ((self.x, others.x), (self.log_density, others.log_density), (self.ratios, others.ratios))
        x, log_density, ratios = (mine.index_copy(0, index, theirs) for mine, theirs in pairs)
        return States(x, log_density, ratios, self.target)
