"""Tables of docs/results from benchmarks/results: `python -m benchmarks.peers.page`.

A page has `<!-- table: NAME -->` and `<!-- end of table -->`; what is between them is
`table(NAME)`, made from benchmarks/results/peers_NAME.json.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.peers.results import RESULTS, Row, markdown

DOCS = Path(__file__).resolve().parents[2] / "docs" / "results"
PAGES = tuple(DOCS / f"{name}.md" for name in ("images", "counts", "energies"))
TABLE = re.compile(r"(<!-- table: (\w+) -->\n)(.*?)(<!-- end of table -->)", re.DOTALL)
USUAL_EVALUATIONS = 25  # whose scores have no number of evaluations in their column
# first and last, in the tables of images
REFERENCES = ("training images", "independent pixels")


def image_rows(rows: Sequence[Row]) -> list[Row]:
    """Return one row per method, with the distance and the AUC at every number of evaluations.

    Other scores are those of 25 evaluations.

    Args:
        rows: one per method and number of evaluations; None evaluations for references.
    """
    by_method: dict[str, dict[int | None, Row]] = {}
    for row in rows:
        by_method.setdefault(row["method"], {})[row["evaluations"]] = row
    evaluations = sorted({row["evaluations"] for row in rows} - {None})
    usual = USUAL_EVALUATIONS if USUAL_EVALUATIONS in evaluations else evaluations[0]
    once = [
        name
        for name in ("bits/dim", "recognised", "pixels at 0", "pixels at 16")
        if any(row.get(name) is not None for row in rows)
    ]
    first, last = REFERENCES
    methods = [name for name in by_method if name not in REFERENCES]
    table = []
    for method in [first, *methods, last]:
        scores = by_method[method]
        line: Row = {"method": method}
        for short, name in (("FD", "Fréchet distance"), ("AUC", "forest AUC")):
            for number in evaluations:
                score = scores.get(number) or scores[None]
                line[f"{short} @{number}"] = score[name]
                line[f"{short} @{number} error"] = score[f"{name} error"]
        score = scores.get(usual) or scores[None]
        for name in once:
            line[name] = score.get(name)
            line[f"{name} error"] = score.get(f"{name} error")
        table.append(line)
    return table


def posterior_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of posteriors without effective numbers and seconds."""
    return [
        {name: value for name, value in row.items() if name not in ("effective digits", "CPU s")}
        for row in rows
    ]


def cell_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of cells with three decimals of bits per gene."""
    table = []
    for row in rows:
        bits = row["bits per gene"]
        table.append(row | {"bits per gene": None if bits is None else f"{bits:.3f}"})
    return table


# how the rows of a result file are shown, where not as they are
LAYOUTS: dict[str, Callable[[Sequence[Row]], list[Row]]] = {
    "images": image_rows,
    "processes": image_rows,
    "cells": cell_rows,
    "posteriors": posterior_rows,
}


def table(name: str) -> str:
    """Return the table of benchmarks/results/peers_<name>.json, with its title and setup."""
    file = RESULTS / f"peers_{name}.json"
    results = json.loads(file.read_text(encoding="utf-8"))
    layout = LAYOUTS.get(name, list)
    machine = results["machine"]
    title = f"{results['title'][0].upper()}{results['title'][1:]}"
    setup = (
        f"`{results['command']}`, {machine['device']}, one thread, {machine['date']}, "
        f"`benchmarks/results/{file.name}`"
    )
    return f"{title}.\n\n{markdown(layout(results['rows']))}\n\n{setup}\n"


def update(page: str) -> str:
    """Return a page with its tables made from the result files."""
    return TABLE.sub(lambda match: f"{match[1]}{table(match[2])}{match[4]}", page)


def main() -> None:
    """Write the tables into the pages."""
    for page in PAGES:
        page.write_text(update(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
