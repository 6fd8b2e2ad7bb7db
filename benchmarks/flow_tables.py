"""Flows side by side at equal CPU seconds: `python -m benchmarks.flow_tables networks|estimators|samplers|ratios`.

    networks     every locally equivariant network on 4x4 and 5x5 Ising models with a field (Figs 3, 14 of the paper)
    estimators   of d log Z / dt in training: plain, Stein, Stein with the best coefficient (Fig. 1)
    samplers     a trained flow against chains of single-site moves and annealed importance sampling (Fig. 13)
    ratios       exact against first-order log-ratios of an energy network in training (Fig. 9)

Times are of one thread; a training stops when its share is used up, with the learning rate falling to 0 by then. An ESS
is of 4,096 chains simulated exactly (`events`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure import arguments, report
from blackout.flows import FlowSampler
from blackout.flows.annealing import anneal
from blackout.flows.energies.report import uniform_weights
from blackout.flows.energy_discrepancy import pretrain
from blackout.flows.losses import EstimatedPartition
from blackout.flows.path import States
from blackout.flows.refinement import DMALA, Gibbs, LocallyInformed, Refinement
from blackout.flows.replay import Replay, Rollout, roll_out
from blackout.flows.simulation import Events, Leap, Paths, Simulation
from blackout.flows.targets import Ising, Target, exact_values
from blackout.flows.weights import estimates, log_mean_exp, weighted_mean
from blackout.networks import LEMLP, LEAttention, LEConvolution, LESite, LETransformer, LocallyEquivariant
from blackout.random import SampleStreams

_AVERAGED = 0.998


class Training:
    """Algorithm 1 for a given number of CPU seconds.

    Args:
        network: to be trained; its average is `averaged` afterwards.
        target: whose log-ratios are used.
        rollout: how states are made.
        lr: the first learning rate.
    """

    def __init__(
        self, network: LocallyEquivariant, target: Target, rollout: Rollout | None = None, lr: float = 3e-3
    ) -> None:
        self.network, self.target = network, target
        self.averaged = deepcopy(network).eval().requires_grad_(False)
        self.rollout = Rollout(points=32, chains=128) if rollout is None else rollout
        self.replay = Replay(self.rollout, target.levels, target.sites)
        self.optimizer, self.lr = torch.optim.AdamW(network.parameters(), lr), lr
        self.losses: list[float] = []

    def run(self, seconds: float, seed: int = 0) -> FlowSampler:
        """The trained sampler."""
        objective, began, number = EstimatedPartition(), time.process_time(), 0
        generator = torch.Generator().manual_seed(seed)
        while (used := (time.process_time() - began) / seconds) < 1:
            if number % self.rollout.every == 0:
                roll_out(self.rollout, self.target, self._rates, seed + number, self.replay)
            self.optimizer.param_groups[0]["lr"] = self.lr * 0.5 * (1 + math.cos(math.pi * used))
            seen = self.replay.pick(torch.rand(128, 3, generator=generator).double())
            loss = objective(self.network, seen)[0].mean()
            self.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), 10.0)
            self.optimizer.step()
            weight = 1 - min(_AVERAGED, (1 + number) / (10 + number))
            for mine, new in zip(self.averaged.parameters(), self.network.parameters(), strict=True):
                mine.lerp_(new.detach(), weight)
            self.losses.append(float(loss.detach()))
            number += 1
        return FlowSampler(self.averaged, self.target)

    def _rates(self, states: States, t: float) -> Tensor:
        with torch.no_grad():
            return self.network(states.x, torch.full((len(states.x),), t), states.ratios.float()).double()

    @property
    def last_loss(self) -> float:
        """The mean over the last tenth of the training."""
        last = self.losses[-max(1, len(self.losses) // 10) :]
        return sum(last) / len(last)


def drawn(model: FlowSampler, simulation: Simulation, chains: int, seed: int = 1) -> tuple[Paths, float]:
    """(chains, CPU seconds)."""
    began = time.process_time()
    paths = simulation.run(model.target, model.rates(), torch.arange(chains), seed)
    return paths, time.process_time() - began


def described(target: Target, paths: Paths) -> dict[str, float]:
    """ESS, and how far log Z, energy and the means of the sites are from the exact values."""
    exact = exact_values(target) or {}
    found = estimates(target, paths.states.x, paths.log_weights, paths.states.log_density)
    row = {"ess": found["ess"], "log Z off": found["log_z"] - exact.get("log_z", math.nan)}
    energy = -exact.get("mean_log_density", math.nan)
    row["energy off, %"] = 100 * (found["mean_energy"] / energy - 1)
    return row


def site_means(paths: Paths, exact: float) -> float:
    """Root mean square over sites of the weighted mean spin's distance from the exact one."""
    spins = 2 * paths.states.x.double() - 1
    means = torch.tensor([weighted_mean(spins[:, i], paths.log_weights)[0] for i in range(spins.shape[1])])
    return float((means - exact).square().mean().sqrt())


def magnetisation(size: int, sigma: float, bias: float) -> float:
    """The exact mean spin of a lattice, by the derivative of log Z with respect to the field."""
    step = 1e-4
    up, down = (exact_values(Ising(size, sigma, bias + by)) or {} for by in (step, -step))
    return (up["log_z"] - down["log_z"]) / (2 * step * size**2)


