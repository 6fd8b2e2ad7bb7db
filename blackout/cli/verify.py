"""Check kernels of all processes against exact enumeration; exit code 1 if a claim fails."""

from __future__ import annotations

import argparse
import sys

import torch

from blackout.errors import CommandParser, run_command
from blackout.verification.claims import CLAIMS, verify


def main(words: list[str] | None = None) -> None:
    """Run the command line."""
    parser = CommandParser(prog="blackout verify", description=__doc__)
    parser.add_argument(
        "--process",
        nargs="+",
        choices=[*CLAIMS],
        metavar="PROCESS",
        default=[],
        help=f"check these alone: {', '.join(CLAIMS)} (default: all)",
    )
    run_command(_run, parser, words)


def _run(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)  # the matrices are small
    if verify(processes=options.process):
        print("\nall claims hold")
        sys.exit(0)
    print("\nsome claims FAIL", file=sys.stderr)
    sys.exit(1)


if __name__ == "__main__":
    main()
