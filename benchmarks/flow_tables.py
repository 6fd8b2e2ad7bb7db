"""Flows compared at equal CPU time: `python -m benchmarks.flow_tables
networks|estimators|balance|...`.

    networks     locally equivariant networks on 4x4 and 5x5 Ising models with a field (Figs 3, 14)
    estimators   d log Z / dt in training: plain, Stein, Stein with the best coefficient (Fig. 1)
    samplers     a trained flow (LESite, where the paper has leTF) in 64 steps, as many steps of
                 Gibbs sweeps and of single-site moves, annealed importance sampling (Fig. 13)
    ratios       exact and first-order log-ratios of an energy network in training (Fig. 9)
    balance      squared forward residual, trajectory balance, a GFlowNet, and annealing
    leaps        DNFS with leTF, LEAPS with leConv, a GFlowNet on a larger Ising model (Figs 5, 15)
    padded       32 bits padded to 6x6, LEAPS with leConv and with leTF (Fig. 12)
    couplings    an Ising model learned by the flow and by persistent chains (Table 4)

Times are of one thread. Training stops after its share of time, with the learning rate falling to
0. An ESS is that of 4,096 chains simulated exactly (`events`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.energy_discrepancy import pretrain
from benchmarks.measure import arguments, report
from benchmarks.planar import uniform_weights
from benchmarks.proposals import GradientDMALA, LocallyInformed, taylor_ratios
from blackout.flows import FlowSampler
from blackout.flows.annealed_importance import anneal
from blackout.flows.energies.data import target_samples
from blackout.flows.energies.model import EnergySampler, EnergyWithRates
from blackout.flows.energies.negative import FlowSamples, NegativeSampler, PersistentChains
from blackout.flows.energies.pair_energy import PairEnergy, score_couplings
from blackout.flows.losses import EstimatedPartition, LearnedPartition
from blackout.flows.path import States, forward_residual
from blackout.flows.refinement import DMALA, Gibbs, Refinement
from blackout.flows.replay import ReplayBatch, ReplayBuffer, Rollout, roll_out
from blackout.flows.simulation import Events, Leap, Paths, Simulation
from blackout.flows.targets import Ising, Target, exact_values
from blackout.flows.weights import (
    effective_sample_size,
    estimate_target,
    log_mean_exp,
    weighted_mean,
)
from blackout.networks import LEMLP, LEConvolution, LESite, LETransformer, LocallyEquivariant
from blackout.networks.equivariant import HollowBody, StateEncoding, UnitTimeEmbedding
from blackout.random import SampleStreams

_AVERAGED = 0.998


class TrajectoryBalance(EstimatedPartition):
    """The variance of log-weights of whole paths: zero if and only if every path is balanced, with
    one constant.

    log Z + log P_F(path) = log rho(x_1) + log P_B(path) [Malkin 2022, eq. 14] for a chain in
    continuous time, whose way back has the rates that keep p_t: the two sides differ by the
    integral of xi along the path [Ou 2025, eq. 8]. It is taken by the trapezoidal rule over the
    rollout's grid. The constant is the mean of the batch in place of a learned log Z
    [Richter 2020]. In continuous time it is ours (tests/flows/test_weights.py).

    Args:
        points: of the rollout, which is not resampled: states of a path.
    """

    def __init__(self, points: int = 32) -> None:
        super().__init__()
        self.points = points

    def __call__(self, network: LocallyEquivariant, batch: ReplayBatch) -> tuple[Tensor, Tensor]:
        """(squared differences from the mean of paths, [paths], the share of log-ratios that are
        clipped)."""
        log_ratios = batch.t[:, None, None] * batch.log_ratios
        net_rates = network(batch.x, batch.t, batch.log_ratios)
        xi = forward_residual(batch.dlogp_dt, net_rates, log_ratios.clamp(max=self.clip)).view(
            -1, self.points
        )
        weight = torch.trapezoid(xi, batch.t.view(-1, self.points), dim=1)
        return (weight - weight.mean()).square(), (log_ratios > self.clip).float().mean()


def paths_of(replay: ReplayBuffer, uniforms: Tensor) -> ReplayBatch:
    """Return complete paths of consecutive chains in a rollout, by uniforms [b, 3]."""
    points, chains = replay.x.shape[1:3]
    slot = int(uniforms[0, 0] * min(int(replay.num_rollouts), len(replay.x)))
    first_chain = int(uniforms[0, 1] * chains)
    chain = (first_chain + torch.arange(max(2, len(uniforms) // points))) % chains

    def flat(values: Tensor) -> Tensor:
        return values[slot][:, chain].transpose(0, 1).flatten(0, 1)

    t = replay.times[slot].float().repeat(len(chain))
    dlogp_dt = flat(replay.dlogp_dt)
    instance = torch.zeros(len(dlogp_dt), dtype=torch.int64)
    unused = torch.zeros_like(dlogp_dt)
    return ReplayBatch(flat(replay.x), t, flat(replay.log_ratios), dlogp_dt, unused, instance)


class Training:
    """Algorithm 1 for a given number of CPU seconds.

    Args:
        network: to be trained; its average is `averaged` afterwards.
        target: whose log-ratios are used.
        rollout: how states are generated.
        lr: the initial learning rate.
        objective: the loss; None for that of DNFS.
        batch: states per step.
    """

    def __init__(
        self,
        network: LocallyEquivariant,
        target: Target,
        rollout: Rollout | None = None,
        lr: float = 3e-3,
        objective: EstimatedPartition | None = None,
        batch: int = 128,
    ) -> None:
        self.objective = objective or EstimatedPartition()
        self.batch = batch
        self.network = network
        self.target = target
        self.averaged = deepcopy(network).eval().requires_grad_(False)
        self.rollout = Rollout(num_times=32, chains=128) if rollout is None else rollout
        self.replay = ReplayBuffer(self.rollout, target.levels, target.sites)
        self.optimizer = torch.optim.AdamW(network.parameters(), lr)
        self.lr = lr
        self.losses: list[float] = []

    def run(self, seconds: float, seed: int = 0) -> FlowSampler:
        """The trained sampler."""
        began = time.process_time()
        number = 0
        generator = torch.Generator().manual_seed(seed)
        while (used := (time.process_time() - began) / seconds) < 1:
            if number % self.rollout.every_n_steps == 0:
                roll_out(self.rollout, self.target, self.rates, seed + number, self.replay)
            self.optimizer.param_groups[0]["lr"] = self.lr * 0.5 * (1 + math.cos(math.pi * used))
            u = torch.rand(self.batch, 3, generator=generator).double()
            needs_complete_paths = isinstance(self.objective, TrajectoryBalance)
            batch = paths_of(self.replay, u) if needs_complete_paths else self.replay.sample(u)
            loss = self.objective(self.network, batch)[0].mean()
            self.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), 10.0)
            self.optimizer.step()
            weight = 1 - min(_AVERAGED, (1 + number) / (10 + number))
            for average, weights in zip(
                self.averaged.parameters(), self.network.parameters(), strict=True
            ):
                average.lerp_(weights.detach(), weight)
            self.losses.append(float(loss.detach()))
            number += 1
        return FlowSampler(self.averaged, self.target)

    def rates(self, states: States, t: float) -> Tensor:
        """Return the net rates of the network in training, float64 [B, d, S]."""
        with torch.no_grad():
            return self.network(
                states.x, torch.full((len(states.x),), t), states.log_ratios.float()
            ).double()

    @property
    def last_loss(self) -> float:
        """The mean over the last tenth of the training."""
        last = self.losses[-max(1, len(self.losses) // 10) :]
        return sum(last) / len(last)


def simulate_chains(
    model: FlowSampler, simulation: Simulation, chains: int, seed: int = 1
) -> tuple[Paths, float]:
    """Return (chains, CPU seconds)."""
    began = time.process_time()
    paths = simulation.run(model.target, model.rates(), torch.arange(chains), seed)
    return paths, time.process_time() - began


def describe(target: Target, paths: Paths) -> dict[str, float]:
    """Return the ESS, and the errors of log Z, energy and the means of sites."""
    exact = exact_values(target) or {}
    estimates = estimate_target(target, paths.states.x, paths.log_weights, paths.states.log_density)
    row = {
        "ess": estimates["ess"],
        "log Z error": estimates["log_z"] - exact.get("log_z", math.nan),
    }
    energy = exact.get("mean_energy", math.nan)
    row["energy error, %"] = 100 * (estimates["mean_energy"] / energy - 1)
    return row


def site_means(paths: Paths, exact: float) -> float:
    """Return the root mean square error of the weighted mean spins over sites."""
    spins = 2 * paths.states.x.double() - 1
    means = torch.tensor(
        [weighted_mean(spins[:, i], paths.log_weights)[0] for i in range(spins.shape[1])]
    )
    return float((means - exact).square().mean().sqrt())


def magnetisation(size: int, coupling: float, field: float) -> float:
    """Return the exact mean spin of a lattice, from the derivative of log Z by the field."""
    step = 1e-4
    up, down = (exact_values(Ising(size, coupling, field + shift)) or {} for shift in (step, -step))
    return (up["log_z"] - down["log_z"]) / (2 * step * size**2)


class _AttentionBody(HollowBody):
    """H_i = sum_{s != i} exp(k_s . q_s) v_s / sum_{s != i} exp(k_s . q_s), query and key at the
    same site s."""

    def __init__(self, sites: int, levels: int, channels: int, heads: int) -> None:
        super().__init__(channels, heads=heads)
        self.heads = heads
        self.states = StateEncoding(levels)
        self.embed = nn.Linear(self.states.channels, channels)
        self.place = nn.Parameter(0.5 * torch.randn(sites, channels))
        self.time = UnitTimeEmbedding(channels)
        self.project = nn.Linear(channels, 3 * channels)
        self.output = nn.Sequential(
            nn.Linear(2 * channels, channels), nn.SiLU(), nn.Linear(channels, channels)
        )

    def forward(self, x: Tensor, t: Tensor, conditional: Tensor) -> Tensor:
        shift = self.time(t.to(conditional.dtype))[:, None]
        hidden = F.silu(self.embed(self.states(x, conditional.dtype)) + self.place + shift)
        query, key, value = self.project(hidden).unflatten(-1, (3, self.heads, -1)).unbind(2)
        logit = (query * key).sum(-1) / math.sqrt(key.shape[-1])
        # a matrix without diagonal rather than a total minus the own term, which would leak by
        # rounding
        mask = torch.eye(x.shape[1], dtype=torch.bool, device=x.device)
        weights = logit.transpose(1, 2)[:, :, None, :].masked_fill(mask, -torch.inf).softmax(-1)
        mixed = (weights @ value.transpose(1, 2)).transpose(1, 2).flatten(2)
        site_embedding = (self.place + shift).expand(len(x), -1, -1)
        return self.output(torch.cat([mixed, site_embedding], -1))


class LEAttention(LocallyEquivariant):
    """leAttn: linear-attention weights of every site, normalised over the other sites [Ou 2025,
    appendix B.2].

    Args:
        sites: number of sites, at least 2.
        levels: number of states of a site.
        channels: width.
        heads: of the attention.
        heat_bath: add the heat-bath term.
        partition: also learn d log Z_t / dt.

    Raises:
        ValueError: one site, or a width that is no multiple of the heads.
    """

    def __init__(
        self,
        sites: int,
        levels: int,
        channels: int = 64,
        heads: int = 4,
        heat_bath: bool = False,
        partition: bool = False,
    ) -> None:
        if sites < 2:
            raise ValueError("attention to other sites needs at least 2 sites")
        super().__init__(
            _AttentionBody(sites, levels, channels, heads), levels, heat_bath, partition
        )


def networks(seconds: float, chains: int, quick: bool) -> list[dict[str, Any]]:
    rows = []
    for size in (4,) if quick else (4, 5):
        sites = size**2
        lattice = [size, size]
        coupling = 0.4
        field = 0.2
        target = Ising(size, coupling, field)
        makers: Mapping[str, Callable[[], LocallyEquivariant]] = {
            "lesite": partial(LESite, sites, 2, 32, lattice=lattice),
            "lemlp": partial(LEMLP, sites, 2, 64),
            "leattn": partial(LEAttention, sites, 2, 64, 4),
            "leconv": partial(LEConvolution, 2, lattice, 20, [3, 3, 3]),
            "letf": partial(LETransformer, sites, 2, 32, 2, 4),
        }
        exact = magnetisation(size, coupling, field)
        for name, make in makers.items():
            torch.manual_seed(0)
            training = Training(make(), target)
            model = training.run(seconds)
            paths, _ = simulate_chains(model, Events(16), chains)
            error = math.log(site_means(paths, exact))
            row = {"lattice": f"{size}x{size}", "network": name, "steps": len(training.losses)}
            rows.append(
                row
                | {
                    "loss": training.last_loss,
                    **describe(target, paths),
                    "log RMSE of means": error,
                }
            )
    return rows


@dataclass(frozen=True)
class OptimalStein(Rollout):
    """E (f - beta g) with beta = Cov(f, g) / Var g, which leaves Var f (1 - Corr(f, g)^2) [Ou 2025,
    eqs. 16 and 17]."""

    def estimate_dlogz_dt(self, dlogp_dt: Tensor, control: Tensor) -> Tensor:
        centred = control - control.mean(-1, keepdim=True)
        variance = centred.square().sum(-1)
        beta = (centred * dlogp_dt).sum(-1) / variance.clamp(min=1e-300)
        return dlogp_dt.mean(-1) - torch.where(variance > 0, beta, 0.0) * control.mean(-1)


def estimator_std(training: Training, rollout: Rollout, repeats: int) -> float:
    """Return the standard deviation of the estimate of d log Z / dt, averaged over the times.

    References: Ou et al. 2025, Figure 1.

    Args:
        training: whose rates simulate the chains.
        rollout: whose estimator is judged.
        repeats: number of independent rollouts, at least 2.
    """
    repeated = replace(rollout, buffer_size=repeats)
    target = training.target
    replay = ReplayBuffer(repeated, target.levels, target.sites)
    for seed in range(repeats):
        roll_out(repeated, target, training.rates, seed, replay)
    return float(replay.dlogz_dt.std(0).mean())


def estimators(seconds: float, chains: int, quick: bool) -> list[dict[str, Any]]:
    rows = []
    rollouts = {name: Rollout(32, 128, estimator=name) for name in ("plain", "stein")}
    rollouts["stein_optimal"] = OptimalStein(32, 128)
    for coupling in (0.2,) if quick else (0.2, 0.4406868):
        for name, rollout in rollouts.items():
            torch.manual_seed(0)
            target = Ising(4, coupling)
            training = Training(LESite(16, 2, 32, lattice=[4, 4]), target, rollout)
            model = training.run(seconds)
            paths, _ = simulate_chains(model, Events(16), chains)
            rows.append(
                {
                    "coupling": coupling,
                    "d log Z / dt": name,
                    "std": estimator_std(training, rollout, 4 if quick else 32),
                    "loss": training.last_loss,
                    **describe(target, paths),
                }
            )
    return rows


def drawn_paths(model: FlowSampler, simulation: Simulation, chains: int) -> Paths:
    """Return the chains of `simulate_chains`."""
    return simulate_chains(model, simulation, chains)[0]


def annealed_weights(target: Target, chains: int, sweeps: int, seed: int) -> Tensor:
    """Return log-weights of annealed importance sampling [chains]."""
    return anneal(target, chains, sweeps, seed).log_weights


def run_chains(target: Target, moves: Refinement, chains: int, steps: int, seed: int = 1) -> Paths:
    """Return unweighted chains of `moves` on the target, from uniform noise."""
    streams = SampleStreams(seed, torch.arange(chains))
    states = States.initial(target, streams.step(0).next_draw().uniform((chains, target.sites)))
    none = torch.zeros(chains, dtype=torch.int64)
    for k in range(steps):
        states = moves(target, states, 1.0, streams.step(k + 1))
    return Paths(states, torch.zeros(chains, dtype=torch.float64), none, none)


def samplers(seconds: float, chains: int, quick: bool) -> list[dict[str, Any]]:
    rows = []
    for size, coupling in ((4, 0.4406868),) if quick else ((4, 0.4406868), (10, 0.2)):
        target = Ising(size, coupling)
        torch.manual_seed(0)
        rollout = (
            Rollout(32, 128, refine=Gibbs(), resample_below=0.7) if size > 4 else Rollout(32, 128)
        )
        model = Training(LESite(size**2, 2, 32, lattice=[size, size]), target, rollout).run(seconds)
        cases: dict[str, Callable[[], Paths]] = {
            "flow, events, 16 steps": partial(drawn_paths, model, Events(16), chains),
            "flow, leap, 64 steps": partial(drawn_paths, model, Leap(64), chains),
            "Gibbs, 64 sweeps": partial(run_chains, target, Gibbs(), chains, 64),
            "locally informed, 64 moves": partial(
                run_chains, target, LocallyInformed(), chains, 64
            ),
            "DMALA, 64 moves": partial(run_chains, target, DMALA(), chains, 64),
            "AIS, 64 sweeps": partial(anneal, target, chains, 64),
            "AIS, 256 sweeps": partial(anneal, target, chains, 64 if quick else 256),
        }
        for name, run in cases.items():
            began = time.process_time()
            paths = run()
            used = time.process_time() - began
            row = {
                "lattice": f"{size}x{size}, {coupling:.2g}",
                "sampler": name,
                **describe(target, paths),
            }
            if name.startswith(("Gibbs", "locally", "DMALA")):
                row |= {"ess": math.nan, "log Z error": math.nan}
            rows.append(
                row
                | {"CPU s": used, "and of training": seconds if name.startswith("flow") else 0.0}
            )
    return rows


class _Taylor(Target):
    """An energy network whose log-ratios are those of its first-order expansion."""

    def __init__(self, network: Any) -> None:
        super().__init__(network.levels, network.shape)
        self.network = network

    def log_density(self, x: Tensor) -> Tensor:
        return self.network.log_density(x)

    def log_ratios(self, x: Tensor) -> Tensor:
        return taylor_ratios(self.network, x)


def ratios(seconds: float, chains: int, quick: bool) -> list[dict[str, Any]]:
    energy = pretrain("moons", 5 if quick else 350, 1e-3, 128, [256, 256, 256], 0)
    log_z = float(log_mean_exp(uniform_weights(energy, 0, 1000 if quick else 1_000_000)))
    rows = []
    for name, target in {"exact": energy, "first order": _Taylor(energy)}.items():
        torch.manual_seed(0)
        training = Training(LESite(energy.sites, 2, 32, heat_bath=True), target, Rollout(32, 96))
        model = training.run(seconds)
        assert isinstance(model.network, LocallyEquivariant)
        paths, _ = simulate_chains(FlowSampler(model.network, energy), Events(16), chains)
        estimates = estimate_target(
            energy, paths.states.x, paths.log_weights, paths.states.log_density
        )
        row = {
            "ratios in training": name,
            "steps": len(training.losses),
            "loss": training.last_loss,
        }
        rows.append(row | {"ess": estimates["ess"], "log Z error": estimates["log_z"] - log_z})
    return rows


class GFlowNet(nn.Module):
    """A policy that chooses the next site and its value, P_F; backwards, sites are cleared
    uniformly.

    Args:
        target: the distribution.
        width: hidden units of two layers.
    """

    def __init__(self, target: Target, width: int = 256) -> None:
        super().__init__()
        self.target = target
        sizes = (target.sites * (target.levels + 1), width, width, target.sites * target.levels)
        layers = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.SiLU())]
        self.policy, self.log_z = nn.Sequential(*layers[:-1]), nn.Parameter(torch.zeros(()))

    def forward(self, number: int) -> tuple[Tensor, Tensor]:
        """(log P_F, log P_B + log rho) of trajectories drawn by the policy, [number]
        each."""
        sites = self.target.sites
        levels = self.target.levels
        x = torch.full((number, sites), levels)
        log_forward = torch.zeros(number)
        for _ in range(sites):
            logits = self.policy(nn.functional.one_hot(x, levels + 1).float().flatten(1)).view(
                number, sites, levels
            )
            log_p = (
                logits.masked_fill((x < levels)[..., None], -torch.inf).flatten(1).log_softmax(1)
            )
            chosen = torch.multinomial(log_p.detach().exp(), 1)
            log_forward = log_forward + log_p.gather(1, chosen)[:, 0]
            x = x.scatter(1, chosen // levels, chosen % levels)
        log_back = -torch.lgamma(torch.tensor(sites + 1.0))  # uniform over the orders of all sites
        return log_forward, self.target.log_density(x.to(torch.uint8)).float() + log_back


def gflownet(target: Target, seconds: float, chains: int, seed: int) -> Tensor:
    """Return log-weights of a GFlowNet's samples after some seconds of trajectory balance."""
    torch.manual_seed(seed)
    model = GFlowNet(target)
    ends = time.process_time() + seconds
    groups: list[dict[str, Any]] = [
        {"params": model.policy.parameters()},
        {"params": [model.log_z], "lr": 0.1},
    ]
    optimizer = torch.optim.Adam(groups, lr=1e-3)
    while time.process_time() < ends:
        log_forward, log_back = model(128)
        loss = (model.log_z + log_forward - log_back).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        log_forward, log_back = model(chains)
    return (log_back - log_forward).double()


