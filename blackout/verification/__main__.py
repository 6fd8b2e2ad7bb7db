"""`blackout verify`: check all of `claims.py` on the kernels of every process; exit code 1 if a claim fails."""

import argparse
import sys

import torch

from blackout.errors import CommandParser, run_command
from blackout.verification.claims import CLAIMS, verify


def main() -> None:
    """Check, print, and leave with the exit code."""
    torch.set_num_threads(1)
    parser = CommandParser(prog="blackout verify", description=__doc__.split(": ", 1)[1])
    parser.add_argument("--process", nargs="+", choices=[*CLAIMS], default=[], help="only these")
    run_command(_check, parser)


def _check(options: argparse.Namespace) -> None:
    good = verify(processes=options.process)
    print("\nall claims hold" if good else "\nsome claims FAIL", file=sys.stdout if good else sys.stderr)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
