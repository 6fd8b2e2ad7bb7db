"""Flows compared with exact values: `python -m benchmarks.flow_quality`, medians of three seeds.

Every seed is a complete run of `train.py` with the options of its row, in a separate process. CPU s
is its user time, including imports, training, validation and final figures. Samples use
`simulation=events`. "worst mean" is the largest deviation of a weighted mean from its exact value,
in standard errors. It covers the energy, all statistics, every site and every pair of sites if
states can be enumerated, and otherwise the energy and every site.
"""

from __future__ import annotations

import math
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure import arguments, report
from benchmarks.planar import uniform_weights
from blackout import load_model
from blackout.flows.simulation import Events, Paths
from blackout.flows.targets import Target, can_enumerate, enumerate_states
from blackout.flows.weights import (
    effective_sample_size,
    estimate_target,
    exact_references,
    log_mean_exp,
    weighted_mean,
)

ROOT = Path(__file__).parents[1]
_MOVED = ("family=flow", "network.heat_bath=true")
_OURS = (
    "family=flow",
    "network.heat_bath=true",
    "rollout.refine=null",
    "rollout.resample_below=null",
)
# Name -> (options of train.py, steps with which samples are drawn).
ROWS: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
    "Ising 4x4, .1": ((*_OURS, "target.coupling=0.2", "trainer.max_steps=600"), (16,)),
    "Ising 4x4, .22035": (("experiment=flow_ising", "target.coupling=0.4407"), (64, 16)),
    "Potts q = 3 4x4, critical": ((*_MOVED, "target=potts", "trainer.max_steps=1200"), (16,)),
    "spin glass 4x4": (
        (*_MOVED, "target=spin_glass", "target.seed={seed}", "trainer.max_steps=1200"),
        (16,),
    ),
    "moons energy network": (
        (
            *_OURS,
            "target=planar",
            "target.path={energy}",
            "trainer.max_steps=1000",
            "validation_samples=128",
        ),
        (16,),
    ),
    "Ising 10x10, .1": (
        (*_OURS, "target.size=10", "network.channels=48", "trainer.max_steps=500"),
        (32,),
    ),
}
_COMMON = (
    "trainer.accelerator=cpu",
    "trainer.devices=1",
    "callbacks.progress=null",
    "run_id=run",
    "experiment_name=row",
)


def user_seconds(command: list[str]) -> float:
    """Run a command from the repository's root and return its user time.

    Raises:
        RuntimeError: if it fails, with the end of its output.
    """
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    seconds_before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{result.stderr[-2000:]}")
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - seconds_before


def train_model(
    options: tuple[str, ...], seed: int, energy: Path, scratch: Path
) -> tuple[Any, float]:
    """Return (model, user seconds of its training)."""
    model_options = [option.format(seed=seed, energy=energy) for option in options]
    run_options = [f"seed={seed}", f"runs_dir={scratch}"]
    seconds = user_seconds([sys.executable, "train.py", *model_options, *_COMMON, *run_options])
    return load_model(scratch / "row/run"), seconds


def sites_and_pairs(x: Tensor, levels: int) -> Tensor:
    """Return the states of all sites and the equal pairs, [n, d (S - 1) + d (d - 1) / 2]."""
    i, j = torch.triu_indices(x.shape[1], x.shape[1], 1)
    one_hot = torch.nn.functional.one_hot(x.long(), levels)[..., 1:].flatten(1)
    return torch.cat([one_hot, (x[:, i] == x[:, j]).long()], 1).double()


def exact_site_events(target: Target, x: Tensor) -> Iterator[tuple[Tensor, float]]:
    """Return (an event of every chain [n], its exact probability) of sites and enumerable pairs."""
    events = sites_and_pairs(x, target.levels)
    if can_enumerate(target):
        states, log_density = enumerate_states(target)
        parts = zip(
            states.split(1 << 14), torch.softmax(log_density, 0).split(1 << 14), strict=True
        )
        exact = sum(share @ sites_and_pairs(part, target.levels) for part, share in parts)
        yield from zip(events.T, exact.tolist(), strict=True)
    else:  # a homogeneous lattice without a field: all states of a site are alike
        yield from (
            (values, 1 / target.levels) for values in events.T[: target.sites * (target.levels - 1)]
        )


