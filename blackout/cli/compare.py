"""Write one page with scores, settings, curves and samples of several runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from blackout.cli.comparison_page import save_comparison
from blackout.errors import CommandParser, escaped, refuse, run_command
from blackout.files import new_file


def main(words: list[str] | None = None) -> None:
    """Run the command line."""
    parser = CommandParser(prog="blackout compare", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run directory")
    parser.add_argument(
        "--out",
        type=Path,
        help="a new .html file (default: compare.html, or compare-2.html if that exists)",
    )
    run_command(_run, parser, words)


def _run(options: argparse.Namespace) -> None:
    runs = [path for path in options.runs if path.is_dir()]  # `runs/*` also matches files
    refuse(not runs, f"{options.runs[0]}: no such run directory")
    path = new_file(options.out or Path("compare.html"), exact=options.out is not None)
    save_comparison(runs, path)
    print(escaped(path))


if __name__ == "__main__":
    main()
