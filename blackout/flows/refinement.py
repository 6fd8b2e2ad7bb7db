"""Moves that leave p_t invariant: Gibbs sweeps, clusters, and discrete Langevin proposals (DMALA)."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from blackout.errors import UserError, ensure
from blackout.flows.path import States
from blackout.flows.targets import Target
from blackout.random import StepStreams

COMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"
"""Whether numba may compile moves."""


class Refinement(ABC):
    """Some moves at a fixed time.

    Args:
        moves: how many each time.

    Raises:
        ValueError: fewer than one.
    """

    def __init__(self, moves: int = 1) -> None:
        ensure(moves >= 1, f"moves must be at least 1, not {moves}")
        self.moves = moves

    def __call__(self, target: Target, states: States, t: float, stream: StepStreams) -> States:
        """States [B, d] moved at time t; their scores are gone."""
        for _ in range(self.moves):
            states = self.move(target, states, t, stream)
        return states

    @abstractmethod
    def move(self, target: Target, states: States, t: float, stream: StepStreams) -> States:
        """One move of every state, [B, d]."""


class Gibbs(Refinement):
    """Sweeps: every site is drawn from its conditional law p_t(. | x without i), independent sites together.

    [Geman and Geman 1984].

    Args:
        moves: number of sweeps.
    """

    def move(self, target: Target, states: States, t: float, stream: StepStreams) -> States:
        """A sweep of states [B, d] by uniforms of that shape: see `Target.swept`."""
        return States.of(target, target.swept(states.x, stream.next_draw().uniform(tuple(states.x.shape)), t))


class Clusters(Refinement):
    """Clusters of equal states, bound with probability 1 - e^(-t w) a bond, drawn together: for ferromagnets.

    [Swendsen 1987], in fields too, every cluster from its own law; `single` moves the cluster of one site to another
    state, which is the move of [Wolff 1989] without a field.

    Args:
        moves: how many each time.
        single: one cluster of every state in place of all of them.
    """

    def __init__(self, moves: int = 1, single: bool = False) -> None:
        super().__init__(moves)
        self.single = single

    def move(self, target: Target, states: States, t: float, stream: StepStreams) -> States:
        """One move of states [B, d] as in [Swendsen 1987] or, of single clusters, [Wolff 1989]: see the class."""
        pairs = target.pairs()
        if pairs is None or not attracts(target) or (self.single and bool((pairs[1] != pairs[1][:, :1]).any())):
            field = ", single ones no field" if self.single else ""
            raise UserError(f"refine: clusters need pairs that attract each other{field}, and numba: use refine=gibbs")
        from blackout.flows.numba_sweeps import draw_clusters  # only here: numba is loaded late

        one, two = torch.triu(pairs[0]).cpu().nonzero(as_tuple=True)
        bonds = one.numpy(), two.numpy(), pairs[0].cpu()[one, two].numpy()
        keys = np.stack([stream.next_draw().keys.cpu().numpy() for _ in range(2 + self.single)])
        x, density = states.x.cpu().numpy().copy(), states.log_density.cpu().numpy().copy()
        bound = -np.expm1(-t * bonds[2])
        draw_clusters(keys, x, density, *bonds, bound, pairs[1].cpu().contiguous().numpy(), t, self.single)
        return States(torch.from_numpy(x).to(states.x), torch.from_numpy(density).to(states.log_density), target)


def attracts(target: Target) -> bool:
    """Whether log rho is a sum over pairs that gain by being equal, so that clusters move it; they are compiled."""
    pairs = target.pairs()
    return COMPILED and pairs is not None and bool((pairs[0] >= 0).all())


class DMALA(Refinement):
    """Every site moves independently, tau in proportion to exp(Delta_t / 2 - 1{tau != x_i} / (2 alpha)), then accepted.

    [Zhang 2022], with exact log-ratios in place of gradients.

    Args:
        moves: how many each time.
        alpha: step size; larger moves more sites together.

    Raises:
        ValueError: alpha not positive.
    """

    def __init__(self, moves: int = 1, alpha: float = 1.0) -> None:
        super().__init__(moves)
        ensure(alpha > 0, f"alpha must be positive, not {alpha}")
        self.alpha = alpha

    def move(self, target: Target, states: States, t: float, stream: StepStreams) -> States:
        """One proposal for states [B, d], drawn from `_law`, and its acceptance by [Hastings 1970]."""
        u = stream.next_draw().uniform((len(states.x), target.sites))
        accepted = stream.next_draw().uniform((len(states.x), 1))[:, 0]
        law = self._law(states, t)
        drawn = (law.exp()[..., :-1].cumsum(-1) <= u[..., None]).sum(-1)
        proposed = States.of(target, drawn.to(states.x.dtype))
        forward = law.gather(-1, proposed.x.long()[..., None]).sum((-1, -2))
        backward = self._law(proposed, t).gather(-1, states.x.long()[..., None]).sum((-1, -2))
        return accept(states, proposed, t, backward - forward, accepted)

    def _law(self, states: States, t: float) -> Tensor:
        """Log-probabilities of every site's proposals, [B, d, S], the softmax of the class over tau [Zhang 2022]."""
        own = F.one_hot(states.x.long(), states.target.levels)
        logits = t * states.ratios / 2 - (1 - own) / (2 * self.alpha)
        if (frozen := states.target.frozen) is not None:
            logits = logits.masked_fill(frozen[..., None] & (own == 0), -torch.inf)
        return logits.log_softmax(-1)


def accept(states: States, proposed: States, t: float, log_ratio: Tensor, u: Tensor) -> States:
    """Metropolis and Hastings [Hastings 1970]: log_ratio is that of the proposals, backward over forward, [B].

    Accepted where log u < t (log rho' - log rho) + log_ratio, u uniform [B], which keeps rho^t.
    """
    gain = t * (proposed.log_density - states.log_density) + log_ratio
    accepted = u.log() < gain
    return states.updated(accepted, proposed.rows(accepted))