def balance(seconds: float, chains: int, quick: bool) -> list[dict[str, Any]]:
    rows = []
    for coupling in (0.2,) if quick else (0.2, 0.4406868):
        target = Ising(4, coupling)
        exact = (exact_values(target) or {})["log_z"]

        def flow(
            objective: EstimatedPartition, batch: int, seed: int, target: Ising = target
        ) -> Tensor:
            torch.manual_seed(seed)
            training = Training(
                LESite(16, 2, 32, lattice=[4, 4]), target, objective=objective, batch=batch
            )
            return simulate_chains(training.run(seconds, seed), Events(16), chains)[0].log_weights

        methods: dict[str, Callable[[int], Tensor]] = {
            "flow, dnfs": partial(flow, EstimatedPartition(), 128),
            "flow, trajectory_balance, 4 paths": partial(flow, TrajectoryBalance(), 128),
            "flow, trajectory_balance, 16 paths": partial(flow, TrajectoryBalance(), 512),
            "GFlowNet": partial(gflownet, target, seconds, chains),
            "AIS, 256 sweeps": partial(annealed_weights, target, chains, 256),
        }
        for name, method in methods.items():
            began = time.process_time()
            weights = [method(seed) for seed in range(1 if quick else 2)]
            ess = [float(effective_sample_size(log_weights)) for log_weights in weights]
            row = {
                "coupling": coupling,
                "method": name,
                "ess": sum(ess) / len(ess),
                "ess, smallest": min(ess),
            }
            row["log Z error, largest"] = max(
                (float(log_mean_exp(log_weights)) - exact for log_weights in weights), key=abs
            )
            rows.append(row | {"CPU s": (time.process_time() - began) / len(weights)})
    return rows


