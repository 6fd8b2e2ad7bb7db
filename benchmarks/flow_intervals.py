"""`python -m benchmarks.flow_intervals [--ckpt runs/flow_ising/<run_id>]`: coverage of intervals of
log Z.

Every case is sampled `--draws` times with different seeds and evaluated like `sample.py` and
`anneal`. Printed are the coverage of the 95 % interval (log_z_ci_low to log_z_ci_high) and of log_z
± 1.96 log_z_error, the median width, the root mean square error, and the number of flagged draws.
Then samples of a first-order transition that miss a mode are drawn, and the fraction of flagged
draws is printed. A trained flow adds its own cases.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from blackout import load_model
from blackout.errors import CommandParser, UserError, run_command
from blackout.flows import FlowSampler
from blackout.flows.annealed_importance import anneal, parallel_tempering, resampling_group_size
from blackout.flows.diagnostics import check_estimates
from blackout.flows.simulation import Events, Leap, Simulation
from blackout.flows.targets import (
    Couplings,
    Ising,
    Potts,
    SpinGlass,
    Target,
    enumerate_states,
    exact_values,
)
from blackout.flows.weights import Z_95, estimate_target, exact_references
from blackout.random import fold_seed

CRITICAL = 0.4406868
# Of a draw that misses a mode.
_SAMPLES = 64  # of a draw


class Drawn(NamedTuple):
    """A draw with the arguments of `estimates`: states [N, d], weights and log rho [N], groups,
    error."""

    x: Tensor
    log_weights: Tensor
    log_density: Tensor
    groups: Tensor | None = None
    log_z_error: float | None = None


Draw = Callable[[int], Drawn]


class FirstOrder(Target):
    """rho = exp(15 m^4) of 20 spins: along the path, disorder and two ordered modes have equal
    weight."""

    def __init__(self) -> None:
        super().__init__(2, [20])

    def log_density(self, x: Tensor) -> Tensor:
        return 15 * (2 * x.double().mean(-1) - 1) ** 4


def annealed(target: Target, chains: int, sweeps: int, below: float | None = None) -> Draw:
    """Return a draw by annealed importance sampling, or by SMC with `below`."""

    def draw(seed: int) -> Drawn:
        paths = anneal(target, chains, sweeps, seed, below, power=None)
        groups = None if below is None else torch.arange(chains) // resampling_group_size(chains)
        return Drawn(paths.states.x, paths.log_weights, paths.states.log_density, groups)

    return draw


def tempered(target: Target, sets: int, temperatures: int, sweeps: int) -> Draw:
    """Return a draw by parallel tempering."""

    def draw(seed: int) -> Drawn:
        paths, of_sets, errors = parallel_tempering(target, sets, temperatures, sweeps, seed)
        return Drawn(
            paths.states.x, paths.log_weights, paths.states.log_density, of_sets, errors[-1]
        )

    return draw


def draw_from_flow(model: FlowSampler, chains: int, simulation: Simulation) -> Draw:
    """Return a draw of a trained flow."""

    def draw(seed: int) -> Drawn:
        paths = model.simulate(torch.arange(chains), seed, simulation=simulation)
        groups = (
            None
            if simulation.resample_below is None
            else torch.arange(chains) // simulation.group_size
        )
        return Drawn(paths.states.x, paths.log_weights, paths.states.log_density, groups)

    return draw


def cases() -> dict[str, tuple[Target, Draw]]:
    """Return annealing, SMC with few steps and frequent resampling, and tempering, with known log
    Z."""
    small = Ising(4, CRITICAL)
    large = Ising(10, CRITICAL)
    cold = Ising(4, 1.0)
    glass = SpinGlass(4)
    potts = Potts(4, 3, math.log1p(3**0.5))
    generator = torch.Generator().manual_seed(0)
    bonds = torch.randn(16, 16, generator=generator).triu(1) * 0.2
    dense = Couplings(
        (bonds + bonds.T).double(), 0.3 * torch.randn(16, generator=generator).double()
    )
    return {
        "AIS, 4x4 critical, 64 chains, 64 sweeps": (small, annealed(small, 64, 64)),
        "AIS, 4x4 critical, 1,024 chains, 8 sweeps": (small, annealed(small, 1024, 8)),
        "AIS, 10x10 critical, 1,024 chains, 256 sweeps": (large, annealed(large, 1024, 256)),
        "AIS, 10x10 critical, 1,024 chains, 32 sweeps": (large, annealed(large, 1024, 32)),
        "AIS, 4x4 ordered (.5), 256 chains, 64 sweeps": (cold, annealed(cold, 256, 64)),
        "AIS, Potts q = 3 4x4 critical, 256 chains, 64 sweeps": (potts, annealed(potts, 256, 64)),
        "AIS, spin glass 4x4, 256 chains, 32 sweeps": (glass, annealed(glass, 256, 32)),
        "SMC, 4x4 critical, 1,024 chains, 4 sweeps, below .95": (
            small,
            annealed(small, 1024, 4, 0.95),
        ),
        "SMC, 4x4 critical, 256 chains, 4 sweeps, below .95": (
            small,
            annealed(small, 256, 4, 0.95),
        ),
        "SMC, 10x10 critical, 1,024 chains, 16 sweeps, below .95": (
            large,
            annealed(large, 1024, 16, 0.95),
        ),
        "SMC, 10x10 critical, 1,024 chains, 128 sweeps, below .5": (
            large,
            annealed(large, 1024, 128, 0.5),
        ),
        "SMC, 16 dense couplings, 256 chains, 8 sweeps, below .95": (
            dense,
            annealed(dense, 256, 8, 0.95),
        ),
        "tempering, 4x4 critical, 16 sets of 8, 64 sweeps": (small, tempered(small, 16, 8, 64)),
        "tempering, 10x10 critical, 16 sets of 16, 256 sweeps": (
            large,
            tempered(large, 16, 16, 256),
        ),
    }


def flow_cases(model: FlowSampler) -> dict[str, tuple[Target, Draw]]:
    """Return the cases of a trained flow."""
    ways: dict[str, tuple[int, Simulation]] = {
        "flow, 64 chains, 16 steps": (64, Events(16)),
        "flow, 1,024 chains, 4 steps, below .95": (
            1024,
            Events(4, resample_below=0.95, group_size=64),
        ),
        "flow, 1,024 chains, 4 leaps, below .95": (
            1024,
            Leap(4, resample_below=0.95, group_size=64),
        ),
    }
    return {name: (model.target, draw_from_flow(model, *way)) for name, way in ways.items()}


def evaluate_draw(
    target: Target, sample: Drawn, seed: int
) -> tuple[dict[str, float], dict[str, str]]:
    """Return the reported estimates and the flags."""
    x, weights, density, groups, error = sample
    values = estimate_target(target, x, weights, density, groups, error)
    flags = check_estimates(target, x, weights, values, fold_seed(seed, 13), groups)
    return values, flags


def missing(allowed: Callable[[Tensor], Tensor]) -> Draw:
    """Return exact samples of a subset of states, with the weights that such a draw would have."""
    states, density = enumerate_states(FirstOrder())
    is_allowed = allowed(2 * states.double().mean(1) - 1)
    states = states[is_allowed]
    density = density[is_allowed]

    def draw(seed: int) -> Drawn:
        indices = torch.multinomial(
            density.softmax(0), _SAMPLES, True, generator=torch.Generator().manual_seed(seed)
        )
        weights = torch.logsumexp(density, 0).expand(_SAMPLES).clone()
        return Drawn(states[indices], weights, density[indices])

    return draw


def run(options: argparse.Namespace) -> None:
    """Print a line for every case.

    Raises:
        UserError: if the model is not a flow on one target, or there are no draws.
    """
    if options.draws < 1:
        raise UserError("--draws must be at least 1")
    torch.set_num_threads(1)
    every = cases()
    if options.ckpt is not None:
        model = load_model(options.ckpt)
        if not isinstance(model, FlowSampler) or "log_z_exact" not in exact_references(
            model.target
        ):
            raise UserError("give a trained flow on one target whose log Z is known")
        every |= flow_cases(model)
    print(f"{'case':56} {'ends':>6} {'error':>6} {'width':>7} {'rmse':>7} {'flagged':>8}")
    for name, (target, draw) in every.items():
        log_z = (exact_values(target) or {})["log_z"]
        ends = error = flagged = 0
        widths = list[float]()
        errors = list[float]()
        for seed in range(options.first, options.first + options.draws):
            values, flags = evaluate_draw(target, draw(seed), seed)
            deviation = values["log_z"] - log_z
            ends += values["log_z_ci_low"] <= log_z <= values["log_z_ci_high"]
            error += abs(deviation) <= Z_95 * values["log_z_error"]
            flagged += bool(flags)
            widths.append(values["log_z_ci_high"] - values["log_z_ci_low"])
            errors.append(deviation)
        spread = float(torch.tensor(errors).square().mean().sqrt())
        width = float(torch.tensor(widths).median())
        print(f"{name:56} {ends:6} {error:6} {width:7.3f} {spread:7.3f} {flagged:8}", flush=True)
    target = FirstOrder()
    log_z = (exact_values(FirstOrder()) or {})["log_z"]
    partial_draws: dict[str, Draw] = {
        "all there": missing(lambda m: m.abs() >= 0),
        "no order": missing(lambda m: m.abs() < 0.7),
        "one of two ordered modes, and noise": missing(lambda m: m > -0.7),
        "one mode alone": missing(lambda m: m > 0.7),
        "AIS, 64 sweeps": annealed(target, _SAMPLES, 64),
        "AIS, 4 sweeps": annealed(target, _SAMPLES, 4),
    }
    print(
        f"{_SAMPLES} samples of exp(15 m^4), 20 spins: "
        f"{'flagged':>20} {'missed mode':>12} {'interval holds':>15}"
    )
    for name, draw in partial_draws.items():
        evaluations = [
            evaluate_draw(target, draw(seed), seed)
            for seed in range(options.first, options.first + options.draws)
        ]
        flagged, named = (
            sum(test(flags) for _, flags in evaluations)
            for test in (bool, lambda f: "missed_mode" in f)
        )
        num_covered = sum(
            values["log_z_ci_low"] <= log_z <= values["log_z_ci_high"] for values, _ in evaluations
        )
        print(f"{name:40} {flagged:17} {named:12} {num_covered:15}", flush=True)


def main() -> None:
    parser = CommandParser(
        prog="python -m benchmarks.flow_intervals",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--ckpt", help="a trained flow, for cases of its own")
    parser.add_argument("--draws", type=int, default=40, help="of every case")
    parser.add_argument("--first", type=int, default=0, help="seed of the first draw")
    run_command(run, parser)


if __name__ == "__main__":
    main()
