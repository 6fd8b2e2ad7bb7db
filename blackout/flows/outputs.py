"""Estimates from weighted samples, and the files that show them."""

from __future__ import annotations

import math
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blackout.family import Samples
from blackout.files import replacing
from blackout.flows.interface import Runner
from blackout.flows.planar import Planar
from blackout.flows.simulation import Events, Paths
from blackout.flows.targets import Target, exact_values
from blackout.flows.weights import (
    effective_sample_size,
    log_mean_exp,
    relative_error,
    systematic_resample,
    weighted_mean,
)
from blackout.random import fold_seed

_UNRELIABLE = 0.05
"""ESS below which the error of log Z means nothing."""
_COMPARED = 2048
"""Exact chains with which a simulation in time steps is compared."""
_RESAMPLED, _EXACT = 11, 12


def estimates(target: Target, x: Tensor, log_weights: Tensor, log_density: Tensor) -> dict[str, float]:
    """log Z with error and lower bound, ESS, and weighted means with errors.

    Args:
        x: states, integers [N, d].
        log_weights, log_density: [N].
    """
    w = log_weights.double()
    values = {
        "log_z": float(log_mean_exp(w)),
        "log_z_error": float(relative_error(w)) if len(w) > 1 else math.nan,
        "log_z_lower": float(w.mean()),
        "ess": float(effective_sample_size(w)),
    }
    for name, value in {"energy": -log_density, **target.statistics(x)}.items():
        values[f"mean_{name}"], values[f"mean_{name}_error"] = weighted_mean(value, w)
    return values


def known_values(target: Target) -> dict[str, float]:
    """The exact values of what `estimates` estimates, as far as they are within reach."""
    known = dict(exact_values(target) or {})
    if "mean_log_density" in known:
        known["mean_energy"] = -known.pop("mean_log_density")
    return {f"{name}_exact": value for name, value in known.items()}


class FlowOutputs:
    """Takes samples in order; writes estimates, pictures and, if asked, indices of resampled samples.

    Args:
        draw: where the samples come from.
        seed: of the samples.
    """

    def __init__(self, draw: Runner, seed: int) -> None:
        self._draw, self._seed = draw, seed
        self._taken: list[Samples] = []

    @property
    def plane_scale(self) -> float | None:
        """Of states that code points of the plane: see `blackout.flows.planar.decode`; None for others."""
        target = self._draw.model.target
        return target.scale if isinstance(target, Planar) else None

    def update(self, samples: Samples, indices: Tensor) -> None:
        """Keep a batch."""
        self._taken.append(samples)

    def write(self, directory: Path) -> dict[str, Any]:
        """Write diagnostics.png, snapshots.png and, with `resample`, the array `resampled` into samples.npz."""
        from blackout.flows.plots import save_diagnostics, save_snapshots, save_trajectories

        draw, target = self._draw, self._draw.model.target
        arrays = self._arrays()
        number = draw.own or len(arrays["samples"])
        observed = draw.run(torch.arange(min(number, draw.batch_size)), fold_seed(self._seed, number), observe=True)
        if draw.own is not None:
            arrays = {name: values.cpu() for name, values in named(observed, draw.model.shape).items()}
            number = len(arrays["samples"])
        values = estimates(target, arrays["samples"].flatten(1), arrays["log_weights"], arrays["log_density"])
        values |= {
            "evaluations_per_sample": float(arrays["evaluations"].double().mean()),
            "jumps_per_sample": float(arrays["jumps"].double().mean()),
            **known_values(target),
        }
        said: dict[str, Any] = {"values": values, "estimated_from": number}
        if values["ess"] < _UNRELIABLE:
            said["warning"] = f"ESS below {_UNRELIABLE}: the estimates and their errors are not to be trusted"
            print(f"warning: {said['warning']}")
        if not isinstance(draw.simulation, Events):
            said["time_steps"] = compared_with_truth(draw, values, self._seed)
            print(said["time_steps"]["note"])
        if draw.resample:
            uniform = torch.rand(
                (), generator=torch.Generator().manual_seed(fold_seed(self._seed, _RESAMPLED))
            ).double()
            add_array(directory / "samples.npz", "resampled", systematic_resample(arrays["log_weights"], uniform))
        save_diagnostics(target, arrays, observed, values, directory / "diagnostics.png")
        if self.plane_scale is not None:
            save_trajectories(draw.model, observed, self.plane_scale, directory / "snapshots.png", self._seed)
        else:
            save_snapshots(draw.model, observed, directory / "snapshots.png", self._seed)
        return said

    def _arrays(self) -> dict[str, Tensor]:
        return {name: torch.cat([part[name] for part in self._taken]) for name in self._taken[0]}


def named(paths: Paths, shape: tuple[int, ...]) -> dict[str, Tensor]:
    """The arrays of samples.npz."""
    return {
        "samples": paths.states.x.view(-1, *shape),
        "log_weights": paths.log_weights,
        "log_density": paths.states.log_density,
        "jumps": paths.jumps.int(),
        "evaluations": paths.evaluations.int(),
    }


def compared_with_truth(draw: Runner, values: dict[str, float], seed: int) -> dict[str, Any]:
    """How far the weighted energy of a simulation in time steps is from the truth: exact, or by exact simulation."""
    if "mean_energy_exact" in values:
        mean, error, how = values["mean_energy_exact"], 0.0, "its exact value"
    else:
        model, events = draw.model, Events(draw.simulation.num_steps)
        indices = torch.arange(_COMPARED, device=model.device)
        paths = events.run(model.target, model.rates(), indices, fold_seed(seed, _EXACT))
        mean, error = weighted_mean(-paths.states.log_density.cpu(), paths.log_weights.cpu())
        how = f"that of simulation=events, whose weights are exact ({_COMPARED} chains)"
    off = (values["mean_energy"] - mean) / abs(mean) if mean else math.nan
    spread = math.hypot(error, values["mean_energy_error"]) / abs(mean) if mean else math.nan
    note = (
        f"simulation={type(draw.simulation).__name__.lower()} moves in time steps, and neither ESS nor errors see what "
        f"that does: the weighted energy is {100 * off:+.1f} +- {100 * spread:.1f} % from {how}"
    )
    return {"note": note, "energy": mean, "relative_difference": off, "relative_difference_error": spread}


def add_array(path: Path, name: str, values: Tensor) -> None:
    """Add an array to an .npz, which is replaced whole or not at all."""
    with replacing(path) as part:
        shutil.copyfile(path, part)
        with zipfile.ZipFile(part, "a", zipfile.ZIP_DEFLATED) as archive, archive.open(f"{name}.npy", "w") as member:
            np.lib.format.write_array(member, values.numpy())


class LikelihoodOutputs:
    """Means of the likelihood bounds of given states."""

    def __init__(self) -> None:
        self._taken: list[Samples] = []

    def update(self, samples: Samples, indices: Tensor) -> None:
        self._taken.append(samples)

    def write(self, directory: Path) -> dict[str, Any]:
        """Nothing more than the means."""
        names = ("log_likelihood_bound", "log_likelihood")
        return {"values": {name: float(torch.cat([part[name] for part in self._taken]).mean()) for name in names}}
