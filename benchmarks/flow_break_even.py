"""`python -m benchmarks.flow_break_even runs/flow_ising/<run_id> --training 32`: when training
pays.

A trained flow and classical methods sample its target for equal CPU seconds each, on one thread.
They are compared by effective samples per second, N ESS / s. For chains that are resampled in
groups these follow from the spread of the groups' estimates, and for replicas of parallel tempering
from the error of their mean energy.
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

_CHAINS = 1024  # chains of one draw
# Sweeps of annealing.
_LADDER = (64, 256, 1024, 4096, 16384)
# Of parallel tempering.
_TEMPERATURES = 16  # of parallel tempering


# Paths; which chains were resampled together or are of one set of replicas; the error of log Z of
# replicas.
Drawn = tuple[Paths, Tensor | None, float | None]


def methods(model: FlowSampler) -> dict[str, Callable[[int], Drawn]]:
    """Return a function by method that samples with a seed."""
    target = model.target
    indices = torch.arange(_CHAINS)
    groups = indices // resampling_group_size(_CHAINS)

    def annealed(sweeps: int, refine: Refinement | None, seed: int) -> Drawn:
        return anneal(target, _CHAINS, sweeps, seed, refine=refine, power=None), None, None

    def resampled(sweeps: int, seed: int) -> Drawn:
        return anneal(target, _CHAINS, sweeps, seed, 0.5, power=None), groups, None

    def tempered(seed: int, sweeps: int, refine: Refinement | None = None) -> Drawn:
        paths, sets, errors = parallel_tempering(
            target, _CHAINS // _TEMPERATURES, _TEMPERATURES, sweeps, seed, refine
        )
        return paths, sets, errors[-1]

    draws: dict[str, Callable[[int], Drawn]] = {
        "flow": lambda seed: (model.simulate(indices, seed), None, None)
    }
    for sweeps in _LADDER:
        draws[f"AIS, {sweeps} sweeps"] = partial(annealed, sweeps, None)
        draws[f"SMC, {sweeps} sweeps"] = partial(resampled, sweeps)
    draws["tempering, 1024 sweeps"] = lambda seed: tempered(seed, 1024)
    if is_ferromagnetic(target):
        for sweeps in _LADDER[:3]:
            draws[f"AIS, {sweeps} sweeps of clusters"] = partial(annealed, sweeps, Clusters())
        draws["tempering, 128 sweeps of clusters"] = lambda seed: tempered(seed, 128, Clusters())
    return draws


def rate(
    target: Target, draw: Callable[[int], Drawn], seconds: float
) -> tuple[float, float, float]:
    """Return (effective samples per second, ESS, log Z) of draws begun within a CPU time."""
    draws = list[Paths]()
    spent = 0.0
    error = None
    groups = list[Tensor]()
    num_groups = 0
    while spent < seconds:
        start_time = time.process_time()
        paths, draw_groups, error = draw(len(draws) + 1)
        spent += time.process_time() - start_time
        draws.append(paths)
        if draw_groups is not None:
            groups.append(draw_groups + num_groups)
            num_groups += int(draw_groups.max()) + 1
    x, weights, density = (
        torch.cat(part)
        for part in zip(
            *((p.states.x, p.log_weights, p.states.log_density) for p in draws), strict=True
        )
    )
    values = estimate_target(
        target, x, weights, density, torch.cat(groups) if groups else None, error
    )
    return len(x) * values["ess"] / spent, values["ess"], values["log_z"]


def run(options: argparse.Namespace) -> None:
    """Print a line for every method, and the result.

    Raises:
        UserError: if the model is not a flow on one target, or a number of seconds is not positive.
    """
    model = load_model(options.ckpt)
    if not isinstance(model, FlowSampler) or not options.seconds > 0 or not options.training >= 0:
        raise UserError("give a trained flow, and seconds above 0")
    torch.set_num_threads(1)
    exact = exact_references(model.target).get("log_z_exact", math.nan)
    rates = {}
    print(f"{'method':32} {'ESS':>7} {'log Z off':>10} {'effective samples a CPU s':>26}")
    for name, draw in methods(model).items():
        draw(0)  # what is compiled is compiled before the clock runs
        rates[name], ess, log_z = rate(model.target, draw, options.seconds)
        print(f"{name:32} {ess:7.3f} {log_z - exact:+10.4f} {rates[name]:26,.0f}", flush=True)
    flow_rate = rates.pop("flow")
    best = max(rates, key=lambda name: rates[name])
    if flow_rate <= rates[best]:
        ratio = rates[best] / flow_rate
        print(f"training does not pay: {best} gives {ratio:.1f} times the flow's effective samples")
        return
    pays = options.training / (1 / rates[best] - 1 / flow_rate)
    print(
        f"training ({options.training:g} CPU s) pays from {pays:,.0f} effective samples on, "
        f"against {best}"
    )


def main() -> None:
    parser = CommandParser(
        prog="python -m benchmarks.flow_break_even",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("ckpt", help="a trained flow")
    parser.add_argument(
        "--training", type=float, required=True, help="CPU seconds that its training took"
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="of drawing, for every method")
    run_command(run, parser)


if __name__ == "__main__":
    main()
