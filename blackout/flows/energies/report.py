"""What a trained energy is worth: likelihoods of held-out data by several estimates of log Z, samples beside data."""

from __future__ import annotations

import math
from typing import Any

import torch
from scipy.sparse.csgraph import minimum_spanning_tree
from torch import Tensor
from torch.nn.functional import one_hot

from blackout.family import Source
from blackout.flows.annealing import anneal
from blackout.flows.energies.data import BinaryData
from blackout.flows.energies.energies import Learned, PairEnergy, couplings_found
from blackout.flows.energies.model import EnergySampler
from blackout.flows.simulation import run_backwards
from blackout.flows.targets import can_enumerate, exact_values
from blackout.flows.weights import effective_sample_size, jackknife, log_mean_exp
from blackout.random import fold_seed

_CHAINS, _SWEEPS = 1024, 256
"""Of annealed importance sampling."""
_COMPARED = 4000
"""Held-out states that are scored, and chains of the sampler."""
_BOUNDED = 500
"""Held-out states whose likelihood by the chain is bounded."""
_MOST_CELLS = 2048
"""Sites times levels, of a table of pairs."""
_STEEP = 4.5
"""Standard errors of a slope of the likelihood that chance does not reach, of up to some thousand slopes."""


def report(model: EnergySampler, source: Source, seed: int) -> dict[str, Any]:
    """NLL with log Z by AIS and by the sampler's weights; NLL by the chain's bound.

    [Ou 2025, appendix E.2]; AIS is ours.

    Args:
        model: in eval mode.
        source: what it was learned from.
        seed: of all samples.
    """
    target = model.target
    assert isinstance(source, BinaryData) and isinstance(target, Learned)
    test = source.counts.test[:_COMPARED].flatten(1).to(model.device)
    indices = torch.arange(_COMPARED, device=model.device)
    paths = model.simulation.run(target, model.rates(), indices, fold_seed(seed, 1))
    annealed = anneal(target, _CHAINS, _SWEEPS, fold_seed(seed, 2))
    mean = float(target.energy(test).double().mean().detach())
    values = {"mean_energy_of_data": mean, "held_out": float(len(test))}
    estimates = {"ais": annealed.log_weights, "sampler": paths.log_weights}
    for name, weights in estimates.items():
        values[f"nll_{name}"] = mean + float(log_mean_exp(weights))
        values[f"nll_{name}_error"] = jackknife(weights)
        values[f"ess_{name}"] = float(effective_sample_size(weights))
    if (known := exact_values(target) if can_enumerate(target) else None) is not None:
        values["nll_exact"] = mean + known["log_z"]
    bounded = run_backwards(target, model.rates(), test[:_BOUNDED], 32, indices[:_BOUNDED], fold_seed(seed, 4))
    values["nll_chain_bound"] = -float(bounded.log_weights.mean())
    if isinstance(target, PairEnergy):
        values |= couplings_found(target, source)
    near = {"exact": values["nll_exact"]} if known is not None else {}
    beside = dict.fromkeys(("nll_ais", "nll_sampler", "nll_chain_bound"), near)
    train = source.counts.train[:].flatten(1).to(model.device)
    values["steepest_slope"] = steepest_slope(target, train, annealed.states.x, annealed.log_weights)
    far = values["steepest_slope"] > _STEEP
    said: dict[str, Any] = {"values": values, "beside": beside, "ais": {"chains": _CHAINS, "sweeps": _SWEEPS}}
    said["convergence"] = (
        f"the likelihood is {'not ' * far}at its maximum: along a parameter it rises by {values['steepest_slope']:.1f} "
        f"standard errors (chance: up to {_STEEP})"
    )
    if "slope_of_couplings" in values:
        said["convergence"] += f"; couplings are {values['slope_of_couplings']:.2f} times those they are compared with"
    print(said["convergence"])
    return said


def classical_nats(source: BinaryData) -> dict[str, float]:
    """-log p of held-out states: uniform, sites that are independent, and the best tree of pairs [Chow and Liu 1968].

    Fitted to training states, with one state more that is spread over all. The tree is left out where its table of
    pairs is large.
    """
    train, test = (part[:].flatten(1).long().cpu() for part in (source.counts.train, source.counts.test))
    sites, levels = train.shape[1], source.counts.max_count + 1
    hot, size = one_hot(train, levels).double(), len(train) + 1
    single = (hot.sum(0) + 1 / levels) / size
    alone = single.log().gather(1, test.T).sum(0)
    nats = {"uniform": sites * math.log(levels), "independent_sites": -float(alone.mean())}
    if sites * levels > _MOST_CELLS:
        return nats
    both = (hot.flatten(1).T @ hot.flatten(1)).view(sites, levels, sites, levels).add(levels**-2) / size
    ratio = (both / (single[:, :, None, None] * single)).log()
    tree = minimum_spanning_tree(-1 - (both * ratio).sum((1, 3)).clamp(min=0).numpy()).nonzero()
    gained = sum(ratio[i, test[:, i], j, test[:, j]] for i, j in zip(*tree, strict=True))
    return nats | {"tree_of_pairs": -float((alone + gained).mean())}


@torch.no_grad()
def steepest_slope(target: Learned, data: Tensor, x: Tensor, log_weights: Tensor) -> float:
    """The greatest slope of the likelihood of data, less the penalty's, in standard errors of both sets of states.

    Along every coupling and field of a pair energy, and along the inverse temperature of any other.

    Args:
        target: the energy.
        data: what it was learned from, [n, d].
        x, log_weights: weighted states of it, [N, d] and [N].
    """

    def along(states: Tensor) -> Tensor:
        if not isinstance(target, PairEnergy):
            return -target.energy(states).double()[:, None]
        s = 2 * states.double() - 1
        one, two = torch.triu_indices(target.sites, target.sites, 1, device=s.device)
        return s[:, one] * s[:, two] if target.field is None else torch.cat([s[:, one] * s[:, two], s], 1)

    share, model, given = torch.softmax(log_weights.double(), 0), along(x), along(data)
    slope, mean = given.mean(0) - share @ model, share @ model
    variance = given.var(0) / len(data) + share.square() @ (model - mean).square()
    if isinstance(target, PairEnergy) and target.l1:
        upper = target.upper.double()
        pulled = torch.where(upper == 0, slope[: len(upper)].clamp(-target.l1, target.l1), target.l1 * upper.sign())
        slope[: len(upper)] -= pulled
    return float((slope.abs() / variance.clamp(min=1e-12).sqrt()).max())
