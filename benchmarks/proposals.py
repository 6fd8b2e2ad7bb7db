"""Moves for the tables: locally informed proposals, and proposals by first-order log-ratios."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from blackout.flows.path import States
from blackout.flows.refinement import DMALA, Refinement, metropolis_accept
from blackout.flows.targets import EnergyNetwork, Target
from blackout.flows.targets.base import flip_log_ratios
from blackout.random import StepStreams, cumulative_probabilities


def taylor_ratios(network: EnergyNetwork, x: Tensor) -> Tensor:
    """First-order log-ratios from one gradient, which are biased, [B, d, 2] [Ou 2025, eq. 28 and
    fig. 9]."""
    with torch.enable_grad():
        inputs = x.to(next(network.parameters()).dtype).requires_grad_()
        (slope,) = torch.autograd.grad(-network.energy(inputs).sum(), inputs)
    return flip_log_ratios(slope * (1 - 2 * inputs.detach()), x)


def first_order(states: States) -> Tensor:
    """Log-ratios of proposals, [B, d, S]: exact ones cost as much where a target has no
    gradient."""
    target = states.target
    if isinstance(target, EnergyNetwork) and target.levels == 2:
        return taylor_ratios(target, states.x).double()
    return states.log_ratios


class GradientDMALA(DMALA):
    """DMALA as published [Zhang 2022]: by first-order ratios."""

    def _log_proposal(self, states: States, t: float) -> Tensor:
        return super()._log_proposal(replace(states, cached_log_ratios=first_order(states)), t)


class LocallyInformed(Refinement):
    """One site at a time, proposed in proportion to exp(Delta_t / 2) and accepted by Metropolis and
    Hastings.

    [Zanella 2020], with the square root as balancing function.

    Args:
        moves: how many each time.
        gradients: propose by first-order ratios, from one gradient: Gibbs with gradients
            [Grathwohl 2021].
    """

    def __init__(self, moves: int = 1, gradients: bool = False) -> None:
        super().__init__(moves)
        self.gradients = gradients

    def move(self, target: Target, states: States, t: float, stream: StepStreams) -> States:
        rows = torch.arange(len(states.x), device=states.x.device)
        u = stream.next_draw().uniform((len(rows), 2))
        logits = self._logits(states, t)
        edges = cumulative_probabilities(logits.softmax(-1))
        choice = (
            torch.searchsorted(edges, u[:, :1].contiguous(), right=True)
            .squeeze(1)
            .clamp_(max=edges.shape[1] - 1)
        )
        site = choice // target.levels
        state = choice % target.levels
        x = states.x.clone()
        old_state = x[rows, site].long()
        x[rows, site] = state.to(x.dtype)
        proposed = States.evaluate(target, x)
        back = self._logits(proposed, t)
        log_ratio = back[rows, site * target.levels + old_state] - back.logsumexp(-1)
        log_ratio = log_ratio - logits[rows, choice] + logits.logsumexp(-1)
        return metropolis_accept(states, proposed, t, log_ratio, u[:, 1])

    def _logits(self, states: States, t: float) -> Tensor:
        """log-weights of the proposals, [B, d S]; staying is none."""
        is_current = F.one_hot(states.x.long(), states.target.levels).bool()
        frozen = states.target.frozen_sites
        impossible = is_current if frozen is None else is_current | frozen[..., None]
        ratios = first_order(states) if self.gradients else states.log_ratios
        return (t * ratios / 2).masked_fill(impossible, -torch.inf).flatten(1)
