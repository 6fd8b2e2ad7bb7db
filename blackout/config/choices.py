"""The choices in conf/, one YAML file each, with the description in its first comment."""

from __future__ import annotations

from pathlib import Path

import yaml

from blackout.files import CONF

PROGRAMS = ("train", "sample")
DIVIDED_GROUPS = ("experiment", "recipe", "task")  # whose choices are in folders


def list_groups(conf: Path = CONF) -> list[str]:
    """Return the names of all groups in a configuration folder, such as `sampler/grid`.

    Folders that only divide a group into papers or families (`experiment/blackout`) are not groups
    of their own: `list_choices` lists what they contain.
    """
    folders = {file.parent.relative_to(conf) for file in conf.rglob("*.yaml")}
    names = {
        folder.parts[0] if _is_divided(folder.parts[0]) else str(folder)
        for folder in folders
        if folder.parts
    }
    return sorted(names)


def list_choices(group: str, conf: Path = CONF) -> list[str]:
    """Return the choices of a group; those in subfolders have names such as `blackout/table1`."""
    folder = conf / group
    files = folder.rglob("*.yaml") if _is_divided(group) else folder.glob("*.yaml")
    return sorted(str(file.relative_to(folder).with_suffix("")) for file in files)


def describe_choice(group: str, choice: str, conf: Path = CONF) -> str:
    """Return the first comment of a choice's file, in one line; empty if there is none."""
    comment: list[str] = []
    for line in (conf / group / f"{choice}.yaml").read_text(encoding="utf-8").splitlines():
        if line.startswith("# @package"):
            continue
        if not line.startswith("#"):
            break
        comment.append(line.removeprefix("#").strip())
    return " ".join(comment)


def load_choice(group: str, choice: str, conf: Path = CONF) -> dict[str, object]:
    """Return the settings in a choice's own file, without those of its defaults list."""
    content = yaml.safe_load((conf / group / f"{choice}.yaml").read_text(encoding="utf-8")) or {}
    return {name: value for name, value in content.items() if name != "defaults"}


def _is_divided(group: str) -> bool:
    return group in DIVIDED_GROUPS
