"""From noise to samples with weights, and back: how the continuous-time chain is simulated.

Whatever the rates, E[e^w h(x_1)] = Z E_pi h for exact simulation, w the integral of xi [Ou 2025, eqs. 35 and 39], by
Feynman and Kac; the laws of flows check it for networks that have learned nothing. Run backwards from a given state
(`run_backwards`), the chain bounds how likely it makes that state.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from torch import Tensor

from blackout.component import component
from blackout.flows.path import States, incoming, integrated_residual, outgoing, residual
from blackout.flows.refinement import Gibbs, Refinement
from blackout.flows.targets import Target
from blackout.flows.weights import effective_sample_size, log_mean_exp
from blackout.protocols import Watch
from blackout.random import SampleStreams, StepStreams, fold_seed, systematic_resampling

Scores: TypeAlias = Callable[[States, float], Tensor]
"""(states, time) -> G, float64 [B, d, S]."""
_MOST_STEPS = 1_000_000
RESAMPLING = 7
"""Key of the resampling among the uses of a seed."""


@dataclass
class Paths:
    """What came of a simulation.

    Args:
        states: the last ones.
        log_weights: w, float64 [B].
        jumps: of every chain, int64 [B].
        evaluations: network evaluations of every chain, int64 [B].
        times: at which it was observed, K + 1 of them.
        log_weights_at: w there, float32 [B] each; empty unless asked for.
        states_at: the states there.
    """

    states: States
    log_weights: Tensor
    jumps: Tensor
    evaluations: Tensor
    times: list[float] = field(default_factory=list)
    log_weights_at: list[Tensor] = field(default_factory=list)
    states_at: list[States] = field(default_factory=list)

    def rows(self, which: Tensor) -> Paths:
        """Some of the chains, int64 [b]."""
        own = self.states.rows(which), self.log_weights[which], self.jumps[which], self.evaluations[which]
        at = [w[which] for w in self.log_weights_at], [states.rows(which) for states in self.states_at]
        return Paths(*own, self.times, *at)

    def observed(self, target: Target) -> Tensor:
        """Of all chains at these times: w, -log rho and every statistic of the target, float32 [N, K + 1, .]."""
        parts = []
        for states, w in zip(self.states_at, self.log_weights_at, strict=True):
            others = (value.float() for value in target.statistics(states.x).values())
            parts.append(torch.stack([w, -states.log_density.float(), *others], -1))
        return torch.stack(parts, 1)


_Step: TypeAlias = tuple[States, Tensor, Tensor, Tensor]
"""What one step did: states, the gain of log-weight, jumps and evaluations [B]."""


class Simulation(ABC):
    """A grid of equal steps in [0, 1], with optional resampling and moves after each.

    Args:
        num_steps: number K of steps.
        resample_below: resample systematically where the ESS of a group falls below this share; None for never.
        group: chains that are resampled together.
        sweeps: of Gibbs after every step, where a draw asks for no other moves.

    Raises:
        ValueError: no steps, sweeps below 0, a group below 2, or a share outside (0, 1].
    """

    def __init__(
        self, num_steps: int = 64, resample_below: float | None = None, group: int = 64, sweeps: int = 0
    ) -> None:
        if not 1 <= num_steps <= _MOST_STEPS or group < 2:
            raise ValueError(f"num_steps must be in 1..{_MOST_STEPS:,}, group at least 2, not {num_steps}, {group}")
        if resample_below is not None and not 0 < resample_below <= 1:
            raise ValueError(f"resample_below must be in (0, 1], or null, not {resample_below}")
        self.num_steps, self.resample_below, self.group = num_steps, resample_below, group
        self.moves = Gibbs(sweeps) if sweeps else None

    @abstractmethod
    def step(self, target: Target, scores: Scores, states: States, a: float, b: float, stream: StepStreams) -> _Step:
        """Move states [B, d] from time a to time b."""

    def run(
        self,
        target: Target,
        scores: Scores,
        indices: Tensor,
        seed: int,
        refine: Refinement | None = None,
        watch: Watch | None = None,
        observe: bool = False,
    ) -> Paths:
        """Simulate the chains with these numbers, int64 [B]; whole groups of them, if they are resampled.

        States [B, d] and log-weights [B], the sums of what every `step` gains [Ou 2025, eq. 39].
        """
        streams = SampleStreams(seed, indices)
        size, times = (len(indices), target.sites), torch.linspace(0, 1, self.num_steps + 1).double().tolist()
        states = States.uniform(target, streams.step(0).next_draw().uniform(size))
        weights, none = torch.zeros_like(indices, dtype=torch.float64), torch.zeros_like(indices)
        paths = Paths(states, weights, none, none)
        for k, a in enumerate(times):
            if watch is not None:
                watch(k, self.num_steps, states.x)
            if observe:
                record(paths, a, weights, states)
            if k == self.num_steps:
                break
            stream, b = streams.step(k + 1), times[k + 1]
            states, gain, jumps, evaluations = self.step(target, scores, states, a, b, stream)
            weights = weights + gain
            paths.jumps, paths.evaluations = paths.jumps + jumps, paths.evaluations + evaluations
            if self.resample_below is not None:
                drawn_by, low = fold_seed(seed, RESAMPLING), self.resample_below
                states, weights = resampled(states, weights, indices, drawn_by, k, low, self.group)
            if (moves := refine or self.moves) is not None:
                states = moves(target, states, b, stream)
        return replace(paths, states=states, log_weights=weights)


def resampled(
    states: States, weights: Tensor, indices: Tensor, seed: int, k: int, below: float, group: int
) -> tuple[States, Tensor]:
    """Groups whose ESS is low, drawn again by their weights, which become their mean: log Z stays unbiased.

    Systematic resampling [Kitagawa 1996] of sequential Monte Carlo [Del Moral 2006].

    Args:
        states, weights: of chains, [B].
        indices: their numbers, int64 [B].
        seed, k: of the draws, and of which step.
        below: ESS, as a share, below which a group is drawn again.
        group: chains in each; what is left over is a group of its own.

    Returns:
        States and weights of the same chains, [B].
    """
    chosen, kept = list[Tensor](), list[Tensor]()
    whole = len(indices) // group * group
    for each in torch.arange(len(indices), device=weights.device).split(whole or group):  # then what is left over
        rows = each.view(-1, min(group, len(each)))
        own, first = weights[rows], indices[rows[:, 0]]
        low = effective_sample_size(own)[:, None] < below
        uniform = SampleStreams(seed, first).step(k).next_draw().uniform((len(rows), 1))
        drawn = rows.gather(1, systematic_resampling(torch.softmax(own.double(), -1), uniform))
        chosen.append(torch.where(low, drawn, rows).flatten())
        kept.append(torch.where(low, log_mean_exp(own)[:, None], own).flatten())
    return states.rows(torch.cat(chosen)), torch.cat(kept)


def _events(scores: Scores, states: States, a: float, b: float, stream: StepStreams) -> Iterator[tuple[Any, ...]]:
    """Waiting times and jumps at rates that are frozen from time a to b, or from b back to a [Gillespie 1977].

    Yields:
        Until no chain jumps any more, of those that did: rows int64 [n], states, G, rates [n, d, S], since when and
        until when they stay [n], which of them jump then, bool [n], and the states of those after it.
    """
    rows, here, middle = torch.arange(len(states.x), device=states.x.device), states, (a + b) / 2
    start = torch.full((len(rows),), a, dtype=torch.float64, device=rows.device)
    while len(rows):
        g = scores(here, middle)
        rates = outgoing(g) if a < b else incoming(g) * (middle * here.ratios).exp()
        u = stream.next_draw().select(rows).uniform((len(rows), 2))
        waited = u[:, 0].log() / rates.sum((-1, -2))
        end = (start - waited).clamp(max=b) if a < b else (start + waited).clamp(min=b)
        jumping = end < b if a < b else end > b
        there = States.of(here.target.rows(jumping), one_jump(here.x[jumping], rates[jumping], u[jumping, 1]))
        yield rows, here, g, rates, start, end, jumping, there
        rows, start, here = rows[jumping], end[jumping], there


@component("simulation")
class Events(Simulation):
    """Exact for rates that are frozen on every interval: waiting times [Gillespie 1977], weights in closed form. Ours.

    The network is evaluated at the middle of the interval, once per chain and once more after every jump, for the
    chains that jumped. The weights are the Radon-Nikodym derivative itself, so that E[e^w h] = Z E_pi h for any
    network and any number of steps.
    """

    def step(self, target: Target, scores: Scores, states: States, a: float, b: float, stream: StepStreams) -> _Step:
        """States [B, d] at b, gains of log-weight by `integrated_residual`, jumps and evaluations [B]: see the
        class.
        """
        gain = torch.zeros(len(states.x), dtype=torch.float64, device=states.x.device)
        jumps, evaluations = torch.zeros_like(gain).long(), torch.zeros_like(gain).long()
        for rows, here, g, _, start, end, jumping, there in _events(scores, states, a, b, stream):
            gain[rows] += integrated_residual(here.dlogp_dt, g, here.ratios, start, end)
            evaluations[rows] += 1
            jumps[rows[jumping]] += 1
            states = states.updated(rows[jumping], there)
        return states, gain, jumps, evaluations


class _Stepwise(Simulation):
    """One draw per step with the rates at its beginning; weights by the trapezoidal rule, of second order."""

    def step(self, target: Target, scores: Scores, states: States, a: float, b: float, stream: StepStreams) -> _Step:
        """Of states [B, d] the next, with gains (b - a) (xi_a + xi_b) / 2, jumps and evaluations [B].

        Ours (tests/verification/flow_claims.py).
        """
        g = scores(states, a) if states.scores is None else states.scores
        first = residual(states.dlogp_dt, g, a * states.ratios)
        x = self.jump(states.x, outgoing(g), b - a, stream)
        jumps = (x != states.x).sum(-1)
        evaluations = torch.full_like(jumps, 2 if states.scores is None else 1)
        states = States.of(target, x)
        g = scores(states, b)
        last = residual(states.dlogp_dt, g, b * states.ratios)
        return replace(states, scores=g), (b - a) * (first + last) / 2, jumps, evaluations

    @abstractmethod
    def jump(self, x: Tensor, rates: Tensor, length: float, stream: StepStreams) -> Tensor:
        """States [B, d] after a step of that length at fixed rates [B, d, S]."""


@component("simulation")
class Leap(_Stepwise):
    """Every site jumps independently of the others: the factorised step of the paper's code [Campbell 2022]."""

    def jump(self, x: Tensor, rates: Tensor, length: float, stream: StepStreams) -> Tensor:
        """States [B, d] after a step of this length at fixed rates [B, d, S].

        A site moves with probability 1 - e^(-length * its rate).

        [Campbell 2022], see the class.
        """
        u = stream.next_draw().uniform(tuple(x.shape))
        total = rates.sum(-1)
        moved = -torch.expm1(-length * total)
        share = rates.cumsum(-1) / total[..., None].clamp(min=1e-300)
        drawn = (share[..., :-1] * moved[..., None] <= u[..., None]).sum(-1)
        return torch.where(u < moved, drawn.to(x.dtype), x)