def worst_mean(target: Target, paths: Paths) -> float:
    """Return the largest deviation of a weighted mean in standard errors; nan if none is known.

    The error of an event uses its exact probability, since estimated errors fail for rare events.
    """
    x = paths.states.x
    weights = paths.log_weights
    exact_values = exact_references(target)
    if not exact_values:
        return math.nan
    worst = [0.0]
    for name, values in {"energy": -paths.states.log_density, **target.statistics(x)}.items():
        mean, error = weighted_mean(values, weights)
        worst.append(abs(mean - exact_values.get(f"mean_{name}_exact", mean)) / error)
    effective = len(x) * float(effective_sample_size(weights))
    for values, exact in exact_site_events(target, x):
        mean, _ = weighted_mean(values, weights)
        worst.append(abs(mean - exact) / math.sqrt(exact * (1 - exact) / effective))
    return max(worst)


def log_partition(target: Target, quick: bool) -> float:
    """Return the exact log Z, or an estimate from a million uniform states."""
    exact_values = exact_references(target)
    if "log_z_exact" in exact_values:
        return exact_values["log_z_exact"]
    return float(log_mean_exp(uniform_weights(target, 0, 1000 if quick else 1_000_000)))


def measure(
    name: str, seeds: int, chains: int, energy: Path, scratch: Path, quick: bool
) -> list[dict[str, Any]]:
    """Return one line for each number of sampling steps."""
    options, all_steps = ROWS[name]
    options = (*options, "trainer.max_steps=2", "validation_samples=128") if quick else options
    rows_by_steps: dict[int, list[dict[str, float]]] = {steps: [] for steps in all_steps}
    for seed in range(seeds):
        with tempfile.TemporaryDirectory(dir=scratch) as runs:
            model, seconds = train_model(options, seed, energy, Path(runs))
        log_z = log_partition(model.target, quick)
        for steps in all_steps:
            paths = Events(steps).run(model.target, model.rates(), torch.arange(chains), 1)
            values = estimate_target(
                model.target, paths.states.x, paths.log_weights, paths.states.log_density
            )
            row = {
                "ess": values["ess"],
                "log Z error": values["log_z"] - log_z,
                "log Z standard error": values["log_z_error"],
            }
            rows_by_steps[steps].append(
                row | {"worst mean": worst_mean(model.target, paths), "CPU s": seconds}
            )
            print(f"{name}, {steps} steps, seed {seed}: {rows_by_steps[steps][-1]}", flush=True)
    lines = []
    for steps, rows in rows_by_steps.items():
        middle = {key: median(row[key] for row in rows) for key in ("ess", "CPU s")}
        worst = max((row["log Z error"] for row in rows), key=abs)
        worst_values = {
            "log Z error, largest": worst,
            "worst mean": max(row["worst mean"] for row in rows),
        }
        lines.append(
            {
                "target": name,
                "steps": steps,
                **middle,
                "ess, smallest": min(row["ess"] for row in rows),
                **worst_values,
            }
        )
    return lines


def main(argv: list[str] | None = None) -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.set_defaults(device="cpu", threads=1)
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    seeds, chains = (1, 64) if options.quick else (options.seeds, 4096)
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        energy = scratch / "moons.npz"
        if "moons energy network" in options.rows:
            command = [
                sys.executable,
                "-m",
                "benchmarks.energy_discrepancy",
                "moons",
                "--out",
                str(energy),
            ]
            print(f"the energy of moons: {user_seconds(command):.0f} CPU s", flush=True)
        for name in options.rows:
            lines += measure(name, seeds, chains, energy, scratch, options.quick)
    report(f"medians of {seeds} seeds, {chains} chains", lines, options)


if __name__ == "__main__":
    main()
