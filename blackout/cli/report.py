"""Write report.html of one or more runs again, from the files in their directories."""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

from blackout.cli.report_page import save_report
from blackout.errors import CommandParser, UserError, escaped, run_command, summary


def main(words: list[str] | None = None) -> None:
    """Run the command line."""
    parser = CommandParser(prog="blackout report", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run directory")
    run_command(_run, parser, words)


def _run(options: argparse.Namespace) -> None:
    first_error: UserError | None = None
    for run in options.runs:
        try:
            print(escaped(save_report(run)))
        except (UserError, OSError) as error:  # the pages of the other runs are written first
            reason = error if isinstance(error, UserError) else UserError(summary(error))
            if first_error is not None:
                warnings.warn(f"{run}: no page was written: {reason}", stacklevel=1)
            first_error = first_error or reason
    if first_error is not None:
        raise first_error


if __name__ == "__main__":
    main()
