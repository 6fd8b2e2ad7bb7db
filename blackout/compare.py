"""`python -m blackout.compare runs/digits/*`: one page with scores, settings, curves and samples of several runs."""

from __future__ import annotations

import argparse
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from blackout.component import leaves
from blackout.errors import UserError, run_command
from blackout.files import new_file
from blackout.programs.pictures import draw_curves
from blackout.programs.report import embedded, picture, save_page, scores_of, settings_of, under
from blackout.training.descriptions import plain

_WHERE = ("run_id", "runs_dir", "data_dir")
"""Settings in which all runs differ, or that say nothing of what was computed."""


def save_comparison(runs: Sequence[Path], path: Path) -> None:
    """Write a page that compares runs, from the files in their directories.

    Raises:
        UserError: one of them is no run directory, or damaged.
    """
    names = [f"{run.absolute().parent.name}/{run.absolute().name}" for run in runs]
    scores = [_flat(scores_of(run)) for run in runs]
    settings = [dict(leaves(plain(settings_of(run), str(run)))) for run in runs]
    chosen = sorted({name for values in settings for name in values} - set(_WHERE))
    curves = None
    if (figure := draw_curves({name: run / "metrics.csv" for name, run in zip(names, runs, strict=True)})) is not None:
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=110)
        curves = embedded(file.getvalue(), "png", "of metrics.csv, against the optimiser step")
    save_page(
        "compare.html",
        path,
        title=f"{len(runs)} runs",
        head=("", *names),
        scores=_rows(dict.fromkeys(name for values in scores for name in values), scores),
        settings=[row for row in _rows(chosen, settings) if any(value != row[1] for value in row[2:])],
        curves=curves,
        pictures=[picture(run / "samples" / "final.png", name, run) for name, run in zip(names, runs, strict=True)],
    )


def _flat(scores: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """All values of a run; those of folders of samples are named by the folder."""
    return {
        name if place == "metrics.json" else f"{under(place.removesuffix('/metrics.json'), content)}: {name}": value
        for place, content in scores.items()
        for name, value in content.get("values", {}).items()
    }


def _rows(names: Iterable[str], runs: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """A row for each name: the name, and its value in each run."""
    return [[name, *(values.get(name, "") for values in runs)] for name in names]


def main(arguments: list[str] | None = None) -> None:
    """Write the page and print where it is."""
    parser = argparse.ArgumentParser(prog="python -m blackout.compare", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run directory")
    parser.add_argument("--out", type=Path, help="a new .html; compare.html if it is left out, then compare-2.html")
    run_command(_run, parser, arguments)


def _run(given: argparse.Namespace) -> None:
    if not (runs := [run for run in given.runs if run.is_dir()]):
        raise UserError(f"{given.runs[0]}: no such run directory")
    out = new_file(given.out or Path("compare.html"), given.out is not None)
    save_comparison(runs, out)
    print(out)


if __name__ == "__main__":
    main()
