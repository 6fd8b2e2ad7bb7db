"""What differs between two states of the project, row by row."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

Table: TypeAlias = Mapping[str, Any]
"""Values by name; a value is a mapping itself, a list of lines, or a plain value."""
SHOWN = 6  # names of rows in which the same thing differs
WIDTH = 160  # characters of a value


def differences(before: Table, after: Table, moved: Mapping[str, str] | None = None) -> list[str]:
    """One line for each thing that differs, with the rows in which it does.

    Args:
        before: rows by name.
        after: the same of the other state.
        moved: what is written in `before`, and what in `after`: parts of names and of values.
    """
    before = renamed(before, moved or {})
    lines = [f"only before: {name}" for name in sorted(before.keys() - after.keys())]
    lines += [f"only after: {name}" for name in sorted(after.keys() - before.keys())]
    rows: dict[str, list[str]] = defaultdict(list)
    for name in sorted(before.keys() & after.keys()):
        for change in _changes(before[name], after[name]):
            rows[change].append(name)
    for change, names in rows.items():
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        lines.append(f"{change}   in: {'; '.join(names[:SHOWN])}{more}")
    return lines


def renamed(table: Table, moved: Mapping[str, str]) -> dict[str, Any]:
    """A table in which everything that moved has its new name, in names of rows and in values."""
    text = json.dumps(table)
    for old, new in moved.items():
        text = text.replace(json.dumps(old)[1:-1], json.dumps(new)[1:-1])
    return dict(json.loads(text))


def _changes(before: Any, after: Any) -> Iterator[str]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in sorted(before.keys() | after.keys()):
            if name not in after:
                yield f"{name}: {_short(before[name])} -> nothing"
            elif name not in before:
                yield f"{name}: nothing -> {_short(after[name])}"
            elif before[name] != after[name]:
                yield f"{name}: {_short(before[name])} -> {_short(after[name])}"
    elif isinstance(before, list) and isinstance(after, list):
        yield from (f"- {_short(line)}" for line in before if line not in after)
        yield from (f"+ {_short(line)}" for line in after if line not in before)
    elif before != after:
        yield f"{_short(before)} -> {_short(after)}"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 3]}..."
