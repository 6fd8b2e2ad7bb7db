"""The path of a flow by moves alone: annealed importance sampling, sequential Monte Carlo; long Gibbs chains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor

from blackout.flows.path import States
from blackout.flows.refinement import COMPILED, Gibbs, Refinement
from blackout.flows.simulation import RESAMPLING, Paths, record, resampled
from blackout.flows.targets import Target, can_enumerate, enumerated
from blackout.flows.weights import NORMAL
from blackout.random import SampleStreams, fold_seed

_BETWEEN, _KEPT, _SWAPS = 4, 16, 14
"""Sweeps of parallel tempering between two exchanges, states of every replica that are kept, and the key of swaps."""
_PILOTS, _PILOTED = 64, 15
"""Chains, and least sweeps, of the run that spaces times, and its key."""


def anneal(
    target: Target,
    chains: int,
    sweeps: int,
    seed: int = 0,
    resample_below: float | None = None,
    refine: Refinement | None = None,
    power: float | None = 1.0,
) -> Paths:
    """Annealed importance sampling [Neal 2001]; sequential Monte Carlo [Del Moral 2006] where chains are resampled.

    w += (t_{k+1} - t_k) f(x), then moves at t_{k+1}; chains are resampled in groups, so that groups are independent.

    Args:
        target: the law.
        chains: number of weighted samples.
        sweeps: number of intermediate laws, with one application of `refine` at each.
        seed: of all draws.
        resample_below: ESS, as a share, below which chains are resampled; None for never.
        refine: moves at every law; None for a Gibbs sweep.
        power: t_k = 1 - (1 - k / sweeps)^power; above 1 more sweeps near the target, where the energy fluctuates more.
            None for times as `spaced` has them.

    Returns:
        Paths of states [chains, d] and log-weights [chains], observed some thirty times on their way.
    """
    numbers, size = torch.arange(chains, device=target.device), group_size(chains)
    streams = SampleStreams(seed, numbers)
    states = States.uniform(target, streams.step(0).next_draw().uniform((chains, target.sites)))
    weights = torch.zeros(chains, dtype=torch.float64, device=target.device)
    none = torch.zeros(chains, dtype=torch.int64, device=target.device)
    paths = Paths(states, weights, none, none)
    left = torch.linspace(1, 0, sweeps + 1, dtype=torch.float64)
    times = spaced(target, sweeps, seed, refine) if power is None else 1 - left**power
    walk, seen = _walk(target, refine), max(1, sweeps // 32)
    block, drawn_by = seen if resample_below is None else 1, fold_seed(seed, RESAMPLING)
    for k in range(0, sweeps, block):
        if k % seen == 0:
            record(paths, float(times[k]), weights, states)
        if resample_below is not None and k:
            states, weights = resampled(states, weights, numbers, drawn_by, k, resample_below, size)
        states, gain = walk(states, times[k : k + block + 1], streams, k + 1)
        weights = weights + gain
    record(paths, 1.0, weights, states)
    return replace(paths, states=states, log_weights=weights)


def spaced(target: Target, sweeps: int, seed: int = 0, refine: Refinement | None = None) -> Tensor:
    """Times 0, ..., 1 of a path that has to get through a transition on its way, float64 [sweeps + 1].

    A fifth of them are 1 - (1 - s)^2. The others go where the work of a short run of such times fluctuates: as many to
    each of its parts as the standard deviation of the weights that it gains, which is large where log rho varies much,
    and where chains are slow. Ours (tests/flows/test_annealing.py), after the equal lengths of
    [Crooks 2007].

    Args:
        target, sweeps, seed, refine: see `anneal`.
    """
    pilot = anneal(target, _PILOTS, max(_PILOTS, sweeps // 8), fold_seed(seed, _PILOTED), refine=refine, power=2)
    spread = torch.stack(pilot.log_weights_at).diff(dim=0).std(1).double().clamp(min=1e-9).cpu()
    told = F.pad(spread.cumsum(0) / spread.sum(), (1, 0))
    fine = 1 - np.linspace(1, 0, 1025) ** 2
    share = 0.8 * np.interp(fine, pilot.times, told) + 0.2 * (1 - np.sqrt(1 - fine))
    return torch.from_numpy(np.interp(np.linspace(0, 1, sweeps + 1), share, fine))


def temper(
    target: Target, sets: int, temperatures: int, sweeps: int, seed: int = 0, refine: Refinement | None = None
) -> tuple[Paths, Tensor, list[float]]:
    """Parallel tempering [Hukushima 1996]: replicas at all times of the path at once, which change places.

    log Z is the sum of Bennett's estimates between neighbours, with the geometric mean as bridge [Bennett 1976], from
    the second half of the sweeps of all sets; its errors are those of a jackknife over the sets.

    Args:
        target: the law.
        sets: of replicas, independent of each other.
        temperatures: times 1 - (1 - k / K)^2, k = 0, ..., K; each has one replica of every set.
        sweeps: of every replica, or moves of `refine`; neighbours are exchanged after every other one.
        seed: of all draws.
        refine: other moves than a Gibbs sweep.

    Returns:
        Kept states of every temperature, whose weights are the estimate of log Z there for all of them; which set each
        is of, int64 [N]; and the errors of log Z at the temperatures.
    """
    rounds, size, walk = max(4, sweeps // _BETWEEN), (temperatures, sets), _walk(target, refine)
    times = 1 - torch.linspace(1, 0, temperatures, dtype=torch.float64) ** 2
    at = times[:, None].repeat(1, _BETWEEN + 1)
    own = SampleStreams(seed, torch.arange(temperatures * sets, device=target.device))
    swaps = SampleStreams(fold_seed(seed, _SWAPS), torch.arange(sets, device=target.device))
    states = States.uniform(target, own.step(0).next_draw().uniform((temperatures * sets, target.sites)))
    seen, kept = list[Tensor](), list[Tensor]()
    for k in range(rounds):
        states, _ = walk(states, at, own, 1 + k * _BETWEEN)
        density, place = states.log_density.view(size), torch.arange(temperatures * sets).view(size)
        first = torch.arange(k % 2, temperatures - 1, 2)
        gain = times.diff()[first, None] * (density[first] - density[first + 1])
        uniforms = swaps.step(k).next_draw().uniform((sets, temperatures)).T[first]
        swap = uniforms.log() < gain
        one, two = place[first], place[first + 1]
        place[first], place[first + 1] = torch.where(swap, two, one), torch.where(swap, one, two)
        states = states.rows(place.flatten())
        if k >= rounds // 2:
            seen.append(states.dlogp_dt.view(size))
            if (rounds - 1 - k) % max(1, rounds // (2 * _KEPT)) == 0:
                kept.append(states.x.view(*size, -1))
    f, half = torch.stack(seen), times.diff()[:, None] / 2
    up, down = (_and_without(torch.logsumexp(part, 0)) for part in (half * f[:, :-1], -half * f[:, 1:]))
    log_z = F.pad((up - down).cumsum(0), (0, 0, 1, 0))  # [K + 1, 1 + sets]: of all sets, and without each of them
    apart = log_z[:, 1:] - log_z[:, 1:].mean(1, keepdim=True)
    wider = float(stats.t.ppf(0.975, sets - 1)) / NORMAL
    errors = wider * ((sets - 1) / sets * apart.square().sum(1)).sqrt()
    none, last = torch.zeros(len(kept) * sets, dtype=torch.int64), log_z[-1, :1].repeat(len(kept) * sets)
    paths = Paths(states, last, none, none)
    for t, x, value in zip(times.tolist(), torch.cat(kept, 1), log_z[:, :1], strict=True):
        paths.states = States.of(target, x)
        record(paths, t, value.expand_as(last), paths.states)
    return paths, torch.arange(sets).repeat(len(kept)), errors.tolist()


def _and_without(sums: Tensor) -> Tensor:
    """log of the sum of all sets and of those without each one, [K, 1 + N], from logs of the sets' sums [K, N].

    Of the jackknife [Efron 1981] of `temper`.
    """
    total = sums.logsumexp(1, keepdim=True)
    return torch.cat([total, total + torch.log1p(-(sums - total).exp())], 1)


_Walk: TypeAlias = Callable[[States, Tensor, SampleStreams, int], tuple[States, Tensor]]
"""States at t_0 -> states at t_K and the gains of their weights, w += (t_{k+1} - t_k) f(x), then a move at t_{k+1}.