def leaps(seconds: float, chains: int, quick: bool) -> list[dict[str, Any]]:
    size = 4 if quick else 10
    target = Ising(size, 0.2)
    lattice = [size, size]
    rows = []
    makers: dict[str, tuple[Callable[[], LocallyEquivariant], EstimatedPartition]] = {
        "DNFS, leTF": (lambda: LETransformer(size**2, 2, 32, 2, 4), EstimatedPartition()),
        "LEAPS, leConv": (
            lambda: LEConvolution(2, lattice, 20, [3, 3, 3], partition=True),
            LearnedPartition(),
        ),
        "DNFS, lesite": (lambda: LESite(size**2, 2, 32, lattice=lattice), EstimatedPartition()),
    }
    for name, (make, objective) in makers.items():
        torch.manual_seed(0)
        training = Training(make(), target, objective=objective)
        model = training.run(seconds)
        row = {"method": name, "steps": len(training.losses), "loss": training.last_loss}
        rows.append(row | describe(target, simulate_chains(model, Events(32), chains)[0]))
    none: dict[str, Any] = {"steps": 0, "loss": math.nan}
    weights = gflownet(target, seconds, chains, 0)
    log_z_error = float(log_mean_exp(weights)) - (exact_values(target) or {})["log_z"]
    ess = float(effective_sample_size(weights))
    rows.append(
        {
            "method": "GFlowNet",
            **none,
            "ess": ess,
            "log Z error": log_z_error,
            "energy error, %": math.nan,
        }
    )
    for sweeps in (64, 256):
        annealed = describe(target, anneal(target, chains, sweeps))
        rows.append({"method": f"AIS, {sweeps} sweeps, untrained", **none, **annealed})
    return rows


