"""Mean values by chains of cluster moves, for ferromagnets without a field.

Annealing gives one state per chain, so that a mean has as few effective samples as there are
chains. Swendsen-Wang moves decorrelate within a few moves even at the critical point, and all
states of a chain after its burn-in are averaged.
"""

from __future__ import annotations

import math

import torch
from scipy import stats
from torch import Tensor

from blackout.flows.path import States
from blackout.flows.refinement import Clusters, is_ferromagnetic
from blackout.flows.targets import Target
from blackout.random import SampleStreams, fold_seed

CLUSTER_CHAINS_KEY = 16  # separates the draws of these chains from other uses of a seed
MAX_CLUSTER_CHAINS = 256
MAX_CLUSTER_MOVES = 256  # of every chain
BURN_IN_SHARE = 0.2  # share of the moves that is left out of the means, at least
BURN_IN_MOVES = 32  # moves that are left out, unless they are more than half of all
MIN_CLUSTER_MOVES = 64  # with fewer, chains are mostly burn-in
MAX_DRIFT = 5.0  # standard errors between both halves of the moves after the burn-in


def has_cluster_chains(target: Target) -> bool:
    """Return whether cluster moves mix: a ferromagnet without a field, and numba is enabled.

    A field makes large clusters rarely change their value.
    """
    terms = target.pairwise_terms()
    if terms is None or not is_ferromagnetic(target):
        return False
    field = terms[1]
    return bool((field == field[:, :1]).all())


def cluster_means(target: Target, x: Tensor, num_moves: int, seed: int) -> dict[str, float]:
    """Return the means of the energy and of the statistics, over chains and moves.

    The keys are `mean_<quantity>`, and the same with `_error`, `_ci_low` and `_ci_high`. The error
    is the standard error of the means of chains, so that the correlation of successive states is
    in it; the 95 % interval is that of Student's t.

    There are no means if the chains have not reached equilibrium, which is seen from the means of
    the first and the second half of the moves after the burn-in.

    References: Swendsen and Wang 1987; checked in tests/flows/test_cluster_means.py.

    Args:
        target: for which `has_cluster_chains` holds.
        x: initial states of at least two chains, integers [N, d].
        num_moves: of every chain, of which the first fifth is left out, and at least 32 or half.
        seed: of all draws.

    Returns:
        The means by name; empty if some quantity differs by more than five standard errors between
        the halves.

    Raises:
        UserError: cluster moves do not apply.

    Example:
        >>> from blackout.flows import Ising
        >>> from blackout.flows.targets import exact_values
        >>> target = Ising(size=3, coupling=0.2)
        >>> x = torch.zeros(64, 9, dtype=torch.uint8)
        >>> values = cluster_means(target, x, num_moves=100, seed=0)
        >>> abs(values["mean_energy"] - exact_values(target)["mean_energy"]) < 0.1
        True
    """
    # 1. Chains.
    indices = torch.arange(len(x), device=target.device)
    streams = SampleStreams(fold_seed(seed, CLUSTER_CHAINS_KEY), indices)
    states = States.evaluate(target, x.to(target.device))
    move = Clusters()
    num_burn_in = max(int(BURN_IN_SHARE * num_moves), min(BURN_IN_MOVES, num_moves // 2))
    middle = (num_burn_in + num_moves) // 2
    halves: dict[str, list[Tensor]] = {}
    for k in range(num_moves):
        states = move(target, states, 1.0, streams.step(k))
        if k < num_burn_in:
            continue
        quantities = {"energy": -states.log_density, **target.statistics(states.x)}
        for name, quantity in quantities.items():
            sums = halves.setdefault(name, [torch.zeros(len(x), dtype=torch.float64)] * 2)
            half = int(k >= middle)
            sums[half] = sums[half] + quantity.double().cpu()

    # 2. Means over chains, and their errors.
    values: dict[str, float] = {}
    quantile = float(stats.t.ppf(0.975, len(x) - 1))
    for name, (first, second) in halves.items():
        if middle > num_burn_in:
            drift = second / (num_moves - middle) - first / (middle - num_burn_in)
            if abs(float(drift.mean())) * math.sqrt(len(x)) > MAX_DRIFT * float(drift.std()):
                return {}
        chain_means = (first + second) / (num_moves - num_burn_in)
        mean = float(chain_means.mean())
        error = float(chain_means.std()) / math.sqrt(len(x))
        values[f"mean_{name}"] = mean
        values[f"mean_{name}_error"] = error
        values[f"mean_{name}_ci_low"] = mean - quantile * error
        values[f"mean_{name}_ci_high"] = mean + quantile * error
    return values
