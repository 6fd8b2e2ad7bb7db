"""`python -m blackout.laws`: check the claims about processes and permutations; exit code 1 when one does not hold."""

import argparse
import sys

import torch

from blackout.laws.permutations import verify_permutations
from blackout.laws.verify import CLAIMS, verify

if __name__ == "__main__":
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(prog="python -m blackout.laws", description=__doc__.split(": ", 1)[1])
    parser.add_argument("--process", nargs="+", choices=CLAIMS, default=[], help="only these, without permutations")
    parser.add_argument("--permutations", action="store_true", help="only permutations; all if neither is given")
    options = parser.parse_args()
    good = True
    if options.process or not options.permutations:
        good &= verify(processes=options.process)
    if options.permutations or not options.process:
        good &= verify_permutations()
    print("\nall claims hold" if good else "\nsome claims FAIL", file=sys.stdout if good else sys.stderr)
    sys.exit(0 if good else 1)
