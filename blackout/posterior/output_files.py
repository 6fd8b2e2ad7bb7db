"""Files of a posterior draw: posterior.npz, posterior.csv and posterior.nc."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blackout.files import replacing, save_arrays, write_table
from blackout.posterior import diagnostics
from blackout.posterior.blind import BlindProblem
from blackout.posterior.diagnostics import QUANTILE_PROBABILITIES
from blackout.posterior.gathered_samples import COST_COLUMNS, GatheredSamples, standard_deviation
from blackout.posterior.measurement_checks import second_half_statistics

MAX_TABLE_ROWS = 100_000  # rows of posterior.csv


def write_arrays(samples: GatheredSamples, checks: dict[str, Tensor], path: Path) -> None:
    """Write posterior.npz: measurements, estimates, checks, and the cost of every sweep.

    Args:
        samples: all samples.
        checks: checks of every measurement by name; see `compute_checks`.
        path: of the file.
    """
    quantiles = _channels_last(samples.quantiles.flatten(0, 1))
    most_likely = [rows[samples.log_likelihood[rows].argmax()] for rows in samples.rows]
    cost = [[sweep[name] for name in COST_COLUMNS] for sweep in samples.draw.cost]
    arrays = {
        "measurement": _channels_last(samples.y),
        "mean": _channels_last(samples.mean),
        "std": _channels_last(samples.std),
        "log_likelihood": samples.log_likelihood,
        "probabilities": torch.tensor(QUANTILE_PROBABILITIES),
        "quantiles": quantiles.unflatten(0, (-1, len(QUANTILE_PROBABILITIES))),
        "most_likely": torch.stack(most_likely),
        "number": samples.numbers,
        **checks,
        "cost": torch.tensor(cost),
    }
    if samples.truths is not None:
        arrays["truth"] = _channels_last(samples.truths)
    save_arrays(path, **{name: values.numpy() for name, values in arrays.items()})


def write_samples_table(samples: GatheredSamples, path: Path) -> None:
    """Write posterior.csv: a row for the total, and for every element, of each measurement.

    Its columns are mean, standard deviation and quantiles of the samples, and the truth where
    it is known. Elements have their names in the training data, or their indices. Only the
    first measurements are written if all would need more than `MAX_TABLE_ROWS` rows.
    """
    truths = samples.truths
    data = samples.draw.model.config.get("data", {})
    names = data.get("features") or ()
    if len(names) != math.prod(samples.shape):
        names = [",".join(map(str, index)) for index in np.ndindex(*samples.shape)]
    num_rows = 1 + len(names)
    num_measurements = max(1, MAX_TABLE_ROWS // num_rows)
    quantile_names = [f"q{100 * p:02.0f}" for p in QUANTILE_PROBABILITIES]
    columns = ["measurement", "element", "mean", "std", *quantile_names]
    if truths is not None:
        columns.append("truth")
    rows: list[dict[str, Any]] = []
    for k, sample_rows in enumerate(samples.rows[:num_measurements]):
        x = samples.x[sample_rows].double().flatten(1)
        x = torch.cat([x.sum(1, keepdim=True), x], 1)
        values = torch.stack([x.mean(0), standard_deviation(x)])
        quantiles = diagnostics.predictive_quantiles(x)
        parts = [values, quantiles]
        if truths is not None:
            elements = truths[k].double().flatten()
            parts.append(torch.cat([elements.sum()[None], elements])[None])
        number = int(samples.numbers[k])
        for name, numbers in zip(["total", *names], torch.cat(parts).T.tolist(), strict=True):
            cells = [f"{value:.6g}" for value in numbers]
            rows.append(dict(zip(columns, [number, name, *cells], strict=True)))
    write_table(columns, rows, path)


def write_inference_data(samples: GatheredSamples, path: Path) -> None:
    """Write posterior.nc for `arviz.from_netcdf`: netCDF-4 by HDF5's dimension scales.

    Samples are draws of one chain. For Markov chains, `sample_stats` has the statistics from
    which R-hat is computed.
    """
    import h5py  # type: ignore[import-not-found,unused-ignore]

    num_draws = min(map(len, samples.rows))

    def to_draws(values: Tensor) -> np.ndarray:
        """Return [draw, measurement, ...] of values of all samples."""
        draws = torch.stack([values[rows[:num_draws]] for rows in samples.rows], 1)
        return draws.double().numpy()

    # 1. The variables of every group.
    x = to_draws(_channels_last(samples.x))
    posterior = {"x": x[None]}
    if isinstance(samples.problem, BlindProblem):
        name = samples.problem.unknown.name
        posterior[name] = to_draws(samples.arrays[name])[None]
    sample_stats: dict[str, np.ndarray] = {}
    if samples.draw.method.is_markov_chain:
        # [chain, draw, measurement, statistic]
        late = to_draws(second_half_statistics(samples)).swapaxes(1, 2)
        sample_stats = {
            "lp": late[..., 0],
            "total": late[..., 1],
            "projection": late[..., 2:],
        }
    observed_data = {"y": _channels_last(samples.y).numpy()}
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


def _channels_last(values: Tensor) -> Tensor:
    """Return images [N, C, H, W] as [N, H, W, C], and other arrays as they are."""
    return values.permute(0, 2, 3, 1).contiguous() if values.ndim == 4 else values
