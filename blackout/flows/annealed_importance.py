"""Baselines without a network: annealed importance sampling, SMC and parallel tempering.

They follow the same path as a flow, p_t proportional to rho^t eta^(1 - t), by MCMC moves alone.
"""

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
from blackout.flows.refinement import USE_NUMBA, Gibbs, Refinement
from blackout.flows.simulation import RESAMPLING_KEY, Paths, Resampling
from blackout.flows.targets import Target, can_enumerate, enumerate_states
from blackout.flows.weights import Z_95
from blackout.random import SampleStreams, fold_seed

NUM_RECORDS = 32  # approximate number of times at which chains are recorded
NUM_GROUPS = 16  # groups of resampled chains, whose variance gives the errors
SWEEPS_BETWEEN_SWAPS = 4  # in parallel tempering
MIN_TEMPERING_SWEEPS = 16  # of every replica, half of which are left out
NUM_KEPT_STATES = 16  # states of each replica of parallel tempering
SWAP_KEY = 14  # separates the draws of the swaps from other uses of a seed
PILOT_KEY = 15  # likewise of the pilot run that chooses times
NUM_PILOT_CHAINS = 64
MIN_PILOT_SWEEPS = 64
UNIFORM_FRACTION = 0.2  # fraction of the times that do not depend on the pilot run
NUM_FINE_TIMES = 1025  # grid on which the density of the times is computed
MIN_SPREAD = 1e-9  # smallest standard deviation of a pilot's gains


