"""Files of a posterior draw besides its samples: estimates, diagnostics, errors and pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from blackout.diffusion.plots import grid
from blackout.files import replacing, save_arrays, save_picture, write_table
from blackout.posterior import diagnostics
from blackout.posterior.blind import BlindProblem
from blackout.posterior.diagnostics import CHAIN_STATISTICS, NUM_PROJECTIONS, QUANTILE_PROBABILITIES
from blackout.posterior.noise import Exact
from blackout.posterior.operators import SampleSet
from blackout.posterior.problem import InverseProblem
from blackout.posterior.rewards import Tilt
from blackout.protocols import Samples
from blackout.random import SampleStreams, fold_seed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# columns of the cost of every sweep of a sample; its seconds are a share of those of its batch
COST_COLUMNS = ("sweep", "level", "network_evaluations", "likelihood_evaluations", "seconds")

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

MAX_TABLE_ROWS = 100_000  # rows of posterior.csv

# pictures
MAX_ROWS = 8  # measurements of reconstruction.png
MAX_SAMPLE_COLUMNS = 6
MIN_PICTURE_ELEMENTS = 3
RANK_HISTOGRAMS = ("total", "hidden total", "log_likelihood", "projection 0")
RANK_BAND = (0.005, 0.995)  # quantiles of the counts of a bin


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
        # 1. Estimates and diagnostics of every measurement.
        self._gather()
        self._diagnose()
        self._save_arrays(directory / "posterior.npz")
        self._save_table(directory / "posterior.csv")
        if find_spec("h5py") is not None:
            self._save_inference_data(directory / "posterior.nc")
        save_picture(self._plot_reconstruction(), directory / "reconstruction.png")

        # 2. Values over all measurements.
        values = self._worst_checks() | self._total_cost() | self._fit() | self._evidence()
        if self.truth is not None:
            values |= self._errors(self.truth)
        report = self._score(directory)
        values |= report.pop("values", {})
        if self.truth is not None:
            report["references"] = self._reference_values(self.truth)

        # 3. Calibration, with truths and at least two samples of each measurement.
        calibration: dict[str, float] = {}
        if self.truth is not None and min(map(len, self.rows)) > 1:
            ranks, element_ranks = self._ranks(self.truth)
            if len(self.rows) > 1:
                save_picture(plot_calibration(ranks, element_ranks), directory / "calibration.png")
            for percent in (50, 90):
                coverage = diagnostics.coverage(element_ranks, percent / 100)
                calibration[f"coverage_{percent}"] = coverage
            rank_p_value = diagnostics.rank_p_value(ranks)
            if not math.isnan(rank_p_value):
                calibration["rank_p_value"] = rank_p_value
            report["calibration"] = {
                **calibration,
                "measurements": len(self.rows),
                "truths": self._draw.measurements.source.split(":")[0],
            }

        # 4. Warnings.
        warnings = self._warnings(calibration.get("rank_p_value", math.nan))
        for line in warnings:
            print(f"warning: {line}")
        return {**report, "warnings": warnings, "values": values | calibration}

    def _gather(self) -> None:
        """Concatenate the batches, and compute means, deviations and quantiles by measurement."""
        # 1. All samples.
        names = self._batches[0][1]
        self.arrays = {
            name: torch.cat([samples[name] for _, samples in self._batches]) for name in names
        }
        self.x = self.arrays["samples"]
        self.log_likelihood = self.arrays["log_likelihood"]
        self.shape = tuple(self.x.shape[1:])

        # 2. Their measurements, and the rows of each.
        indices = torch.cat([indices for indices, _ in self._batches])
        self.measurement_index = indices // self._draw.num_samples
        self.chosen, self.place = self.measurement_index.unique(return_inverse=True)
        self.rows = [(self.measurement_index == m).nonzero()[:, 0] for m in self.chosen]
        measurements = self._draw.measurements
        self.problem = measurements.problem(self._seed)
        self.y, self.truths = measurements.simulate(self._seed)
        self.truth = None if self.truths is None else self.truths[self.chosen]

        # 3. Estimates.
        groups = [self.x[rows].double() for rows in self.rows]
        self.mean = torch.stack([group.mean(0) for group in groups])
        self.std = torch.stack([_standard_deviation(group) for group in groups])
        self.quantiles = torch.stack([diagnostics.predictive_quantiles(group) for group in groups])

    def _save_arrays(self, path: Path) -> None:
        """Write posterior.npz."""
        quantiles = _channels_last(self.quantiles.flatten(0, 1))
        most_likely = [rows[self.log_likelihood[rows].argmax()] for rows in self.rows]
        cost = [[sweep[name] for name in COST_COLUMNS] for sweep in self._draw.cost]
        arrays = {
            "measurement": _channels_last(self.y[self.chosen]),
            "mean": _channels_last(self.mean),
            "std": _channels_last(self.std),
            "log_likelihood": self.log_likelihood,
            "probabilities": torch.tensor(QUANTILE_PROBABILITIES),
            "quantiles": quantiles.unflatten(0, (-1, len(QUANTILE_PROBABILITIES))),
            "most_likely": torch.stack(most_likely),
            "number": self._draw.measurements.numbers[self.chosen],
            **self.checks,
            "cost": torch.tensor(cost),
        }
        if self.truth is not None:
            arrays["truth"] = _channels_last(self.truth)
        save_arrays(path, **{name: values.numpy() for name, values in arrays.items()})

    def _save_table(self, path: Path) -> None:
        """Write posterior.csv: a row for the total, and for every element, of each measurement.

        Its columns are mean, standard deviation and quantiles of the samples, and the truth where
        it is known. Elements have their names in the training data, or their indices. Only the
        first measurements are written if all would need more than `MAX_TABLE_ROWS` rows.
        """
        data = self._draw.model.config.get("data", {})
        names = data.get("features") or ()
        if len(names) != math.prod(self.shape):
            names = [",".join(map(str, index)) for index in np.ndindex(*self.shape)]
        num_rows = 1 + len(names)
        num_measurements = max(1, MAX_TABLE_ROWS // num_rows)
        quantile_names = [f"q{100 * p:02.0f}" for p in QUANTILE_PROBABILITIES]
        columns = ["measurement", "element", "mean", "std", *quantile_names]
        if self.truth is not None:
            columns.append("truth")
        rows: list[dict[str, Any]] = []
        for k, sample_rows in enumerate(self.rows[:num_measurements]):
            x = self.x[sample_rows].double().flatten(1)
            x = torch.cat([x.sum(1, keepdim=True), x], 1)
            values = torch.stack([x.mean(0), _standard_deviation(x)])
            quantiles = diagnostics.predictive_quantiles(x)
            parts = [values, quantiles]
            if self.truth is not None:
                elements = self.truth[k].double().flatten()
                parts.append(torch.cat([elements.sum()[None], elements])[None])
            number = int(self._draw.measurements.numbers[self.chosen[k]])
            for name, numbers in zip(["total", *names], torch.cat(parts).T.tolist(), strict=True):
                cells = [f"{value:.6g}" for value in numbers]
                rows.append(dict(zip(columns, [number, name, *cells], strict=True)))
        write_table(columns, rows, path)

    def _save_inference_data(self, path: Path) -> None:
        """Write posterior.nc for `arviz.from_netcdf`: netCDF-4 by HDF5's dimension scales.

        Samples are draws of one chain. For Markov chains, `sample_stats` has the statistics from
        which R-hat is computed.
        """
        import h5py  # type: ignore[import-not-found,unused-ignore]

        num_draws = min(map(len, self.rows))

        def to_draws(values: Tensor) -> np.ndarray:
            """Return [draw, measurement, ...] of values of all samples."""
            draws = torch.stack([values[rows[:num_draws]] for rows in self.rows], 1)
            return draws.double().numpy()

        # 1. The variables of every group.
        x = to_draws(_channels_last(self.x))
        posterior = {"x": x[None]}
        if isinstance(self.problem, BlindProblem):
            name = self.problem.unknown.name
            posterior[name] = to_draws(self.arrays[name])[None]
        sample_stats: dict[str, np.ndarray] = {}
        if self._draw.method.is_markov_chain:
            late = to_draws(self._late_statistics()).swapaxes(
                1, 2
            )  # [chain, draw, measurement, statistic]
            sample_stats = {
                "lp": late[..., 0],
                "total": late[..., 1],
                "projection": late[..., 2:],
            }
        observed_data = {"y": _channels_last(self.y[self.chosen]).numpy()}
        groups = {
            "posterior": posterior,
            "sample_stats": sample_stats,
            "observed_data": observed_data,
        }

        # 2. The file, with a scale for every dimension.
        with replacing(path) as part, h5py.File(part, "w") as file:
            for group, variables in groups.items():
                dims = ["chain", "draw", "measurement"]
                if group == "observed_data":
                    dims = ["measurement"]
                for variable, values in variables.items():
                    data = file.require_group(group).create_dataset(variable, data=values)
                    num_other = values.ndim - len(dims)
                    other_dims = [f"{variable}_dim_{number}" for number in range(num_other)]
                    for axis, dim in enumerate([*dims, *other_dims]):
                        if dim not in file[group]:
                            file[group][dim] = np.arange(values.shape[axis])
                            file[group][dim].make_scale(dim)
                        data.dims[axis].attach_scale(file[group][dim])

    def _late_statistics(self) -> Tensor:
        """Return the compared statistics of the second half of the sweeps, [n, sweeps, S]."""
        chains = self.arrays["chains"][..., COMPARED_COLUMNS]
        return chains[:, chains.shape[1] // 2 :]

    def _plot_reconstruction(self) -> Figure | None:
        """Plot a row for every measurement, of at most eight.

        Columns are truth and estimate from y, where they exist, mean, standard deviation, and
        samples (black where there are fewer). White is the largest count of a sample, and the
        largest standard deviation. None for vectors of one or two elements.
        """
        if math.prod(self.shape) < MIN_PICTURE_ELEMENTS:
            return None
        from matplotlib.figure import Figure

        # 1. The columns.
        max_count = max(int(self.x.max()), 1)
        max_std = max(float(self.std[:MAX_ROWS].max()), 1e-12)
        columns = {}
        if self.truth is not None:
            columns["truth"] = self.truth
        estimate = self.problem.estimate(len(self.y), self.shape)
        if estimate is not None:
            columns["estimate from y"] = estimate[self.chosen]
        columns["mean"] = self.mean
        columns[f"deviation, to {max_std:.3g}"] = self.std * (max_count / max_std)
        black = torch.zeros_like(self.x[0])
        for k in range(min(MAX_SAMPLE_COLUMNS, max(map(len, self.rows)))):
            samples = [self.x[rows[k]] if k < len(rows) else black for rows in self.rows[:MAX_ROWS]]
            columns[f"sample {k}"] = torch.stack(samples)

        # 2. The figure.
        num_rows = min(MAX_ROWS, len(self.rows))
        size = (1.1 * len(columns) + 0.3, 1.1 * num_rows + 0.3)
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(1, len(columns))
        for axis, (title, values) in zip(axes, columns.items(), strict=True):
            images = values[:num_rows].double().clamp(0, max_count)
            strip = np.asarray(grid(images, max_count, 1))
            axis.imshow(strip, aspect="auto", interpolation="nearest")
            axis.set_title(title, fontsize=7)
            axis.set(xticks=[], yticks=[])
        numbers = self._draw.measurements.numbers[self.chosen[:num_rows]].tolist()
        row_centres = (np.arange(num_rows) + 0.5) * len(strip) / num_rows
        axes[0].set_yticks(row_centres, [f"{m}" for m in numbers], fontsize=7)
        axes[0].set_ylabel("measurement", fontsize=7)
        return figure

    def _diagnose(self) -> None:
        """Compute `checks`, numbers by name for every measurement, float64 [M, ...].

        `chi_square` is the mean square of standardised residuals.

        References: functions of `blackout.posterior.diagnostics`.
        """
        num_measurements = len(self.rows)
        names = (
            "r_hat",
            "ess_bulk",
            "ess_tail",
            "chi_square",
            "posterior_predictive_p",
            "prior_predictive_p",
        )
        self.checks = {
            name: torch.full((num_measurements,), math.nan, dtype=torch.float64) for name in names
        }
        if self._draw.method.is_markov_chain:
            self._diagnose_chains()
        self._diagnose_fit()

        # evidence, unknown parameters and repaired elements
        if "log_evidence" in self.arrays and self.problem.noise.normalised:
            logs = self.arrays["log_evidence"]
            evidence = [diagnostics.log_mean_exp(logs[rows].numpy()) for rows in self.rows]
            mean, error = torch.tensor(evidence, dtype=torch.float64).T
            self.checks["log_evidence"] = mean
            self.checks["log_evidence_error"] = error
        if isinstance(self.problem, BlindProblem):
            name = self.problem.unknown.name
            values = self.arrays[name]
            quantiles = [diagnostics.predictive_quantiles(values[rows]) for rows in self.rows]
            self.checks[name] = torch.stack(quantiles)
        num_repaired = self.arrays["num_repaired"].double()
        mean_repaired = torch.stack([num_repaired[rows].mean() for rows in self.rows])
        mask = self.problem.operator.observed_mask(self.shape)
        num_observed = math.prod(self.shape) if mask is None else int(mask.sum())
        self.checks["repaired_share"] = mean_repaired / num_observed

    def _diagnose_chains(self) -> None:
        """Compute the largest R-hat and the smallest ESS of every measurement."""
        late = self._late_statistics().double().numpy()
        for m, rows in enumerate(self.rows):
            statistics = [late[rows.numpy(), :, number] for number in range(late.shape[2])]
            self.checks["r_hat"][m] = max(map(diagnostics.r_hat, statistics))
            self.checks["ess_bulk"][m] = min(map(diagnostics.ess_bulk, statistics))
            self.checks["ess_tail"][m] = min(map(diagnostics.ess_tail, statistics))
        self.checks["r_hat_limit"] = self._r_hat_limits(late.shape[1])

    def _r_hat_limits(self, num_sweeps: int) -> Tensor:
        """Return the R-hat above which each measurement gets a warning, float64 [M].

        References: `diagnostics.r_hat_limit`.
        """
        num_statistics = len(COMPARED_COLUMNS) * len(self.rows)
        limits = torch.full((len(self.rows),), math.inf, dtype=torch.float64)
        for m, rows in enumerate(self.rows):
            if len(rows) > 1 and num_sweeps >= diagnostics.MIN_CHAIN_LENGTH:
                limit = diagnostics.r_hat_limit(len(rows), num_sweeps, num_statistics, R_HAT_LEVEL)
                limits[m] = max(MIN_R_HAT_LIMIT, limit)
        return limits

    def _diagnose_fit(self) -> None:
        """Compute chi-square and predictive p-values of every measurement."""
        mask = self.problem.operator.observed_mask(self.shape)
        model_draws = self._draw_from_model()
        model_discrepancies = torch.empty(0)
        for m, rows in enumerate(self.rows):
            # 1. The problem of this measurement; an unknown parameter is at its posterior median.
            x = self.x[rows].double()
            problem = self.problem.select(self.chosen[m : m + 1], self.shape)
            noise = problem.noise
            noiseless = problem.operator(x)
            if isinstance(problem, BlindProblem):
                values = self.arrays[problem.unknown.name][rows]
                noise, noiseless = problem.with_row_values(x, values)
                problem = problem.with_value(float(values.median()))
            y = problem.measurements(self.shape)
            number = int(self._draw.measurements.numbers[self.chosen[m]])

            # 2. Prior predictive p-value; the draws are those of the first measurement, unless an
            # unknown parameter differs between measurements.
            if len(model_draws):
                if m == 0 or isinstance(self.problem, BlindProblem):
                    model_discrepancies = self._model_discrepancies(problem, model_draws, number)
                num_compared = min(len(rows), MAX_MODEL_DRAWS)
                discrepancies = self._discrepancies_given_data(
                    problem,
                    self.x[rows[:MAX_MODEL_DRAWS]],
                    y.expand(num_compared, *y.shape[1:]),
                )
                num_values = problem.terms(x).shape[1]
                self.checks["prior_predictive_p"][m] = diagnostics.prior_predictive_p_value(
                    discrepancies.mean(0), model_discrepancies, num_values
                )

            # 3. Chi-square and posterior predictive p-value.
            has_variance = bool((noise.variance(noiseless) > 0).any())
            if not isinstance(noise, Exact) and has_variance:
                num_observed = noiseless[0].numel() if mask is None else int(mask.sum())
                residuals = diagnostics.standardised_residuals(noise, y, noiseless, mask)
                chi_square = (residuals**2).sum(1) / num_observed
                self.checks["chi_square"][m] = chi_square.mean()
                seed = fold_seed(fold_seed(self._seed, REPLICATE_KEY), number)
                p_value = diagnostics.posterior_predictive_p_value(noise, y, noiseless, mask, seed)
                self.checks["posterior_predictive_p"][m] = p_value

    def _model_discrepancies(
        self, problem: InverseProblem, model_draws: Tensor, number: int
    ) -> Tensor:
        """Simulate measurements of draws of the model, and return their discrepancies [N, 3].

        References: `_discrepancies_given_data`.
        """
        seed = fold_seed(self._seed, PERTURBATION_KEY)
        streams = SampleStreams(seed, torch.arange(len(model_draws))).fold_in(number)
        y = problem.noise.draw(problem.operator(model_draws.double()), streams.step(0))
        return self._discrepancies_given_data(problem, model_draws, y)

    def _draw_from_model(self) -> Tensor:
        """Draw unconditional samples for a small share of the run's network evaluations.

        Returns:
            Counts [n, *shape]; empty if nothing is measured, or if too few can be drawn.
        """
        budget = MAX_COST_SHARE * self._draw.nfe * len(self.x)
        evaluations_per_draw = 2 * MODEL_DRAW_STEPS
        num_draws = min(MAX_MODEL_DRAWS, int(budget / evaluations_per_draw))
        if num_draws < diagnostics.MIN_MODEL_DRAWS or isinstance(self.problem.noise, Tilt):
            return torch.empty(0)
        seed = fold_seed(self._seed, MODEL_DRAW_KEY)
        return torch.as_tensor(self._draw.draw_unconditional(num_draws, seed))

    def _discrepancies_given_data(self, problem: InverseProblem, x: Tensor, y: Tensor) -> Tensor:
        """Return how measurements differ from measurements of data that are similar to x.

        Args:
            problem: of one measurement.
            x: data [n, *shape].
            y: measurements [n, *measurement].

        Returns:
            Mean over noised states of each row of x, float64 [n, 3].

        References: `diagnostics.rank_discrepancies`.
        """
        mask = problem.operator.observed_mask(self.shape)
        results = []
        for turn in range(NUM_PERTURBATIONS):
            seed = fold_seed(fold_seed(self._seed, PERTURBATION_KEY), turn)
            similar_data = self._draw.perturb(x, NUM_PERTURBED, seed)
            for row, similar in enumerate(similar_data):
                source = SampleStreams(seed, torch.arange(NUM_PERTURBED)).fold_in(row).step(0)
                simulated = problem.noise.draw(problem.operator(similar.double()), source)
                both = torch.cat([y[row : row + 1], simulated])
                values = both.flatten(1) if mask is None else both[:, mask]
                results.append(diagnostics.rank_discrepancies(values[:1], values[1:, None]))
        return torch.cat(results).view(NUM_PERTURBATIONS, len(x), -1).mean(0)

    def _worst_checks(self) -> dict[str, float]:
        """Return the checks of the worst measurement, those that are known."""
        worst = {"r_hat": _largest(self.checks["r_hat"])}
        for name in ("ess_bulk", "ess_tail", "posterior_predictive_p", "prior_predictive_p"):
            worst[name] = _smallest(self.checks[name])
        return {name: value for name, value in worst.items() if not math.isnan(value)}

    def _warnings(self, rank_p_value: float) -> list[str]:
        """Return one line for every sign that the samples should not be trusted."""
        checks = self.checks
        no_limits = torch.full_like(checks["r_hat"], math.inf)
        r_hat_limits = checks.get("r_hat_limit", no_limits)
        is_impossible = torch.isneginf(self.log_likelihood)
        impossible = torch.tensor([bool(is_impossible[rows].any()) for rows in self.rows])
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

    def _total_cost(self) -> dict[str, float]:
        """Return the cost of a sample, the seconds of all, and the share of repaired elements."""
        cost = self._draw.cost
        likelihood_evaluations = sum(sweep["likelihood_evaluations"] for sweep in cost)
        return {
            "network_evaluations": float(self._draw.nfe),
            "likelihood_evaluations": float(likelihood_evaluations),
            "seconds": sum(sweep["seconds"] for sweep in cost),
            "repaired_share": float(self.checks["repaired_share"].mean()),
            "samples": float(len(self.x)),
        }

    def _evidence(self) -> dict[str, float]:
        """Return log p(y) of all measurements together, and its standard error.

        For one measurement also the quantiles of an unknown parameter.

        References: sums of independent estimates, see `diagnostics.log_mean_exp`.
        """
        values = {}
        if "log_evidence" in self.checks:
            values["log_evidence"] = float(self.checks["log_evidence"].sum())
            error = float((self.checks["log_evidence_error"] ** 2).sum().sqrt())
            if not math.isnan(error):
                values["log_evidence_error"] = error
        if isinstance(self.problem, BlindProblem) and len(self.rows) == 1:
            name = self.problem.unknown.name
            quantiles = self.checks[name][0].tolist()
            for probability, value in zip(QUANTILE_PROBABILITIES, quantiles, strict=True):
                values[f"{name}_{100 * probability:.0f}"] = value
        return values

    def _fit(self) -> dict[str, float]:
        """Return how well samples explain their measurements.

        References: `diagnostics.standardised_residuals`.
        """
        problem = self.problem.select(self.measurement_index, self.shape)
        m = problem.operator(self.x.double())
        values = {"log_likelihood": float(self.log_likelihood.mean())}
        if isinstance(problem.noise, Tilt):
            values["reward"] = float(m.flatten(1).sum(1).mean())
        if isinstance(problem.noise, Exact):
            y = problem.measurements(self.shape)
            mask = problem.operator.observed_mask(self.shape)
            residuals = diagnostics.standardised_residuals(problem.noise, y, m, mask)
            values["violations"] = float((residuals != 0).double().sum(1).mean())
        elif not bool(self.checks["chi_square"].isnan().any()):
            values["residual_chi_square"] = float(self.checks["chi_square"].mean())
        return values

    def _errors(self, truth: Tensor) -> dict[str, float]:
        """Return errors against truths [M, *shape], and the standard deviation of samples.

        References: `diagnostics.psnr`.
        """
        max_count = self._draw.model.process.max_count
        problem = self.problem.select(self.chosen, self.shape)
        variance = (self.std**2)[self.place]
        return {
            "psnr": float(diagnostics.psnr(self.x, truth[self.place], max_count).mean()),
            "psnr_of_mean": float(diagnostics.psnr(self.mean, truth, max_count).mean()),
            "std": float(variance.mean().sqrt()),
            "log_likelihood_of_truth": float(problem.log_likelihood(truth.double()).mean()),
        }

    def _reference_values(self, truth: Tensor) -> dict[str, dict[str, float]]:
        """Return reference values of errors.

        They are the error of the mean of the training data, which ignores the measurement, and of
        samples against other samples of their measurement, which is what a truth would have.

        References: `diagnostics.psnr`.
        """
        model = self._draw.model
        max_count = model.process.max_count
        training_mean = model.data_mean.double().cpu().expand(truth.shape)
        baseline = float(diagnostics.psnr(training_mean, truth, max_count).mean())
        references = {
            "psnr": {"training_mean": baseline},
            "psnr_of_mean": {"training_mean": baseline},
        }
        if min(map(len, self.rows)) > 1:
            rows = torch.cat(self.rows)
            other_rows = torch.cat([rows.roll(1) for rows in self.rows])
            values = diagnostics.psnr(self.x[rows], self.x[other_rows], max_count)
            references["psnr"] = {"of_other_samples": float(values.mean()), **references["psnr"]}
        return references

    def _score(self, directory: Path) -> dict[str, Any]:
        """Return scores by an exact distribution, if the model is one, and by the operator."""
        model = self._draw.model
        samples = SampleSet(self.x, self.measurement_index, self.problem, self.truths, self._seed)
        by_model = model.score(samples, directory) if hasattr(model, "score") else {}
        by_operator = self._draw.measurements.operator.score(samples, directory)
        values = by_model.get("values", {}) | by_operator.get("values", {})
        return {**by_model, **by_operator, "values": values}

    def _ranks(self, truth: Tensor) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return normalised ranks of truths [M, *shape] among their samples.

        Returns:
            Ranks of every statistic, [M] each, and of every element, [M, D]; if some elements are
            hidden, of these only.
        """
        mask = self.problem.operator.observed_mask(self.shape)
        hidden = None
        if mask is not None and self.y.shape[1:] == self.shape:
            hidden = ~mask.flatten().numpy()
        problem = self.problem.select(self.chosen, self.shape)
        log_likelihoods = problem.log_likelihood(truth.double()).numpy()
        flat_truth = truth.double().flatten(1).numpy()
        rng = np.random.default_rng(self._seed)
        ranks: dict[str, list[float]] = {}
        element_ranks = []
        for rows, x_true, log_likelihood in zip(
            self.rows, flat_truth, log_likelihoods, strict=True
        ):
            x = self.x[rows].double().flatten(1).numpy()
            of_samples = diagnostics.rank_statistics(x, self.log_likelihood[rows].numpy(), hidden)
            of_truth = diagnostics.rank_statistics(x_true, log_likelihood, hidden)
            for name, values in of_samples.items():
                rank = diagnostics.normalised_ranks(values, np.asarray(of_truth[name]), rng)
                ranks.setdefault(name, []).append(float(rank))
            element_ranks.append(diagnostics.normalised_ranks(x, x_true, rng))
        stacked = np.stack(element_ranks)
        if hidden is not None:
            stacked = stacked[:, hidden]
        return {name: np.array(values) for name, values in ranks.items()}, stacked


