"""The table at the end of a sweep: settings that vary, and scores as means over seeds.

It is made from `results.csv`, to which every job has added a row, printed, and written next to it
as `summary.csv`.
"""

from __future__ import annotations

import csv
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

RESULTS = "results.csv"
SUMMARY = "summary.csv"
# columns of results.csv before those of the scores
RESULT_COLUMNS = ["job", "state", "error", "overrides", "run", "seconds"]
SEED = "seed"  # the setting over which scores are averaged
MAX_PRINTED_SCORES = 5  # in the terminal; the file has all
MAX_CELL = 32  # characters of a setting's value in the terminal

Descriptions: TypeAlias = Mapping[str, Any]


class SweepTable(Callback):
    """Hydra's callback that prints the table when all jobs of a sweep have ended."""

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Print the table, and write `summary.csv`."""
        from blackout.distributed import is_first

        folder = Path(config.hydra.sweep.dir)
        if is_first() and (folder / RESULTS).exists():
            for line in summarise(folder):
                print(line, flush=True)


@dataclass(frozen=True)
class Group:
    """Jobs with the same settings except the seed.

    Args:
        settings: those that vary within the sweep, by name.
        num_jobs: that have scores.
        means: of the scores, by name.
        errors: standard errors of the means; none of a single job.
    """

    settings: Mapping[str, str]
    num_jobs: int
    means: Mapping[str, float]
    errors: Mapping[str, float]


def read_jobs(folder: Path) -> list[dict[str, str]]:
    """Return the rows of a sweep's results.csv, in the order of its jobs."""
    with (folder / RESULTS).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def is_sweep(folder: Path) -> bool:
    """Return whether a folder is that of a sweep, with a table of its jobs."""
    return (folder / RESULTS).is_file() and not (folder / "config.yaml").exists()


def runs_of_sweep(folder: Path) -> list[Path]:
    """Return the run directories of a sweep's jobs that ended without an error."""
    return [Path(job["run"]) for job in read_jobs(folder) if job["state"] == "done"]


def summarise(folder: Path) -> list[str]:
    """Write `summary.csv` of a sweep.

    Returns:
        The lines of the table for the terminal; none if no job has scores.
    """
    from blackout.cli.run_results import best_row
    from blackout.files import write_table

    # 1. Means over seeds.
    jobs = [job for job in read_jobs(folder) if job["state"] == "done"]
    groups = group_jobs(jobs)
    descriptions, references = read_descriptions([Path(job["run"]) for job in jobs])
    scores = score_names(groups, descriptions)
    if not scores:
        return []

    # 2. The best of every score.
    best: dict[str, int | None] = {}
    for name in scores:
        values = [group.means.get(name) for group in groups]
        best[name] = best_row(values, references.get(name, {}), descriptions.get(name, {}))

    # 3. The file, with every score.
    settings = list(groups[0].settings)
    columns = [*settings, "jobs"]
    for name in scores:
        columns += [name, f"{name}_standard_error"]
    rows: list[dict[str, Any]] = []
    for number, group in enumerate(groups):
        row: dict[str, Any] = {**group.settings, "jobs": group.num_jobs, **group.means}
        row |= {f"{name}_standard_error": error for name, error in group.errors.items()}
        row["best_of"] = " ".join(name for name in scores if best[name] == number)
        rows.append(row)
    write_table([*columns, "best_of"], rows, folder / SUMMARY)
    return format_table(groups, scores, best, descriptions) + [f"table: {folder / SUMMARY}"]


def group_jobs(jobs: Sequence[Mapping[str, str]]) -> list[Group]:
    """Return jobs with the same settings, except the seed, together.

    Args:
        jobs: rows of results.csv.
    """
    words = [
        dict(word.partition("=")[::2] for word in shlex.split(job["overrides"])) for job in jobs
    ]
    names = list(dict.fromkeys(name for settings in words for name in settings))
    varying = [
        name
        for name in names
        if name != SEED and len({settings.get(name, "") for settings in words}) > 1
    ]
    members: dict[tuple[str, ...], list[Mapping[str, str]]] = {}
    for job, settings in zip(jobs, words, strict=True):
        key = tuple(settings.get(name, "") for name in varying)
        members.setdefault(key, []).append(job)
    return [_average(dict(zip(varying, key, strict=True)), part) for key, part in members.items()]


