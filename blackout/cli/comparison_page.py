"""compare.html: scores, settings, curves and samples of several runs on one page."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote

from blackout.cli.curves import curve_panels, read_curves
from blackout.cli.pages import load_picture, save_page
from blackout.cli.run_results import (
    best_row,
    mean_and_error,
    place_label,
    read_scores,
    read_settings,
)
from blackout.component import leaves
from blackout.config.allowed_components import copy_plain_values
from blackout.errors import UserError, summary

Values: TypeAlias = Mapping[str, Any]
Scores: TypeAlias = Mapping[str, Mapping[str, Any]]

# settings in which all runs differ, or that do not change results
HIDDEN_SETTINGS = re.compile(
    r"(run_id|runs_dir|data_dir|experiment_name)$|(logger|callbacks\.progress)(\.|$)"
)
# values that are not scores, or are in a table of their own
HIDDEN_VALUES = re.compile(r"class_share_|_(std|error|low|high)$|log_evidence$")
# parts of a sampler's description that say what an evidence belongs to
EVIDENCE_COLUMNS = ("measurement", "operator", "noise", "method")


class Row(NamedTuple):
    """A row of a table of scores."""

    cells: Sequence[Any]  # before the scores
    values: Sequence[Any]  # scores
    best: Sequence[bool]  # whether a score is the best of its column
    errors: Sequence[Any] = ()  # standard errors of scores, where they are means
    settings: Sequence[Any] = ()  # after the scores


class Column(NamedTuple):
    """Reference values of a score, and its unit and better direction."""

    references: Values
    description: Values


def save_comparison(runs: Sequence[Path], path: Path) -> None:
    """Write a new page that compares runs, from the files in their directories.

    A run that cannot be read is left out with a warning.

    Raises:
        UserError: no run can be read; or a file has appeared at `path` meanwhile.
    """
    # 1. Read scores and settings.
    runs, contents, settings = _read_runs(runs)
    names = [f"{run.absolute().parent.name}/{run.absolute().name}" for run in runs]
    scores = [flatten_scores(content, "values") for content in contents]
    references: dict[str, Any] = {}
    descriptions: dict[str, Any] = {}
    for content in contents:
        references |= flatten_scores(content, "references")
        descriptions |= flatten_scores(content, "metric_descriptions")

    # 2. Choose columns: settings that differ, and scores.
    all_settings = sorted({name for values in settings for name in values})
    setting_names = [
        name
        for name in all_settings
        if not HIDDEN_SETTINGS.match(name)
        and any(values.get(name) != settings[0].get(name) for values in settings)
    ]
    columns = {
        name: Column(references.get(name, {}), descriptions.get(name, {}))
        for values in scores
        for name in values
        if not HIDDEN_VALUES.search(name)
    }

    # 3. Write the page.
    setting_cells = [[values.get(name, "") for name in setting_names] for values in settings]
    numbers = [[values.get(name) for name in columns] for values in scores]
    reports = [run / "report.html" for run in runs]
    links = [
        quote(os.fsencode(os.path.relpath(report, path.parent))) if report.exists() else None
        for report in reports
    ]
    curve_files = {name: run / "metrics.csv" for name, run in zip(names, runs, strict=True)}
    save_page(
        "compare.html",
        path,
        is_new=True,
        title=f"{len(runs)} runs" if len(runs) > 1 else names[0],
        head=("run", *columns, *setting_names),
        num_settings=len(setting_names),
        rows=mark_best([(name,) for name in names], numbers, columns, setting_cells),
        links=links,
        seeds=seed_table(settings, setting_names, scores, columns),
        evidence=evidence_table(names, contents),
        curve_data=curve_panels(curve_files, references),
        pictures=[
            load_picture(run / "samples" / "final.png", name, run)
            for name, run in zip(names, runs, strict=True)
        ],
    )


def _read_runs(
    runs: Sequence[Path],
) -> tuple[list[Path], list[dict[str, dict[str, Any]]], list[dict[str, Any]]]:
    """Return the runs that can be read, their scores by place and their settings by dotted name.

    Raises:
        UserError: no run can be read; the reason is that of the first one.
    """
    readable: list[Path] = []
    contents = []
    all_settings = []
    first_error: UserError | None = None
    for run in runs:
        try:
            scores = read_scores(run)
            settings = dict(leaves(copy_plain_values(read_settings(run), str(run))))
            read_curves(run / "metrics.csv")  # refused here, before the page is written
        except (UserError, OSError) as error:
            reason = error if isinstance(error, UserError) else UserError(summary(error))
            first_error = first_error or reason
            continue
        readable.append(run)
        contents.append(scores)
        all_settings.append(settings)
    if first_error is not None and not readable:
        raise first_error
    if first_error is not None:
        num_unreadable = len(runs) - len(readable)
        warnings.warn(f"left out {num_unreadable} of {len(runs)} runs: {first_error}", stacklevel=3)
    return readable, contents, all_settings


def flatten_scores(contents: Scores, part: str) -> dict[str, Any]:
    """Return one part of all metrics.json of a run, by name, with the folder where there is one.

    Args:
        contents: of metrics.json by place.
        part: `values` or `references`.
    """
    values: dict[str, Any] = {}
    for place, content in contents.items():
        prefix = ""
        if place != "metrics.json":
            prefix = place_label(place.removesuffix("/metrics.json"), content) + ": "
        values |= {prefix + name: value for name, value in content[part].items()}
    return values


def mark_best(
    cells: Sequence[Sequence[Any]],
    values: Sequence[Sequence[Any]],
    columns: Mapping[str, Column],
    settings: Sequence[Sequence[Any]],
    errors: Sequence[Sequence[Any]] | None = None,
) -> list[Row]:
    """Return the rows of a table with the best score of every column marked.

    Args:
        cells: what precedes the scores of each row.
        values: scores of each row.
        columns: what is known of the scores, by name.
        settings: what follows the scores of each row.
        errors: standard errors of `values`, where they are means.
    """
    best = [
        best_row([row[k] for row in values], column.references, column.description)
        for k, column in enumerate(columns.values())
    ]
    return [
        Row(
            cells[i],
            values[i],
            [row == i for row in best],
            errors[i] if errors else (),
            settings[i],
        )
        for i in range(len(cells))
    ]


def seed_table(
    settings: Sequence[Values],
    setting_names: Sequence[str],
    scores: Sequence[Values],
    columns: Mapping[str, Column],
) -> dict[str, Any] | None:
    """Return means and standard errors over runs that differ in their seeds alone.

    Args:
        settings: of the runs.
        setting_names: those in which runs differ.
        scores: of the runs.
        columns: what is known of the scores, by name.

    Returns:
        `head`, `num_settings` and `rows` of a table; None if every run has settings of its own.
    """
    names = [name for name in setting_names if name != "seed"]
    groups: dict[tuple[str, ...], list[int]] = {}
    for i, values in enumerate(settings):
        key = tuple(str(values.get(name, "")) for name in names)
        groups.setdefault(key, []).append(i)
    if max(map(len, groups.values())) < 2:
        return None

    means: list[list[float | None]] = []
    errors: list[list[float | None]] = []
    for runs in groups.values():
        means.append([])
        errors.append([])
        for name in columns:
            column = [scores[i].get(name) for i in runs]
            mean, error = mean_and_error(x for x in column if isinstance(x, int | float))
            means[-1].append(mean)
            errors[-1].append(error)
    cells = [(f"{len(runs)} seeds",) for runs in groups.values()]
    return {
        "head": ("runs", *columns, *names),
        "num_settings": len(names),
        "rows": mark_best(cells, means, columns, list(groups), errors),
    }


def evidence_table(names: Sequence[str], contents: Sequence[Scores]) -> dict[str, Any] | None:
    """Return the log evidence of every operator that was tried for a measurement.

    The most probable operator of each measurement is marked.

    Args:
        names: of the runs.
        contents: of their metrics.json, by place.

    Returns:
        `head` and `rows` of a table; None if no run has an evidence.
    """
    entries: list[tuple[list[str], float, Any]] = []
    for run, places in zip(names, contents, strict=True):
        for content in places.values():
            evidence = content["values"].get("log_evidence")
            if isinstance(evidence, int | float):
                cells = [_describe(content["sampler"].get(name)) for name in EVIDENCE_COLUMNS]
                error = content["values"].get("log_evidence_error")
                entries.append(([*cells, run], evidence, error))
    if not entries:
        return None
    entries.sort(key=lambda entry: entry[0])
    by_measurement: dict[str, list[float]] = {}
    for cells, evidence, _ in entries:
        by_measurement.setdefault(cells[0], []).append(evidence)
    rows = []
    for cells, evidence, error in entries:
        evidences = by_measurement[cells[0]]
        is_best = evidence == max(evidences) > min(evidences)
        rows.append(Row(cells, [evidence], [is_best], [error]))
    return {"head": (*EVIDENCE_COLUMNS, "run", "log_evidence"), "num_settings": 0, "rows": rows}


def _describe(part: Any) -> str:
    """Return a part of a sampler's description in words, such as "Blur, size 2"."""
    words = [f"{name} {value}".removeprefix("name ").strip() for name, value in leaves(part)]
    return ", ".join(words)
