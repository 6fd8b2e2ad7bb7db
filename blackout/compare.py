"""`blackout compare runs/digits/*`: one page with scores, settings, curves and samples of several runs."""

from __future__ import annotations

import argparse
import math
import os
import re
import statistics
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

from blackout.component import leaves
from blackout.config.allowed_components import copy_plain_values
from blackout.errors import CommandParser, refuse, run_command
from blackout.files import new_file
from blackout.report import RIGHT, curve_panels, picture, save_page, scores_of, settings_of, under

Values: TypeAlias = Mapping[str, Any]
Table: TypeAlias = Sequence[Sequence[Any]]
_WHERE = re.compile(r"(run_id|runs_dir|data_dir|experiment_name)$|(logger|callbacks\.progress)(\.|$)")
"""Settings in which all runs differ, or that say nothing of what was computed."""
_BESIDE = re.compile(r"share_|_(std|error|low|high)$|log_evidence$")
"""Parts of the names of values that are no scores of their own, or have a table of their own."""
_LESS = re.compile(r"bits|nll|loss|drop|rmse|mae|kl|variation|mmd|fi?d|ki?d|ks|violations")
_MORE = re.compile(r"accuracy|correct|ess|psnr|kendall|best_value|mean_value|recognised")
"""Parts of the names of scores of which less or more is better, where nothing says what is right."""


_OF_POSTERIORS = ("measurement", "operator", "noise", "method")
"""What evidence is of."""


def save_comparison(runs: Sequence[Path], path: Path) -> None:
    """Write a page that compares runs, from the files in their directories.

    Raises:
        UserError: one of them is no run directory, or damaged.
    """
    names = [f"{run.absolute().parent.name}/{run.absolute().name}" for run in runs]
    found, reports = [scores_of(run) for run in runs], [run / "report.html" for run in runs]
    scores = [_flat(one, "values") for one in found]
    beside = {name: of for one in found for name, of in _flat(one, "beside").items()}
    settings = [dict(leaves(copy_plain_values(settings_of(run), str(run)))) for run in runs]
    every = sorted({name for values in settings for name in values if not _WHERE.match(name)})
    chosen = [name for name in every if any(values.get(name) != settings[0].get(name) for values in settings)]
    shown = {name: beside.get(name, {}) for values in scores for name in values if not _BESIDE.search(name)}
    panels = curve_panels({name: run / "metrics.csv" for name, run in zip(names, runs, strict=True)}, {"": beside})
    rows = [[values.get(name, "") for name in chosen] for values in settings]
    save_page(
        "compare.html",
        path,
        title=f"{len(runs)} runs" if len(runs) > 1 else names[0],
        head=("run", *chosen, *shown),
        rows=_rows(names, rows, [[values.get(name) for name in shown] for values in scores], shown),
        links=[quote(os.path.relpath(one, path.parent)) if one.exists() else None for one in reports],
        seeds=_over_seeds(settings, chosen, scores, shown),
        evidence=_evidence(names, found),
        of_posteriors=_OF_POSTERIORS,
        panels=panels,
        pictures=[picture(run / "samples" / "final.png", name, run) for name, run in zip(names, runs, strict=True)],
    )


def _flat(scores: Mapping[str, Mapping[str, Any]], part: str) -> dict[str, Any]:
    """All values of a run, or what is beside them; those of folders of samples are named by the folder."""
    return {
        name if place == "metrics.json" else f"{under(place.removesuffix('/metrics.json'), content)}: {name}": value
        for place, content in scores.items()
        for name, value in content[part].items()
    }


def _rows(
    names: Sequence[str], before: Table, values: Table, shown: Mapping[str, Any], spread: Table | None = None
) -> list[tuple[Sequence[Any], ...]]:
    """For each name what stands before the scores, these, which of them are best, and their spread.

    Args:
        names: of the rows.
        before, values: in every row; of `values` the k-th is of the k-th score.
        shown: the scores, with what is beside each.
        spread: of `values`, where they are means.
    """
    best = [_best(name, [row[k] for row in values], of) for k, (name, of) in enumerate(shown.items())]
    return [
        ((name, *before[i]), values[i], [one == i for one in best], spread[i] if spread else ())
        for i, name in enumerate(names)
    ]


def _best(name: str, values: Sequence[Any], beside: Mapping[str, Any]) -> int | None:
    """Which of at least two different values is nearest to what is right or, where nobody knows, least or largest."""
    known = {i: value for i, value in enumerate(values) if isinstance(value, int | float) and math.isfinite(value)}
    right = next((beside[what] for what in RIGHT if isinstance(beside.get(what), int | float)), None)
    if len(set(known.values())) < 2:
        return None
    if right is not None:
        return min(known, key=lambda i: abs(known[i] - right))
    if _LESS.search(name):
        return min(known, key=known.__getitem__)
    return max(known, key=known.__getitem__) if _MORE.search(name) else None


def _over_seeds(
    settings: Sequence[Values], chosen: Sequence[str], scores: Sequence[Values], shown: Values
) -> dict[str, Any] | None:
    """Means and standard deviations, floats, of the scores of runs that differ in their seeds alone; None where none
    do.
    """
    names = [name for name in chosen if name != "seed"]
    groups: dict[tuple[str, ...], list[int]] = {}
    for i, values in enumerate(settings):
        groups.setdefault(tuple(str(values.get(name, "")) for name in names), []).append(i)
    if max(map(len, groups.values())) < 2:
        return None
    numbers = [
        [[value for i in group if isinstance(value := scores[i].get(name), int | float)] for name in shown]
        for group in groups.values()
    ]
    means = [[statistics.fmean(one) if one else None for one in row] for row in numbers]
    spread = [[statistics.stdev(one) if len(one) > 1 else 0.0 for one in row] for row in numbers]
    rows = _rows([f"{len(group)} seeds" for group in groups.values()], list(groups), means, shown, spread)
    return {"head": ("runs", *names, *shown), "rows": rows}


def _evidence(names: Sequence[str], found: Sequence[Mapping[str, Mapping[str, Any]]]) -> list[tuple[Any, ...]]:
    """A row for every operator by which a measurement was explained; the likeliest of each measurement is marked."""
    rows, known = list[tuple[list[str], Any, Any]](), dict[str, list[float]]()
    for run, content in ((run, content) for run, of in zip(names, found, strict=True) for content in of.values()):
        values, how = content["values"], content["sampler"]
        if isinstance(value := values.get("log_evidence"), int | float):
            parts = (leaves(how.get(name)) for name in _OF_POSTERIORS)
            said = [", ".join(f"{what} {one}".removeprefix("name ").strip() for what, one in part) for part in parts]
            rows.append(([*said, run], value, values.get("log_evidence_error")))
            known.setdefault(said[0], []).append(value)
    rows.sort(key=itemgetter(0))
    return [(said, [one], [one == max(of := known[said[0]]) > min(of)], [error]) for said, one, error in rows]


def main(arguments: list[str] | None = None) -> None:
    """Write the page and print where it is."""
    parser = CommandParser(prog="blackout compare", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run directory")
    parser.add_argument("--out", type=Path, help="a new .html; compare.html if it is left out, then compare-2.html")
    run_command(_run, parser, arguments)


def _run(given: argparse.Namespace) -> None:
    runs = [run for run in given.runs if run.is_dir()]
    refuse(not runs, f"{given.runs[0]}: no such run directory")
    out = new_file(given.out or Path("compare.html"), given.out is not None)
    save_comparison(runs, out)
    print(out)


if __name__ == "__main__":
    main()
