"""What must stay the same while code moves: samples, configurations and the public interface.

    python -m tests.safety_net                        compare with the files in this folder
    python -m tests.safety_net --renew                write those files anew
    python -m tests.safety_net --renew DIR            write all to a folder, with hashes of samples
    python -m tests.safety_net --renew DIR --commit main      the same of another commit
    python -m tests.safety_net --compare DIR          compare with what another commit left there

The files in this folder are the same on every machine: configurations.json has the resolved
configuration of every family, recipe, experiment and task; interface.json the exported names with
their signatures, the settings of every choice and the names of results; cases.json the cases of
which samples are drawn, and whether each is drawn or refused. A folder DIR also has samples.json,
with hashes that only the same machine repeats. What differs is printed row by row, and the exit
code is then 1.

Names that moved on purpose are listed in the file of --moved, a JSON object {old: new}.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.safety_net.choices import ROOT
from tests.safety_net.comparison import differences
from tests.safety_net.configurations import compressed, configurations, expanded
from tests.safety_net.interface import interface
from tests.safety_net.samples import samples

HERE = Path(__file__).parent
KINDS = ("configurations", "interface", "samples")


def current(kind: str) -> dict[str, Any]:
    """One kind of what must stay the same, as it is in this checkout, as rows by name."""
    makers: dict[str, Callable[[], dict[str, Any]]] = {
        "configurations": configurations,
        "interface": lambda: _rows(interface()),
        "samples": samples,
    }
    return makers[kind]()


def _rows(tables: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {f"{kind} {name}": row for kind, table in tables.items() for name, row in table.items()}


def statuses(table: Mapping[str, Any]) -> dict[str, str]:
    """Whether each case of samples is drawn, or how it ends instead."""
    return {
        name: "drawn" if isinstance(value, Mapping) else str(value) for name, value in table.items()
    }


def save(folder: Path, kind: str, table: Mapping[str, Any]) -> None:
    """Write one kind into a folder; of samples, the folder of this module gets the cases alone."""
    folder.mkdir(parents=True, exist_ok=True)
    if kind == "samples":
        _write(folder / "cases.json", statuses(table))
    if kind == "configurations":
        _write(folder / "configurations.json", compressed(table))
    elif kind != "samples" or folder != HERE:
        _write(folder / f"{kind}.json", table)


def load(folder: Path, kind: str) -> dict[str, Any] | None:
    """One kind from a folder, or None; of samples the cases, where there are no hashes."""
    names = ["samples.json", "cases.json"] if kind == "samples" else [f"{kind}.json"]
    file = next((folder / name for name in names if (folder / name).exists()), None)
    if file is None:
        return None
    table: dict[str, Any] = json.loads(file.read_text())
    return expanded(table) if kind == "configurations" else table


def _write(file: Path, table: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")


def renew_commit(commit: str, arguments: list[str]) -> int:
    """Run `--renew` in a copy of another commit, with this folder in it."""
    with tempfile.TemporaryDirectory() as name:
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True)
        if archive.returncode:
            print(f"error: {archive.stderr.decode().strip()}", file=sys.stderr)
            return 2
        subprocess.run(["tar", "-x", "-C", name], input=archive.stdout, check=True)
        place = Path(name) / HERE.relative_to(ROOT)
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(HERE, place, ignore=shutil.ignore_patterns("__pycache__"))
        command = [sys.executable, "-m", "tests.safety_net", *arguments]
        return subprocess.run(command, cwd=name, env=os.environ | {"PYTHONPATH": name}).returncode


def main(argv: list[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.safety_net",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument(
        "--renew", nargs="?", type=Path, const=HERE, metavar="DIR", help="write, here or to DIR"
    )
    ways.add_argument(
        "--compare", type=Path, default=HERE, metavar="DIR", help="compare with DIR (default: here)"
    )
    parser.add_argument("--commit", help="with --renew DIR: of this commit")
    parser.add_argument(
        "--only", choices=KINDS, action="append", help="one kind; may be given more than once"
    )
    parser.add_argument(
        "--moved", type=Path, metavar="FILE", help="JSON: what was written, and what is now"
    )
    options = parser.parse_args(argv)
    kinds = options.only or KINDS
    if options.commit:
        if options.renew in (None, HERE):
            parser.error("--commit needs --renew DIR")
        chosen = [word for kind in kinds for word in ("--only", kind)]
        return renew_commit(options.commit, ["--renew", str(options.renew.resolve()), *chosen])
    if options.renew:
        for kind in kinds:
            save(options.renew, kind, current(kind))
        return 0
    moved = json.loads(options.moved.read_text()) if options.moved else {}
    number = 0
    for kind in kinds:
        before, after = load(options.compare, kind), current(kind)
        if before is None:
            parser.error(f"{options.compare} has no {kind}: --renew writes them")
        if all(isinstance(row, str) for row in before.values()):  # no hashes
            after = statuses(after)
        lines = differences(before, after, moved)
        number += len(lines)
        print(f"{kind}: {len(before)} rows before, {len(after)} after, {len(lines)} differences")
        print("".join(f"  {line}\n" for line in lines), end="")
    return int(number > 0)


if __name__ == "__main__":
    sys.exit(main())
