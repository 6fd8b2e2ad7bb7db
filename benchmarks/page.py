"""Tables of README and docs/ from benchmarks/results/*.json: `python -m benchmarks.page`.

    python -m benchmarks.page          # write all tables into their pages
    python -m benchmarks.page --check  # list the pages that are out of date, with exit code 1

A page has a table between two lines,

    <!-- table: NAME -->
    <!-- end of table -->

where NAME is a key of `TABLES`. What stands between them is replaced.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import (
    calibration,
    coverage,
    flag_rates,
    headline,
    known_probability,
    paper_posteriors,
    permutation_winners,
    posterior_accuracy,
    posterior_constants,
    range_ends,
    recipe_trials,
    speed,
)
from benchmarks.peers import layouts
from benchmarks.peers import results as peers

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
MARKED = re.compile(r"(<!-- table: (\w+) -->\n)(.*?)(<!-- end of table -->)", re.DOTALL)
ANSWER = re.compile(r"\*\*Answer[^*]*\*\* (.+?\.)(?=\s+[A-Z*`]|\s*$)", re.DOTALL | re.MULTILINE)
MARKER = re.compile(r"<!-- (?:table: .*?|end of table) -->")


@dataclass(frozen=True)
class Table:
    """A table that is generated from result files.

    Args:
        function: the contents of the files, in this order -> Markdown.
        files: names in benchmarks/results, without `.json`; none for a table of other files.
        setup: whether a line with command, machine, date and file of each result follows.
    """

    function: Callable[..., str]
    files: tuple[str, ...]
    setup: bool = True


def results_index() -> str:
    """Return the pages of docs/results with the first sentence of each of their answers."""
    lines = ["| page | answer |", "|---|---|"]
    for path in sorted((ROOT / "docs" / "results").glob("*.md")):
        text = path.read_text(encoding="utf-8")
        answers = [" ".join(answer.split()) for answer in ANSWER.findall(text)]
        if path.name != "index.md":
            title = text.splitlines()[0].removeprefix("# ")
            lines.append(f"| [{title}]({path.name}) | {' '.join(answers)} |")
    return "\n".join(lines)


# one line for each table; the function is next to the benchmark that writes the file
TABLES = {
    "calibration": Table(calibration.table, ("calibration",)),
    "calibration_summary": Table(calibration.summary, ("calibration",)),
    "coverage": Table(coverage.table, ()),
    "flag_rates": Table(flag_rates.table, ("flag_rates",)),
    "headline": Table(
        headline.table,
        ("headline", "peers_images", "peers_cells", "posterior_methods", "peers_energies"),
        setup=False,
    ),
    "known_probability": Table(known_probability.table, ("known_probability",), setup=False),
    "known_probability_summary": Table(known_probability.summary, ("known_probability",)),
    "paper_posteriors": Table(paper_posteriors.table, ("paper_posteriors",)),
    "peers_cell_numbers": Table(layouts.cell_number_table, ("peers_cell_numbers",)),
    "peers_cell_steps": Table(peers.table, ("peers_cell_steps",)),
    "peers_cells": Table(layouts.cell_table, ("peers_cells",)),
    "peers_energies": Table(peers.table, ("peers_energies",)),
    "peers_images": Table(layouts.image_table, ("peers_images",)),
    "peers_posteriors": Table(layouts.posterior_table, ("peers_posteriors",)),
    "peers_processes": Table(layouts.image_table, ("peers_processes",)),
    "permutations": Table(permutation_winners.table, ("permutations",)),
    "permutations_summary": Table(permutation_winners.summary, ("permutations",)),
    "posterior_constants": Table(posterior_constants.table, ("posterior_constants",)),
    "posterior_methods": Table(posterior_accuracy.table, ("posterior_methods",)),
    "posterior_summary": Table(posterior_accuracy.summary, ("posterior_methods",)),
    **{
        f"range_ends_{name}": Table(
            partial(range_ends.table, name=name), ("range_ends",), setup=False
        )
        for name in (
            "bits",
            "exact",
            "few_steps",
            "predictions",
            "recognised",
            "samplers",
            "test",
        )
    },
    "recipe_trials_digits": Table(
        partial(recipe_trials.table, name="digits_test"), ("recipe_trials",), setup=False
    ),
    "results_index": Table(results_index, ()),
    "speed": Table(speed.table, ("speed",)),
    "start": Table(speed.start_table, ("start",)),
}


def pages() -> list[Path]:
    """Return README and all pages of docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def load(name: str) -> dict[str, Any]:
    """Return the contents of benchmarks/results/<name>.json."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def setup_line(name: str, results: dict[str, Any]) -> str:
    """Return command, machine, date and file of a result in one line.

    Trainings that were added to a file have a command and a machine of their own.
    """
    machine = results["machine"]
    setups = [describe_setup(results.get("command") or machine.get("command"), machine)]
    if "remark" in results:
        setups[0] += f" ({results['remark']})"
    for addition in results.get("added", []):
        setups.append(f"then {describe_setup(addition['command'], addition['machine'])}")
    return ", ".join([*setups, f"`benchmarks/results/{name}.json`"])


def describe_setup(command: str | None, machine: dict[str, Any]) -> str:
    """Return a command, where there is one, its machine and the date."""
    threads = "1 thread" if machine["threads"] == 1 else f"{machine['threads']} threads"
    words = [machine["device"], threads, machine["date"]]
    if command:
        words.insert(0, f"`{command}`")
    return ", ".join(words)


def markdown(name: str) -> str:
    """Return a table with its setup.

    Raises:
        ValueError: no table has this name.
    """
    if name not in TABLES:
        raise ValueError(f"no table is called {name!r}; there are {', '.join(TABLES)}")
    table = TABLES[name]
    contents = {file: load(file) for file in table.files}
    text = table.function(*contents.values()).strip()
    if table.setup:
        setups = [setup_line(file, results) for file, results in contents.items()]
        text = "\n\n".join([text, *setups])
    return text


def update(page: str) -> str:
    """Return a page with its tables made from the result files.

    Raises:
        ValueError: a marker without its partner, or an unknown name.
    """
    if len(MARKER.findall(page)) != 2 * len(MARKED.findall(page)):
        raise ValueError("a table needs `<!-- table: NAME -->` and `<!-- end of table -->`")
    return MARKED.sub(lambda match: f"{match[1]}\n{markdown(match[2])}\n\n{match[4]}", page)


def main(argv: Sequence[str] | None = None) -> None:
    """Write the tables into the pages, or list the pages that are out of date."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.page",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args(argv)
    outdated = []
    for path in pages():
        text = path.read_text(encoding="utf-8")
        updated = update(text)
        if updated == text:
            continue
        outdated.append(path)
        print(path.relative_to(ROOT).as_posix())
        if not options.check:
            path.write_text(updated, encoding="utf-8")
    if options.check and outdated:
        sys.exit(1)


if __name__ == "__main__":
    main()
