"""`blackout anneal`: annealed importance sampling, SMC, parallel tempering: the baselines of flows.

The same path, weights and files as `sample.py`, without a network: w += (t_{k+1} - t_k) f(x), then a Gibbs sweep at
t_{k+1}, with times that are closer where the weights of a short run spread, and near the target. Tempering keeps
replicas at times that are closer near the target, and exchanges them.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from blackout.errors import CommandParser, UserError, error_context, refuse, run_command
from blackout.files import numbered, request_key, results_folder, save_arrays, write_json
from blackout.flows.annealed_importance import anneal, group_size, temper
from blackout.flows.diagnostics import judge, said
from blackout.flows.plots import named, save_diagnostics, save_path
from blackout.flows.refinement import Clusters
from blackout.flows.targets import Conserved, Target, make_target, read_energy
from blackout.flows.targets.base import NOT_FINITE
from blackout.flows.weights import estimates, known_values
from blackout.random import fold_seed

_CHECKED = 13
"""Key of the annealings that check this one, among the uses of a seed."""
_TARGETS = {
    "ising": "Ising", "potts": "Potts", "spin_glass": "SpinGlass", "couplings": "read_couplings",
    "energy_network": "read_energy",
}  # fmt: skip


def _target(given: argparse.Namespace) -> Target:
    refuse((given.ckpt is None) == (given.target is None), "give either --ckpt, whose target is taken, or --target")
    if given.ckpt is not None:
        return read_energy(ckpt=given.ckpt)
    refuse(any("=" not in word for word in given.settings), "settings of the target are name=value, such as size=10")
    settings = {name: yaml.safe_load(value) for name, value in (word.split("=", 1) for word in given.settings)}
    own = "." in given.target
    refuse(not own and given.target not in _TARGETS, f"--target {given.target} is none of {', '.join(_TARGETS)}")
    return make_target({"_target_": given.target if own else f"blackout.flows.{_TARGETS[given.target]}", **settings})


def run(given: argparse.Namespace) -> None:
    """Anneal, and write samples.npz, metrics.json, diagnostics.png; of all temperatures path.csv and path.png.

    Raises:
        UserError: numbers out of range, no such target, or one that is not finite everywhere.
    """
    if given.chains < 2 or given.sweeps < 1 or not (given.resample_below is None or 0 < given.resample_below <= 1):
        raise UserError("--chains must be at least 2, --sweeps 1, and --resample-below in (0, 1]")
    if given.tempering and (given.resample_below or not 2 <= given.tempering <= given.chains / 4):
        raise UserError("--tempering is from 2 temperatures to a quarter of --chains, and does not resample")
    target, moves = _target(given), Clusters() if given.moves == "clusters" else None
    target.try_once()
    if given.composition is not None:
        with error_context("--composition"):
            target = Conserved(target, given.composition)
    folders = [given.out] if given.out else numbered(Path("runs/anneal"))
    with results_folder(folders, request_key(vars(given) | {"out": None})) as out:
        anneal(target, 2, 1, refine=moves)  # what is compiled is compiled before the clock runs
        groups: Tensor | None = None
        began, errors = time.process_time(), list[float]()
        if given.tempering:
            sets = given.chains // given.tempering
            paths, groups, errors = temper(target, sets, given.tempering, given.sweeps, given.seed, moves)
        else:
            paths = anneal(target, given.chains, given.sweeps, given.seed, given.resample_below, moves, power=None)
            groups = torch.arange(given.chains) // group_size(given.chains) if given.resample_below else None
        seconds = time.process_time() - began
        refuse(not bool(torch.isfinite(paths.log_weights).all()), NOT_FINITE)
        arrays = named(paths, target.shape)
        del arrays["jumps"], arrays["evaluations"]
        x, weights, last = arrays["samples"].flatten(1), arrays["log_weights"], errors[-1] if errors else None
        values = estimates(target, x, weights, arrays["log_density"], groups, last) | known_values(target)
        flags = judge(target, x, weights, values, fold_seed(given.seed, _CHECKED), groups)
        save_arrays(out / "samples.npz", **arrays)
        save_diagnostics(target, arrays, paths, values, out / "diagnostics.png")
        method = "parallel tempering" if errors else "SMC" if given.resample_below else "AIS"
        how: dict[str, Any] = {"method": method, "sweeps": given.sweeps, "moves": given.moves}
        how["path"] = save_path(target, paths.times, paths.observed(target), out, groups, errors or None)
        how |= {"num_samples": given.chains, "cpu_seconds": seconds, "seed": given.seed, **said(flags)}
        write_json({"values": values, **how}, out / "metrics.json")
    names = ("log_z", "log_z_error", "log_z_exact", "ess", "mean_energy", "mean_energy_error")
    shown = "  ".join(f"{name} {values[name]:.5g}" for name in names if name in values)
    print(f"{shown} ({seconds:.2f} CPU s); all of it in {out}")
    if flags:
        print(f"warning: {said(flags)['warning']}")


def main() -> None:
    parser = CommandParser(prog="blackout anneal", description=(__doc__ or "").split(": ")[1])
    parser.add_argument("--ckpt", type=Path, help="a trained flow: its target")
    parser.add_argument("--target", help=f"{', '.join(_TARGETS)}, or the address of a class of yours, mine.target.Ring")
    parser.add_argument("settings", nargs="*", help="of the target: size=10 sigma=0.2, or path=mine.npz")
    parser.add_argument("--composition", type=int, nargs="+", help="sites at level 0, 1, ...: a lattice gas of so many")
    parser.add_argument("--chains", type=int, default=4096, help="of tempering, replicas of all temperatures together")
    parser.add_argument("--sweeps", type=int, default=256)
    parser.add_argument("--moves", choices=("gibbs", "clusters"), default="gibbs", help="clusters are for ferromagnets")
    parser.add_argument("--tempering", type=int, metavar="K", help="parallel tempering at K temperatures")
    parser.add_argument("--resample-below", type=float, help="ESS below which chains are resampled: SMC")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="a folder; runs/anneal if it is left out")
    run_command(run, parser)


if __name__ == "__main__":
    main()
