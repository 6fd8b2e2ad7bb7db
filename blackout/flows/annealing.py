"""Annealed importance sampling, SMC and parallel tempering of a target, without a network.

Path, weights and files are those of flows. A step adds (t_{k+1} - t_k) f(x) to the log-weights, and
a Gibbs sweep at t_{k+1} follows. Times are closer where the weights of a short run spread, and near
the target. Tempering keeps replicas at times that are closer near the target, and exchanges them.
Means of ferromagnets without a field come from chains of cluster moves that start at the final
states.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from blackout.errors import UserError, error_context, refuse
from blackout.files import save_arrays, write_json
from blackout.flows.annealed_importance import (
    MIN_TEMPERING_SWEEPS,
    anneal,
    parallel_tempering,
    resampling_group_size,
)
from blackout.flows.cluster_means import (
    MAX_CLUSTER_CHAINS,
    MAX_CLUSTER_MOVES,
    MIN_CLUSTER_MOVES,
    cluster_means,
    has_cluster_chains,
)
from blackout.flows.diagnostics import check_estimates, format_flags
from blackout.flows.metrics import describe_estimates
from blackout.flows.plots import sample_arrays, save_diagnostics, save_path
from blackout.flows.refinement import Clusters
from blackout.flows.simulation import Paths
from blackout.flows.targets import FixedComposition, Target, make_target, read_energy
from blackout.flows.targets.base import NOT_FINITE
from blackout.flows.weights import estimate_target, exact_references
from blackout.random import fold_seed

CHECK_KEY = 13  # key of the runs that check an annealing, among the uses of a seed
MIN_CHAINS_PER_TEMPERATURE = 4
# name of a target -> its class or function in `blackout.flows`
TARGETS = {
    "ising": "Ising",
    "potts": "Potts",
    "spin_glass": "SpinGlass",
    "couplings": "read_couplings",
    "energy_network": "read_energy",
}


@dataclass(frozen=True)
class AnnealingResult:
    """The result of an annealing.

    Args:
        values: estimates by name.
        seconds: processor time.
        warning: why the estimates cannot be trusted; None if nothing speaks against them.
    """

    values: Mapping[str, float]
    seconds: float
    warning: str | None


@dataclass(frozen=True)
class Annealing:
    """An annealing of a target.

    Args:
        target: the distribution.
        chains: number of chains; with tempering, of replicas at all temperatures together.
        sweeps: Gibbs sweeps, or moves of clusters, of every chain; with tempering at least 16,
            rounded down to a multiple of 4.
        moves: how chains move; clusters are for ferromagnets.
        tempering: number of temperatures of parallel tempering; None for annealing.
        resample_below: ESS, as a fraction, below which chains are resampled (SMC); None for never.
        seed: of all random numbers.

    Raises:
        UserError: a number out of range.
    """

    target: Target
    chains: int = 4096
    sweeps: int = 256
    moves: Literal["gibbs", "clusters"] = "gibbs"
    tempering: int | None = None
    resample_below: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        refuse(self.chains < 2, f"chains must be at least 2, not {self.chains}")
        refuse(self.sweeps < 1, f"sweeps must be at least 1, not {self.sweeps}")
        refuse(
            self.moves not in ("gibbs", "clusters"),
            f"moves must be gibbs or clusters, not {self.moves}",
        )
        threshold = self.resample_below
        if threshold is not None and not 0 < threshold <= 1:
            raise UserError(f"resample_below must be in (0, 1], not {threshold}")
        if self.tempering is not None:
            refuse(threshold is not None, "tempering does not resample: leave out one of the two")
            refuse(
                self.sweeps < MIN_TEMPERING_SWEEPS,
                f"sweeps must be at least {MIN_TEMPERING_SWEEPS} with tempering, not {self.sweeps}",
            )
            max_temperatures = self.chains // MIN_CHAINS_PER_TEMPERATURE
            refuse(
                not 2 <= self.tempering <= max_temperatures,
                f"tempering must be 2 to {max_temperatures} temperatures, a quarter of the chains, "
                f"not {self.tempering}",
            )

    @property
    def method(self) -> str:
        """The name of the method."""
        if self.tempering is not None:
            return "parallel tempering"
        return "AIS" if self.resample_below is None else "SMC"

    def run(self, folder: Path) -> AnnealingResult:
        """Anneal, and write samples.npz, metrics.json, diagnostics.png, path.csv and path.png.

        Raises:
            UserError: the target is not finite at some state.
        """
        # 1. Sample.
        moves = Clusters() if self.moves == "clusters" else None
        anneal(self.target, 2, 1, refine=moves)  # compiles, which the time does not include
        num_cluster_moves = self._num_cluster_moves()
        if num_cluster_moves:
            x = torch.zeros(2, self.target.sites, dtype=torch.uint8)
            cluster_means(self.target, x, 1, self.seed)  # likewise
        start = time.process_time()
        paths, groups, errors = self._sample(moves)
        means: dict[str, float] = {}
        if num_cluster_moves:
            x = paths.states.x[:MAX_CLUSTER_CHAINS]
            means = cluster_means(self.target, x, num_cluster_moves, self.seed)
            num_cluster_moves = num_cluster_moves if means else 0  # the weights' means remain
        seconds = time.process_time() - start
        refuse(not bool(torch.isfinite(paths.log_weights).all()), NOT_FINITE)

        # 2. Estimate, and look for signs that estimates cannot be trusted.
        arrays = sample_arrays(paths, self.target.shape)
        del arrays["jumps"]
        del arrays["evaluations"]
        x = arrays["samples"].flatten(1)
        log_weights = arrays["log_weights"]
        error = errors[-1] if errors else None
        log_density = arrays["log_density"]
        values = estimate_target(self.target, x, log_weights, log_density, groups, error)
        values |= means
        values |= exact_references(self.target)
        check_seed = fold_seed(self.seed, CHECK_KEY)
        flags = check_estimates(self.target, x, log_weights, values, check_seed, groups)

        # 3. Write.
        save_arrays(folder / "samples.npz", **arrays)
        save_diagnostics(self.target, arrays, paths, values, folder / "diagnostics.png")
        observables = paths.observables(self.target)
        path = save_path(self.target, paths.times, observables, folder, groups, errors or None)
        content: dict[str, Any] = {
            "values": values,
            **describe_estimates(values),
            "method": self.method,
            "sweeps": self.sweeps,
            "moves": self.moves,
            "cluster_moves": num_cluster_moves,
            "path": path,
            "num_samples": len(x),
            "cpu_seconds": seconds,
            "seed": self.seed,
            **format_flags(flags),
        }
        write_json(content, folder / "metrics.json")
        return AnnealingResult(values, seconds, format_flags(flags).get("warning"))

    def _num_cluster_moves(self) -> int:
        """Return the moves of every chain of clusters; 0 where means are those of the weights."""
        num_moves = min(self.sweeps, MAX_CLUSTER_MOVES)
        is_possible = num_moves >= MIN_CLUSTER_MOVES and has_cluster_chains(self.target)
        return num_moves if is_possible else 0

    def _sample(self, moves: Clusters | None) -> tuple[Paths, Tensor | None, list[float]]:
        """Return paths, the group of every chain, and standard errors of log Z of tempering."""
        if self.tempering is not None:
            sets = self.chains // self.tempering
            return parallel_tempering(
                self.target,
                sets,
                self.tempering,
                self.sweeps,
                self.seed,
                moves,
            )
        paths = anneal(
            self.target,
            self.chains,
            self.sweeps,
            self.seed,
            self.resample_below,
            moves,
            power=None,
        )
        if self.resample_below is None:
            return paths, None, []
        return paths, torch.arange(self.chains) // resampling_group_size(self.chains), []


def load_target(
    name: str | None, settings: Mapping[str, Any], ckpt: Path | None, composition: list[int] | None
) -> Target:
    """Return a target that has been evaluated once.

    Args:
        name: one of `TARGETS`, or the dotted name of a class; None with `ckpt`.
        settings: arguments of the target.
        ckpt: a trained flow, whose target is used; None with `name`.
        composition: conserved numbers of sites at level 0, 1, ...; None for all states.

    Raises:
        UserError: no such target, wrong settings, or a target that is not finite.
    """
    if ckpt is not None:
        target = read_energy(ckpt=str(ckpt))
    else:
        assert name is not None
        is_dotted = "." in name
        refuse(
            not is_dotted and name not in TARGETS,
            f"target {name}: no such target; choose one of {', '.join(TARGETS)}, or give the "
            "dotted name of your own class, such as my_module.MyTarget",
        )
        path = name if is_dotted else f"blackout.flows.{TARGETS[name]}"
        target = make_target({"_target_": path, **settings})
    target.check()
    if composition is not None:
        with error_context("composition"):
            target = FixedComposition(target, composition)
    return target
