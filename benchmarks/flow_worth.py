"""`python -m benchmarks.flow_worth runs/flow_ising/<run_id> --training 32`: from how many samples on training pays.

A trained flow and the classical methods draw from its target for equal CPU seconds each, on one thread. What counts is
effective samples a second, N ESS / s: chains that were resampled in groups by the spread of the groups' estimates, and
replicas of parallel tempering by the error of their mean energy.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from blackout import load_model
from blackout.errors import CommandParser, UserError, run_command
from blackout.flows import Clusters, FlowSampler
from blackout.flows.annealed_importance import anneal, parallel_tempering, resampling_group_size
from blackout.flows.refinement import Refinement, is_ferromagnetic
from blackout.flows.simulation import Paths
from blackout.flows.targets import Target
from blackout.flows.weights import estimate_target, exact_references

_CHAINS = 1024
_LADDER = (64, 256, 1024, 4096, 16384)
"""Sweeps of annealing."""
_TEMPERATURES = 16
"""Of parallel tempering."""


Drawn = tuple[Paths, Tensor | None, float | None]
"""Paths; which chains were resampled together or are of one set of replicas; the error of log Z of replicas."""


def methods(model: FlowSampler) -> dict[str, Callable[[int], Drawn]]:
    """What a method draws with a seed, by name."""
    target, indices = model.target, torch.arange(_CHAINS)
    groups = indices // resampling_group_size(_CHAINS)

    def annealed(sweeps: int, refine: Refinement | None, seed: int) -> Drawn:
        return anneal(target, _CHAINS, sweeps, seed, refine=refine, power=None), None, None

    def resampled(sweeps: int, seed: int) -> Drawn:
        return anneal(target, _CHAINS, sweeps, seed, 0.5, power=None), groups, None

    def tempered(seed: int, sweeps: int, refine: Refinement | None = None) -> Drawn:
        paths, sets, errors = parallel_tempering(target, _CHAINS // _TEMPERATURES, _TEMPERATURES, sweeps, seed, refine)
        return paths, sets, errors[-1]

    found: dict[str, Callable[[int], Drawn]] = {"flow": lambda seed: (model.simulate(indices, seed), None, None)}
    for sweeps in _LADDER:
        found[f"AIS, {sweeps} sweeps"] = partial(annealed, sweeps, None)
        found[f"SMC, {sweeps} sweeps"] = partial(resampled, sweeps)
    found["tempering, 1024 sweeps"] = lambda seed: tempered(seed, 1024)
    if is_ferromagnetic(target):
        for sweeps in _LADDER[:3]:
            found[f"AIS, {sweeps} sweeps of clusters"] = partial(annealed, sweeps, Clusters())
        found["tempering, 128 sweeps of clusters"] = lambda seed: tempered(seed, 128, Clusters())
    return found


def rate(target: Target, draw: Callable[[int], Drawn], seconds: float) -> tuple[float, float, float]:
    """(effective samples a second, ESS, log Z) of as many draws as begin within so many CPU seconds."""
    parts, spent, error = list[Paths](), 0.0, None
    groups, most = list[Tensor](), 0
    while spent < seconds:
        began = time.process_time()
        paths, own, error = draw(len(parts) + 1)
        spent += time.process_time() - began
        parts.append(paths)
        if own is not None:
            groups.append(own + most)
            most += int(own.max()) + 1
    x, weights, density = (
        torch.cat(part)
        for part in zip(*((p.states.x, p.log_weights, p.states.log_density) for p in parts), strict=True)
    )
    values = estimate_target(target, x, weights, density, torch.cat(groups) if groups else None, error)
    return len(x) * values["ess"] / spent, values["ess"], values["log_z"]


def run(given: argparse.Namespace) -> None:
    """Print a line for every method, and the verdict.

    Raises:
        UserError: not a flow on one target, or not a positive number of seconds.
    """
    model = load_model(given.ckpt)
    if not isinstance(model, FlowSampler) or not given.seconds > 0 or not given.training >= 0:
        raise UserError("give a trained flow, and seconds above 0")
    torch.set_num_threads(1)
    exact, rates = exact_references(model.target).get("log_z_exact", math.nan), {}
    print(f"{'method':32} {'ESS':>7} {'log Z off':>10} {'effective samples a CPU s':>26}")
    for name, draw in methods(model).items():
        draw(0)  # what is compiled is compiled before the clock runs
        rates[name], ess, log_z = rate(model.target, draw, given.seconds)
        print(f"{name:32} {ess:7.3f} {log_z - exact:+10.4f} {rates[name]:26,.0f}", flush=True)
    own = rates.pop("flow")
    best = max(rates, key=lambda name: rates[name])
    if own <= rates[best]:
        print(f"training does not pay: {best} gives {rates[best] / own:.1f} times the effective samples of the flow")
        return
    pays = given.training / (1 / rates[best] - 1 / own)
    print(f"training ({given.training:g} CPU s) pays from {pays:,.0f} effective samples on, against {best}")


def main() -> None:
    parser = CommandParser(prog="python -m benchmarks.flow_worth", description=(__doc__ or "").split(": ")[1])
    parser.add_argument("ckpt", help="a trained flow")
    parser.add_argument("--training", type=float, required=True, help="CPU seconds that its training took")
    parser.add_argument("--seconds", type=float, default=10.0, help="of drawing, for every method")
    run_command(run, parser)


if __name__ == "__main__":
    main()
