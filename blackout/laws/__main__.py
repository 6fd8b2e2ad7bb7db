"""`python -m blackout.laws`: check claims on processes, permutations, posteriors, flows; exit code 1 if one fails."""

import argparse
import sys
from functools import partial

import torch

from blackout.errors import run_command
from blackout.laws.claims import CLAIMS, verify
from blackout.laws.flows import verify_flows
from blackout.laws.permutations import verify_permutations
from blackout.laws.posteriors import verify_posteriors


def main() -> None:
    """Check, print, and leave with the exit code."""
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(prog="python -m blackout.laws", description=__doc__.split(": ", 1)[1])
    parser.add_argument("--process", nargs="+", choices=[*CLAIMS, "flow"], default=[], help="only these")
    parser.add_argument("--permutations", action="store_true", help="only permutations")
    parser.add_argument("--posteriors", action="store_true", help="only posteriors; all if nothing is given")
    run_command(_check, parser)


def _check(options: argparse.Namespace) -> None:
    processes = [name for name in options.process if name in CLAIMS]
    checks = (
        (bool(processes), partial(verify, processes=processes)),
        (options.permutations, verify_permutations),
        (options.posteriors, verify_posteriors),
        ("flow" in options.process, verify_flows),
    )
    everything = not any(chosen for chosen, _ in checks)
    results = [check() for chosen, check in checks if chosen or everything]
    good = all(results)
    print("\nall claims hold" if good else "\nsome claims FAIL", file=sys.stdout if good else sys.stderr)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
