"""log Z and mean energy of the critical Ising model: `python -m benchmarks.peers.energies`.

    blackout annealing   compiled Gibbs sweeps, with the times that its pilot run chooses; the mean
                         energy is that of the weighted final states
    blackout annealing by clusters   the same with Swendsen-Wang moves
    blackout cluster chains   Swendsen-Wang chains, from which `blackout anneal` takes mean values
    blackout flow        half of the seconds train it, the other half sample it
    annealing, Swendsen-Wang   of benchmarks/peers/lattice.py, in NumPy and SciPy

Every run of a method takes about the same CPU seconds, pilot runs and trainings included: the
number of sweeps (for the flow, of samples) follows from a timing. Errors are root mean
squares over runs of the differences to Kaufman's exact values. NumPy's methods are references for
accuracy; their time depends on how they are written. blackjax has no moves for spins, and netket
samples wave functions, so that neither estimates log Z.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.peers import lattice
from benchmarks.peers.generators import compose_model
from benchmarks.peers.results import Row, make_parser, parse, write_results
from blackout.flows import Clusters
from blackout.flows.annealed_importance import anneal
from blackout.flows.cluster_means import cluster_means
from blackout.flows.refinement import Refinement
from blackout.flows.simulation import Paths
from blackout.flows.targets import Ising
from blackout.training.data_module import TrainLoader

MIN_SWEEPS = 16
FLOW_LR = 1e-3
FLOW_BATCH = 128
FLOW_CHAINS = 64  # of one draw of the flow
# log Z, mean energy, sweeps or samples, and CPU seconds
Estimate = tuple[float | None, float, int, float]


def estimate_from_weights(
    log_weights: lattice.Array, energies: lattice.Array
) -> tuple[float, float]:
    """Return log Z and the mean energy of weighted samples."""
    largest = log_weights.max()
    weights = np.exp(log_weights - largest)
    return float(largest + math.log(weights.mean())), float(weights @ energies / weights.sum())


def sweeps_for(run: Callable[[int], Any], seconds: float) -> int:
    """Return the number of sweeps that takes so many CPU seconds, from a run of an eighth."""
    sweeps = MIN_SWEEPS
    while True:
        start = time.process_time()
        run(sweeps)
        spent = time.process_time() - start
        if spent >= seconds / 8:
            return max(MIN_SWEEPS, int(sweeps * seconds / spent))
        sweeps *= 2


class Methods:
    """Estimates of one target by every method.

    Args:
        size: of the torus.
        coupling: K.
        chains: of annealing and of Swendsen-Wang.
        seconds: CPU seconds of one run.
    """

    def __init__(self, size: int, coupling: float, chains: int, seconds: float) -> None:
        self.size = size
        self.coupling = coupling
        self.chains = chains
        self.seconds = seconds
        self.target = Ising(size, coupling)
        self._sweeps: dict[str, int] = {}

    def _run_within_budget(self, name: str, run: Callable[[int], Any]) -> tuple[Any, int, float]:
        """Run as many sweeps as the seconds allow; return result, sweeps and CPU seconds."""
        if name not in self._sweeps:
            run(MIN_SWEEPS)  # compiles
            self._sweeps[name] = sweeps_for(run, self.seconds)
        start = time.process_time()
        result = run(self._sweeps[name])
        return result, self._sweeps[name], time.process_time() - start

    def blackout_annealing(self, seed: int) -> Estimate:
        """Estimate by annealed importance sampling with Gibbs sweeps."""
        return self._blackout("annealing", None, seed)

    def blackout_clusters(self, seed: int) -> Estimate:
        """Estimate by annealed importance sampling with cluster moves."""
        return self._blackout("clusters", Clusters(), seed)

    def _blackout(self, name: str, refine: Refinement | None, seed: int) -> Estimate:
        def run(sweeps: int) -> Paths:
            return anneal(self.target, self.chains, sweeps, seed, refine=refine, power=None)

        paths, sweeps, seconds = self._run_within_budget(f"blackout {name}", run)
        energies = -paths.states.log_density.double().numpy()
        return *estimate_from_weights(paths.log_weights.double().numpy(), energies), sweeps, seconds

    def blackout_cluster_chains(self, seed: int) -> Estimate:
        """Estimate the mean energy by chains of cluster moves from random states."""

        def run(sweeps: int) -> dict[str, float]:
            generator = torch.Generator().manual_seed(seed)
            shape = (self.chains, self.target.sites)
            x = torch.randint(2, shape, generator=generator, dtype=torch.uint8)
            return cluster_means(self.target, x, sweeps, seed)

        values, sweeps, seconds = self._run_within_budget("blackout cluster chains", run)
        if not values:
            raise SystemExit("cluster chains have not reached equilibrium: raise --seconds")
        return None, values["mean_energy"], sweeps, seconds

    def blackout_flow(self, seed: int) -> Estimate:
        """Train a flow for half of the seconds, and estimate by its weighted samples."""
        model: Any = compose_model(
            [
                "experiment=flow_ising_critical",
                f"target.size={self.size}",
                f"target.coupling={self.coupling}",
                f"seed={seed}",
            ]
        )
        optimizer = torch.optim.AdamW(model.network.parameters(), FLOW_LR)
        start = time.process_time()
        for step, batch in enumerate(TrainLoader(model.source(), FLOW_BATCH, seed)):
            loss = model.training_step(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            model.ema.update(model.network, step)
            if time.process_time() - start > self.seconds / 2:
                break
        parts: list[Paths] = []
        while not parts or time.process_time() - start < self.seconds:
            indices = torch.arange(FLOW_CHAINS) + FLOW_CHAINS * len(parts)
            parts.append(model.simulate(indices, seed))
        log_weights = torch.cat([paths.log_weights for paths in parts]).double().numpy()
        energies = -torch.cat([paths.states.log_density for paths in parts]).double().numpy()
        seconds = time.process_time() - start
        return *estimate_from_weights(log_weights, energies), len(energies), seconds

    def annealing(self, seed: int) -> Estimate:
        """Estimate by annealed importance sampling with Gibbs sweeps in NumPy."""
        return self._reference("annealing", lattice.gibbs_sweep, seed)

    def annealing_by_clusters(self, seed: int) -> Estimate:
        """Estimate by annealed importance sampling with Swendsen-Wang moves in SciPy."""
        return self._reference("annealing by clusters", lattice.swendsen_wang_sweep, seed)

    def _reference(self, name: str, moves: lattice.Moves, seed: int) -> Estimate:
        def run(sweeps: int) -> tuple[lattice.Array, lattice.Array]:
            return lattice.anneal(moves, self.coupling, self.size, self.chains, sweeps, seed)

        result, sweeps, seconds = self._run_within_budget(name, run)
        return *estimate_from_weights(*result), sweeps, seconds

    def swendsen_wang(self, seed: int) -> Estimate:
        """Estimate the mean energy by Swendsen-Wang chains in SciPy."""

        def run(sweeps: int) -> tuple[float, float]:
            return lattice.swendsen_wang_energy(self.coupling, self.size, self.chains, sweeps, seed)

        (energy, _), sweeps, seconds = self._run_within_budget("Swendsen-Wang", run)
        return None, energy, sweeps, seconds


def error_row(name: str, runs: Sequence[Row], log_z: float, energy: float) -> Row:
    """Return root mean square errors of runs, and the errors of these over the runs."""
    row: Row = {"method": name, "sweeps or samples": runs[0]["sweeps or samples"]}
    for quantity, exact in (("log Z", log_z), ("mean energy", energy)):
        values = [run[quantity] for run in runs]
        column = f"{quantity}, RMS error"
        if None in values:
            row |= {column: None, f"{column} error": None}
            continue
        squares = (np.array(values) - exact) ** 2
        rms = math.sqrt(squares.mean())
        spread = squares.std(ddof=1) / math.sqrt(len(squares)) if len(squares) > 1 else 0.0
        row |= {column: rms, f"{column} error": float(spread / (2 * rms))}
    row["CPU s"] = float(np.mean([run["CPU s"] for run in runs]))
    return row


def main(argv: list[str] | None = None) -> None:
    """Run every method several times and compare it with the exact values."""
    parser = make_parser("energies", __doc__ or "", seconds=60)
    parser.add_argument("--size", type=int, default=16, help="of the torus")
    parser.add_argument("--chains", type=int, default=256)
    parser.set_defaults(trainings=4)
    options = parse(parser, argv)
    if options.quick:
        options.seconds, options.size, options.chains, options.trainings = 0.2, 4, 16, 2
    coupling = lattice.CRITICAL_COUPLING
    log_z = lattice.exact_log_z(coupling, options.size)
    energy = lattice.exact_mean_energy(coupling, options.size)
    methods = Methods(options.size, coupling, options.chains, options.seconds)
    named: dict[str, Callable[[int], Estimate]] = {
        "blackout annealing": methods.blackout_annealing,
        "blackout annealing by clusters": methods.blackout_clusters,
        "blackout cluster chains": methods.blackout_cluster_chains,
        "blackout flow": methods.blackout_flow,
        "annealing in NumPy": methods.annealing,
        "annealing by clusters in SciPy": methods.annealing_by_clusters,
        "Swendsen-Wang in SciPy": methods.swendsen_wang,
    }
    runs: list[Row] = []
    rows: list[Row] = []
    for name, estimate in named.items():
        for seed in range(options.trainings):
            value, mean_energy, sweeps, seconds = estimate(seed)
            run = {
                "method": name,
                "seed": seed,
                "log Z": value,
                "mean energy": mean_energy,
                "sweeps or samples": sweeps,
                "CPU s": seconds,
            }
            print(run, flush=True)
            runs.append(run)
        rows.append(error_row(name, [run for run in runs if run["method"] == name], log_z, energy))
    write_results(
        options,
        f"critical Ising model, {options.size} x {options.size}: log Z = {log_z:.3f}, "
        f"mean energy {energy:.3f}",
        rows,
        exact={
            "log Z": log_z,
            "mean energy": energy,
            "standard deviation of the energy": lattice.exact_energy_deviation(
                coupling, options.size
            ),
        },
        chains=options.chains,
        runs_per_method=options.trainings,
        runs=runs,
    )


if __name__ == "__main__":
    main()
