"""Annealed importance sampling, and sequential Monte Carlo: the path of a flow followed by moves alone."""

from __future__ import annotations

import torch
from torch import Tensor

from blackout.flows.path import States
from blackout.flows.refinement import Gibbs, Refinement
from blackout.flows.simulation import Paths
from blackout.flows.targets import Target
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
    """Annealed importance sampling; sequential Monte Carlo where chains are resampled, all together.

    Args:
        target: the law.
        chains: number of weighted samples.
        sweeps: number of intermediate laws, with one application of `refine` at each.
        seed: of all draws.
        resample_below: ESS, as a share, below which chains are resampled; None for never.
        refine: moves at every law; None for a Gibbs sweep.
    """
    moves, streams = (
        Gibbs() if refine is None else refine,
        SampleStreams(seed, torch.arange(chains, device=target.device)),
    )
    states = States.uniform(target, streams.at(0).next_draw().uniform((chains, target.sites)))
    weights = torch.zeros(chains, dtype=torch.float64, device=target.device)
    none = torch.zeros(chains, dtype=torch.int64, device=target.device)
    paths = Paths(states, weights, none, none)
    for k in range(sweeps):
        f = states.dlogp_dt
        if k % max(1, sweeps // 32) == 0:
            _observe(paths, k / sweeps, weights, f, states)
        weights = weights + f / sweeps
        if resample_below is not None and effective_sample_size(weights) < resample_below:
            uniform = torch.rand((), generator=torch.Generator().manual_seed(fold_seed(seed, k))).double()
            states = states.rows(systematic_resample(weights, uniform))
            weights = log_mean_exp(weights).expand(chains)
        states = moves(target, states, (k + 1) / sweeps, streams.at(k + 1))
    _observe(paths, 1.0, weights, states.dlogp_dt, states)
    paths.states, paths.log_weights = states, weights
    return paths


def _observe(paths: Paths, t: float, weights: Tensor, dlogp_dt: Tensor, states: States) -> None:
    paths.times.append(t)
    paths.log_weights_at.append(weights.float())
    paths.dlogp_dt_at.append(dlogp_dt.float())
    paths.states_at.append(states.x)
