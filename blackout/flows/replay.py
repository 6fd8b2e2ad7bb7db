"""Rollouts that training learns from, and the replay buffer that keeps the latest ones.

A rollout is simulated with the rates in training. The same network evaluations give the estimate
of d log Z_t / dt, so that one pass takes the place of the algorithm's two.

References: Ou et al. 2025, Algorithm 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from blackout.distributed import my_batches, sum_over_processes
from blackout.errors import refuse
from blackout.flows.path import States, forward_residual, outgoing_rates, stein_control_variate
from blackout.flows.refinement import Refinement
from blackout.flows.simulation import Leap, NetRates, Resampling
from blackout.flows.targets import Target
from blackout.random import SampleStreams, fold_seed
from blackout.representation import format_fields
from blackout.safe_reading import available_memory

RESAMPLING_KEY = 1  # separates the draws of the resampling from other uses of a seed
BYTES_PER_LOG_RATIO = 4  # float32


@dataclass(frozen=True)
class Rollout:
    """Settings of the rollouts.

    Args:
        num_times: times of the grid, including 0 and 1.
        chains: simulated together, on all processes.
        every_n_steps: training steps between two rollouts.
        buffer_size: number of rollouts that are kept.
        refine: moves after every step that leave p_t invariant; None for none.
        resample_below: resample a group whose ESS falls below this fraction; None for never.
        group_size: chains simulated on one process, and resampled together if they have the same
            target.
        estimator: of d log Z_t / dt: "stein" with the Stein control variate, "plain" without.
        clip: largest log-ratio l_t that training exponentiates.
        horizon: last time of the grid at first. p_t there is the target at temperature 1 / t, so
            that a growing horizon is annealing, and earlier states remain valid.
        horizon_steps: training steps in which the horizon grows linearly to 1; None for 70 % of
            the run, which the family fills in.
        chains_per_instance: chains of each instance of a family of targets in a rollout.
        relabel_nodes: permute the nodes of graphs at random in every rollout.

    References: Ou et al. 2025, Algorithm 1; horizon: appendix E.3.

    Raises:
        ValueError: a number out of range.
    """

    num_times: int = 64
    chains: int = 256
    every_n_steps: int = 100
    buffer_size: int = 4
    refine: Refinement | None = None
    resample_below: float | None = None
    group_size: int = 64
    estimator: Literal["plain", "stein"] = "stein"
    clip: float = 5.0
    horizon: float = 1.0
    horizon_steps: int | None = 0
    chains_per_instance: int = 8
    relabel_nodes: bool = False

    def __post_init__(self) -> None:
        minima = {
            "num_times": 2,
            "chains": 1,
            "every_n_steps": 1,
            "buffer_size": 1,
            "group_size": 2,
            "chains_per_instance": 2,
        }
        for name, minimum in minima.items():
            value = getattr(self, name)
            if value < minimum:
                raise ValueError(f"rollout.{name} must be at least {minimum}, not {value}")
        if not self.clip > 0:
            raise ValueError(f"rollout.clip must be positive, not {self.clip}")
        if self.resample_below is not None and not 0 < self.resample_below <= 1:
            raise ValueError(
                f"rollout.resample_below must be in (0, 1], or null, not {self.resample_below}",
            )
        if not 0 < self.horizon <= 1:
            raise ValueError(f"rollout.horizon must be in (0, 1], not {self.horizon}")
        if (self.horizon_steps or 0) < 0:
            raise ValueError(f"rollout.horizon_steps must be at least 0, not {self.horizon_steps}")

    def times(self, step: int) -> Tensor:
        """Return the grid at a training step, float64 [num_times], up to a growing horizon.

        References: Ou et al. 2025, appendix E.3.
        """
        grid = torch.linspace(0, 1, self.num_times, dtype=torch.float64)
        progress = min(1.0, step / self.horizon_steps) if self.horizon_steps else 1.0
        return grid * (self.horizon + progress * (1 - self.horizon))

    def estimate_dlogz_dt(self, dlogp_dt: Tensor, control_variate: Tensor) -> Tensor:
        """Estimate d log Z_t / dt by the mean of f, or of f - g, over the last axis.

        The Stein control variate g has coefficient 1, which is optimal for the right rates.

        References: Ou et al. 2025, section 3.1 (f) and eq. 8 (f - g).

        Args:
            dlogp_dt: f, [..., M].
            control_variate: g, [..., M].
        """
        values = dlogp_dt if self.estimator == "plain" else dlogp_dt - control_variate
        return values.mean(-1)


@dataclass(frozen=True)
class ReplayBatch:
    """A training batch.

    Args:
        x: states, integers [b, d].
        t: times [b].
        log_ratios: those of the target, at t = 1, [b, d, S].
        dlogp_dt: f, [b].
        dlogz_dt: d log Z_t / dt, [b].
        instance: indices of the targets, int64 [b]; 0 where there is only one.
        context: further arguments of the network that identify these targets.
    """

    x: Tensor
    t: Tensor
    log_ratios: Tensor
    dlogp_dt: Tensor
    dlogz_dt: Tensor
    instance: Tensor
    context: tuple[Any, ...] = ()

    __repr__ = format_fields


class ReplayBuffer(nn.Module):
    """The latest rollouts, in a ring of fixed size that is part of every checkpoint.

    d log Z_t / dt of a single target is best estimated by the newest rollout. That of a family of
    targets differs between instances, and is kept with the chains of each instance.

    References: Ou et al. 2025, Algorithm 1; families of targets: this project, checked in
    tests/flows/test_training.py.

    Args:
        rollout: settings of the rollouts.
        levels: number of values of a site.
        sites: number of sites.
        amortised: whether the target is a family of targets.

    Raises:
        UserError: there is not enough memory for the states.
    """

    def __init__(self, rollout: Rollout, levels: int, sites: int, amortised: bool = False) -> None:
        super().__init__()
        shape = (rollout.buffer_size, rollout.num_times, rollout.chains)
        # one byte per site, and a number per log-ratio
        bytes_per_state = sites * (1 + BYTES_PER_LOG_RATIO * levels)
        needed_bytes = math.prod(shape) * bytes_per_state
        available_bytes = available_memory()
        refuse(
            needed_bytes > available_bytes,
            f"rollout: buffer_size x num_times x chains = {math.prod(shape):,} states need "
            f"{needed_bytes / 1e9:,.1f} GB of memory, but {available_bytes / 1e9:,.1f} GB are "
            "free; reduce one of them",
        )
        self.x = nn.Buffer(torch.zeros(*shape, sites, dtype=torch.uint8))
        self.log_ratios = nn.Buffer(torch.zeros(*shape, sites, levels))
        self.dlogp_dt = nn.Buffer(torch.zeros(*shape))
        self.times = nn.Buffer(torch.zeros(shape[:2], dtype=torch.float64))
        num_curves = rollout.chains if amortised else 1
        self.dlogz_dt = nn.Buffer(torch.zeros(*shape[:2], num_curves, dtype=torch.float64))
        self.instance = nn.Buffer(
            torch.zeros(rollout.buffer_size, rollout.chains, dtype=torch.int64),
        )
        self.num_rollouts = nn.Buffer(torch.zeros((), dtype=torch.int64))  # ever added
        self.amortised = amortised

    @property
    def next_slot(self) -> int:
        """Position of the next rollout, which replaces the oldest."""
        return int(self.num_rollouts) % len(self.x)

    def add(
        self,
        times: Tensor,
        x: Tensor,
        log_ratios: Tensor,
        dlogp_dt: Tensor,
        dlogz_dt: Tensor,
    ) -> None:
        """Add a rollout.

        Args:
            times: [num_times].
            x: states [num_times, chains, d]; chains of an instance are adjacent.
            log_ratios: [num_times, chains, d, S].
            dlogp_dt: f, [num_times, chains].
            dlogz_dt: d log Z_t / dt, [num_times, instances].
        """
        slot = self.next_slot
        self.x[slot] = x
        self.log_ratios[slot] = log_ratios
        self.dlogp_dt[slot] = dlogp_dt
        self.times[slot] = times
        repeats = self.dlogz_dt.shape[2] // dlogz_dt.shape[1]
        self.dlogz_dt[slot] = dlogz_dt.repeat_interleave(repeats, 1)
        self.num_rollouts.add_(1)

    def sample(self, uniforms: Tensor) -> ReplayBatch:
        """Draw states by uniforms [b, 3].

        d log Z_t / dt of a single target is interpolated linearly in the newest rollout.

        References: Ou et al. 2025, Algorithm 1.
        """
        num_rollouts = int(self.num_rollouts)
        buffer_size = len(self.x)
        num_filled = min(num_rollouts, buffer_size)
        sizes = torch.tensor([num_filled, *self.x.shape[1:3]], device=uniforms.device)
        slot, time, chain = (uniforms * sizes).long().minimum(sizes - 1).unbind(1)
        t = self.times[slot, time]
        if self.amortised:
            dlogz_dt = self.dlogz_dt[slot, time, chain]
        else:
            newest = (num_rollouts - 1) % buffer_size
            knots = self.times[newest].cpu().numpy()
            values = self.dlogz_dt[newest, :, 0].cpu().numpy()
            interpolated = np.interp(t.cpu().numpy(), knots, values)
            dlogz_dt = torch.from_numpy(interpolated).to(t.device)
        return ReplayBatch(
            x=self.x[slot, time, chain],
            t=t.float(),
            log_ratios=self.log_ratios[slot, time, chain],
            dlogp_dt=self.dlogp_dt[slot, time, chain],
            dlogz_dt=dlogz_dt.float(),
            instance=self.instance[slot, chain],
        )


@torch.no_grad()
def roll_out(
    rollout: Rollout,
    target: Target,
    net_rates: NetRates,
    seed: int,
    replay_buffer: ReplayBuffer,
    step: int = 0,
    num_instances: int = 1,
) -> None:
    """Simulate a rollout and add it to the replay buffer.

    Processes simulate whole groups each, and all of them keep the complete rollout.

    References: Ou et al. 2025, Algorithm 1.

    Args:
        rollout: settings.
        target: the distribution, or one for each chain.
        net_rates: the rates in training.
        seed: of this rollout.
        replay_buffer: where it is kept.
        step: training step before which it is made.
        num_instances: number of different targets with equally many chains, one after another.
    """
    device = replay_buffer.x.device
    times = rollout.times(step).tolist()
    leap = Leap(1)
    shape = (rollout.num_times, rollout.chains)
    # integers and zeros elsewhere, so that sums over processes are exact
    x = torch.zeros_like(replay_buffer.x[0], dtype=torch.int64)
    log_ratios = torch.zeros_like(replay_buffer.log_ratios[0])
    dlogp_dt = torch.zeros(shape, dtype=torch.float64, device=device)
    control_variate = torch.zeros(shape, dtype=torch.float64, device=device)
    resampling_group_size = rollout.chains_per_instance
    if num_instances == 1:
        resampling_group_size = rollout.group_size

    # groups have one size, so that no rounding depends on the number of processes
    for chains in my_batches(rollout.chains, rollout.group_size):
        # 1. States at t = 0.
        indices = chains.to(device)
        group_target = target.select(indices)
        streams = SampleStreams(seed, indices)
        log_weights = torch.zeros(len(indices), dtype=torch.float64, device=device)
        uniforms = streams.step(0).next_draw().uniform((len(indices), group_target.sites))
        states = States.initial(group_target, uniforms)
        for k, t in enumerate(times):
            # 2. Keep the states and what the loss needs of them.
            g = net_rates(states, t)
            x[k, indices] = states.x.long()
            log_ratios[k, indices] = states.log_ratios.to(log_ratios.dtype)
            dlogp_dt[k, indices] = states.dlogp_dt
            clipped = (t * states.log_ratios).clamp(max=rollout.clip)
            control_variate[k, indices] = stein_control_variate(g, clipped)
            if k + 1 == len(times):
                break

            # 3. One step, with weights for the resampling.
            stream = streams.step(k + 1)
            length = times[k + 1] - t
            residual = forward_residual(states.dlogp_dt, g, t * states.log_ratios)
            log_weights = log_weights + length * residual
            next_x = leap.jump(states.x, outgoing_rates(g), length, stream)
            states = States.evaluate(group_target, next_x)
            if rollout.resample_below is not None:
                resampling = Resampling(
                    indices,
                    fold_seed(seed, RESAMPLING_KEY, k),
                    rollout.resample_below,
                    resampling_group_size,
                )
                states, log_weights = resampling(states, log_weights, 0)

            # 4. Moves that leave p_t invariant.
            if rollout.refine is not None:
                states = rollout.refine(group_target, states, times[k + 1], stream)

    for part in (x, log_ratios, dlogp_dt, control_variate):
        sum_over_processes(part)
    by_instance = (rollout.num_times, num_instances, -1)
    dlogz_dt = rollout.estimate_dlogz_dt(
        dlogp_dt.view(by_instance),
        control_variate.view(by_instance),
    )
    replay_buffer.add(
        rollout.times(step).to(device),
        x.to(torch.uint8),
        log_ratios,
        dlogp_dt.float(),
        dlogz_dt,
    )