def anneal(
    target: Target,
    num_chains: int,
    num_sweeps: int,
    seed: int = 0,
    resample_below: float | None = None,
    refine: Refinement | None = None,
    power: float | None = 1.0,
) -> Paths:
    """Run annealed importance sampling, or sequential Monte Carlo if chains are resampled.

    A step adds (t_{k+1} - t_k) f(x) to the log-weights and then moves at t_{k+1}. Chains are
    resampled in `NUM_GROUPS` groups, so that groups are independent.

    References: Neal 2001; Del Moral et al. 2006.

    Args:
        target: the distribution.
        num_chains: number of weighted samples.
        num_sweeps: number of intermediate distributions, with one call of `refine` at each.
        seed: of all draws.
        resample_below: ESS, as a fraction, below which chains are resampled; None for AIS.
        refine: moves at every intermediate distribution; None for a Gibbs sweep.
        power: t_k = 1 - (1 - k / num_sweeps)^power; above 1 more sweeps are near the target, where
            the energy fluctuates more. None for `adaptive_times`.

    Returns:
        States [num_chains, d] and log-weights [num_chains], recorded at about 32 times.

    Example:
        >>> from blackout.flows import Ising
        >>> from blackout.flows.weights import log_mean_exp
        >>> paths = anneal(Ising(size=3, coupling=0.2), num_chains=512, num_sweeps=32)
        >>> abs(log_mean_exp(paths.log_weights).item() - 6.6697) < 0.1
        True
    """
    # 1. Times of the path.
    if power is None:
        times = adaptive_times(target, num_sweeps, seed, refine)
    else:
        times = 1 - torch.linspace(1, 0, num_sweeps + 1, dtype=torch.float64) ** power

    # 2. States at t = 0.
    indices = torch.arange(num_chains, device=target.device)
    streams = SampleStreams(seed, indices)
    uniforms = streams.step(0).next_draw().uniform((num_chains, target.sites))
    states = States.initial(target, uniforms)
    log_weights = torch.zeros(num_chains, dtype=torch.float64, device=target.device)
    zeros = torch.zeros(num_chains, dtype=torch.int64, device=target.device)
    paths = Paths(states, log_weights, jumps=zeros, evaluations=zeros)

    # 3. Sweeps in blocks, which end where chains are recorded or may be resampled.
    run_sweeps = _make_annealing(target, refine)
    record_interval = max(1, num_sweeps // NUM_RECORDS)
    block_size = record_interval if resample_below is None else 1
    for k in range(0, num_sweeps, block_size):
        if k % record_interval == 0:
            paths.record(float(times[k]), log_weights, states)
        if resample_below is not None and k:
            resampling = Resampling(
                indices,
                fold_seed(seed, RESAMPLING_KEY),
                resample_below,
                resampling_group_size(num_chains),
            )
            states, log_weights = resampling(states, log_weights, k)
        states, gain = run_sweeps(states, times[k : k + block_size + 1], streams, k + 1)
        log_weights = log_weights + gain
    paths.record(1.0, log_weights, states)
    return replace(paths, states=states, log_weights=log_weights)


def adaptive_times(
    target: Target,
    num_sweeps: int,
    seed: int = 0,
    refine: Refinement | None = None,
) -> Tensor:
    """Choose times 0, ..., 1 that are dense where weights fluctuate, float64 [num_sweeps + 1].

    A fifth of the times are 1 - (1 - s)^2. The others are placed in proportion to the standard
    deviation of the gains of the log-weights in a short pilot run. It is large at transitions,
    where log rho varies much and chains are slow.

    References: this project, after the equal lengths of Crooks 2007; checked in
    tests/flows/test_annealing.py.

    Args:
        target: the distribution.
        num_sweeps: number of intermediate distributions.
        seed: of the run; the pilot has a different one.
        refine: moves; None for Gibbs sweeps.
    """
    # 1. Standard deviations of the gains in a pilot run.
    pilot_sweeps = max(MIN_PILOT_SWEEPS, num_sweeps // 8)
    pilot_seed = fold_seed(seed, PILOT_KEY)
    pilot = anneal(target, NUM_PILOT_CHAINS, pilot_sweeps, pilot_seed, refine=refine, power=2)
    gains = torch.stack(pilot.recorded_log_weights).diff(dim=0)
    spread = gains.std(1).double().clamp(min=MIN_SPREAD).cpu()
    cumulative = F.pad(spread.cumsum(0) / spread.sum(), (1, 0))

    # 2. Cumulative density of the times, and its inverse.
    fine_times = 1 - np.linspace(1, 0, NUM_FINE_TIMES) ** 2
    adaptive_density = np.interp(fine_times, pilot.times, cumulative)
    uniform_density = 1 - np.sqrt(1 - fine_times)
    density = (1 - UNIFORM_FRACTION) * adaptive_density + UNIFORM_FRACTION * uniform_density
    positions = np.linspace(0, 1, num_sweeps + 1)
    return torch.from_numpy(np.interp(positions, density, fine_times))


def parallel_tempering(
    target: Target,
    num_sets: int,
    num_temperatures: int,
    num_sweeps: int,
    seed: int = 0,
    refine: Refinement | None = None,
) -> tuple[Paths, Tensor, list[float]]:
    """Run parallel tempering: replicas at all times of the path, which are exchanged.

    log Z is the sum of Bennett's estimates between neighbouring times, with the geometric mean as
    bridge, from the second half of the sweeps; its errors are a jackknife over the sets.

    References: Hukushima and Nemoto 1996; Bennett 1976.

    Args:
        target: the distribution.
        num_sets: independent sets of replicas.
        num_temperatures: times 1 - (1 - k / K)^2, k = 0, ..., K, one replica per set at each.
        num_sweeps: of every replica, or moves of `refine`, at least 16; replicas are exchanged
            after every fourth one, and a remainder is left out.
        seed: of all draws.
        refine: moves in place of a Gibbs sweep.

    Returns:
        Kept states of every temperature, whose log-weights are the estimate of log Z there; the
        set of each, int64 [N]; and the errors of log Z at the temperatures.
    """
    if num_sweeps < MIN_TEMPERING_SWEEPS:
        raise ValueError(f"num_sweeps must be at least {MIN_TEMPERING_SWEEPS}, not {num_sweeps}")
    num_rounds = num_sweeps // SWEEPS_BETWEEN_SWAPS
    size = (num_temperatures, num_sets)
    num_replicas = num_temperatures * num_sets
    run_sweeps = _make_annealing(target, refine)
    times = 1 - torch.linspace(1, 0, num_temperatures, dtype=torch.float64) ** 2
    constant_times = times[:, None].repeat(1, SWEEPS_BETWEEN_SWAPS + 1)

    # 1. Start all replicas at t = 0 of the path.
    streams = SampleStreams(seed, torch.arange(num_replicas, device=target.device))
    set_indices = torch.arange(num_sets, device=target.device)
    swap_streams = SampleStreams(fold_seed(seed, SWAP_KEY), set_indices)
    uniforms = streams.step(0).next_draw().uniform((num_replicas, target.sites))
    states = States.initial(target, uniforms)

    dlogp_dt = list[Tensor]()
    kept_states = list[Tensor]()
    for k in range(num_rounds):
        # 2. Sweep every replica at its time.
        first_draw = 1 + k * SWEEPS_BETWEEN_SWAPS
        states, _ = run_sweeps(states, constant_times, streams, first_draw)

        # 3. Exchange neighbours, alternately (0, 1), (2, 3), ... and (1, 2), (3, 4), ...
        log_density = states.log_density.view(size)
        lower = torch.arange(k % 2, num_temperatures - 1, 2)
        difference = log_density[lower] - log_density[lower + 1]
        log_acceptance = times.diff()[lower, None] * difference
        uniforms = swap_streams.step(k).next_draw().uniform((num_sets, num_temperatures))
        swapped = uniforms.T[lower].log() < log_acceptance
        rows = torch.arange(num_replicas).view(size)
        lower_rows = rows[lower]
        upper_rows = rows[lower + 1]
        rows[lower] = torch.where(swapped, upper_rows, lower_rows)
        rows[lower + 1] = torch.where(swapped, lower_rows, upper_rows)
        states = states.select(rows.flatten())

        # 4. Keep states of the second half.
        if k >= num_rounds // 2:
            dlogp_dt.append(states.dlogp_dt.view(size))
            interval = max(1, num_rounds // (2 * NUM_KEPT_STATES))
            if (num_rounds - 1 - k) % interval == 0:
                kept_states.append(states.x.view(*size, -1))

    log_z, errors = _bennett_log_z(torch.stack(dlogp_dt), times)
    num_kept = len(kept_states) * num_sets
    zeros = torch.zeros(num_kept, dtype=torch.int64)
    paths = Paths(states, log_z[-1].repeat(num_kept), jumps=zeros, evaluations=zeros)
    for t, x, value in zip(times.tolist(), torch.cat(kept_states, 1), log_z, strict=True):
        paths.states = States.evaluate(target, x)
        paths.record(t, value.expand(num_kept), paths.states)
    return paths, torch.arange(num_sets).repeat(len(kept_states)), errors


def _bennett_log_z(dlogp_dt: Tensor, times: Tensor) -> tuple[Tensor, list[float]]:
    """Estimate log Z at all times, [K + 1], from f of the replicas, with jackknife errors.

    References: Bennett 1976, with the geometric mean as bridge; Efron 1981.

    Args:
        dlogp_dt: f, [rounds, K + 1, sets].
        times: [K + 1].
    """
    num_sets = dlogp_dt.shape[2]
    half_steps = times.diff()[:, None] / 2
    forward = torch.logsumexp(half_steps * dlogp_dt[:, :-1], 0)
    backward = torch.logsumexp(-half_steps * dlogp_dt[:, 1:], 0)
    differences = _add_leave_one_out(forward) - _add_leave_one_out(backward)
    # [K + 1, 1 + sets]: of all sets, and without each of them
    log_z = F.pad(differences.cumsum(0), (0, 0, 1, 0))
    deviations = log_z[:, 1:] - log_z[:, 1:].mean(1, keepdim=True)
    variance = (num_sets - 1) / num_sets * deviations.square().sum(1)
    t_over_normal = float(stats.t.ppf(0.975, num_sets - 1)) / Z_95
    return log_z[:, 0], (t_over_normal * variance.sqrt()).tolist()


def _add_leave_one_out(log_sums: Tensor) -> Tensor:
    """Return the log of the sum over all sets, and over all but each one: [K, N] -> [K, 1 + N].

    References: Efron 1981.
    """
    total = log_sums.logsumexp(1, keepdim=True)
    leave_one_out = total + torch.log1p(-(log_sums - total).exp())
    return torch.cat([total, leave_one_out], 1)


# (states, times, streams, first) -> states at t_K, and gains of the log-weights [B].
# Times are [K + 1], or [L, K + 1] for L equal parts of the chains; the draws of the first move are
# those of step `first` of the streams.
_Annealing: TypeAlias = Callable[[States, Tensor, SampleStreams, int], tuple[States, Tensor]]


def _make_annealing(target: Target, refine: Refinement | None) -> _Annealing:
    """Return the function that weights and moves states along given times.

    Gibbs sweeps of pair models on the CPU are compiled; everything else is `_anneal_stepwise`,
    with the same draws.

    References: Neal 2001.
    """
    terms = target.pairwise_terms()
    if refine is not None or terms is None or target.device.type != "cpu" or not USE_NUMBA:
        return partial(_anneal_stepwise, refine or Gibbs())
    from blackout.flows.numba_sweeps import CompiledGibbs  # numba is slow to import

    pair, field = terms
    order = torch.cat(target.independent_sites())
    compiled_gibbs = CompiledGibbs(pair, field, target.log_initial, order)

    def anneal_compiled(
        states: States,
        times: Tensor,
        streams: SampleStreams,
        first: int,
    ) -> tuple[States, Tensor]:
        """Run `CompiledGibbs.run` on states [B, d], and add the gain of log eta."""
        num_sweeps = times.shape[-1] - 1
        keys = torch.stack([streams.step(first + k).next_draw().keys for k in range(num_sweeps)])
        x, log_density, gain = compiled_gibbs.run(states.x, states.log_density, keys, times)
        span = (times[..., -1] - times[..., 0]).reshape(-1)
        span_of_chains = span.repeat_interleave(len(gain) // len(span))
        gain = gain + target.log_num_states * span_of_chains
        return States(x, log_density, target), gain

    return anneal_compiled


def _anneal_stepwise(
    refine: Refinement, states: States, times: Tensor, streams: SampleStreams, first: int
) -> tuple[States, Tensor]:
    """Add (t_{k+1} - t_k) f(x) to the log-weights and move at t_{k+1}; see `_Annealing`.

    References: Neal 2001.
    """
    target = states.target
    gain = torch.zeros_like(states.log_density)
    if times.ndim == 2:
        results = [
            _anneal_stepwise(refine, states.select(rows), part_times, streams.select(rows), first)
            for rows, part_times in zip(
                torch.arange(len(gain)).view(len(times), -1),
                times,
                strict=True,
            )
        ]
        x = torch.cat([part.x for part, _ in results])
        log_density = torch.cat([part.log_density for part, _ in results])
        return States(x, log_density, target), torch.cat([part_gain for _, part_gain in results])
    for k, (start, end) in enumerate(pairwise(times.tolist())):
        gain = gain + (end - start) * states.dlogp_dt
        states = refine(target, states, end, streams.step(first + k))
    return states, gain


def resampling_group_size(num_chains: int) -> int:
    """Return the size of groups that are resampled together, so that there are 16 groups.

    References: this project; coverage of the errors is checked in tests/flows/test_weights.py.
    """
    return max(2, num_chains // NUM_GROUPS)


def draw_reference_samples(
    target: Target,
    num_samples: int,
    num_sweeps: int,
    seed: int,
    refine: Refinement | None = None,
) -> Tensor:
    """Draw samples of a target, uint8 [num_samples, d] on the CPU.

    They are exact where the target can be enumerated, otherwise ends of independent MCMC chains.

    References: this project; checked in tests/flows/test_annealing.py.

    Args:
        target: the distribution.
        num_samples: number of samples, each from its own chain.
        num_sweeps: of Gibbs, or moves of `refine`.
        seed: of all draws.
        refine: moves in place of a Gibbs sweep.
    """
    if can_enumerate(target):
        states, log_density = enumerate_states(target)
        probabilities = torch.softmax(log_density, 0).cpu()
        generator = torch.Generator().manual_seed(seed)
        index = torch.multinomial(probabilities, num_samples, True, generator=generator)
        return states.cpu()[index]
    streams = SampleStreams(seed, torch.arange(num_samples, device=target.device))
    uniforms = streams.step(0).next_draw().uniform((num_samples, target.sites))
    chains = States.initial(target, uniforms)
    times = torch.ones(num_sweeps + 1, dtype=torch.float64)
    chains, _ = _make_annealing(target, refine)(chains, times, streams, 1)
    return chains.x.cpu()