def networks(seconds: float, chains: int, quick: bool) -> list[dict[str, Any]]:
    rows = []
    for size in (4,) if quick else (4, 5):
        sites, lattice, sigma, bias = size**2, [size, size], 0.2, 0.2
        target = Ising(size, sigma, bias)
        makers: Mapping[str, Callable[[], LocallyEquivariant]] = {
            "lesite": lambda sites=sites, lattice=lattice: LESite(sites, 2, 32, lattice=lattice),
            "lemlp": lambda sites=sites: LEMLP(sites, 2, 64),
            "leattn": lambda sites=sites: LEAttention(sites, 2, 64, 4),
            "leconv": lambda lattice=lattice: LEConvolution(2, lattice, 20, [3, 3, 3]),
            "letf": lambda sites=sites: LETransformer(sites, 2, 32, 2, 4),
        }
        exact = magnetisation(size, sigma, bias)
        for name, make in makers.items():
            torch.manual_seed(0)
            training = Training(make(), target)
            model = training.run(seconds)
            paths, _ = drawn(model, Events(16), chains)
            error = math.log(site_means(paths, exact))
            row = {"lattice": f"{size}x{size}", "network": name, "steps": len(training.losses)}
            rows.append(row | {"loss": training.last_loss, **described(target, paths), "log RMSE of means": error})
    return rows


def estimators(seconds: float, chains: int, quick: bool) -> list[dict[str, Any]]:
    rows = []
    for sigma in (0.1,) if quick else (0.1, 0.2203434):
        for name in ("plain", "stein", "stein_optimal"):
            torch.manual_seed(0)
            target = Ising(4, sigma)
            training = Training(LESite(16, 2, 32, lattice=[4, 4]), target, Rollout(32, 128, estimator=name))  # type: ignore[arg-type]
            model = training.run(seconds)
            paths, _ = drawn(model, Events(16), chains)
            rows.append({"sigma": sigma, "d log Z / dt": name, "loss": training.last_loss, **described(target, paths)})
    return rows


def moved(target: Target, moves: Refinement, chains: int, steps: int, seed: int = 1) -> Paths:
    """Unweighted chains of `moves` at the target itself, from uniform noise."""
    streams = SampleStreams(seed, torch.arange(chains))
    states = States.uniform(target, streams.at(0).next_draw().uniform((chains, target.sites)))
    none = torch.zeros(chains, dtype=torch.int64)
    for k in range(steps):
        states = moves(target, states, 1.0, streams.at(k + 1))
    return Paths(states, torch.zeros(chains, dtype=torch.float64), none, none)


def samplers(seconds: float, chains: int, quick: bool) -> list[dict[str, Any]]:
    rows = []
    for size, sigma in ((4, 0.2203434),) if quick else ((4, 0.2203434), (10, 0.1)):
        target = Ising(size, sigma)
        torch.manual_seed(0)
        rollout = Rollout(32, 128, refine=Gibbs(), resample_below=0.7) if size > 4 else Rollout(32, 128)
        model = Training(LESite(size**2, 2, 32, lattice=[size, size]), target, rollout).run(seconds)
        cases: dict[str, Callable[[], Paths]] = {
            "flow, events, 16 steps": lambda model=model: drawn(model, Events(16), chains)[0],
            "flow, leap, 64 steps": lambda model=model: drawn(model, Leap(64), chains)[0],
            "Gibbs, 64 sweeps": lambda target=target: moved(target, Gibbs(), chains, 64),
            "locally informed, 64 moves": lambda target=target: moved(target, LocallyInformed(), chains, 64),
            "DMALA, 64 moves": lambda target=target: moved(target, DMALA(), chains, 64),
            "AIS, 64 sweeps": lambda target=target: anneal(target, chains, 64),
            "AIS, 256 sweeps": lambda target=target: anneal(target, chains, 64 if quick else 256),
        }
        for name, run in cases.items():
            began = time.process_time()
            paths = run()
            used = time.process_time() - began
            row = {"lattice": f"{size}x{size}, {sigma:.2g}", "sampler": name, **described(target, paths)}
            if name.startswith(("Gibbs", "locally", "DMALA")):
                row |= {"ess": math.nan, "log Z off": math.nan}
            rows.append(row | {"CPU s": used, "and of training": seconds if name.startswith("flow") else 0.0})
    return rows


class _Taylor(Target):
    """An energy network whose log-ratios are those of its first-order expansion."""

    def __init__(self, network: Any) -> None:
        super().__init__(network.levels, network.shape)
        self.network = network

    def log_density(self, x: Tensor) -> Tensor:
        return self.network.log_density(x)

    def log_ratios(self, x: Tensor) -> Tensor:
        return self.network.taylor_ratios(x)


def ratios(seconds: float, chains: int, quick: bool) -> list[dict[str, Any]]:
    energy = pretrain("moons", 5 if quick else 350, 1e-3, 128, [256, 256, 256], 0)
    log_z = float(log_mean_exp(uniform_weights(energy, 0, 1000 if quick else 1_000_000)))
    rows = []
    for name, target in {"exact": energy, "first order": _Taylor(energy)}.items():
        torch.manual_seed(0)
        training = Training(LESite(energy.sites, 2, 32, heat_bath=True), target, Rollout(32, 96))
        model = training.run(seconds)
        paths, _ = drawn(FlowSampler(model.network, energy), Events(16), chains)
        found = estimates(energy, paths.states.x, paths.log_weights, paths.states.log_density)
        row = {"ratios in training": name, "steps": len(training.losses), "loss": training.last_loss}
        rows.append(row | {"ess": found["ess"], "log Z off": found["log_z"] - log_z})
    return rows


TABLES = {"networks": networks, "estimators": estimators, "samplers": samplers, "ratios": ratios}


def main(argv: list[str] | None = None) -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("--seconds", type=float, default=20.0, help="of CPU time, per training")
    parser.set_defaults(device="cpu", threads=1)
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    seconds, chains = (0.3, 64) if options.quick else (options.seconds, 4096)
    report(options.table, TABLES[options.table](seconds, chains, options.quick), options, seconds=seconds)


if __name__ == "__main__":
    main()
