"""Checks of a draw's estimates by short, independent annealing runs of the same target.

One run starts from the uniform distribution, the others near states of high density that a search
has found. All are unbiased for Z and for the mass of any set of states. Mass that only they find
therefore belongs to a mode that the draw has missed. Also an upper bound of log Z, and the error of
simulations in time steps.

References: Neal 2001; the checks are this project's, checked in tests/flows/test_weights.py.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import torch
from torch import Tensor

from blackout.flows.annealed_importance import anneal
from blackout.flows.model import ChainSampler
from blackout.flows.path import PathFromState
from blackout.flows.plots import reference_samples
from blackout.flows.refinement import is_ferromagnetic
from blackout.flows.simulation import Events, Simulation, run_reverse
from blackout.flows.targets import Target, can_enumerate
from blackout.flows.weights import (
    Z_95,
    effective_sample_size,
    jackknife_error,
    log_mean_exp,
    pareto_shape,
    weighted_mean,
)
from blackout.random import SampleStreams, fold_seed

# annealing runs of the checks
NUM_CHAINS = 256
NUM_SWEEPS = 64
ANNEALING_KEY = 0  # keys that separate the uses of the checks' seed
MODES_KEY = 1

# Search for modes. These decide which modes are looked at; the estimated mass of each is unbiased
# for any of them.
NUM_SEARCHED_STATES = 32  # of the draw, and as many of noise
NUM_QUENCH_SWEEPS = 16
QUENCH_TIME = 1e3  # inverse temperature in units of the target's
MAX_MODES = 4
MIN_MODE_DISTANCE = 0.25  # fraction of the sites in which two modes differ
MODE_QUANTILE = 0.9  # the radius of a mode is this quantile of its annealed states' distances

# Thresholds of the flags. All together they flagged one of 400 perfect draws of four targets
# (benchmarks/results/flag_rates.json).
MAX_ERRORS = 3.0  # between two estimates that agree: 0.3 % of normal differences are larger
WIDENING_ERRORS = 2.0  # above it, 5 % of normal differences, the interval of log Z is widened
MIN_MISSED_FRACTION = 0.05  # of Z; a smaller mode is not reported
MIN_ESS = 0.05  # below it weights do not reveal their own error (docs/explanation/flows.md)
MAX_PARETO_SHAPE = 0.7  # above it the variance is practically infinite (Vehtari et al. 2024)
MAX_R_HAT = 1.1  # Gelman and Rubin 1992
MIN_EFFECTIVE_SAMPLES = 100  # the relative error of a mean is then at most 1 / sqrt(100) = 10 %
EXACT_TOLERANCE = 1e-6  # absolute difference from an exact value that is rounding

# upper bound and time-step error
NUM_BOUND_STATES = 256
NUM_EXACT_CHAINS = 2048
EXACT_CHAINS_KEY = 12  # separates them from other uses of a seed

# what the errors in metrics.json do not include
ERROR_SCOPE = "errors hold where the chains reach the mass: no check finds a mode that is narrow"

# name of a problem of a draw -> a sentence that explains it
Flags: TypeAlias = dict[str, str]


def format_flags(flags: Flags) -> dict[str, Any]:
    """Return entries of metrics.json: `errors`, `flags`, and `warning` if there are any flags."""
    entries: dict[str, Any] = {"errors": ERROR_SCOPE, "flags": list(flags)}
    if flags:
        entries["warning"] = "; ".join(flags.values())
    return entries


def find_modes(target: Target, states: Tensor, seed: int) -> Tensor:
    """Find up to four states of high density that differ in a quarter of the sites, uint8 [m, d].

    The search quenches given states, noise, and states in which all sites have one level.

    References: this project; checked in tests/flows/test_weights.py.

    Args:
        target: the distribution.
        states: some states of a draw, [n, d].
        seed: of the search.
    """
    # 1. Initial states.
    levels = torch.arange(target.levels, device=states.device)[:NUM_SEARCHED_STATES]
    constant = levels[:, None].expand(-1, target.sites).to(torch.uint8)
    num_searches = 2 * NUM_SEARCHED_STATES + len(constant)
    streams = SampleStreams(seed, torch.arange(num_searches, device=states.device))
    shape = (num_searches, target.sites)
    noise = target.sample_initial(streams.step(0).next_draw().uniform(shape))
    sampled = states[:NUM_SEARCHED_STATES].to(torch.uint8)
    x = torch.cat([constant, sampled, noise])[:num_searches]

    # 2. Quench.
    for k in range(NUM_QUENCH_SWEEPS):
        uniforms = streams.step(k + 1).next_draw().uniform(shape)
        x = target.gibbs_sweep(x, uniforms, QUENCH_TIME)

    # 3. Select distant states by decreasing density.
    x = x[target.log_density(x).argsort(descending=True, stable=True)]
    modes: list[Tensor] = []
    for state in x:
        distances = [int((state != mode).sum()) for mode in modes]
        is_distant = all(distance >= MIN_MODE_DISTANCE * target.sites for distance in distances)
        if len(modes) < MAX_MODES and is_distant:
            modes.append(state)
    return torch.stack(modes)


def check_estimates(
    target: Target,
    x: Tensor,
    log_weights: Tensor,
    values: dict[str, float],
    seed: int,
    groups: Tensor | None = None,
) -> Flags:
    """Compare estimates with short annealing runs and with exact values; return what contradicts.

    `values` are changed: `log_z_annealed`, its error and `ess_annealed` are added, and the error
    and interval of `log_z` are widened where the annealing contradicts them.

    References: this project; checked in tests/flows/test_weights.py.

    Args:
        target: the distribution.
        x: states of the draw, [N, d].
        log_weights: [N].
        values: estimates and exact values, see `estimate_target`.
        seed: of the annealing runs, different from that of the draw.
        groups: int64 [N], chains that were resampled together; None for none.
    """
    x = x.to(target.device)
    log_weights = log_weights.to(target.device)
    # 1. The weights themselves, and exact values.
    flags = _check_weights(values, groups) | _check_exact_values(values)

    # 2. An annealing run from the uniform distribution.
    log_z = values["log_z"]
    error = values["log_z_error"]
    annealing_seed = fold_seed(seed, ANNEALING_KEY)
    annealed = anneal(target, NUM_CHAINS, NUM_SWEEPS, annealing_seed, power=2).log_weights
    annealed_log_z = float(log_mean_exp(annealed))
    annealed_error = jackknife_error(annealed)
    annealed_ess = float(effective_sample_size(annealed))
    values["log_z_annealed"] = annealed_log_z
    values["log_z_annealed_error"] = annealed_error
    values["ess_annealed"] = annealed_ess
    ends = [log_z]  # values of log Z that the interval must contain
    # a mean of positive weights is seldom far too high, but often far too low
    has_finite_variance = pareto_shape(annealed) < MAX_PARETO_SHAPE
    is_reliable = has_finite_variance and annealed_ess * NUM_CHAINS > MIN_EFFECTIVE_SAMPLES
    if annealed_log_z > log_z or is_reliable:
        both_errors = annealed_error
        if math.isfinite(error):
            both_errors = math.hypot(annealed_error, error)
        difference = abs(annealed_log_z - log_z)
        if difference > WIDENING_ERRORS * both_errors:
            ends += [annealed_log_z - annealed_error, annealed_log_z + annealed_error]
        if difference > MAX_ERRORS * both_errors:
            flags["annealing_disagrees"] = (
                f"log Z is {log_z:.4g} ± {error:.2g} by these samples, but "
                f"{annealed_log_z:.4g} ± {annealed_error:.2g} by independent annealing"
            )
    has_few_samples = values["ess"] * len(log_weights) < MIN_EFFECTIVE_SAMPLES
    has_bad_weights = "low_ess" in flags or "infinite_variance" in flags
    if has_few_samples or has_bad_weights:  # such weights do not reveal their own error
        ends.append(annealed_log_z + Z_95 * annealed_error)

    # 3. Annealing runs from states of high density.
    missed_fraction = 0.0
    if target.allows_single_flips:
        modes_seed = fold_seed(seed, MODES_KEY)
        missed_fraction = estimate_missed_mass(target, x, log_weights, values["ess"], modes_seed)
    if missed_fraction > 0:
        ends.append(log_z + math.log1p(missed_fraction))
        percentage = 100 * missed_fraction / (1 + missed_fraction)
        flags["missed_mode"] = f"the samples miss a mode of at least {percentage:.0f} % of all mass"

    # 4. Widen the interval of log Z.
    if not math.isfinite(error):
        error = annealed_error + abs(annealed_log_z - log_z) / Z_95
        values["log_z_ci_low"] = log_z - Z_95 * error
        values["log_z_ci_high"] = log_z + Z_95 * error
    values["log_z_error"] = max(error, *(abs(end - log_z) / Z_95 for end in ends))
    values["log_z_ci_low"] = min(values["log_z_ci_low"], log_z - Z_95 * error, *ends)
    values["log_z_ci_high"] = max(values["log_z_ci_high"], log_z + Z_95 * error, *ends)
    return flags


def _check_weights(values: dict[str, float], groups: Tensor | None) -> Flags:
    """Flag a low ESS, a heavy tail of the weights, and resampled groups that disagree.

    References: Vehtari et al. 2024; Gelman and Rubin 1992.
    """
    flags = Flags()
    ess = values["ess"]
    shape = values.get("pareto_k", -math.inf)
    r_hat = values.get("r_hat", math.nan)
    if ess < MIN_ESS:
        flags["low_ess"] = f"ESS {ess:.2g} is below {MIN_ESS}: estimates and errors are unreliable"
    elif shape > MAX_PARETO_SHAPE:
        flags["infinite_variance"] = (
            f"the Pareto shape of the largest weights is {shape:.2f}, above {MAX_PARETO_SHAPE}: "
            "their variance is practically infinite, and errors are too small"
        )
    if groups is not None and len(groups.unique()) < 2:
        reason = "all chains were resampled together, so that their error is unknown"
        flags["single_group"] = f"{reason}: draw more samples"
    if r_hat > MAX_R_HAT:
        reason = f"R-hat of the energy is {r_hat:.2f}, above {MAX_R_HAT}"
        flags["groups_disagree"] = f"groups of resampled chains disagree: {reason}"
    return flags


def _check_exact_values(values: dict[str, float]) -> Flags:
    """Flag estimates that differ from exact values by more than three errors.

    References: this project; checked in tests/flows/test_weights.py.
    """
    differences = []
    for exact_name, exact in values.items():
        if not exact_name.endswith("_exact"):
            continue
        name = exact_name.removesuffix("_exact")
        if name not in values:
            continue
        error = values.get(f"{name}_error", math.nan)
        if abs(values[name] - exact) > max(MAX_ERRORS * error, EXACT_TOLERANCE):
            estimate = f"{name} is estimated as {values[name]:.4g} ± {error:.2g}"
            differences.append(f"{estimate}, but its exact value is {round(exact, 9) + 0.0:.4g}")
    return {"exact_value_mismatch": ", ".join(differences)} if differences else {}


def estimate_missed_mass(
    target: Target,
    x: Tensor,
    log_weights: Tensor,
    ess: float,
    seed: int,
) -> float:
    """Estimate the mass around modes that a draw lacks, as a fraction of its Z.

    It is 0 if it is not significant.

    Two runs estimate the mass of a mode: the draw, and annealing from near the mode. It is the mass
    of the states that are nearest to it and within the radius of most annealed states.

    References: this project; checked in tests/flows/test_weights.py.

    Args:
        target: the distribution.
        x: states of the draw, [N, d].
        log_weights: [N].
        ess: of the draw.
        seed: of the search and the annealing.
    """
    # 1. Anneal from near each mode.
    modes = find_modes(target, x, seed)
    annealed = [
        anneal(
            PathFromState(target, mode),
            NUM_CHAINS // len(modes),
            NUM_SWEEPS,
            fold_seed(seed, k),
            power=2,
        )
        for k, mode in enumerate(modes)
    ]

    # 2. Weights of the draw, on a common scale.
    all_log_weights = [log_weights, *(paths.log_weights for paths in annealed)]
    log_scale = max(float(part.max()) for part in all_log_weights)
    weights = (log_weights.double() - log_scale).exp()
    distances = _count_differences(x, modes)
    total = float(weights.mean())
    num_effective = max(1.0, ess * len(weights))  # also 1 where the ESS is not a number

    # 3. Compare the mass near each mode.
    missed = 0.0
    for k, paths in enumerate(annealed):
        annealed_distances = _count_differences(paths.states.x, modes)
        nearest = annealed_distances.argmin(1) == k
        if not bool(nearest.any()):
            continue
        radius = annealed_distances[nearest, k].double().quantile(MODE_QUANTILE)
        inside = nearest & (annealed_distances[:, k] <= radius)
        annealed_mass = (paths.log_weights - log_scale).exp() * inside
        mass = float(annealed_mass.mean())
        mass_error = float(annealed_mass.std()) / math.sqrt(len(annealed_mass))

        draw_mass = weights * ((distances.argmin(1) == k) & (distances[:, k] <= radius))
        fraction = mass / (mass + total)
        # error of the draw's mass if it were right, which it cannot show if it has none there
        expected_error = total * math.sqrt(fraction * (1 - fraction) / num_effective)
        observed_error = float(draw_mass.std(correction=0)) / math.sqrt(len(draw_mass))
        draw_error = max(observed_error, expected_error)
        difference = mass - float(draw_mass.mean())
        is_significant = difference > MAX_ERRORS * math.hypot(mass_error, draw_error)
        if is_significant and difference > MIN_MISSED_FRACTION * max(total, mass):
            missed += difference / total
    return missed


def _count_differences(x: Tensor, modes: Tensor) -> Tensor:
    """Return in how many sites states [N, d] differ from modes [m, d], int64 [N, m]."""
    return torch.stack([(x != mode).sum(-1) for mode in modes], -1)


def describe_time_step_error(
    model: ChainSampler,
    simulation: Simulation,
    values: dict[str, float],
    seed: int,
) -> str:
    """Compare log Z and the weighted energy of a simulation in time steps with others; a sentence.

    The weights of time steps are not unbiased: log Z and means are off by a term that is
    proportional to the length of a step. Where exact values are unknown, exact simulation of the
    same rates takes their place.

    References: this project; the order is checked in tests/verification/test_flow_claims.py, the
    sentence in tests/flows/test_training.py.

    Args:
        model: with the rates.
        simulation: in time steps.
        values: estimates, see `estimate_target`.
        seed: of the exact chains.
    """
    if "mean_energy_exact" in values and "log_z_exact" in values:
        energy = (values["mean_energy_exact"], 0.0)
        log_z = (values["log_z_exact"], 0.0)
        reference = "their exact values"
    else:
        indices = torch.arange(NUM_EXACT_CHAINS, device=model.device)
        exact_seed = fold_seed(seed, EXACT_CHAINS_KEY)
        exact_simulation = Events(simulation.num_steps)
        paths = exact_simulation.run(model.target, model.rates(), indices, exact_seed)
        log_weights = paths.log_weights.cpu()
        energy = weighted_mean(-paths.states.log_density.cpu(), log_weights)
        log_z = (float(log_mean_exp(log_weights)), jackknife_error(log_weights))
        reference = f"those of {NUM_EXACT_CHAINS} chains of simulation=events, which is exact"
    log_z_difference = values["log_z"] - log_z[0]
    log_z_error = math.hypot(log_z[1], values["log_z_error"])
    difference = math.nan
    difference_error = math.nan
    if energy[0]:
        difference = (values["mean_energy"] - energy[0]) / abs(energy[0])
        difference_error = math.hypot(energy[1], values["mean_energy_error"]) / abs(energy[0])
    name = type(simulation).__name__.lower()
    return (
        f"simulation={name} moves in time steps: log Z and means are biased in proportion to the "
        "length of a step, which neither ESS nor the errors include; log Z differs by "
        f"{log_z_difference:+.3f} ± {log_z_error:.3f} and the weighted energy by "
        f"{100 * difference:+.1f} ± {100 * difference_error:.1f} % from {reference}"
    )


def evidence_upper_bound(model: ChainSampler, seed: int) -> dict[str, float]:
    """Estimate the EUBO, E_pi[log rho(x) - log p(x)] >= log Z, and its error.

    log p is bounded by the reverse chain. States are exact, or made by cluster moves; targets with
    neither have no bound.

    References: Blessing et al. 2024, section 3.

    Returns:
        `eubo` and `eubo_error`, or nothing.
    """
    target = model.target
    if not (can_enumerate(target) or is_ferromagnetic(target)):
        return {}
    x = reference_samples(target, NUM_BOUND_STATES)[0][:NUM_BOUND_STATES].to(model.device)
    indices = torch.arange(len(x), device=model.device)
    num_steps = model.simulation.num_steps
    log_likelihood, _ = run_reverse(target, model.rates(), x, num_steps, indices, seed)
    difference = target.log_density(x).double() - log_likelihood
    return {
        "eubo": float(difference.mean()),
        "eubo_error": float(difference.std()) / math.sqrt(len(x)),
    }
