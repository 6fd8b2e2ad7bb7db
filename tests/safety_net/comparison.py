"""The differences between two states of the project."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

# Rows by name. A row is a mapping, a list of lines, or a plain value.
Table: TypeAlias = Mapping[str, Any]

MAX_ROWS = 6  # names of rows that are printed for one difference
MAX_WIDTH = 160  # characters of a value that are printed


def compare_tables(
    before: Table, after: Table, moved: Mapping[str, str] | None = None
) -> list[str]:
    """Return one line for each difference, with the names of the rows that have it.

    Args:
        before: rows of the older state.
        after: rows of the newer state.
        moved: names and values of `before`, or parts of them, that `after` writes otherwise.
    """
    before = rename(before, moved or {})
    lines = [f"only before: {name}" for name in sorted(before.keys() - after.keys())]
    lines += [f"only after: {name}" for name in sorted(after.keys() - before.keys())]
    rows: dict[str, list[str]] = defaultdict(list)
    for name in sorted(before.keys() & after.keys()):
        for difference in _compare_rows(before[name], after[name]):
            rows[difference].append(name)
    for difference, names in rows.items():
        remaining = len(names) - MAX_ROWS
        suffix = f" and {remaining} more" if remaining > 0 else ""
        lines.append(f"{difference}   in: {'; '.join(names[:MAX_ROWS])}{suffix}")
    return lines


def rename(table: Table, moved: Mapping[str, str]) -> dict[str, Any]:
    """Replace old names by new ones, in the names of rows and in all values."""
    text = json.dumps(table)
    for old, new in moved.items():
        text = text.replace(json.dumps(old)[1:-1], json.dumps(new)[1:-1])
    return dict(json.loads(text))


def _compare_rows(before: Any, after: Any) -> Iterator[str]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in sorted(before.keys() | after.keys()):
            if name not in after:
                yield f"{name}: {_shorten(before[name])} -> nothing"
            elif name not in before:
                yield f"{name}: nothing -> {_shorten(after[name])}"
            elif before[name] != after[name]:
                yield f"{name}: {_shorten(before[name])} -> {_shorten(after[name])}"
    elif isinstance(before, list) and isinstance(after, list):
        yield from (f"- {_shorten(line)}" for line in before if line not in after)
        yield from (f"+ {_shorten(line)}" for line in after if line not in before)
    elif before != after:
        yield f"{_shorten(before)} -> {_shorten(after)}"


def _shorten(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= MAX_WIDTH else f"{text[: MAX_WIDTH - 3]}..."
