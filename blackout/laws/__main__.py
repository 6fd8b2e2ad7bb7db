"""`python -m blackout.laws`: check claims on processes, permutations and flows; exit code 1 when one does not hold."""

import argparse
import sys

import torch

from blackout.laws.flows import verify_flows
from blackout.laws.permutations import verify_permutations
from blackout.laws.verify import CLAIMS, verify

if __name__ == "__main__":
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(prog="python -m blackout.laws", description=__doc__.split(": ", 1)[1])
    parser.add_argument("--process", nargs="+", choices=[*CLAIMS, "flow"], default=[], help="only these")
    parser.add_argument("--permutations", action="store_true", help="only permutations; all if neither is given")
    options = parser.parse_args()
    good = True
    everything, processes = not (options.process or options.permutations), [p for p in options.process if p in CLAIMS]
    if everything or processes:
        good &= verify(processes=processes)
    if everything or options.permutations:
        good &= verify_permutations()
    if everything or "flow" in options.process:
        good &= verify_flows()
    print("\nall claims hold" if good else "\nsome claims FAIL", file=sys.stdout if good else sys.stderr)
    sys.exit(0 if good else 1)
