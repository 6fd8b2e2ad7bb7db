"""`python -m blackout.laws`: check the claims about every kernel; exit code 1 when one does not hold."""

import sys

import torch

from blackout.laws.verify import verify

if __name__ == "__main__":
    torch.set_num_threads(1)
    good = verify()
    print("\nall claims hold" if good else "\nsome claims FAIL", file=sys.stdout if good else sys.stderr)
    sys.exit(0 if good else 1)