Given states, times, streams and `first`: the draws of the first move are those of the streams' step `first`. Times
[L, K + 1] are those of L parts of the chains, each as many.
"""


def _walk(target: Target, refine: Refinement | None) -> _Walk:
    """By compiled sweeps where the moves are Gibbs sweeps of pairs on a CPU; the same draws otherwise, one by one.

    Annealed importance sampling [Neal 2001] of states [B, d]: see `_Walk`.
    """
    pairs = target.pairs()
    if refine is not None or pairs is None or target.device.type != "cpu" or not COMPILED:
        return partial(_one_by_one, refine or Gibbs())
    from blackout.flows.numba_sweeps import Sweeps  # only here: numba is loaded late

    sites = Sweeps(*pairs, target.log_start, torch.cat(target.independent_sites()))

    def compiled(states: States, times: Tensor, streams: SampleStreams, first: int) -> tuple[States, Tensor]:
        """`_one_by_one` of states [B, d] at times [K + 1], compiled: see `Sweeps.swept`."""
        keys = torch.stack([streams.step(first + k).next_draw().keys for k in range(times.shape[-1] - 1)])
        x, log_density, gain = sites.swept(states.x, states.log_density, keys, times)
        span = (times[..., -1] - times[..., 0]).reshape(-1)
        gain = gain + target.log_volume * span.repeat_interleave(len(gain) // len(span))
        return States(x, log_density, target), gain

    return compiled


def _one_by_one(
    moves: Refinement, states: States, times: Tensor, streams: SampleStreams, first: int
) -> tuple[States, Tensor]:
    """States [B, d] at t_K and gains of their log-weights [B], w += (t_{k+1} - t_k) f(x) [Neal 2001]; see `_Walk`."""
    gain, target = torch.zeros_like(states.log_density), states.target
    if times.ndim == 2:
        parts = zip(torch.arange(len(gain)).view(len(times), -1), times, strict=True)
        moved = [_one_by_one(moves, states.rows(own), t, streams.select(own), first) for own, t in parts]
        x, density = (torch.cat(part) for part in zip(*((s.x, s.log_density) for s, _ in moved), strict=True))
        return States(x, density, target), torch.cat([gained for _, gained in moved])
    for k, (before, t) in enumerate(pairwise(times.tolist())):
        gain = gain + (t - before) * states.dlogp_dt
        states = moves(target, states, t, streams.step(first + k))
    return states, gain


def group_size(chains: int) -> int:
    """So many chains, a number, are resampled together that there are sixteen groups, from whose spread errors are
    told.

    Ours (tests/flows/test_weights.py counts how often intervals of resampled chains hold the truth).
    """
    return max(2, chains // 16)


def samples_of(target: Target, number: int, sweeps: int, seed: int, refine: Refinement | None = None) -> Tensor:
    """Samples of a law, uint8 [number, d] on the CPU: exact where it can be enumerated, else the ends of long chains.

    Ours (tests/flows/test_annealing.py).

    Args:
        target: the law.
        number: of samples, each of a chain of its own.
        sweeps: of Gibbs, or moves of `refine`.
        seed: of all draws.
        refine: another move.
    """
    if can_enumerate(target):
        states, log_density = enumerated(target)
        share = torch.softmax(log_density, 0).cpu()
        return states.cpu()[torch.multinomial(share, number, True, generator=torch.Generator().manual_seed(seed))]
    streams = SampleStreams(seed, torch.arange(number, device=target.device))
    chains = States.uniform(target, streams.step(0).next_draw().uniform((number, target.sites)))
    chains, _ = _walk(target, refine)(chains, torch.ones(sweeps + 1, dtype=torch.float64), streams, 1)
    return chains.x.cpu()
