"""`python -m blackout.laws`: check the claims about every process; exit code 1 when one does not hold."""

import argparse
import sys

import torch

from blackout.laws.verify import CLAIMS, verify

if __name__ == "__main__":
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(prog="python -m blackout.laws", description=__doc__.split(": ", 1)[1])
    parser.add_argument("--process", nargs="+", choices=CLAIMS, default=[], help="only these; all if not given")
    good = verify(processes=parser.parse_args().process)
    print("\nall claims hold" if good else "\nsome claims FAIL", file=sys.stdout if good else sys.stderr)
    sys.exit(0 if good else 1)
