"""What training learns from: states of the last rollouts and the slopes d log Z_t / dt that these estimate, kept as
state of the run [Ou 2025, Algorithm 1].

A rollout is simulated with the rates being trained; the rates it needs also give the estimate of d log Z_t / dt, so
that nothing is evaluated twice: one pass in place of the algorithm's two.
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
from blackout.files import memory
from blackout.flows.path import States, outgoing, residual, stein
from blackout.flows.refinement import Refinement
from blackout.flows.simulation import Leap, Scores, resampled
from blackout.flows.targets import Target
from blackout.random import SampleStreams, fold_seed

_RESAMPLING = 1


@dataclass(frozen=True)
class Rollout:
    """How states to learn from are made.

    Args:
        points: times of the grid, 0 and 1 among them.
        chains: simulated together, on all processes.
        every: batches between two rollouts.
        kept: rollouts that are kept.
        refine: moves after every step that leave p_t invariant; None for none.
        resample_below: resample a group whose ESS falls below this share; None for never.
        group: chains that are simulated on one process, and resampled together where they are of one law.
        estimator: of d log Z_t / dt.
        clip: largest log-ratio l_t that training exponentiates.
        horizon: the path is followed up to this time at first; p_t at the end is the target at a temperature of 1 / t,
            so that a horizon that grows is annealing [Ou 2025, appendix E.3], and what was learned before stays right.
        horizon_steps: batches after which it is 1, linearly; None for 70 % of the run, which the family fills in.
        chains_per_law: of a target that is many laws: chains of each law that is drawn for a rollout.
        relabel: nodes of graphs, at random in every rollout.

    Raises:
        ValueError: a number that is too small, or a share outside (0, 1].
    """

    points: int = 64
    chains: int = 256
    every: int = 100
    kept: int = 4
    refine: Refinement | None = None
    resample_below: float | None = None
    group: int = 64
    estimator: Literal["plain", "stein"] = "stein"
    clip: float = 5.0
    horizon: float = 1.0
    horizon_steps: int | None = 0
    chains_per_law: int = 8
    relabel: bool = False

    def __post_init__(self) -> None:
        if self.points < 2 or min(self.chains, self.every, self.kept) < 1 or self.group < 2 or not self.clip > 0:
            raise ValueError("rollout needs at least 2 points, 1 chain, every 1, 1 kept, groups of 2, a positive clip")
        if self.resample_below is not None and not 0 < self.resample_below <= 1:
            raise ValueError(f"resample_below must be in (0, 1], or null, not {self.resample_below}")
        if not 0 < self.horizon <= 1 or (self.horizon_steps or 0) < 0 or self.chains_per_law < 2:
            raise ValueError("rollout needs a horizon in (0, 1], horizon_steps of at least 0 and 2 chains_per_law")

    def times(self, number: int) -> Tensor:
        """The grid before a batch, float64 [points], up to a horizon that grows as in [Ou 2025, appendix E.3]."""
        grid = torch.linspace(0, 1, self.points, dtype=torch.float64)
        share = min(1.0, number / self.horizon_steps) if self.horizon_steps else 1.0
        return grid * (self.horizon + share * (1 - self.horizon))

    def slope(self, dlogp_dt: Tensor, control: Tensor) -> Tensor:
        """d log Z_t / dt by f and g [..., M]: [...]. E f [Ou 2025, section 3.1], or E (f - g) = E xi [Ou 2025, eq. 8].

        The latter has the Stein control variate with coefficient 1, which is best if the rates are right.
        """
        return (dlogp_dt if self.estimator == "plain" else dlogp_dt - control).mean(-1)


@dataclass(frozen=True)
class ReplayBatch:
    """A batch to learn from.

    Args:
        x: states, integers [b, d].
        t: times [b].
        ratios: log-ratios at t = 1, [b, d, S].
        dlogp_dt: f, [b].
        partition_slope: d log Z_t / dt, [b].
        law: numbers of the laws, int64 [b]; 0 where there is one.
        context: what the network is told about these laws.
    """

    x: Tensor
    t: Tensor
    ratios: Tensor
    dlogp_dt: Tensor
    partition_slope: Tensor
    law: Tensor
    context: tuple[Any, ...] = ()


class Replay(nn.Module):
    """The last rollouts, in a ring of fixed size; all of it is in every checkpoint. `slopes` are d log p~_t / dt.

    d log Z_t / dt of one law is best told by the newest rollout; that of many differs between them, and is kept with
    the chains of the law (ours).

    Args:
        rollout: how they are made.
        levels, sites: of the target.
        many: whether it is many laws.

    Raises:
        UserError: there is no memory for so many states.
    """

    def __init__(self, rollout: Rollout, levels: int, sites: int, many: bool = False) -> None:
        super().__init__()
        ring = rollout.kept, rollout.points, rollout.chains
        # a state has a byte for every site, and 4 bytes for every log-ratio
        needed, available = math.prod(ring) * sites * (1 + 4 * levels), memory()
        told = f"rollout: kept x points x chains = {math.prod(ring):,} states need {needed / 1e9:,.1f} GB of memory"
        refuse(needed > available, f"{told}, where {available / 1e9:,.1f} GB are left")
        self.x = nn.Buffer(torch.zeros(*ring, sites, dtype=torch.uint8))
        self.ratios = nn.Buffer(torch.zeros(*ring, sites, levels))
        self.slopes = nn.Buffer(torch.zeros(*ring))
        self.times = nn.Buffer(torch.zeros(ring[:2], dtype=torch.float64))
        self.curves = nn.Buffer(torch.zeros(*ring[:2], ring[2] if many else 1, dtype=torch.float64))
        self.law = nn.Buffer(torch.zeros(rollout.kept, rollout.chains, dtype=torch.int64))
        self.made = nn.Buffer(torch.zeros((), dtype=torch.int64))
        self.many = many

    @property
    def slot(self) -> int:
        """Where the next rollout goes: in place of the oldest."""
        return int(self.made) % len(self.x)

    def add(self, times: Tensor, x: Tensor, ratios: Tensor, slopes: Tensor, curve: Tensor) -> None:
        """Keep a rollout: [points], [points, chains, d], ..., d log Z_t / dt [points, laws].

        Chains of one law follow each other.
        """
        slot = self.slot
        self.x[slot], self.ratios[slot], self.slopes[slot], self.times[slot] = x, ratios, slopes, times
        self.curves[slot] = curve.repeat_interleave(self.curves.shape[2] // curve.shape[1], 1)
        self.made.add_(1)

    def pick(self, uniforms: Tensor) -> ReplayBatch:
        """States by uniforms [b, 3]. d log Z_t / dt is that of the newest rollout [Ou 2025, Algorithm 1], between
        its times linear.
        """
        made, kept = int(self.made), len(self.x)
        sizes = torch.tensor([min(made, kept), *self.x.shape[1:3]], device=uniforms.device)
        which = slot, time, chain = (uniforms * sizes).long().minimum(sizes - 1).unbind(1)
        t, newest = self.times[slot, time], (made - 1) % kept
        if self.many:
            slope = self.curves[which]
        else:
            knots, values = self.times[newest].cpu().numpy(), self.curves[newest, :, 0].cpu().numpy()
            slope = torch.from_numpy(np.interp(t.cpu().numpy(), knots, values)).to(t.device)
        law = self.law[slot, chain]
        return ReplayBatch(self.x[which], t.float(), self.ratios[which], self.slopes[which], slope.float(), law)


@torch.no_grad()
def roll_out(
    rollout: Rollout, target: Target, scores: Scores, seed: int, replay: Replay, number: int = 0, laws: int = 1
) -> None:
    """Simulate a rollout, shared among processes in whole groups, and add it to the replay of each of them.

    [Ou 2025, Algorithm 1]: states [points, chains, d], and d log Z_t / dt [points, laws] by `Rollout.slope`.

    Args:
        rollout: how.
        target: the law, or those of all chains.
        scores: rates that are being trained.
        seed: of this rollout.
        replay: where it is kept.
        number: of the batch before which it is made.
        laws: number of different laws, each of which has equally many chains, one after another.
    """
    device, times, jump = replay.x.device, rollout.times(number).tolist(), Leap(1)
    group = rollout.group if laws == 1 else rollout.chains_per_law
    counts, ratios = torch.zeros_like(replay.x[0], dtype=torch.int64), torch.zeros_like(replay.ratios[0])
    dlogp_dt, control = (torch.zeros(rollout.points, rollout.chains, dtype=torch.float64, device=device) for _ in "fg")
    # groups of one size, so that no batch, and so no rounding, depends on the number of processes
    for mine in my_batches(rollout.chains, rollout.group):
        indices, law = mine.to(device), target.rows(mine.to(device))
        streams, weights = SampleStreams(seed, indices), torch.zeros(len(mine), dtype=torch.float64, device=device)
        states = States.uniform(law, streams.step(0).next_draw().uniform((len(indices), law.sites)))
        for k, t in enumerate(times):
            g = scores(states, t)
            counts[k, indices], ratios[k, indices] = states.x.long(), states.ratios.to(ratios.dtype)
            dlogp_dt[k, indices] = states.dlogp_dt
            control[k, indices] = stein(g, (t * states.ratios).clamp(max=rollout.clip))
            if k + 1 == len(times):
                break
            stream, length = streams.step(k + 1), times[k + 1] - t
            weights = weights + length * residual(states.dlogp_dt, g, t * states.ratios)
            states = States.of(law, jump.jump(states.x, outgoing(g), length, stream))
            if (low := rollout.resample_below) is not None:
                drawn_by = fold_seed(seed, _RESAMPLING, k)
                states, weights = resampled(states, weights, indices, drawn_by, 0, low, group)
            if rollout.refine is not None:
                states = rollout.refine(law, states, times[k + 1], stream)
    for part in (counts, ratios, dlogp_dt, control):
        sum_over_processes(part)
    curve = rollout.slope(dlogp_dt.view(rollout.points, laws, -1), control.view(rollout.points, laws, -1))
    replay.add(rollout.times(number).to(device), counts.to(torch.uint8), ratios, dlogp_dt.float(), curve)