class Padded(Target):
    """A target of d sites on a lattice; the other sites are uniform and ignored.

    Args:
        inner: the target.
        lattice: with at least as many sites.
    """

    def __init__(self, inner: Target, lattice: list[int]) -> None:
        super().__init__(inner.levels, lattice)
        self.inner = inner

    def log_density(self, x: Tensor) -> Tensor:
        return self.inner.log_density(x[:, : self.inner.sites])

    def log_ratios(self, x: Tensor) -> Tensor:
        inner_ratios = self.inner.log_ratios(x[:, : self.inner.sites])
        return nn.functional.pad(inner_ratios, (0, 0, 0, self.sites - self.inner.sites))


def padded(seconds: float, chains: int, quick: bool) -> list[dict[str, Any]]:
    energy = pretrain("moons", 5 if quick else 350, 1e-3, 128, [256, 256, 256], 0)
    rows = []
    exact = float(log_mean_exp(uniform_weights(energy, 0, 1000 if quick else 1_000_000)))
    on_lattice = Padded(energy, [6, 6])
    extra = (on_lattice.sites - energy.sites) * math.log(2)
    makers: dict[
        str, tuple[Target, float, Callable[[], LocallyEquivariant], EstimatedPartition]
    ] = {
        "LEAPS, leConv, padded to 6x6": (
            on_lattice,
            extra,
            lambda: LEConvolution(2, [6, 6], 20, [3, 3, 3], partition=True),
            LearnedPartition(),
        ),
        "LEAPS, leTF": (
            energy,
            0.0,
            lambda: LETransformer(32, 2, 32, 2, 4, partition=True),
            LearnedPartition(),
        ),
        "DNFS, lesite": (
            energy,
            0.0,
            lambda: LESite(32, 2, 32, heat_bath=True),
            EstimatedPartition(),
        ),
    }
    for name, (target, surplus, make, objective) in makers.items():
        torch.manual_seed(0)
        training = Training(make(), target, Rollout(32, 96), objective=objective)
        weights = simulate_chains(training.run(seconds), Events(16), chains)[0].log_weights
        row = {
            "method": name,
            "steps": len(training.losses),
            "ess": float(effective_sample_size(weights)),
        }
        rows.append(row | {"log Z error": float(log_mean_exp(weights)) - surplus - exact})
    weights = anneal(energy, chains, 64).log_weights
    row = {
        "method": "AIS, 64 sweeps, untrained",
        "steps": 0,
        "ess": float(effective_sample_size(weights)),
    }
    return [*rows, row | {"log Z error": float(log_mean_exp(weights)) - exact}]


