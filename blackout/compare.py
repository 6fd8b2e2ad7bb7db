"""`python -m blackout.compare runs/digits/*`: one page with scores, settings, curves and samples of several runs."""

from __future__ import annotations

import argparse
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from blackout.component import leaves
from blackout.errors import UserError
from blackout.files import replacing
from blackout.programs import report as pages
from blackout.programs.cli import one_line_errors
from blackout.programs.curves import read_curves
from blackout.programs.report import scores_of, settings_of
from blackout.training.descriptions import plain

_WHERE = ("run_id", "runs_dir", "data_dir")
"""Settings in which all runs differ, or that say nothing of what was computed."""
_PANELS = 9


def save_comparison(runs: Sequence[Path], path: Path) -> None:
    """Write a page that compares runs, from the files in their directories.

    Raises:
        UserError: one of them is no run directory, or damaged.
    """
    names = [f"{run.absolute().parent.name}/{run.absolute().name}" for run in runs]
    scores = [_flat(scores_of(run)) for run in runs]
    known = list(dict.fromkeys(name for values in scores for name in values))
    rows = [(name, *(values.get(name, "") for values in scores)) for name in known]
    settings = [dict(leaves(plain(settings_of(run), str(run)))) for run in runs]
    sections = [
        ("Scores", pages.table(rows, ("", *names))),
        ("Settings that differ", pages.table(_differences(settings), ("", *names))),
        ("Curves", _curves(dict(zip(names, runs, strict=True)))),
        (
            "Samples",
            "".join(pages.picture(run / "samples" / "final.png", n) for n, run in zip(names, runs, strict=True)),
        ),
    ]
    with replacing(path) as part:
        part.write_text(pages.page(f"{len(runs)} runs", sections))


def _flat(scores: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """All values of a run; those of folders of samples are named by the folder."""
    return {
        name if place == "metrics.json" else f"{place.removesuffix('/metrics.json')}: {name}": value
        for place, content in scores.items()
        for name, value in content.get("values", {}).items()
    }


def _differences(settings: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    names = sorted({name for values in settings for name in values} - set(_WHERE))
    rows = [[name, *(values.get(name, "") for values in settings)] for name in names]
    return [row for row in rows if any(value != row[1] for value in row[2:])]


def _curves(runs: Mapping[str, Path]) -> str:
    """Every quantity that some run measured more than once: a panel each, a line for every run."""
    from matplotlib.figure import Figure  # only here: importing it takes a second

    curves = {name: read_curves(run / "metrics.csv") for name, run in runs.items()}
    found = sorted({name for read in curves.values() for name, (_, values) in read.items() if len(values) > 1})
    shown = [name for name in found if not name.endswith("per_second")][:_PANELS]
    if not shown:
        return ""
    columns = min(3, len(shown))
    rows = math.ceil(len(shown) / columns)
    figure = Figure(figsize=(4.2 * columns, 2.9 * rows + 0.3 * len(runs)), layout="constrained")
    for panel, name in enumerate(shown):
        axes = figure.add_subplot(rows, columns, panel + 1)
        for run, read in curves.items():
            axes.plot(*read.get(name, ([], [])), label=run)
        axes.set_title(name, fontsize=10)
        axes.grid(alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", fontsize=8)
    with io.BytesIO() as file:
        figure.savefig(file, format="png", dpi=110)
        return pages.embedded(file.getvalue(), "png", "of metrics.csv, against the optimiser step")


def main(arguments: list[str] | None = None) -> None:
    """Write the page and print where it is."""
    parser = argparse.ArgumentParser(prog="python -m blackout.compare", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run directory")
    parser.add_argument("--out", type=Path, default=Path("compare.html"))
    given = parser.parse_args(arguments)
    with one_line_errors():
        if not (runs := [run for run in given.runs if run.is_dir()]):
            raise UserError(f"{given.runs[0]}: no such run directory")
        save_comparison(runs, given.out)
        print(given.out)


if __name__ == "__main__":
    main()
