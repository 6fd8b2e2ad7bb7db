"""The path of a flow by moves alone: annealed importance sampling, sequential Monte Carlo; long Gibbs chains."""

from __future__ import annotations

import torch
from torch import Tensor

from blackout.flows.path import States
from blackout.flows.refinement import Gibbs, Refinement
from blackout.flows.simulation import Paths, record
from blackout.flows.targets import Target, can_enumerate, enumerated
from blackout.flows.weights import effective_sample_size, log_mean_exp, systematic_resample
from blackout.random import SampleStreams, fold_seed


def anneal(
    target: Target,
    chains: int,
    sweeps: int,
    seed: int = 0,
    resample_below: float | None = None,
    refine: Refinement | None = None,
) -> Paths:
    """Annealed importance sampling [Neal 2001]; sequential Monte Carlo [Del Moral 2006] where chains are resampled.

    w += (t_{k+1} - t_k) f(x), then moves at t_{k+1}; all chains are resampled together.

    Args:
        target: the law.
        chains: number of weighted samples.
        sweeps: number of intermediate laws, with one application of `refine` at each.
        seed: of all draws.
        resample_below: ESS, as a share, below which chains are resampled; None for never.
        refine: moves at every law; None for a Gibbs sweep.
    """
    moves = Gibbs() if refine is None else refine
    streams = SampleStreams(seed, torch.arange(chains, device=target.device))
    states = States.uniform(target, streams.at(0).next_draw().uniform((chains, target.sites)))
    weights = torch.zeros(chains, dtype=torch.float64, device=target.device)
    none = torch.zeros(chains, dtype=torch.int64, device=target.device)
    paths = Paths(states, weights, none, none)
    for k in range(sweeps):
        if k % max(1, sweeps // 32) == 0:
            record(paths, k / sweeps, weights, states)
        weights = weights + states.dlogp_dt / sweeps
        if resample_below is not None and effective_sample_size(weights) < resample_below:
            uniform = torch.rand((), generator=torch.Generator().manual_seed(fold_seed(seed, k))).double()
            states = states.rows(systematic_resample(weights, uniform))
            weights = log_mean_exp(weights).expand(chains)
        states = moves(target, states, (k + 1) / sweeps, streams.at(k + 1))
    record(paths, 1.0, weights, states)
    paths.states, paths.log_weights = states, weights
    return paths


def samples_of(target: Target, number: int, sweeps: int, seed: int) -> Tensor:
    """Samples of a law, uint8 [number, d]: exact where it can be enumerated, else the ends of long Gibbs chains."""
    if can_enumerate(target):
        states, log_density = enumerated(target)
        share = torch.softmax(log_density, 0).cpu()
        return states[torch.multinomial(share, number, True, generator=torch.Generator().manual_seed(seed))]
    streams, gibbs = SampleStreams(seed, torch.arange(number, device=target.device)), Gibbs()
    chains = States.uniform(target, streams.at(0).next_draw().uniform((number, target.sites)))
    for sweep in range(sweeps):
        chains = gibbs(target, chains, 1.0, streams.at(sweep + 1))
    return chains.x.cpu()
