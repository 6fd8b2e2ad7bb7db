"""Write report.html of one or more runs again, from the files in their directories."""

from __future__ import annotations

import argparse
from pathlib import Path

from blackout.cli.report_page import save_report
from blackout.errors import CommandParser, run_command


def main(words: list[str] | None = None) -> None:
    """Run the command line."""
    parser = CommandParser(prog="blackout report", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run directory")
    run_command(_run, parser, words)


def _run(options: argparse.Namespace) -> None:
    for run in options.runs:
        print(save_report(run))


if __name__ == "__main__":
    main()
