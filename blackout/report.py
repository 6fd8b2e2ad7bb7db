"""`python -m blackout.report RUN ...`: write report.html into run directories."""

from __future__ import annotations

import argparse
from pathlib import Path

from blackout.errors import run_command
from blackout.programs.report import save_report


def main(arguments: list[str] | None = None) -> None:
    """Write the pages and print where they are."""
    parser = argparse.ArgumentParser(prog="python -m blackout.report", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run directory")
    run_command(lambda given: [print(save_report(run)) for run in given.runs], parser, arguments)


if __name__ == "__main__":
    main()
