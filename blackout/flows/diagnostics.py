"""Whether a draw's estimates can be believed: short annealings of the same law, made apart from it, and what they say.

One starts from uniform noise, the others near states of high density that were sought. Both are unbiased for Z and for
the mass of any set of states [Neal 2001], so that a mode which the draw has missed is mass that only they have found.
Beside them stand an upper bound of log Z, and how far simulations in time steps are off.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import torch
from torch import Tensor

from blackout.flows.annealed_importance import anneal
from blackout.flows.model import ChainSampler
from blackout.flows.path import Near
from blackout.flows.plots import reference
from blackout.flows.refinement import attracts
from blackout.flows.simulation import Events, Simulation, run_backwards
from blackout.flows.targets import Target, can_enumerate
from blackout.flows.weights import NORMAL, effective_sample_size, jackknife, log_mean_exp, pareto_shape, weighted_mean
from blackout.random import SampleStreams, fold_seed

_COMPARED, _EXACT = 2048, 12
"""Exact chains with which a simulation in time steps is compared, and their key among the uses of a seed."""
_BOUNDED = 256
"""States of the target from which the upper bound of log Z is made."""
_CHAINS, _SWEEPS = 256, 64
"""Of each annealing."""
_SOUGHT, _QUENCH, _COLD, _MODES = 32, 16, 1e3, 4
"""States from which modes are sought, sweeps and inverse temperature of it, and modes that are kept."""
_SIGMAS = 3.0
"""Standard errors that are taken for a contradiction."""
_MISSED = 0.05
"""Share of Z below which a mode is not missed."""
_LEAST_ESS, _MOST_SHAPE, _MOST_R_HAT = 0.05, 0.7, 1.1
_FEW = 100
"""Effective samples below which weights do not know their own error: of a draw, whose interval then goes up to that of
the annealing; of the annealing, which then says nothing of a draw that lies above it."""


Flags: TypeAlias = dict[str, str]
"""Name of what speaks against a draw -> a sentence that says so."""


def said(flags: Flags) -> dict[str, Any]:
    """For metrics.json."""
    return {"flags": list(flags)} | ({"warning": "; ".join(flags.values())} if flags else {})


def modes(target: Target, states: Tensor, seed: int) -> Tensor:
    """Up to four states of high density that differ in a quarter of the sites or more, uint8 [m, d]. Ours
    (tests/flows/test_weights.py).

    Args:
        target: the law.
        states: some states to seek from besides noise and states all of one level, uint8 [n, d].
        seed: of the search.
    """
    even = torch.arange(target.levels, device=states.device)[:_SOUGHT, None].expand(-1, target.sites)
    number = 2 * _SOUGHT + len(even)
    streams = SampleStreams(seed, torch.arange(number, device=states.device))
    noise = target.uniform(streams.step(0).next_draw().uniform((number, target.sites)))
    x = torch.cat([even.to(torch.uint8), states[:_SOUGHT].to(torch.uint8), noise])[:number]
    for k in range(_QUENCH):
        x = target.swept(x, streams.step(k + 1).next_draw().uniform((number, target.sites)), _COLD)
    x = x[target.log_density(x).argsort(descending=True, stable=True)]
    found: list[Tensor] = []
    for state in x:
        if len(found) < _MODES and all(int((state != other).sum()) >= target.sites / 4 for other in found):
            found.append(state)
    return torch.stack(found)


def judge(
    target: Target, x: Tensor, log_weights: Tensor, values: dict[str, float], seed: int, groups: Tensor | None = None
) -> Flags:
    """Compare estimates with short annealings and with what is known exactly; why they are not to be believed, if so.

    Ours (tests/flows/test_weights.py).

    Args:
        target: the law.
        x, log_weights: states [N, d] and weights [N] of the draw.
        values: its estimates and exact values; `log_z_error` and the ends of its interval are widened where the
            annealings contradict them, whose own estimates are added.
        seed: of the annealings, another than the draw's.
        groups: int64 [N], which chains were resampled together; None where none were.
    """
    x, log_weights = x.to(target.device), log_weights.to(target.device)
    flags = _of_itself(values, groups) | _off_exact(values)
    log_z, error = values["log_z"], values["log_z_error"]
    annealed = anneal(target, _CHAINS, _SWEEPS, fold_seed(seed, 0), power=2).log_weights
    other, its = float(log_mean_exp(annealed)), jackknife(annealed)
    values |= {"log_z_annealed": other, "log_z_annealed_error": its}
    values["ess_annealed"] = float(effective_sample_size(annealed))
    reach = [log_z]
    # an estimate of a mean of positive weights is seldom far too high, and often far too low
    sound = pareto_shape(annealed) < _MOST_SHAPE and values["ess_annealed"] * _CHAINS > _FEW
    if other > log_z or sound:
        spread = math.hypot(its, error) if math.isfinite(error) else its
        if abs(other - log_z) > 2 * spread:
            reach += [other - its, other + its]
        if abs(other - log_z) > _SIGMAS * spread:
            mine = f"these samples say {log_z:.4g} +- {error:.2g}"
            flags["annealing_disagrees"] = f"{mine} for log Z, annealing apart from them {other:.4g} +- {its:.2g}"
    few = values["ess"] * len(log_weights) < _FEW
    if few or not flags.keys().isdisjoint(("low_ess", "infinite_variance")):
        reach.append(other + NORMAL * its)  # such weights do not know their own error
    missed = missed_mass(target, x, log_weights, values["ess"], fold_seed(seed, 1)) if target.flips else 0.0
    if missed > 0:
        reach.append(log_z + math.log1p(missed))
        share = f"at least {100 * missed / (1 + missed):.0f} % of all"
        flags["missed_mode"] = f"a mode is missed: near states of high density is mass that these lack, {share}"
    if not math.isfinite(error):
        error = its + abs(other - log_z) / NORMAL
        values |= {"log_z_low": log_z - NORMAL * error, "log_z_high": log_z + NORMAL * error}
    values["log_z_error"] = max(error, *(abs(end - log_z) / NORMAL for end in reach))
    values["log_z_low"] = min(values["log_z_low"], log_z - NORMAL * error, *reach)
    values["log_z_high"] = max(values["log_z_high"], log_z + NORMAL * error, *reach)
    return flags


def _of_itself(values: dict[str, float], groups: Tensor | None) -> Flags:
    """What weights say against themselves: a low ESS, a heavy tail [Vehtari 2024], groups apart [Gelman 1992]."""
    ess, flags = values["ess"], Flags()
    if ess < _LEAST_ESS:
        flags["low_ess"] = f"ESS {ess:.2g} is below {_LEAST_ESS}: estimates and errors are not to be trusted"
    elif values.get("pareto_k", -math.inf) > _MOST_SHAPE:
        shape = f"the largest weights have a Pareto shape of {values['pareto_k']:.2f}, above {_MOST_SHAPE}"
        flags["infinite_variance"] = f"{shape}: their variance is as good as infinite, and errors are too small"
    if groups is not None and len(groups.unique()) < 2:
        flags["one_group"] = "all chains were resampled together and cannot tell their error: draw more of them"
    if values.get("r_hat", math.nan) > _MOST_R_HAT:
        flags["groups_disagree"] = f"groups of resampled chains disagree: R-hat of the energy {values['r_hat']:.2f}"
    return flags


def _off_exact(values: dict[str, float]) -> Flags:
    """What differs from its exact value by more than three errors, of estimates (floats by name), as in `judge`.

    Ours (tests/flows/test_weights.py).
    """
    off = []
    for name in (name.removesuffix("_exact") for name in values if name.endswith("_exact")):
        exact, error = values[f"{name}_exact"], values.get(f"{name}_error", math.nan)
        away = abs(values[name] - exact) if name in values else 0.0
        if away > max(_SIGMAS * error, 1e-6):
            off.append(f"{name} is estimated as {values[name]:.4g} +- {error:.2g} and is exactly {exact:.4g}")
    return {"off_exact_value": ", ".join(off)} if off else {}


def missed_mass(target: Target, x: Tensor, log_weights: Tensor, ess: float, seed: int) -> float:
    """Mass around modes that a draw has not found, as a share of its Z; 0 if that may be chance.

    Both the draw and annealing from near a mode estimate the mass of the states that are nearest to that mode and as
    near as most of what annealing finds there. Ours (tests/flows/test_weights.py has a law with a mode too many).

    Args:
        target: the law.
        x, log_weights: the draw, [N, d] and [N].
        ess: its ESS.
        seed: of the search and the annealing.
    """
    found = modes(target, x, seed)
    annealed = [
        anneal(Near(target, mode), _CHAINS // len(found), _SWEEPS, fold_seed(seed, k), power=2)
        for k, mode in enumerate(found)
    ]
    top = max(float(weights.max()) for weights in (log_weights, *(paths.log_weights for paths in annealed)))
    mine, far_mine, missed = (log_weights.double() - top).exp(), _distances(x, found), 0.0
    total, effective = float(mine.mean()), max(1.0, ess * len(mine))  # 1 where it is not known
    for k, paths in enumerate(annealed):
        far = _distances(paths.states.x, found)
        nearest = far.argmin(1) == k
        if not bool(nearest.any()):
            continue
        radius = far[nearest, k].double().quantile(0.9)
        inside = (paths.log_weights - top).exp() * (nearest & (far[:, k] <= radius))
        there = mine * ((far_mine.argmin(1) == k) & (far_mine[:, k] <= radius))
        mass, error = float(inside.mean()), float(inside.std()) / math.sqrt(len(inside))
        lack, share = mass - float(there.mean()), mass / (mass + total)
        expected = total * math.sqrt(share * (1 - share) / effective)
        chance = max(float(there.std(correction=0)) / math.sqrt(len(there)), expected)
        if lack > _SIGMAS * math.hypot(error, chance) and lack > _MISSED * max(total, mass):
            missed += lack / total
    return missed


def _distances(x: Tensor, modes: Tensor) -> Tensor:
    """Sites in which states [N, d] differ from modes [m, d], int64 [N, m]: of `missed_mass`."""
    return torch.stack([(x != mode).sum(-1) for mode in modes], -1)


def compared_with_truth(model: ChainSampler, simulation: Simulation, values: dict[str, float], seed: int) -> str:
    """How far the weighted energy of a simulation in time steps is from the truth: exact, or by exact simulation.

    Ours (tests/flows/test_training.py): a sentence, of estimates (floats by name) and of exact chains [N].
    """
    if "mean_energy_exact" in values:
        mean, error, how = values["mean_energy_exact"], 0.0, "its exact value"
    else:
        indices = torch.arange(_COMPARED, device=model.device)
        paths = Events(simulation.num_steps).run(model.target, model.rates(), indices, fold_seed(seed, _EXACT))
        mean, error = weighted_mean(-paths.states.log_density.cpu(), paths.log_weights.cpu())
        how = f"that of simulation=events, whose weights are exact ({_COMPARED} chains)"
    off = (values["mean_energy"] - mean) / abs(mean) if mean else math.nan
    spread = math.hypot(error, values["mean_energy_error"]) / abs(mean) if mean else math.nan
    return (
        f"simulation={type(simulation).__name__.lower()} moves in time steps, and neither ESS nor errors see what "
        f"that does: the weighted energy is {100 * off:+.1f} +- {100 * spread:.1f} % from {how}"
    )


def upper_bound(model: ChainSampler, seed: int) -> dict[str, float]:
    """EUBO: the mean over states x of the target of log rho(x) - log p(x), log p bounded by the chain run backwards.

    At least log Z, as `log_z_lower` is at most [Blessing 2024, section 3]: two floats, of states [n, d] that are exact
    or made by clusters; nothing where there are none.
    """
    if not (can_enumerate(model.target) or attracts(model.target)):
        return {}
    x = reference(model.target, _BOUNDED)[0][:_BOUNDED].to(model.device)
    steps, indices = model.simulation.num_steps, torch.arange(len(x), device=model.device)
    bound, _ = run_backwards(model.target, model.rates(), x, steps, indices, seed)
    gap = model.target.log_density(x).double() - bound
    return {"eubo": float(gap.mean()), "eubo_error": float(gap.std()) / math.sqrt(len(x))}
