"""`python -m benchmarks.annealed_lattices ising 16 0.4407 --sweeps 8192`: annealing without
training.

Annealed importance sampling of an Ising (coupling of a bond counted once) or Potts model on a
torus, with Gibbs sweeps or `--moves clusters`. It prints the ESS, log Z and its exact value, the
ELBO and EUBO with the standard error of their difference, and the weight of every mode. The EUBO is
-E w of annealing from states of the target, sampled by clusters, back to noise.

References: Blessing et al. 2024.
"""

from __future__ import annotations

import argparse
import time

import torch

from blackout.errors import CommandParser, UserError, run_command
from blackout.flows import Clusters
from blackout.flows.annealed_importance import _make_annealing, adaptive_times, anneal
from blackout.flows.path import States
from blackout.flows.plots import reference_samples
from blackout.flows.targets import Ising, Potts, exact_values
from blackout.flows.weights import effective_sample_size, jackknife_error, log_mean_exp
from blackout.random import SampleStreams


def run(options: argparse.Namespace) -> None:
    """Print a line for every seed.

    Raises:
        UserError: numbers out of range.
    """
    if min(options.chains, options.sweeps, options.seeds, options.backwards) < 2:
        raise UserError("--chains, --sweeps, --seeds and --backwards must be at least 2")
    torch.set_num_threads(1)
    model = (
        Ising(options.size, options.beta)
        if options.model == "ising"
        else Potts(options.size, 3, options.beta)
    )
    moves = Clusters() if options.moves == "clusters" else None
    exact_log_z = (exact_values(model) or {}).get("log_z", float("nan"))
    anneal(model, 2, 2, refine=moves)  # compile before timing
    for seed in range(options.seeds):
        start_time = time.process_time()
        paths = anneal(model, options.chains, options.sweeps, seed, refine=moves, power=None)
        seconds = time.process_time() - start_time
        log_weights = paths.log_weights
        x = paths.states.x
        target_states = reference_samples(model, options.backwards)[0][: options.backwards]
        # from the target to noise
        times = adaptive_times(model, options.sweeps, seed, moves).flip(0)
        streams = SampleStreams(seed + 1000, torch.arange(len(target_states)))
        _, gain = _make_annealing(model, moves)(
            States.evaluate(model, target_states), times, streams, 1
        )
        upper = -float(gain.mean())
        lower = float(log_weights.mean())
        error = float((log_weights.var() / len(log_weights) + gain.var() / len(gain)).sqrt())
        probabilities = torch.softmax(log_weights, 0)
        counts = torch.nn.functional.one_hot(x.long(), model.levels).sum(1)
        modes = [
            round(float(probabilities @ (counts.argmax(1) == level).double()), 3)
            for level in range(model.levels)
        ]
        ess = float(effective_sample_size(log_weights))
        log_z = float(log_mean_exp(log_weights))
        print(
            f"seed {seed}: ESS {ess:.3f}  log Z {log_z:.4f} ± {jackknife_error(log_weights):.4f} "
            f"({log_z - exact_log_z:+.4f})  ELBO {lower:.4f}  EUBO {upper:.4f}  "
            f"apart {upper - lower:.4f} ± {error:.4f}  modes {modes}  {seconds:.1f} CPU s",
            flush=True,
        )


def main() -> None:
    parser = CommandParser(
        prog="python -m benchmarks.annealed_lattices",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", choices=("ising", "potts"))
    parser.add_argument("size", type=int)
    parser.add_argument("beta", type=float, help="of a bond counted once")
    parser.add_argument("--chains", type=int, default=1024)
    parser.add_argument("--sweeps", type=int, default=8192)
    parser.add_argument("--moves", choices=("gibbs", "clusters"), default="gibbs")
    parser.add_argument(
        "--backwards", type=int, default=256, help="states of the target for the EUBO"
    )
    parser.add_argument("--seeds", type=int, default=2)
    run_command(run, parser)


if __name__ == "__main__":
    main()
