"""`python -m benchmarks.annealed_lattices ising 16 0.4407 --sweeps 8192`: what annealing without training reaches.

Annealed importance sampling of an Ising (coupling of a bond counted once) or Potts model on a torus, with Gibbs
sweeps or `--moves clusters`: ESS, log Z beside its exact value, ELBO, EUBO and their distance with its standard error,
and how much of the weight each mode has. EUBO is -E w of annealing from states of the target, by clusters, back to
noise [Blessing 2024].
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


def run(given: argparse.Namespace) -> None:
    """Print a line for every seed.

    Raises:
        UserError: numbers out of range.
    """
    if min(given.chains, given.sweeps, given.seeds, given.backwards) < 2:
        raise UserError("--chains, --sweeps, --seeds and --backwards must be at least 2")
    torch.set_num_threads(1)
    model = Ising(given.size, given.beta) if given.model == "ising" else Potts(given.size, 3, given.beta)
    moves = Clusters() if given.moves == "clusters" else None
    known = (exact_values(model) or {}).get("log_z", float("nan"))
    anneal(model, 2, 2, refine=moves)  # what is compiled is compiled before the clock runs
    for seed in range(given.seeds):
        began = time.process_time()
        paths = anneal(model, given.chains, given.sweeps, seed, refine=moves, power=None)
        seconds, w, x = time.process_time() - began, paths.log_weights, paths.states.x
        own = reference_samples(model, given.backwards)[0][: given.backwards]
        times = adaptive_times(model, given.sweeps, seed, moves).flip(0)  # from the target to noise
        streams = SampleStreams(seed + 1000, torch.arange(len(own)))
        _, gain = _make_annealing(model, moves)(States.evaluate(model, own), times, streams, 1)
        upper, lower = -float(gain.mean()), float(w.mean())
        error = float((w.var() / len(w) + gain.var() / len(gain)).sqrt())
        share = torch.softmax(w, 0)
        counts = torch.nn.functional.one_hot(x.long(), model.levels).sum(1)
        modes = [round(float(share @ (counts.argmax(1) == level).double()), 3) for level in range(model.levels)]
        print(
            f"seed {seed}: ESS {float(effective_sample_size(w)):.3f}  log Z {float(log_mean_exp(w)):.4f} +- "
            f"{jackknife_error(w):.4f} ({float(log_mean_exp(w)) - known:+.4f})  ELBO {lower:.4f}  EUBO {upper:.4f}  "
            f"apart {upper - lower:.4f} +- {error:.4f}  modes {modes}  {seconds:.1f} CPU s",
            flush=True,
        )


def main() -> None:
    parser = CommandParser(prog="python -m benchmarks.annealed_lattices", description=(__doc__ or "").split(": ")[1])
    parser.add_argument("model", choices=("ising", "potts"))
    parser.add_argument("size", type=int)
    parser.add_argument("beta", type=float, help="of a bond counted once")
    parser.add_argument("--chains", type=int, default=1024)
    parser.add_argument("--sweeps", type=int, default=8192)
    parser.add_argument("--moves", choices=("gibbs", "clusters"), default="gibbs")
    parser.add_argument("--backwards", type=int, default=256, help="states of the target for the EUBO")
    parser.add_argument("--seeds", type=int, default=2)
    run_command(run, parser)


if __name__ == "__main__":
    main()