def learned(
    negative: NegativeSampler, data: Tensor, seconds: float, sites: int, size: int
) -> tuple[PairEnergy, int]:
    """Return (averaged pair energy, number of steps) after some CPU seconds of
    recipe=energy/couplings."""
    torch.manual_seed(0)
    energy = PairEnergy(sites, l1=0.01)
    pair = EnergyWithRates(energy, LESite(sites, 2, 32, lattice=[size, size], heat_bath=True))
    rollout = Rollout(17, 64, every_n_steps=1, buffer_size=1, refine=Gibbs())
    simulation = Events(16, resample_below=0.5, group_size=256)
    model = EnergySampler(pair, simulation, negative, rollout=rollout, ema_decay=0.99)
    optimizer = torch.optim.Adam(model.parameter_groups(1e-3), lr=1e-3)
    began = time.process_time()
    number = 0
    steps = 0
    while (used := (time.process_time() - began) / seconds) < 1:
        for group in optimizer.param_groups:
            group["lr"] = 5e-3 * 0.5 * (1 + math.cos(math.pi * used))
        x0 = data[torch.randint(len(data), (256,), generator=torch.Generator().manual_seed(number))]
        couplings_before = energy.upper.detach().clone()
        loss = model.training_step(
            {"batch_number": number, "position": torch.arange(256), "x0": x0}
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert model.ema is not None
        model.ema.update(model.network, number)
        number = number + 1
        steps = steps + int(bool((energy.upper != couplings_before).any()))
    return model.target, steps  # type: ignore[return-value]


def pseudolikelihood(data: Tensor, sites: int) -> PairEnergy:
    """Return couplings by logistic regression of every spin on the others, without samples."""
    energy = PairEnergy(sites)
    optimizer = torch.optim.LBFGS(energy.parameters(), max_iter=100)
    spins = 2 * data.float() - 1

    def closure() -> Tensor:
        optimizer.zero_grad()
        log_p = nn.functional.logsigmoid(4 * spins * (spins @ energy.couplings))
        loss = -log_p.sum(1).mean() + 0.01 * 2 * energy.upper.abs().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return energy


def couplings(seconds: float, chains: int, quick: bool) -> list[dict[str, Any]]:
    rows = []
    for size, coupling in ((3, 0.2),) if quick else ((4, 0.2), (4, 0.4406868)):
        source = target_samples(Ising(size, coupling), 2000, 0, "ising")
        assert isinstance(source.train, Tensor)
        data = source.train.flatten(1)
        makers: dict[str, Callable[[], NegativeSampler]] = {
            "flow": lambda: FlowSamples(256),
            "PCD, Gibbs": lambda: PersistentChains(256),
            "PCD, Gibbs with gradients, 16 moves": lambda: PersistentChains(
                256, LocallyInformed(16, True)
            ),
            "PCD, DMALA": lambda: PersistentChains(256, GradientDMALA(1, 0.4)),
        }
        for name, make in makers.items():
            energy, steps = learned(make(), data, seconds, size**2, size)
            scores = score_couplings(energy, source)
            row = {
                "lattice": f"{size}x{size}, {coupling:.2g}",
                "negative phase": name,
                "steps": steps,
            }
            rows.append(row | {"-log RMSE": scores["neg_log_rmse"], "CPU s": seconds})
        began = time.process_time()
        scores = score_couplings(pseudolikelihood(data, size**2), source)
        used = time.process_time() - began
        row = {
            "lattice": f"{size}x{size}, {coupling:.2g}",
            "negative phase": "none: pseudo-likelihood",
            "steps": 100,
        }
        rows.append(row | {"-log RMSE": scores["neg_log_rmse"], "CPU s": used})
        row |= {"negative phase": "J = 0", "steps": 0}
        rows.append(row | {"-log RMSE": scores["neg_log_rmse_zero_couplings"], "CPU s": 0.0})
    return rows


TABLES = {
    "networks": networks,
    "estimators": estimators,
    "samplers": samplers,
    "ratios": ratios,
    "balance": balance,
    "leaps": leaps,
    "padded": padded,
    "couplings": couplings,
}


def main(argv: list[str] | None = None) -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("--seconds", type=float, default=20.0, help="of CPU time, per training")
    parser.set_defaults(device="cpu", threads=1)
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    seconds, chains = (0.3, 64) if options.quick else (options.seconds, 4096)
    report(
        options.table,
        TABLES[options.table](seconds, chains, options.quick),
        options,
        seconds=seconds,
    )


if __name__ == "__main__":
    main()
