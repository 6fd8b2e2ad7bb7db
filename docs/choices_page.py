"""The page of all settings and choices, from the comments in conf/.

`python docs/choices_page.py` prints it; docs/site.py adds it to the site.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import yaml

from blackout.config.choices import PROGRAMS, describe_choice, list_choices, list_groups
from blackout.files import CONF

# groups whose choices only set settings of other groups: these are described where they belong
COLLECTIONS = ("debug", "experiment", "recipe", "sizes", "task")
HIDDEN = ("_target_", "_partial_", "defaults", "hydra")  # keys that are no settings

HEAD = """# All settings and choices

This page is generated from the comments in `conf/`. `blackout choices <group>` prints the same.
[How to read and change settings](settings.md).
"""


@dataclass(frozen=True)
class Setting:
    """A line of a YAML file: `name: default # comment`.

    Attributes:
        name: With the names of the settings that contain it: `correction.steps`.
        default: As it is written in the file; empty if it contains other settings.
        comment: What it means, with its unit; empty if the file does not say it.
    """

    name: str
    default: str
    comment: str


def main() -> None:
    """Print the page."""
    print(page())


def page(conf: Path = CONF) -> str:
    """Return the page in Markdown."""
    parts = [HEAD]
    for program in PROGRAMS:
        parts.append(f"## {program}.py\n")
        parts.append(settings_table(read_settings(conf / f"{program}.yaml")))
    for group in list_groups(conf):
        parts.append(f"## {group}\n")
        parts.append(choices_table(group, conf))
        if group in COLLECTIONS:
            continue
        for choice in list_choices(group, conf):
            if settings := choice_settings(group, choice, conf):
                parts.append(f"### {group}={choice}\n")
                parts.append(settings_table(settings))
    return "\n".join(parts)


def choices_table(group: str, conf: Path = CONF) -> str:
    """Return a table with a row for every choice of a group."""
    rows = [
        f"| `{choice}` | {prose(describe_choice(group, choice, conf))} |"
        for choice in list_choices(group, conf)
    ]
    return "\n".join([f"| `{group}=` | what it is |", "|---|---|", *rows, ""])


def settings_table(settings: list[Setting]) -> str:
    """Return a table with a row for every setting."""
    rows = [
        f"| `{setting.name}` | {f'`{cell(setting.default)}`' if setting.default else ''} "
        f"| {prose(setting.comment)} |"
        for setting in settings
    ]
    return "\n".join(["| setting | default | meaning |", "|---|---|---|", *rows, ""])


def choice_settings(group: str, choice: str, conf: Path = CONF) -> list[Setting]:
    """Return the settings in a choice's file.

    A setting without a comment has that of the same name in another choice of its group.
    """
    others = {
        setting.name: setting.comment
        for other in reversed(list_choices(group, conf))
        for setting in read_settings(conf / group / f"{other}.yaml")
        if setting.comment
    }
    return [
        Setting(setting.name, setting.default, setting.comment or others.get(setting.name, ""))
        for setting in read_settings(conf / group / f"{choice}.yaml")
        if setting.name != group  # `dataset: null` of dataset=none
    ]


def read_settings(path: Path) -> list[Setting]:
    """Return the settings of a YAML file in the order of its lines."""
    text = path.read_text(encoding="utf-8")
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(root, yaml.MappingNode):
        return []
    return _settings(root, "", text.splitlines())


def cell(text: str) -> str:
    """Return text that does not end the cell of a table that it is in."""
    return text.replace("|", "\\|")


def prose(text: str) -> str:
    """Return a comment for a cell, in which names like <run_id> outside code are not HTML tags."""
    parts = re.split(r"(`[^`]*`)", cell(text))
    parts[::2] = [part.replace("<", "&lt;") for part in parts[::2]]
    return "".join(parts)


def _settings(node: yaml.MappingNode, prefix: str, lines: list[str]) -> list[Setting]:
    settings = []
    for key, value in node.value:
        if key.value in HIDDEN:
            continue
        name = f"{prefix}{key.value}"
        comment = _comment(lines, key.start_mark.line)
        contains_settings = (
            isinstance(value, yaml.MappingNode)
            and value.value
            and (not value.flow_style or "_target_" not in {key.value for key, _ in value.value})
        )
        if not contains_settings:
            default = _source(lines, value)
            settings.append(Setting(name, default, comment))
            continue
        if comment:
            settings.append(Setting(name, "", comment))
        settings += _settings(value, f"{name}.", lines)
    return settings


def _source(lines: list[str], value: yaml.Node) -> str:
    """Return a value as it is written."""
    start, end = value.start_mark, value.end_mark
    if start.line != end.line:
        return "..."
    return lines[start.line][start.column : end.column] or "null"


def _comment(lines: list[str], first: int) -> str:
    """Return the comment at the end of a setting's line, and the lines of comment above it.

    Lines of comment at the top of a file describe the choice. Those after an empty line are the
    title of a section, if the setting has a comment of its own.
    """
    above: list[str] = []
    row = first - 1
    while row >= 0 and lines[row].lstrip().startswith("#"):
        above.insert(0, lines[row].strip().lstrip("# "))
        row -= 1
    end = re.search(r"\s#\s*(.*)$", lines[first])
    if row < 0 or (end and not lines[row].strip()):
        above = []
    return " ".join([*above, *([end[1]] if end else [])]).strip()


if __name__ == "__main__":
    main()
