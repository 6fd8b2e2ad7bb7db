"""Simulation of the continuous-time Markov chain, forwards with importance weights, and in reverse.

Whatever the rates, exact simulation satisfies the Feynman-Kac identity E[e^w h(x_1)] = Z E_pi h
with w the integral of the residual xi along the chain. tests/verification checks it for untrained
networks. In reverse from a given state (`run_reverse`), the chain bounds the likelihood of that
state.

References: Ou et al. 2025, eqs. 35 and 39.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from blackout.component import component
from blackout.flows.path import (
    States,
    forward_residual,
    incoming_rates,
    integrated_residual,
    outgoing_rates,
)
from blackout.flows.refinement import Gibbs, Refinement
from blackout.flows.targets import Target
from blackout.flows.weights import effective_sample_size, log_mean_exp
from blackout.protocols import Watch
from blackout.random import SampleStreams, StepStreams, fold_seed, systematic_resampling
from blackout.representation import format_arguments, format_fields

# (states, time) -> net rates G, float64 [B, d, S]
NetRates: TypeAlias = Callable[[States, float], Tensor]
MAX_STEPS = 1_000_000
RESAMPLING_KEY = 7  # separates the draws of the resampling from other uses of a seed
TINY = 1e-300  # smallest total rate that is divided by


@dataclass
class Paths:
    """Simulated chains, with their states at intermediate times if they were recorded.

    Args:
        states: at the last time.
        log_weights: w, float64 [B].
        jumps: of every chain, int64 [B].
        evaluations: network evaluations of every chain, int64 [B].
        times: recorded times, K + 1 of them.
        recorded_log_weights: w at these times, float32 [B] each; empty unless recorded.
        recorded_states: states at these times.
    """

    states: States
    log_weights: Tensor
    jumps: Tensor
    evaluations: Tensor
    times: list[float] = field(default_factory=list)
    recorded_log_weights: list[Tensor] = field(default_factory=list)
    recorded_states: list[States] = field(default_factory=list)

    __repr__ = format_fields

    def record(self, t: float, log_weights: Tensor, states: States) -> None:
        """Record the chains at a time, with log-weights [B]."""
        self.times.append(t)
        self.recorded_log_weights.append(log_weights.float())
        self.recorded_states.append(replace(states, net_rates=None, cached_log_ratios=None))

    def select(self, rows: Tensor) -> Paths:
        """Return some of the chains, int64 [b]."""
        return Paths(
            self.states.select(rows),
            self.log_weights[rows],
            self.jumps[rows],
            self.evaluations[rows],
            self.times,
            [log_weights[rows] for log_weights in self.recorded_log_weights],
            [states.select(rows) for states in self.recorded_states],
        )

    def observables(self, target: Target) -> Tensor:
        """Return w, -log rho and q statistics at recorded times, float32 [N, K + 1, 2 + q]."""
        columns = []
        recorded = zip(self.recorded_states, self.recorded_log_weights, strict=True)
        for states, log_weights in recorded:
            energy = -states.log_density.float()
            statistics = [value.float() for value in target.statistics(states.x).values()]
            columns.append(torch.stack([log_weights, energy, *statistics], -1))
        return torch.stack(columns, 1)


class StepResult(NamedTuple):
    """Result of one step of a simulation; the tensors are [B]."""

    states: States
    gain: Tensor  # of the log-weights, float64
    jumps: Tensor  # int64
    evaluations: Tensor  # of the network, int64


class Simulation(ABC):
    """Simulation on a grid of equal steps in [0, 1], with optional resampling and MCMC moves.

    Args:
        num_steps: number K of steps.
        resample_below: resample a group whose ESS falls below this fraction; None for never.
        group_size: number of chains that are resampled together.
        gibbs_sweeps: after every step, unless other moves are requested.

    Raises:
        ValueError: a number out of range.
    """

    __repr__ = format_arguments

    def __init__(
        self,
        num_steps: int = 64,
        resample_below: float | None = None,
        group_size: int = 64,
        gibbs_sweeps: int = 0,
    ) -> None:
        if not 1 <= num_steps <= MAX_STEPS:
            raise ValueError(f"num_steps must be 1 to {MAX_STEPS:,}, not {num_steps}")
        if group_size < 2:
            raise ValueError(f"group_size must be at least 2, not {group_size}")
        if resample_below is not None and not 0 < resample_below <= 1:
            raise ValueError(f"resample_below must be in (0, 1], or null, not {resample_below}")
        if gibbs_sweeps < 0:
            raise ValueError(f"gibbs_sweeps must be at least 0, not {gibbs_sweeps}")
        self.num_steps = num_steps
        self.resample_below = resample_below
        self.group_size = group_size
        self.refinement = Gibbs(gibbs_sweeps) if gibbs_sweeps else None

    @abstractmethod
    def step(
        self,
        target: Target,
        net_rates: NetRates,
        states: States,
        start: float,
        end: float,
        stream: StepStreams,
    ) -> StepResult:
        """Move states [B, d] from time `start` to time `end`."""

    def run(
        self,
        target: Target,
        net_rates: NetRates,
        indices: Tensor,
        seed: int,
        *,
        refine: Refinement | None = None,
        watch: Watch | None = None,
        record: bool = False,
    ) -> Paths:
        """Simulate chains; with resampling, `indices` must be those of whole groups.

        References: Ou et al. 2025, eq. 39.

        Args:
            target: the distribution, or one for each chain.
            net_rates: of the network.
            indices: of the chains, int64 [B].
            seed: chain k is a function of (seed, k), and of its group if it is resampled.
            refine: moves after every step; None for this simulation's Gibbs sweeps.
            watch: called with (step, number of steps, states) at the start and after every step.
            record: whether states and log-weights are recorded at every step.
        """
        streams = SampleStreams(seed, indices)
        times = torch.linspace(0, 1, self.num_steps + 1).double().tolist()
        refinement = refine or self.refinement
        # 1. States at t = 0.
        uniforms = streams.step(0).next_draw().uniform((len(indices), target.sites))
        states = States.initial(target, uniforms)
        log_weights = torch.zeros_like(indices, dtype=torch.float64)
        zeros = torch.zeros_like(indices)
        paths = Paths(states, log_weights, jumps=zeros, evaluations=zeros)
        for k, start in enumerate(times):
            if watch is not None:
                watch(k, self.num_steps, states.x)
            if record:
                paths.record(start, log_weights, states)
            if k == self.num_steps:
                break
            # 2. One step of the chain.
            stream = streams.step(k + 1)
            end = times[k + 1]
            result = self.step(target, net_rates, states, start, end, stream)
            states = result.states
            log_weights = log_weights + result.gain
            paths.jumps = paths.jumps + result.jumps
            paths.evaluations = paths.evaluations + result.evaluations
            # 3. Resampling.
            if self.resample_below is not None:
                resampling = Resampling(
                    indices,
                    fold_seed(seed, RESAMPLING_KEY),
                    self.resample_below,
                    self.group_size,
                )
                states, log_weights = resampling(states, log_weights, k)
            # 4. Moves that leave p_t invariant.
            if refinement is not None:
                states = refinement(target, states, end, stream)
        return replace(paths, states=states, log_weights=log_weights)


@dataclass(frozen=True)
class Resampling:
    """Systematic resampling within groups of chains whose ESS is low.

    The weights of a resampled group become their mean, so that log Z stays unbiased.

    References: Kitagawa 1996; Del Moral et al. 2006.

    Args:
        indices: of the chains, int64 [B].
        seed: of the draws.
        threshold: ESS, as a fraction, below which a group is resampled.
        group_size: chains in each group; the remainder is a smaller group.
    """

    indices: Tensor
    seed: int
    threshold: float
    group_size: int

    def __call__(self, states: States, log_weights: Tensor, step: int) -> tuple[States, Tensor]:
        """Resample states [B, d] and log-weights [B] at a step, which determines the draws."""
        selected = list[Tensor]()
        new_log_weights = list[Tensor]()
        num_grouped = len(self.indices) // self.group_size * self.group_size
        all_rows = torch.arange(len(self.indices), device=log_weights.device)
        # the full groups, then the remainder
        for part in all_rows.split(num_grouped or self.group_size):
            rows = part.view(-1, min(self.group_size, len(part)))
            w = log_weights[rows]
            first_indices = self.indices[rows[:, 0]]
            is_low = effective_sample_size(w)[:, None] < self.threshold
            streams = SampleStreams(self.seed, first_indices)
            uniform = streams.step(step).next_draw().uniform((len(rows), 1))
            resampled = rows.gather(
                1, systematic_resampling(torch.softmax(w.double(), -1), uniform)
            )
            selected.append(torch.where(is_low, resampled, rows).flatten())
            new_log_weights.append(torch.where(is_low, log_mean_exp(w)[:, None], w).flatten())
        return states.select(torch.cat(selected)), torch.cat(new_log_weights)


class _Interval(NamedTuple):
    """Chains between two events at frozen rates; the last chains of an interval do not jump."""

    rows: Tensor  # of the chains, int64 [n]
    states: States
    net_rates: Tensor  # G, [n, d, S]
    rates: Tensor  # of the jumps, [n, d, S]
    start: Tensor  # times [n]
    end: Tensor  # times [n]
    jumping: Tensor  # whether the chain jumps at `end`, bool [n]
    next_states: States  # of the chains that jump


def _simulate_events(
    net_rates: NetRates, states: States, start: float, end: float, stream: StepStreams
) -> Iterator[_Interval]:
    """Yield waiting times and jumps at rates frozen in [start, end], until no chain jumps again.

    With `end` < `start` the chain runs in reverse.

    References: Gillespie 1977.
    """
    rows = torch.arange(len(states.x), device=states.x.device)
    times = torch.full((len(rows),), start, dtype=torch.float64, device=rows.device)
    middle = (start + end) / 2
    forwards = start < end
    while len(rows):
        g = net_rates(states, middle)
        rates = outgoing_rates(g)
        if not forwards:
            rates = incoming_rates(g) * (middle * states.log_ratios).exp()
        u = stream.next_draw().select(rows).uniform((len(rows), 2))
        minus_waiting_times = u[:, 0].log() / rates.sum((-1, -2))
        if forwards:
            next_times = (times - minus_waiting_times).clamp(max=end)
            jumping = next_times < end
        else:
            next_times = (times + minus_waiting_times).clamp(min=end)
            jumping = next_times > end
        x = draw_jump(states.x[jumping], rates[jumping], u[jumping, 1])
        next_states = States.evaluate(states.target.select(jumping), x)
        yield _Interval(rows, states, g, rates, times, next_times, jumping, next_states)
        rows = rows[jumping]
        times = next_times[jumping]
        states = next_states


@component("simulation")
class Events(Simulation):
    """Exact simulation of rates that are frozen on every interval, event by event.

    The network is evaluated at the middle of the interval, once per chain and again after every
    jump. The weights are the Radon-Nikodym derivative in closed form, so that E[e^w h] = Z E_pi h
    for any network and any number of steps.

    References: Gillespie 1977; the weights are this project's, checked in
    tests/verification/test_flow_claims.py.
    """

    def step(
        self,
        target: Target,
        net_rates: NetRates,
        states: States,
        start: float,
        end: float,
        stream: StepStreams,
    ) -> StepResult:
        """Move states [B, d]; the gain of the log-weights is `integrated_residual`."""
        gain = torch.zeros(len(states.x), dtype=torch.float64, device=states.x.device)
        jumps = torch.zeros_like(gain).long()
        evaluations = torch.zeros_like(gain).long()
        for part in _simulate_events(net_rates, states, start, end, stream):
            gain[part.rows] += integrated_residual(
                part.states.dlogp_dt, part.net_rates, part.states.log_ratios, part.start, part.end
            )
            evaluations[part.rows] += 1
            jumping_rows = part.rows[part.jumping]
            jumps[jumping_rows] += 1
            states = states.replace(jumping_rows, part.next_states)
        return StepResult(states, gain, jumps, evaluations)


class _TimeStepping(Simulation):
    """One draw per step, with the rates at its start; weights by the trapezoidal rule.

    The weights are not unbiased: log Z is off by a term that is proportional to the length of a
    step, and of second order only for rates under which all chains have one weight.

    References: this project; checked in tests/verification/test_flow_claims.py.
    """

    def step(
        self,
        target: Target,
        net_rates: NetRates,
        states: States,
        start: float,
        end: float,
        stream: StepStreams,
    ) -> StepResult:
        """Move states [B, d]; the gain of the log-weights is (end - start) (xi_start + xi_end) / 2.

        References: this project; checked in tests/verification/test_flow_claims.py.
        """
        has_net_rates = states.net_rates is not None
        g = net_rates(states, start) if states.net_rates is None else states.net_rates
        first_residual = forward_residual(states.dlogp_dt, g, start * states.log_ratios)
        x = self.jump(states.x, outgoing_rates(g), end - start, stream)
        jumps = (x != states.x).sum(-1)
        evaluations = torch.full_like(jumps, 1 if has_net_rates else 2)

        states = States.evaluate(target, x)
        g = net_rates(states, end)
        last_residual = forward_residual(states.dlogp_dt, g, end * states.log_ratios)
        gain = (end - start) * (first_residual + last_residual) / 2
        return StepResult(replace(states, net_rates=g), gain, jumps, evaluations)

    @abstractmethod
    def jump(self, x: Tensor, rates: Tensor, length: float, stream: StepStreams) -> Tensor:
        """Move states [B, d] for a time `length` at fixed rates [B, d, S]."""


@component("simulation")
class Leap(_TimeStepping):
    """Tau-leaping: every site jumps independently in each step, as in the paper's code.

    References: Campbell et al. 2022.
    """

    def jump(self, x: Tensor, rates: Tensor, length: float, stream: StepStreams) -> Tensor:
        """Move states [B, d]: a site jumps with probability 1 - e^(-length * its total rate)."""
        u = stream.next_draw().uniform(tuple(x.shape))
        total = rates.sum(-1)
        jump_probability = -torch.expm1(-length * total)
        cumulative = rates.cumsum(-1) / total[..., None].clamp(min=TINY)
        scaled = cumulative[..., :-1] * jump_probability[..., None]
        values = (scaled <= u[..., None]).sum(-1)
        return torch.where(u < jump_probability, values.to(x.dtype), x)


@component("simulation")
class Single(_TimeStepping):
    """At most one jump of the whole state in each step, as the paper's Algorithm 2 is written.

    References: Ou et al. 2025, Algorithm 2.
    """

    def jump(self, x: Tensor, rates: Tensor, length: float, stream: StepStreams) -> Tensor:
        """Move states [B, d]: one site jumps with probability 1 - e^(-length * total rate)."""
        u = stream.next_draw().uniform((len(x), 2))
        jumping = u[:, 0] < -torch.expm1(-length * rates.sum((-1, -2)))
        return torch.where(jumping[:, None], draw_jump(x, rates, u[:, 1]), x)


def draw_jump(x: Tensor, rates: Tensor, u: Tensor) -> Tensor:
    """Return states [B, d] after a jump with probability proportional to its rate.

    References: Gillespie 1977.

    Args:
        x: states [B, d].
        rates: [B, d, S].
        u: uniforms [B].
    """
    levels = rates.shape[-1]
    rows = torch.arange(len(x), device=x.device)
    edges = rates.flatten(1).cumsum(-1)
    # the first edge above the point, so that a jump of rate 0 is never chosen; u times the sum may
    # round to the sum, above which there is no edge
    total = edges[:, -1]
    below_total = torch.nextafter(total, torch.zeros_like(total))
    points = torch.minimum(u * total, below_total)[:, None]
    choice = torch.searchsorted(edges, points, right=True).squeeze(1)
    choice = choice.clamp_(max=edges.shape[1] - 1)
    next_x = x.clone()
    next_x[rows, choice // levels] = (choice % levels).to(x.dtype)
    return next_x


def run_reverse(
    target: Target, net_rates: NetRates, x: Tensor, num_steps: int, indices: Tensor, seed: int
) -> tuple[Tensor, list[Tensor]]:
    """Simulate the reverse chain from states, and weight it against the forward chain.

    The forward chain is that of `Events`. The reverse rates are [-G]_+ e^(l_t) at the middle of an
    interval. The bound is the last one of the paper's appendix D.1 with the missing [.]_+.

    References: Ou et al. 2025, eqs. 42 and 43; checked in tests/verification/test_flow_claims.py.

    Args:
        target: the distribution.
        net_rates: of the forward chain.
        x: states at t = 1, integers [B, d].
        num_steps: number of intervals.
        indices: of the chains, int64 [B].
        seed: of all draws.

    Returns:
        Log-weights a, float64 [B], with E[e^a] = p(x_1) and E[a] <= log p(x_1); and the states at
        the ends of the intervals from t = 1 to t = 0, [B, d] each.
    """
    streams = SampleStreams(seed, indices)
    states = States.evaluate(target, x)
    log_eta = -target.sites * math.log(target.levels)
    log_weights = torch.full((len(x),), log_eta, dtype=torch.float64, device=x.device)
    times = torch.linspace(1, 0, num_steps + 1).double().tolist()
    interval_states = [x]
    for k, (late, early) in enumerate(pairwise(times)):
        middle = (early + late) / 2
        for part in _simulate_events(net_rates, states, late, early, streams.step(k)):
            forward_total = outgoing_rates(part.net_rates).sum((-1, -2))
            reverse_total = part.rates.sum((-1, -2))
            duration = part.start - part.end
            log_weights[part.rows] -= (forward_total - reverse_total) * duration
            # forward over reverse rate of a jump is e^(-l_t): both have the same [G]_+
            jumping_rows = part.rows[part.jumping]
            difference = part.states.log_density[part.jumping] - part.next_states.log_density
            log_weights[jumping_rows] += middle * difference
            states = states.replace(jumping_rows, part.next_states)
        interval_states.append(states.x)
    return log_weights, interval_states
