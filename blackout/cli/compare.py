"""Write one page with scores, settings, curves and samples of several runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from blackout.cli.comparison_page import save_comparison
from blackout.cli.sweep_table import SUMMARY, is_sweep, runs_of_sweep
from blackout.errors import CommandParser, escaped, refuse, run_command
from blackout.files import new_file


def main(words: list[str] | None = None) -> None:
    """Run the command line."""
    parser = CommandParser(prog="blackout compare", description=__doc__)
    parser.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="a run directory, or the folder of a sweep",
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="a new .html file (default: compare.html, or compare-2.html if that exists)",
    )
    run_command(_run, parser, words)


def _run(options: argparse.Namespace) -> None:
    folders = [path for path in options.runs if path.is_dir()]  # `runs/*` also matches files
    refuse(not folders, f"{options.runs[0]}: no such run directory")
    runs: list[Path] = []
    for folder in folders:
        runs += _runs_in(folder)
    path = new_file(options.out or Path("compare.html"), is_fixed=options.out is not None)
    refuse(
        path.suffix != ".html",
        f"--out {path}: the name of a page ends in .html",
    )
    save_comparison(runs, path)
    print(escaped(path))


def _runs_in(folder: Path) -> list[Path]:
    """Return the run directories of a sweep, or the run directory itself.

    Raises:
        UserError: no job of the sweep has left a run directory here.
    """
    if not is_sweep(folder):
        return [folder]
    runs = [run for run in runs_of_sweep(folder) if (run / "config.yaml").is_file()]
    refuse(
        not runs,
        f"{folder}: none of the runs of this sweep is there; its scores are in {folder / SUMMARY}",
    )
    return list(dict.fromkeys(runs))


if __name__ == "__main__":
    main()
