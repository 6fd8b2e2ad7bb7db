"""MCMC moves that leave p_t invariant: Gibbs sweeps, cluster moves, discrete Langevin (DMALA)."""

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
from blackout.representation import format_arguments

# whether numba may compile moves; numba reads the same variable
USE_NUMBA = os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"


class Refinement(ABC):
    """Some MCMC moves at a fixed time.

    Args:
        moves: number of moves each time.

    Raises:
        ValueError: fewer than one.
    """

    __repr__ = format_arguments

    def __init__(self, moves: int = 1) -> None:
        ensure(moves >= 1, f"moves must be at least 1, not {moves}")
        self.moves = moves

    def __call__(self, target: Target, states: States, t: float, stream: StepStreams) -> States:
        """Move states [B, d] at time t; the result has no net rates."""
        for _ in range(self.moves):
            states = self.move(target, states, t, stream)
        return states

    @abstractmethod
    def move(self, target: Target, states: States, t: float, stream: StepStreams) -> States:
        """Make one move of every state, [B, d]."""


class Gibbs(Refinement):
    """Gibbs sweeps: every site is drawn from p_t(x_i | other sites), independent sites together.

    References: Geman and Geman 1984.

    Args:
        moves: number of sweeps.
    """

    def move(self, target: Target, states: States, t: float, stream: StepStreams) -> States:
        """Make one sweep of states [B, d]; see `Target.gibbs_sweep`."""
        uniforms = stream.next_draw().uniform(tuple(states.x.shape))
        return States.evaluate(target, target.gibbs_sweep(states.x, uniforms, t))


class Clusters(Refinement):
    """Swendsen-Wang or Wolff cluster moves, for ferromagnets.

    A bond w between equal values is active with probability 1 - e^(-t w). Swendsen-Wang draws
    every cluster of active bonds anew, with a field from the cluster's conditional distribution.
    Wolff moves the cluster of one random site to another value, without a field.

    References: Swendsen and Wang 1987; Wolff 1989.

    Args:
        moves: number of moves each time.
        single: Wolff's move of a single cluster.
    """

    def __init__(self, moves: int = 1, single: bool = False) -> None:
        super().__init__(moves)
        self.single = single

    def move(self, target: Target, states: States, t: float, stream: StepStreams) -> States:
        """Make one move of every state, [B, d].

        Raises:
            UserError: the target is no ferromagnet, has a field with `single`, or numba is off.
        """
        terms = target.pairwise_terms()
        if terms is None or not is_ferromagnetic(target):
            raise UserError(
                "refine=clusters needs a ferromagnet (target=ising) and numba; use refine=gibbs",
            )
        pair, field = terms
        if self.single and bool((field != field[:, :1]).any()):
            raise UserError(
                "refine.single=true needs a target without a field; use refine.single=false",
            )
        from blackout.flows.numba_sweeps import cluster_move  # numba is slow to import

        # 1. Bonds, each once, and their probabilities of being active.
        pair = pair.cpu()
        first, second = torch.triu(pair).nonzero(as_tuple=True)
        bond_weights = pair[first, second].numpy()
        probabilities = -np.expm1(-t * bond_weights)

        # 2. Keys of the draws of bonds, of clusters and, for a single one, of its new value.
        num_draws = 3 if self.single else 2
        keys = np.stack([stream.next_draw().keys.cpu().numpy() for _ in range(num_draws)])

        # 3. Move copies in place.
        x = states.x.cpu().numpy().copy()
        log_density = states.log_density.cpu().numpy().copy()
        cluster_move(
            keys,
            x,
            log_density,
            first.numpy(),
            second.numpy(),
            bond_weights,
            probabilities,
            field.cpu().contiguous().numpy(),
            t,
            self.single,
        )
        new_x = torch.from_numpy(x).to(states.x)
        return States(new_x, torch.from_numpy(log_density).to(states.log_density), target)


def is_ferromagnetic(target: Target) -> bool:
    """Return whether cluster moves apply: pairs that gain by being equal, and numba is enabled."""
    terms = target.pairwise_terms()
    return USE_NUMBA and terms is not None and bool((terms[0] >= 0).all())


class DMALA(Refinement):
    """Discrete Metropolis-adjusted Langevin: every site moves independently, then all or none.

    Site i proposes tau with probability proportional to exp(l_t / 2 - 1{tau != x_i} / (2 alpha)),
    l_t the exact log-ratio in place of the gradient's approximation.

    References: Zhang et al. 2022.

    Args:
        moves: number of moves each time.
        alpha: step size; a larger one moves more sites together.

    Raises:
        ValueError: alpha not positive.
    """

    def __init__(self, moves: int = 1, alpha: float = 1.0) -> None:
        super().__init__(moves)
        ensure(alpha > 0, f"alpha must be positive, not {alpha}")
        self.alpha = alpha

    def move(self, target: Target, states: States, t: float, stream: StepStreams) -> States:
        """Propose states [B, d] and accept or reject them.

        References: Zhang et al. 2022; Hastings 1970.
        """
        u = stream.next_draw().uniform((len(states.x), target.sites))
        acceptance_uniforms = stream.next_draw().uniform((len(states.x), 1))[:, 0]

        log_proposal = self._log_proposal(states, t)
        cumulative = log_proposal.exp()[..., :-1].cumsum(-1)
        values = (cumulative <= u[..., None]).sum(-1)
        proposed = States.evaluate(target, values.to(states.x.dtype))

        forward = log_proposal.gather(-1, proposed.x.long()[..., None]).sum((-1, -2))
        reverse_proposal = self._log_proposal(proposed, t)
        backward = reverse_proposal.gather(-1, states.x.long()[..., None]).sum((-1, -2))
        return metropolis_accept(states, proposed, t, backward - forward, acceptance_uniforms)

    def _log_proposal(self, states: States, t: float) -> Tensor:
        """Return the log-probabilities of each site's proposals, [B, d, S]."""
        is_current = F.one_hot(states.x.long(), states.target.levels)
        logits = t * states.log_ratios / 2 - (1 - is_current) / (2 * self.alpha)
        frozen = states.target.frozen_sites
        if frozen is not None:
            logits = logits.masked_fill(frozen[..., None] & (is_current == 0), -torch.inf)
        return logits.log_softmax(-1)


def metropolis_accept(
    states: States,
    proposed: States,
    t: float,
    log_proposal_ratio: Tensor,
    u: Tensor,
) -> States:
    """Accept or reject proposals so that rho^t stays invariant.

    References: Hastings 1970.

    Args:
        states: current states [B, d].
        proposed: proposals [B, d].
        t: time.
        log_proposal_ratio: log of the backward over the forward proposal probability, [B].
        u: uniforms [B].
    """
    log_acceptance = t * (proposed.log_density - states.log_density) + log_proposal_ratio
    accepted = u.log() < log_acceptance
    return states.replace(accepted, proposed.select(accepted))
