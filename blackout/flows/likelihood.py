"""How likely the chain makes a given state: bounds from the chain run backwards."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from blackout.flows.path import States, incoming, outgoing
from blackout.flows.simulation import Scores, one_jump
from blackout.flows.targets import Target
from blackout.random import SampleStreams


@dataclass(frozen=True)
class Reverse:
    """Chains run backwards.

    Args:
        log_weights: a + log p_0(x_0), float64 [B]: their mean is at most log p(x_1), and E e^weight = p(x_1).
        states_at: the states at the ends of the intervals from t = 1 to t = 0, [B, d] each.
    """

    log_weights: Tensor
    states_at: list[Tensor]


def run_backwards(target: Target, scores: Scores, x: Tensor, num_steps: int, indices: Tensor, seed: int) -> Reverse:
    """Simulate the reverse chain from states and weigh it against the forward one [Ou 2025, eqs. 42 and 43].

    The forward law is that of `Events`, with rates frozen on every interval; the bound is the last of the paper's
    appendix D.1, with the [.]_+ that are missing there. The laws of flows check that E e^weight = p(x_1).

    Args:
        target: the law.
        scores: of the forward chain; backwards the rates are [-G]_+ e^(l_t), at the middle of an interval.
        x: states at t = 1, integers [B, d].
        num_steps: number of intervals.
        indices: numbers of the chains, int64 [B].
        seed: of all draws.
    """
    streams, states = SampleStreams(seed, indices), States.of(target, x)
    weights = torch.full((len(x),), -target.sites * math.log(target.levels), dtype=torch.float64, device=x.device)
    times, visited = torch.linspace(1, 0, num_steps + 1).double().tolist(), [x]
    for k, (b, a) in enumerate(pairwise(times)):
        stream, middle = streams.at(k), (a + b) / 2
        rows, here = torch.arange(len(x), device=x.device), states
        clock = torch.full((len(x),), b, dtype=torch.float64, device=x.device)
        while len(rows):
            g = scores(here, middle)
            back = incoming(g) * (middle * here.ratios).exp()
            u = stream.next_draw().samples(rows).uniform((len(rows), 2))
            event = clock[rows] + u[:, 0].log() / back.sum((-1, -2))
            end = event.clamp(min=a)
            stays = outgoing(g).sum((-1, -2)) - back.sum((-1, -2))
            weights[rows] -= stays * (clock[rows] - end)
            clock[rows] = end
            jumping = event > a
            rows = rows[jumping]
            there = States.of(target, one_jump(here.x[jumping], back[jumping], u[jumping, 1]))
            # forward rate of the jump over its backward rate: e^(-l_t), as both are [G]_+ at the earlier state
            weights[rows] += middle * (here.log_density[jumping] - there.log_density)
            states, here = states.updated(rows, there), there
        visited.append(states.x)
    return Reverse(weights, visited)