def _standard_deviation(x: Tensor) -> Tensor:
    """Return the standard deviation over samples [S, ...], with divisor S - 1; 0 for one sample."""
    return x.std(0) if len(x) > 1 else torch.zeros_like(x[0])


def _largest(values: Tensor) -> float:
    """Return the largest value that is not NaN; NaN if there is none."""
    return float(np.fmax.reduce(values.numpy()))


def _smallest(values: Tensor) -> float:
    """Return the smallest value that is not NaN; NaN if there is none."""
    return float(np.fmin.reduce(values.numpy()))


def plot_calibration(ranks: dict[str, np.ndarray], element_ranks: np.ndarray) -> Figure:
    """Plot histograms of the ranks of truths among samples, and the coverage of intervals.

    A band has 99 % of the bars of calibrated samples.

    Args:
        ranks: normalised ranks [M] by statistic.
        element_ranks: normalised ranks of elements [M, D].
    """
    from matplotlib.figure import Figure

    # 1. Histograms of ranks.
    names = [name for name in RANK_HISTOGRAMS if name in ranks]
    figure = Figure(figsize=(3 * (len(names) + 1), 2.6), layout="constrained")
    axes: Sequence[Any] = figure.subplots(1, len(names) + 1)
    for axis, name in zip(axes, names, strict=False):
        num_ranks = len(ranks[name])
        num_bins = max(2, min(diagnostics.MAX_RANK_BINS, num_ranks // 5))
        axis.hist(ranks[name], num_bins, (0, 1))
        axis.axhline(num_ranks / num_bins, color="black", linewidth=1)
        band = stats.binom.ppf(RANK_BAND, num_ranks, 1 / num_bins)
        axis.axhspan(*band, color="black", alpha=0.15)
        axis.set_title(f"rank of the true {name.replace('_', ' ')}", fontsize=8)

    # 2. Coverage.
    levels = np.linspace(0.02, 0.98, 49)
    axes[-1].plot(levels, [diagnostics.coverage(element_ranks, level) for level in levels])
    axes[-1].plot((0, 1), (0, 1), color="black", linewidth=1)
    axes[-1].set_title("coverage of intervals by their level", fontsize=8)
    return figure


def _channels_last(values: Tensor) -> Tensor:
    """Return images [N, C, H, W] as [N, H, W, C], and other arrays as they are."""
    return values.permute(0, 2, 3, 1).contiguous() if values.ndim == 4 else values