def _average(settings: Mapping[str, str], jobs: Sequence[Mapping[str, str]]) -> Group:
    """Return the means of all numbers of some jobs."""
    from blackout.cli.run_results import mean_and_error

    means: dict[str, float] = {}
    errors: dict[str, float] = {}
    for name in [name for name in jobs[0] if name not in RESULT_COLUMNS]:
        numbers = [_parse_number(job[name]) for job in jobs]
        mean, error = mean_and_error(number for number in numbers if number is not None)
        if mean is not None:
            means[name] = mean
        if error is not None:
            errors[name] = error
    return Group(settings, len(jobs), means, errors)


def _parse_number(text: str) -> float | None:
    """Return the number that a cell contains; None for other text."""
    try:
        return float(text)
    except ValueError:
        return None


def read_descriptions(runs: Sequence[Path]) -> tuple[Descriptions, Descriptions]:
    """Return descriptions and reference values of the scores of runs, by name of the score."""
    from blackout.cli.run_results import read_scores

    descriptions: dict[str, Any] = {}
    references: dict[str, Any] = {}
    for run in runs:
        content = read_scores(run).get("metrics.json", {})
        descriptions |= content.get("metric_descriptions", {})
        references |= content.get("references", {})
    return descriptions, references


def score_names(groups: Sequence[Group], descriptions: Descriptions) -> list[str]:
    """Return the scores of a table, the most important first.

    Scores with a better direction precede the other values. Among either, those of test data come
    first and those of validation data last.
    """
    names = list(dict.fromkeys(name for group in groups for name in group.means))

    def rank(name: str) -> tuple[bool, bool, bool]:
        has_direction = bool(descriptions.get(name, {}).get("better"))
        return (not has_direction, not name.startswith("test/"), name.startswith("val/"))

    return sorted(names, key=rank)


def format_table(
    groups: Sequence[Group],
    scores: Sequence[str],
    best: Mapping[str, int | None],
    descriptions: Descriptions,
) -> list[str]:
    """Return the lines of the table for the terminal, with the first few scores.

    Args:
        groups: a row each.
        scores: names of the scores, the most important first.
        best: score -> its best row.
        descriptions: of the scores.
    """
    from blackout.cli.run_results import BETTER_IN_WORDS

    names_with_direction = [name for name in scores if descriptions.get(name, {}).get("better")]
    printed_names = (names_with_direction or list(scores))[:MAX_PRINTED_SCORES]
    settings = list(groups[0].settings)

    # 1. Cells.
    table = [[*settings, "jobs", *printed_names]]
    for number, group in enumerate(groups):
        cells = [value[:MAX_CELL] for value in group.settings.values()]
        cells.append(str(group.num_jobs))
        for name in printed_names:
            mark = "*" if best[name] == number else ""
            cells.append(mark + _format_mean(group.means.get(name), group.errors.get(name)))
        table.append(cells)
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]

    # 2. Lines, and what the columns mean.
    lines = [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]
    for name in printed_names:
        description = descriptions.get(name, {})
        words = [description.get("unit", ""), BETTER_IN_WORDS.get(description.get("better"), "")]
        meaning = ", ".join(word for word in words if word)
        lines.append(f"{name}: {meaning}" if meaning else name)
    if any(best[name] is not None for name in printed_names):
        lines.append("* the best mean; ± is the standard error over seeds")
    return lines


def _format_mean(mean: float | None, error: float | None) -> str:
    """Return a mean and its standard error, with digits that follow the error."""
    from blackout.cli.run_results import format_number, num_decimals

    if mean is None:
        return ""
    text = format_number(mean, num_decimals(mean, error))
    return f"{text} ± {error:.2g}" if error is not None else text
