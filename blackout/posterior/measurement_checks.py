"""Checks of the samples of every measurement, and the warnings that follow from them.

R-hat and effective sample sizes of chains, chi-square and predictive p-values of the fit, and the
evidence. The statistics themselves are in `diagnostics.py`.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from blackout.posterior import diagnostics
from blackout.posterior.blind import BlindProblem
from blackout.posterior.diagnostics import CHAIN_STATISTICS, NUM_PROJECTIONS
from blackout.posterior.gathered_samples import GatheredSamples
from blackout.posterior.noise import Exact
from blackout.posterior.problem import InverseProblem
from blackout.posterior.rewards import Tilt
from blackout.random import SampleStreams, fold_seed

# limits beyond which a measurement gets a warning
MIN_R_HAT_LIMIT = 1.05  # few or short chains have a higher limit, which perfect ones seldom exceed
R_HAT_FALSE_ALARMS = 0.05  # share of runs with perfect chains in which some R-hat is a warning
# level at which the limit is computed for normal values; counts have ties and exceed it slightly
# more often (`python -m benchmarks.flag_rates`)
R_HAT_LEVEL = 0.04
MIN_P_VALUE = 1e-3
MAX_REPAIRED_SHARE = 0.05

# draws of the model for the prior predictive p-value
MODEL_DRAW_STEPS = 8
MAX_MODEL_DRAWS = 64
MAX_COST_SHARE = 0.15  # largest share of the network evaluations of the samples themselves
NUM_PERTURBED = 64  # measurements of data similar to a sample
NUM_PERTURBATIONS = 2  # noised states of each sample

# columns of `chains` that R-hat and effective sample sizes compare
COMPARED_COLUMNS = [
    CHAIN_STATISTICS.index("log_likelihood"),
    CHAIN_STATISTICS.index("total"),
    *range(len(CHAIN_STATISTICS), len(CHAIN_STATISTICS) + NUM_PROJECTIONS),
]

# keys of random numbers
REPLICATE_KEY = 13
MODEL_DRAW_KEY = 14
PERTURBATION_KEY = 15


def compute_checks(samples: GatheredSamples) -> dict[str, Tensor]:
    """Compute the checks of every measurement; NaN where a check does not apply.

    Returns:
        r_hat, ess_bulk, ess_tail: largest R-hat and smallest effective sizes of Markov chains.
        r_hat_limit: R-hat above which a measurement gets a warning; only for Markov chains.
        chi_square: mean square of standardised residuals.
        posterior_predictive_p, prior_predictive_p: predictive p-values.
        log_evidence, log_evidence_error: log p(y) and its standard error; only of particles.
        repaired_share: share of known elements that contradicted y and were replaced.
        (name of an unknown parameter): its quantiles, float64 [M, Q].
        All others are float64 [M].

    References: functions of `blackout.posterior.diagnostics`.
    """
    # 1. Convergence of chains, and fit.
    num_measurements = len(samples.rows)
    names = (
        "r_hat",
        "ess_bulk",
        "ess_tail",
        "chi_square",
        "posterior_predictive_p",
        "prior_predictive_p",
    )
    checks = {
        name: torch.full((num_measurements,), math.nan, dtype=torch.float64) for name in names
    }
    if samples.draw.method.is_markov_chain:
        _check_chains(samples, checks)
    _check_fit(samples, checks)

    # 2. Evidence and unknown parameters.
    if "log_evidence" in samples.arrays and samples.problem.noise.normalised:
        logs = samples.arrays["log_evidence"]
        evidence = [diagnostics.log_mean_exp(logs[rows].numpy()) for rows in samples.rows]
        mean, error = torch.tensor(evidence, dtype=torch.float64).T
        checks["log_evidence"] = mean
        checks["log_evidence_error"] = error
    if isinstance(samples.problem, BlindProblem):
        name = samples.problem.unknown.name
        values = samples.arrays[name]
        quantiles = [diagnostics.predictive_quantiles(values[rows]) for rows in samples.rows]
        checks[name] = torch.stack(quantiles)

    # 3. Repaired elements.
    num_repaired = samples.arrays["num_repaired"].double()
    mean_repaired = torch.stack([num_repaired[rows].mean() for rows in samples.rows])
    mask = samples.problem.operator.observed_mask(samples.shape)
    num_observed = math.prod(samples.shape) if mask is None else int(mask.sum())
    checks["repaired_share"] = mean_repaired / num_observed
    return checks


def _check_chains(samples: GatheredSamples, checks: dict[str, Tensor]) -> None:
    """Add the largest R-hat and the smallest effective sizes of every measurement to `checks`."""
    second_half = second_half_statistics(samples).double().numpy()
    for m, rows in enumerate(samples.rows):
        statistics = [second_half[rows.numpy(), :, k] for k in range(second_half.shape[2])]
        checks["r_hat"][m] = max(map(diagnostics.r_hat, statistics))
        checks["ess_bulk"][m] = min(map(diagnostics.ess_bulk, statistics))
        checks["ess_tail"][m] = min(map(diagnostics.ess_tail, statistics))
    checks["r_hat_limit"] = _r_hat_limits(samples, second_half.shape[1])


def second_half_statistics(samples: GatheredSamples) -> Tensor:
    """Return the compared statistics of the second half of the sweeps, [n, sweeps, S]."""
    chains = samples.arrays["chains"][..., COMPARED_COLUMNS]
    return chains[:, chains.shape[1] // 2 :]


def _r_hat_limits(samples: GatheredSamples, num_sweeps: int) -> Tensor:
    """Return the R-hat above which each measurement gets a warning, float64 [M].

    References: `diagnostics.r_hat_limit`.
    """
    num_statistics = len(COMPARED_COLUMNS) * len(samples.rows)
    limits = torch.full((len(samples.rows),), math.inf, dtype=torch.float64)
    for m, rows in enumerate(samples.rows):
        if len(rows) > 1 and num_sweeps >= diagnostics.MIN_CHAIN_LENGTH:
            limit = diagnostics.r_hat_limit(len(rows), num_sweeps, num_statistics, R_HAT_LEVEL)
            limits[m] = max(MIN_R_HAT_LIMIT, limit)
    return limits


def _check_fit(samples: GatheredSamples, checks: dict[str, Tensor]) -> None:
    """Add chi-square and predictive p-values of every measurement to `checks`."""
    mask = samples.problem.operator.observed_mask(samples.shape)
    model_draws = _draw_from_model(samples)
    model_discrepancies = torch.empty(0)
    for m, rows in enumerate(samples.rows):
        # 1. The problem of this measurement; an unknown parameter is at its posterior median.
        x = samples.x[rows].double()
        problem = samples.problem.select(samples.measurement_ids[m : m + 1], samples.shape)
        noise = problem.noise
        noiseless = problem.operator(x)
        if isinstance(problem, BlindProblem):
            values = samples.arrays[problem.unknown.name][rows]
            noise, noiseless = problem.with_row_values(x, values)
            problem = problem.with_value(float(values.median()))
        y = problem.measurements(samples.shape)
        number = int(samples.numbers[m])

        # 2. Prior predictive p-value; the draws are those of the first measurement, unless an
        # unknown parameter differs between measurements.
        if len(model_draws):
            if m == 0 or isinstance(samples.problem, BlindProblem):
                model_discrepancies = _model_discrepancies(samples, problem, model_draws, number)
            num_compared = min(len(rows), MAX_MODEL_DRAWS)
            discrepancies = _discrepancies_given_data(
                samples,
                problem,
                samples.x[rows[:MAX_MODEL_DRAWS]],
                y.expand(num_compared, *y.shape[1:]),
            )
            num_values = problem.terms(x).shape[1]
            checks["prior_predictive_p"][m] = diagnostics.prior_predictive_p_value(
                discrepancies.mean(0), model_discrepancies, num_values
            )

        # 3. Chi-square and posterior predictive p-value.
        has_variance = bool((noise.variance(noiseless) > 0).any())
        if not isinstance(noise, Exact) and has_variance:
            num_observed = noiseless[0].numel() if mask is None else int(mask.sum())
            residuals = diagnostics.standardised_residuals(noise, y, noiseless, mask)
            chi_square = (residuals**2).sum(1) / num_observed
            checks["chi_square"][m] = chi_square.mean()
            seed = fold_seed(fold_seed(samples.seed, REPLICATE_KEY), number)
            p_value = diagnostics.posterior_predictive_p_value(noise, y, noiseless, mask, seed)
            checks["posterior_predictive_p"][m] = p_value


def _model_discrepancies(
    samples: GatheredSamples, problem: InverseProblem, model_draws: Tensor, number: int
) -> Tensor:
    """Simulate measurements of draws of the model, and return their discrepancies [N, 3].

    References: `_discrepancies_given_data`.
    """
    seed = fold_seed(samples.seed, PERTURBATION_KEY)
    streams = SampleStreams(seed, torch.arange(len(model_draws))).fold_in(number)
    y = problem.noise.draw(problem.operator(model_draws.double()), streams.step(0))
    return _discrepancies_given_data(samples, problem, model_draws, y)


def _draw_from_model(samples: GatheredSamples) -> Tensor:
    """Draw unconditional samples for a small share of the run's network evaluations.

    Returns:
        Counts [n, *shape]; empty if nothing is measured, or if too few can be drawn.
    """
    budget = MAX_COST_SHARE * samples.draw.nfe * len(samples.x)
    evaluations_per_draw = 2 * MODEL_DRAW_STEPS
    num_draws = min(MAX_MODEL_DRAWS, int(budget / evaluations_per_draw))
    if num_draws < diagnostics.MIN_MODEL_DRAWS or isinstance(samples.problem.noise, Tilt):
        return torch.empty(0)
    seed = fold_seed(samples.seed, MODEL_DRAW_KEY)
    return torch.as_tensor(samples.draw.draw_unconditional(num_draws, seed))


def _discrepancies_given_data(
    samples: GatheredSamples, problem: InverseProblem, x: Tensor, y: Tensor
) -> Tensor:
    """Return how measurements differ from measurements of data that are similar to x.

    Args:
        samples: samples of the draw, whose model makes similar data.
        problem: problem of one measurement.
        x: data [n, *shape].
        y: measurements [n, *measurement].

    Returns:
        Mean over noised states of each row of x, float64 [n, 3].

    References: `diagnostics.rank_discrepancies`.
    """
    mask = problem.operator.observed_mask(samples.shape)
    results = []
    for turn in range(NUM_PERTURBATIONS):
        seed = fold_seed(fold_seed(samples.seed, PERTURBATION_KEY), turn)
        similar_data = samples.draw.perturb(x, NUM_PERTURBED, seed)
        for row, similar in enumerate(similar_data):
            source = SampleStreams(seed, torch.arange(NUM_PERTURBED)).fold_in(row).step(0)
            simulated = problem.noise.draw(problem.operator(similar.double()), source)
            both = torch.cat([y[row : row + 1], simulated])
            values = both.flatten(1) if mask is None else both[:, mask]
            results.append(diagnostics.rank_discrepancies(values[:1], values[1:, None]))
    return torch.cat(results).view(NUM_PERTURBATIONS, len(x), -1).mean(0)


def worst_checks(checks: dict[str, Tensor]) -> dict[str, float]:
    """Return the worst value of every check over measurements, without those that are all NaN."""
    worst = {"r_hat": _largest(checks["r_hat"])}
    for name in ("ess_bulk", "ess_tail", "posterior_predictive_p", "prior_predictive_p"):
        worst[name] = _smallest(checks[name])
    return {name: value for name, value in worst.items() if not math.isnan(value)}


def warning_lines(
    samples: GatheredSamples, checks: dict[str, Tensor], rank_p_value: float
) -> list[str]:
    """Return one line for every sign that the samples should not be trusted."""
    no_limits = torch.full_like(checks["r_hat"], math.inf)
    r_hat_limits = checks.get("r_hat_limit", no_limits)
    is_impossible = torch.isneginf(samples.log_likelihood)
    impossible = torch.tensor([bool(is_impossible[rows].any()) for rows in samples.rows])
    findings = [
        (
            impossible,
            "samples contradict y (log-likelihood -inf): no sample that agrees was found",
        ),
        (
            checks["r_hat"] > r_hat_limits,
            f"R-hat up to {_largest(checks['r_hat']):.2f} (above "
            f"{_smallest(r_hat_limits):.2f} in at most {R_HAT_FALSE_ALARMS:.0%} of runs whose "
            f"chains agree), effective samples down to {_smallest(checks['ess_bulk']):.0f}: "
            "the chains disagree; use more sweeps",
        ),
        (
            checks["posterior_predictive_p"] < MIN_P_VALUE,
            f"posterior predictive p below {MIN_P_VALUE}, chi-square up to "
            f"{_largest(checks['chi_square']):.3g} per element: many samples do not explain y "
            "with this noise and operator; check both",
        ),
        (
            checks["prior_predictive_p"] < MIN_P_VALUE,
            f"prior predictive p below {MIN_P_VALUE}: y is unlike measurements of draws of the "
            "model; check the operator, the units, and whether the model was trained on such "
            "data",
        ),
        (
            checks["repaired_share"] > MAX_REPAIRED_SHARE,
            f"up to {_largest(checks['repaired_share']):.0%} of the known elements "
            "contradicted y at the end and were replaced: the other elements were drawn given "
            "wrong values",
        ),
    ]
    lines = []
    for is_bad, text in findings:
        if bool(is_bad.any()):
            lines.append(f"{int(is_bad.sum())} of {len(is_bad)} measurements: {text}")
    if rank_p_value < MIN_P_VALUE:
        lines.append(
            f"rank_p_value {rank_p_value:.1g}: the ranks of truths among their samples are not "
            "uniform, so that intervals do not cover as they should"
        )
    return lines


def _largest(values: Tensor) -> float:
    """Return the largest value that is not NaN; NaN if there is none."""
    return float(np.fmax.reduce(values.numpy()))


def _smallest(values: Tensor) -> float:
    """Return the smallest value that is not NaN; NaN if there is none."""
    return float(np.fmin.reduce(values.numpy()))
