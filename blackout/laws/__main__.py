"""`python -m blackout.laws`: check claims about processes, permutations and posteriors; exit code 1 if one fails."""

import argparse
import sys

import torch

from blackout.laws.permutations import verify_permutations
from blackout.laws.posteriors import verify_posteriors
from blackout.laws.verify import CLAIMS, verify

if __name__ == "__main__":
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(prog="python -m blackout.laws", description=__doc__.split(": ", 1)[1])
    parser.add_argument("--process", nargs="+", choices=CLAIMS, default=[], help="only these, and nothing else")
    parser.add_argument("--permutations", action="store_true", help="only permutations")
    parser.add_argument("--posteriors", action="store_true", help="only posteriors; all if nothing is given")
    options = parser.parse_args()
    good = True
    everything = not (options.process or options.permutations or options.posteriors)
    if options.process or everything:
        good &= verify(processes=options.process)
    if options.permutations or everything:
        good &= verify_permutations()
    if options.posteriors or everything:
        good &= verify_posteriors()
    print("\nall claims hold" if good else "\nsome claims FAIL", file=sys.stdout if good else sys.stderr)
    sys.exit(0 if good else 1)