@component("simulation")
class Single(_Stepwise):
    """At most one jump per step [Ou 2025, Algorithm 2], as it is written."""

    def jump(self, x: Tensor, rates: Tensor, length: float, stream: StepStreams) -> Tensor:
        """States [B, d] after a step of this length at fixed rates [B, d, S].

        One site moves at most [Ou 2025, Algorithm 2].
        """
        u = stream.next_draw().uniform((len(x), 2))
        moved = u[:, 0] < -torch.expm1(-length * rates.sum((-1, -2)))
        return torch.where(moved[:, None], one_jump(x, rates, u[:, 1]), x)


def one_jump(x: Tensor, rates: Tensor, u: Tensor) -> Tensor:
    """States [B, d] after a jump drawn in proportion to rates [B, d, S] by uniforms [B], as in [Gillespie 1977]."""
    levels, rows = rates.shape[-1], torch.arange(len(x), device=x.device)
    edges = rates.flatten(1).cumsum(-1)
    # the first edge above the point: a jump without rate has none of its own
    choice = torch.searchsorted(edges, (u * edges[:, -1])[:, None], right=True).squeeze(1)
    choice = choice.clamp_(max=edges.shape[1] - 1)
    moved = x.clone()
    moved[rows, choice // levels] = (choice % levels).to(x.dtype)
    return moved


def record(paths: Paths, t: float, weights: Tensor, states: States) -> None:
    """Note a time of chains on their way, with weights [B]."""
    paths.times.append(t)
    paths.log_weights_at.append(weights.float())
    paths.states_at.append(replace(states, scores=None, known=None))


def run_backwards(
    target: Target, scores: Scores, x: Tensor, num_steps: int, indices: Tensor, seed: int
) -> tuple[Tensor, list[Tensor]]:
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

    Returns:
        Log-weights a + log p_0(x_0), float64 [B], whose mean is at most log p(x_1), and E e^weight = p(x_1); and the
        states at the ends of the intervals from t = 1 to t = 0, [B, d] each.
    """
    streams, states = SampleStreams(seed, indices), States.of(target, x)
    weights = torch.full((len(x),), -target.sites * math.log(target.levels), dtype=torch.float64, device=x.device)
    times, visited = torch.linspace(1, 0, num_steps + 1).double().tolist(), [x]
    for k, (b, a) in enumerate(pairwise(times)):
        for rows, here, g, back, start, end, jumping, there in _events(scores, states, b, a, streams.step(k)):
            weights[rows] -= (outgoing(g).sum((-1, -2)) - back.sum((-1, -2))) * (start - end)
            # forward rate of the jump over its backward rate: e^(-l_t), as both are [G]_+ at the earlier state
            weights[rows[jumping]] += (a + b) / 2 * (here.log_density[jumping] - there.log_density)
            states = states.updated(rows[jumping], there)
        visited.append(states.x)
    return weights, visited
