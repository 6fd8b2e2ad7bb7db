"""Tables of pages from the rows of the comparisons, one line per method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.peers.results import Row, format_title, markdown

USUAL_EVALUATIONS = 25  # whose scores have no number of evaluations in their column
# first and last in the tables of images
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


def cell_number_rows(rows: Sequence[Row]) -> list[Row]:
    """Return one row per number of cells with the bits per gene of every method.

    Args:
        rows: one per number of cells and method.
    """
    table: dict[int, Row] = {}
    for row in rows:
        line = table.setdefault(row["cells"], {"cells": row["cells"]})
        line[row["method"]] = decimals(row["bits per gene"], row["bits per gene error"])
    for row in rows:
        if row["difference"] is not None:
            difference = decimals(row["difference"], row["difference error"])
            table[row["cells"]]["blackout − mixture"] = difference
    return list(table.values())


def decimals(value: float, error: float | None) -> str:
    """Return bits with three decimals, and their error where there is one."""
    return f"{value:.3f}" + ("" if error is None else f" ± {error:.3f}")


def image_table(results: Mapping[str, Any]) -> str:
    """Return the table of `benchmarks.peers.images` or `.processes`, with its title."""
    return f"{format_title(results)}\n\n{markdown(image_rows(results['rows']))}"


def cell_table(results: Mapping[str, Any]) -> str:
    """Return the table of `benchmarks.peers.cells`, with its title."""
    return f"{format_title(results)}\n\n{markdown(cell_rows(results['rows']))}"


def cell_number_table(results: Mapping[str, Any]) -> str:
    """Return the table of `benchmarks.peers.cell_numbers`, with its title."""
    return f"{format_title(results)}\n\n{markdown(cell_number_rows(results['rows']))}"


def posterior_table(results: Mapping[str, Any]) -> str:
    """Return the table of `benchmarks.peers.posteriors`, with its title."""
    return f"{format_title(results)}\n\n{markdown(posterior_rows(results['rows']))}"
