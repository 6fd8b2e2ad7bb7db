"""What of the five papers is here, with the command and the published figure: `python -m
benchmarks.coverage`.

The rows are benchmarks/coverage.yaml: one for every algorithm, table and figure. An experiment has
every hyper-parameter as the paper states it, and conf/experiment/<paper>/ says where the paper is
silent or wrong; with a `recipe=` of the small models (docs/howto/papers.md) the same item is
trained on a CPU, which is not the paper's.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser

ROWS = Path(__file__).with_suffix(".yaml")
STATES = {
    "full": "has been run at the published size",
    "small": "has been run at a smaller size",
    "smoke": "a few steps of everything, by the deep tests",
    "missing": "not here",
}


def rows() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(paper, row) of every row."""
    for paper, listed in yaml.safe_load(ROWS.read_text(encoding="utf-8")).items():
        for row in listed:
            yield paper, row


def commands(row: Mapping[str, Any]) -> list[str]:
    """Return the commands of a row in the order in which they are run.

    `<run>` stands for the folder of the run that the train.py before it makes, or of the prior.
    """
    commands = list(row.get("first", ()))
    commands += [f"train.py {flags(run)}experiment={run}" for run in row.get("runs", ())]
    prior = "" if "small" in row else " ckpt=<run>"
    commands += [f"sample.py {flags(task)}task={task}{prior}" for task in row.get("task", ())]
    if "command" in row:
        commands.append(row["command"])
    return [*commands, *row.get("then", ())]


def command(row: Mapping[str, Any]) -> str:
    """Return the commands of a row, in Markdown."""
    return ", ".join(f"`{command}`" for command in commands(row))


def flags(run: str) -> str:
    """Return the flag that a run needs if it varies a setting, with a space."""
    settings = OverridesParser.create().parse_overrides(run.split()[1:])
    return "-m " if any(setting.is_sweep_override() for setting in settings) else ""


def name(run: str) -> str:
    """Return the name of the experiment or task of a run."""
    return run.split()[0]


def page() -> str:
    """All rows, as tables in Markdown."""
    lines: list[str] = []
    counted = dict.fromkeys(STATES, 0)
    last = ""
    for paper, row in rows():
        counted[row["state"]] += 1
        if paper != last:
            lines += [
                "",
                f"## {paper}",
                "",
                "| what | command | writes | state | published |",
                "|---|---|---|---|---|",
            ]
            last = paper
        writes = ", ".join(f"`{name}`" for name in row["shows"])
        cells = row["item"], command(row), writes, row["state"], str(row["published"])
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    states = "; ".join(
        f"**{state}** ({counted[state]}): {meaning}" for state, meaning in STATES.items()
    )
    run = (
        "`<run>` is the folder of the run that the command before it trains, or that of the prior. "
        "What a command writes is a value that it prints or a file in its folder."
    )
    return "\n".join(
        ["# Coverage of the five papers", "", f"States, and their rows: {states}.", "", run, *lines]
    )


def table() -> str:
    """Return how many rows of each paper are in each state, in Markdown."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for paper, row in rows():
        counts[paper][row["state"]] += 1
    lines = [f"| paper | {' | '.join(STATES)} |", "|---" * (1 + len(STATES)) + "|"]
    for paper, by_state in counts.items():
        lines.append(f"| {paper} | {' | '.join(str(by_state[state]) for state in STATES)} |")
    return "\n".join(lines)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.coverage",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args()
    print(page())


if __name__ == "__main__":
    main()
