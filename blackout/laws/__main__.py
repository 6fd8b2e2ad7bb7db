"""`python -m blackout.laws`: check claims on processes, permutations, posteriors, flows; exit code 1 if one fails."""

import argparse
import sys

import torch

from blackout.laws.flows import verify_flows
from blackout.laws.permutations import verify_permutations
from blackout.laws.posteriors import verify_posteriors
from blackout.laws.verify import CLAIMS, verify


def main() -> None:
    """Check, print, and leave with the exit code."""
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(prog="python -m blackout.laws", description=__doc__.split(": ", 1)[1])
    parser.add_argument("--process", nargs="+", choices=[*CLAIMS, "flow"], default=[], help="only these")
    parser.add_argument("--permutations", action="store_true", help="only permutations")
    parser.add_argument("--posteriors", action="store_true", help="only posteriors; all if nothing is given")
    options = parser.parse_args()
    everything = not (options.process or options.permutations or options.posteriors)
    processes = [name for name in options.process if name in CLAIMS]
    good = True
    if everything or processes:
        good &= verify(processes=processes)
    if everything or options.permutations:
        good &= verify_permutations()
    if everything or options.posteriors:
        good &= verify_posteriors()
    if everything or "flow" in options.process:
        good &= verify_flows()
    print("\nall claims hold" if good else "\nsome claims FAIL", file=sys.stdout if good else sys.stderr)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
