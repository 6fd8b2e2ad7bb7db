"""The report of a posterior draw: its files and pictures, and values for metrics.json.

`gathered_samples.py` groups all samples by measurement, `measurement_checks.py` checks every
measurement, and `truth_comparison.py` compares samples with truths. `output_files.py` writes arrays
and tables, and `plots.py` draws pictures.
"""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import Tensor

from blackout.pictures import save_picture
from blackout.posterior import diagnostics
from blackout.posterior.blind import BlindProblem
from blackout.posterior.diagnostics import QUANTILE_PROBABILITIES
from blackout.posterior.gathered_samples import COST_COLUMNS, GatheredSamples, gather_samples
from blackout.posterior.measurement_checks import compute_checks, warning_lines, worst_checks
from blackout.posterior.noise import Exact
from blackout.posterior.operators import SampleSet
from blackout.posterior.output_files import write_arrays, write_inference_data, write_samples_table
from blackout.posterior.plots import plot_calibration, plot_reconstruction
from blackout.posterior.rewards import Tilt
from blackout.posterior.truth_comparison import measure_errors, rank_truths, reference_values
from blackout.protocols import Samples


class PosteriorOutputs:
    """Collects all samples, then writes their files.

    They are posterior.npz, posterior.csv, posterior.nc, reconstruction.png and, with truths,
    calibration.png.

    Args:
        draw: the `PosteriorDraw` of the samples.
        seed: of the samples.
    """

    def __init__(self, draw: Any, seed: int) -> None:
        self._draw = draw
        self._seed = seed
        self._batches: list[tuple[Tensor, Samples]] = []

    def update(self, samples: Samples, indices: Tensor) -> None:
        """Add a batch of samples; it may come from an earlier call of the same command.

        Args:
            samples: arrays of the batch. The seconds, the last column of `_cost` [b, sweeps, 5],
                are summed over samples.
            indices: rows of the draw, int64 [b].
        """
        self._batches.append((indices, dict(samples)))
        cost = samples["_cost"]
        if not self._draw.cost:
            for row in cost[0].tolist():
                sweep = dict(zip(COST_COLUMNS, row, strict=True))
                sweep["seconds"] = 0.0
                self._draw.cost.append(sweep)
        seconds_of_sweeps = cost[..., -1].sum(0).tolist()
        for sweep, seconds in zip(self._draw.cost, seconds_of_sweeps, strict=True):
            sweep["seconds"] += seconds

    def write(self, directory: Path) -> dict[str, Any]:
        """Write the files, and return `values` and settings for metrics.json."""
        # 1. Estimates and checks of every measurement.
        samples = gather_samples(self._draw, self._seed, self._batches)
        truths = samples.truths
        checks = compute_checks(samples)
        write_arrays(samples, checks, directory / "posterior.npz")
        write_samples_table(samples, directory / "posterior.csv")
        if find_spec("h5py") is not None:
            write_inference_data(samples, directory / "posterior.nc")
        save_picture(plot_reconstruction(samples), directory / "reconstruction.png")

        # 2. Values over all measurements.
        values = worst_checks(checks) | _total_cost(samples, checks)
        values |= _measure_fit(samples, checks) | _evidence(samples, checks)
        if truths is not None:
            values |= measure_errors(samples, truths)
        report = _score(samples, directory)
        values |= report.pop("values", {})
        if truths is not None:
            report["references"] = reference_values(samples, truths)

        # 3. Calibration, with truths and at least two samples of each measurement.
        calibration: dict[str, float] = {}
        if truths is not None and min(map(len, samples.rows)) > 1:
            ranks, element_ranks = rank_truths(samples, truths)
            if len(samples.rows) > 1:
                save_picture(plot_calibration(ranks, element_ranks), directory / "calibration.png")
            for percent in (50, 90):
                coverage = diagnostics.coverage(element_ranks, percent / 100)
                calibration[f"coverage_{percent}"] = coverage
            rank_p_value = diagnostics.rank_p_value(ranks)
            if not math.isnan(rank_p_value):
                calibration["rank_p_value"] = rank_p_value
            report["calibration"] = {
                **calibration,
                "measurements": len(samples.rows),
                "truths": self._draw.measurements.source.split(":")[0],
            }

        # 4. Warnings.
        warnings = warning_lines(samples, checks, calibration.get("rank_p_value", math.nan))
        for line in warnings:
            print(f"warning: {line}")
        return {**report, "warnings": warnings, "values": values | calibration}


def _total_cost(samples: GatheredSamples, checks: dict[str, Tensor]) -> dict[str, float]:
    """Return the cost of a sample, the seconds of all, and the share of repaired elements."""
    cost = samples.draw.cost
    likelihood_evaluations = sum(sweep["likelihood_evaluations"] for sweep in cost)
    return {
        "network_evaluations": float(samples.draw.nfe),
        "likelihood_evaluations": float(likelihood_evaluations),
        "seconds": sum(sweep["seconds"] for sweep in cost),
        "repaired_share": float(checks["repaired_share"].mean()),
        "samples": float(len(samples.x)),
    }


def _evidence(samples: GatheredSamples, checks: dict[str, Tensor]) -> dict[str, float]:
    """Return log p(y) of all measurements together, and its standard error.

    For one measurement also the quantiles of an unknown parameter.

    References: sums of independent estimates, see `diagnostics.log_mean_exp`.
    """
    values = {}
    if "log_evidence" in checks:
        values["log_evidence"] = float(checks["log_evidence"].sum())
        error = float((checks["log_evidence_error"] ** 2).sum().sqrt())
        if not math.isnan(error):
            values["log_evidence_error"] = error
    if isinstance(samples.problem, BlindProblem) and len(samples.rows) == 1:
        name = samples.problem.unknown.name
        quantiles = checks[name][0].tolist()
        for probability, value in zip(QUANTILE_PROBABILITIES, quantiles, strict=True):
            values[f"{name}_{100 * probability:.0f}"] = value
    return values


def _measure_fit(samples: GatheredSamples, checks: dict[str, Tensor]) -> dict[str, float]:
    """Return how well samples explain their measurements.

    References: `diagnostics.standardised_residuals`.
    """
    problem = samples.problem.select(samples.measurement_index, samples.shape)
    m = problem.operator(samples.x.double())
    values = {"log_likelihood": float(samples.log_likelihood.mean())}
    if isinstance(problem.noise, Tilt):
        values["reward"] = float(m.flatten(1).sum(1).mean())
    if isinstance(problem.noise, Exact):
        y = problem.measurements(samples.shape)
        mask = problem.operator.observed_mask(samples.shape)
        residuals = diagnostics.standardised_residuals(problem.noise, y, m, mask)
        values["violations"] = float((residuals != 0).double().sum(1).mean())
    elif not bool(checks["chi_square"].isnan().any()):
        values["residual_chi_square"] = float(checks["chi_square"].mean())
    return values


def _score(samples: GatheredSamples, directory: Path) -> dict[str, Any]:
    """Return scores by an exact distribution, if the model is one, and by the operator."""
    model = samples.draw.model
    sample_set = SampleSet(
        samples.x, samples.measurement_index, samples.problem, samples.all_truths, samples.seed
    )
    model_report = model.score(sample_set, directory) if hasattr(model, "score") else {}
    operator_report = samples.draw.measurements.operator.score(sample_set, directory)
    values = model_report.get("values", {}) | operator_report.get("values", {})
    return {**model_report, **operator_report, "values": values}
