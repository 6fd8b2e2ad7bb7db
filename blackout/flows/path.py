"""The path of laws from uniform noise to the target, p_t proportional to rho^t eta^(1 - t), eta uniform."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from blackout.flows.targets import Target


@dataclass(frozen=True)
class States:
    """States, and what the target says about each of them; evaluated once, and ratios only if they are asked for.

    Args:
        x: integers [B, d].
        log_density: log rho, float64 [B].
        target: the law, or the laws of the rows.
        scores: G at some time, float64 [B, d, S], where a step has left it for the next one.
        known: the ratios, where they have been evaluated.
    """

    x: Tensor
    log_density: Tensor
    target: Target
    scores: Tensor | None = None
    known: Tensor | None = None

    @classmethod
    def of(cls, target: Target, x: Tensor) -> States:
        """Evaluate the target at states [B, d]."""
        return cls(x, target.log_density(x).double(), target)

    @classmethod
    def uniform(cls, target: Target, uniforms: Tensor) -> States:
        """States drawn from eta by uniforms [B, d]."""
        return cls.of(target, target.uniform(uniforms))

    @cached_property
    def ratios(self) -> Tensor:
        """log rho of every neighbour relative to that of the state, float64 [B, d, S]."""
        return self.target.log_ratios(self.x).double() if self.known is None else self.known

    @property
    def slopes(self) -> Tensor:
        """f = d log p~_t / dt = log rho + log of the number of states, the same at all times; [B]."""
        return self.log_density + self.target.log_volume

    def rows(self, which: Tensor) -> States:
        """Some of them, by number or mask."""
        scores, known = (None if part is None else part[which] for part in (self.scores, self._evaluated()))
        return States(self.x[which], self.log_density[which], self.target.rows(which), scores, known)

    def updated(self, which: Tensor, others: States) -> States:
        """A copy with other states at these rows, and without scores."""
        index = torch.nonzero(which).flatten() if which.dtype == torch.bool else which
        pairs = ((self.x, others.x), (self.log_density, others.log_density), (self.ratios, others.ratios))
        x, log_density, ratios = (mine.index_copy(0, index, theirs) for mine, theirs in pairs)
        return States(x, log_density, self.target, None, ratios)

    def scored(self, scores: Tensor) -> States:
        """The same with G, [B, d, S]."""
        return States(self.x, self.log_density, self.target, scores, self._evaluated())

    def _evaluated(self) -> Tensor | None:
        return vars(self).get("ratios", self.known)
