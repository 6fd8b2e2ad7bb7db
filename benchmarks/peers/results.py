"""Options, result files and printed tables of the comparisons."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import machine

RESULTS = Path(__file__).resolve().parents[1] / "results"
PACKAGES = (
    "torch",
    "torchcfm",
    "diffusers",
    "flow_matching",
    "torchdiffeq",
    "scikit-learn",
    "scvi-tools",
)
# options that are followed by a path, and what is recorded of them
FILE_OPTIONS: dict[str, list[str]] = {"--json": [], "--model": ["--model", "<run>"]}
Row = dict[str, Any]


def make_parser(table: str, description: str, seconds: float) -> argparse.ArgumentParser:
    """Return a parser with the options of every comparison.

    Args:
        table: name of the result file.
        description: of the command.
        seconds: default CPU seconds of a training.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.peers.{table}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--seconds", type=float, default=seconds, help="CPU seconds of every training"
    )
    parser.add_argument("--trainings", type=int, default=2, help="of every method")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, for a check that it runs")
    parser.add_argument(
        "--json",
        type=Path,
        default=RESULTS / f"peers_{table}.json",
        help="where to write the results",
    )
    parser.set_defaults(table=table)
    return parser


def parse(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the options, with one thread and the command that was typed."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = parser.parse_args(arguments)
    options.command = describe_command(parser.prog, arguments)
    torch.set_num_threads(1)
    return options


def describe_command(program: str, arguments: Sequence[str]) -> str:
    """Return a command without the values of options that name files of one machine."""
    words = [program]
    pending = iter(arguments)
    for word in pending:
        if word in FILE_OPTIONS:
            next(pending, None)
            words += FILE_OPTIONS[word]
        else:
            words.append(word)
    return " ".join(words)


def package_versions() -> dict[str, str]:
    """Return the versions of the installed libraries by name."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def format_title(results: Mapping[str, Any]) -> str:
    """Return the title of a result file as a sentence."""
    return f"{results['title'][0].upper()}{results['title'][1:]}."


def table(results: Mapping[str, Any]) -> str:
    """Return the title and the table of the contents of a result file."""
    return f"{format_title(results)}\n\n{markdown(results['rows'])}"


def write_results(
    options: argparse.Namespace, title: str, rows: Sequence[Row], **facts: Any
) -> None:
    """Print a table and write it as JSON, with command, versions, machine and date.

    Args:
        options: of the command.
        title: of the table.
        rows: with the same columns.
        facts: what else the file should have, such as settings and single runs.
    """
    results = {
        "title": title,
        "command": options.command,
        "machine": machine(torch.device("cpu")) | {"quick": options.quick},
        "packages": package_versions(),
        **facts,
        "rows": list(rows),
    }
    print(title)
    print(markdown(rows))
    options.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


def markdown(rows: Sequence[Mapping[str, Any]], names: Sequence[str] = ()) -> str:
    """Return a Markdown table; a column `<name> error` is written as ± after `<name>`.

    Args:
        rows: with the same columns.
        names: of the columns to show; all by default.
    """
    columns = [
        name
        for name in (names or list(rows[0]))
        if not (name.endswith(" error") and name.removesuffix(" error") in rows[0])
    ]
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for row in rows:
        cells = []
        for name in columns:
            text = format_value(row[name])
            error = row.get(f"{name} error")
            if row[name] is not None and error is not None:
                text += f" ± {format_value(error)}"
            cells.append(text)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def format_value(value: Any) -> str:
    """Return a number with three digits, a text as it is, and - for None."""
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    if abs(value) >= 100:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"
