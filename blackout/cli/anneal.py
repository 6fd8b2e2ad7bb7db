"""Sample a target without a network: annealed importance sampling, SMC or parallel tempering.

The path, weights and files are those of sample.py for a trained flow, as a baseline for it.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import yaml

from blackout.cli.families import load_family
from blackout.cli.output_folders import folders_of_target
from blackout.errors import CommandParser, UserError, escaped, refuse, run_command
from blackout.results_folders import request_key, results_folder
from blackout.safe_reading import parse_yaml

PRINTED = ("log_z", "log_z_error", "log_z_exact", "ess", "mean_energy", "mean_energy_error")


def main(words: list[str] | None = None) -> None:
    """Run the command line."""
    family = load_family("flow")
    names = ", ".join(family.annealing_targets)
    parser = CommandParser(prog="blackout anneal", description=__doc__)
    parser.add_argument("--ckpt", type=Path, help="a trained flow, whose target is sampled")
    parser.add_argument("--target", help=f"{names}, or a class of yours, such as mine.target.Ring")
    parser.add_argument(
        "settings",
        nargs="*",
        help="settings of the target, such as size=10 coupling=0.4 or path=mine.npz",
    )
    parser.add_argument(
        "--composition",
        type=int,
        nargs="+",
        help="numbers of sites at level 0, 1, ...: a lattice gas that conserves them",
    )
    parser.add_argument(
        "--chains",
        type=int,
        default=4096,
        help="chains; with --tempering, replicas at all temperatures (default: %(default)s)",
    )
    parser.add_argument(
        "--sweeps", type=int, default=256, help="sweeps of a chain (default: %(default)s)"
    )
    parser.add_argument(
        "--moves",
        choices=("gibbs", "clusters"),
        default="gibbs",
        help="how chains move; clusters are for ferromagnets (default: %(default)s)",
    )
    parser.add_argument(
        "--tempering", type=int, metavar="K", help="parallel tempering at K temperatures"
    )
    parser.add_argument(
        "--resample-below",
        type=float,
        help="effective sample size below which chains are resampled",
    )
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument(
        "--out", type=Path, help="a folder (default: anneal in the run of --ckpt, else in runs)"
    )
    run_command(lambda options: _run(family, options), parser, words)


def _run(family: Any, options: argparse.Namespace) -> None:
    refuse(
        (options.ckpt is None) == (options.target is None),
        "give either --target=<name> or --ckpt=<run of a trained flow>, whose target is sampled",
    )
    annealing = family.annealing(
        options.target,
        _parse_settings(options.settings),
        options.ckpt,
        options.composition,
        chains=options.chains,
        sweeps=options.sweeps,
        moves=options.moves,
        tempering=options.tempering,
        resample_below=options.resample_below,
        seed=options.seed,
    )
    folders = [options.out] if options.out else folders_of_target(options.ckpt, "anneal")
    with results_folder(folders, request_key(vars(options) | {"out": None})) as folder:
        result = annealing.run(folder)
    values = [f"{name} {result.values[name]:.5g}" for name in PRINTED if name in result.values]
    print(f"{'  '.join(values)} ({result.seconds:.2f} CPU s); results in {escaped(folder)}")
    if result.warning is not None:
        print(f"warning: {result.warning}")


def _parse_settings(words: list[str]) -> dict[str, Any]:
    """Return the settings of a target by name.

    Raises:
        UserError: a word without "=", or with an impossible name or value.
    """
    settings = {}
    for word in words:
        name, equals, value = word.partition("=")
        refuse(not equals, f"{word}: settings of the target are name=value, such as size=10")
        refuse(
            not name.isidentifier() or name.startswith("_"),
            f"{word}: {name!r} is not the name of a setting",
        )
        try:
            settings[name] = parse_yaml(value)
        except (ValueError, yaml.YAMLError, RecursionError) as error:
            reason = (str(error).splitlines() or ["it is too deep"])[0]
            raise UserError(f"{word}: the value cannot be read: {reason}") from None
    return settings


if __name__ == "__main__":
    main()
