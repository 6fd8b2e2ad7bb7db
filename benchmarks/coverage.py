"""What of the five papers is here: `python -m benchmarks.coverage` writes docs/results/coverage.md.

Its rows are benchmarks/coverage.yaml. `--check` writes nothing and ends with 1 where the page is not that of the rows.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results" / "coverage.md"
STATES = {
    "full": "run at the published size",
    "small": "run smaller, with figures",
    "smoke": "a few steps of everything, by the deep tests",
    "missing": "not here",
}
_HEAD = """# Coverage of the five papers

Made by `python -m benchmarks.coverage` from `benchmarks/coverage.yaml`. A row for every algorithm, table and figure.
An experiment has every hyper-parameter as the paper states it, and `conf/experiment/<paper>.yaml` says where the paper
is silent or wrong; with a `recipe=` of the [small models](../howto/papers.md) the same item is trained on a CPU, which
is no longer the paper's. Figures stand beside those published only where something was run, which is never at the
published size unless the state says so; "small" says with what, and the page has the rival at equal seconds.
"""


def rows() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(paper, row) of every row."""
    for paper, listed in yaml.safe_load((ROOT / "benchmarks" / "coverage.yaml").read_text()).items():
        yield from ((paper, row) for row in listed)


def command(row: Mapping[str, Any]) -> str:
    """What is typed for a row, with the choices that make its other cells."""
    for program, group, names in (("train.py", "experiment", row.get("runs")), ("sample.py", "task", row.get("task"))):
        if names:
            folder = names[0].rpartition("/")[0]
            others = [name.removeprefix(f"{folder}/") if folder else name for name in names[1:]]
            return f"`{program} {group}={names[0]}`" + (f", {', '.join(others)}" if others else "")
    return "-" if row["command"] == "-" else f"`{row['command']}`"


def page() -> str:
    """The page, in Markdown."""
    lines, counted, last = [_HEAD], dict.fromkeys(STATES, 0), ""
    for paper, row in rows():
        counted[row["state"]] += 1
        if paper != last:
            lines += [
                f"\n## {paper}\n",
                "| what | command | state | here | published | date |",
                "|---|---|---|---|---|---|",
            ]
            last = paper
        ours = str(row.get("ours", "")) + (f" ([page](../{row['page']}))" if "page" in row else "")
        cells = [
            row["item"],
            command(row).replace("|", "\\|"),
            row["state"],
            ours,
            row["published"],
            row.get("date", ""),
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    told = "; ".join(f"**{state}** ({counted[state]}): {meaning}" for state, meaning in STATES.items())
    lines.insert(1, f"\nStates, and their rows: {told}.")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coverage", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 where the page is not that of the rows")
    if parser.parse_args().check:
        sys.exit(int(not PAGE.is_file() or PAGE.read_text() != page()))
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page())
    print(PAGE)


if __name__ == "__main__":
    main()
