"""Compare what must not change while code is rewritten: `python -m tests.safety_net`.

    python -m tests.safety_net                            compare with the files in this folder
    python -m tests.safety_net --renew                    write these files
    python -m tests.safety_net --renew DIR                write all files, with hashes of samples
    python -m tests.safety_net --renew DIR --commit main  the same for another commit
    python -m tests.safety_net --compare DIR              compare with the files in DIR
    python -m tests.safety_net --only samples --case classes
                                                          only cases whose names contain a text

The files in this folder are the same on every machine. configurations.json has the resolved
configuration of every family, recipe, experiment and task. interface.json has the exported names
with their signatures, the settings of every choice, and the names of results. cases.json has the
cases of samples, and whether each is drawn or refused. DIR also has samples.json with hashes, which
only the same machine reproduces; set OMP_NUM_THREADS=1. Differences are printed, and the exit code
is then 1.

Names that change on purpose are listed in the file of --moved, a JSON object {old: new}.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.safety_net.choices import ROOT
from tests.safety_net.comparison import compare_tables
from tests.safety_net.configurations import compress, configurations, expand
from tests.safety_net.interface import interface
from tests.safety_net.samples import outcome, outcomes, samples

HERE = Path(__file__).parent
KINDS = ("configurations", "interface", "samples")


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = _make_parser()
    options = parser.parse_args(argv)
    kinds = options.only or KINDS
    if options.commit:
        if options.renew in (None, HERE):
            parser.error("--commit needs --renew DIR")
        return renew_commit(options.commit, options.renew.resolve(), kinds)
    if options.renew:
        if options.case:
            parser.error("--case cannot be used with --renew, whose files have all cases")
        for kind in kinds:
            save_table(options.renew, kind, compute_table(kind))
        return 0
    moved = json.loads(options.moved.read_text()) if options.moved else {}
    num_differences = 0
    for kind in kinds:
        before = load_table(options.compare, kind)
        if before is None:
            parser.error(f"{options.compare} has no {kind}: --renew writes them")
        after = compute_table(kind, options.case)
        if kind == "samples":
            before = {name: row for name, row in before.items() if options.case in name}
            before = _without_messages(before)
            after = _without_messages(after)
            if not any(isinstance(row, Mapping) for row in before.values()):
                after = outcomes(after)  # `before` is from cases.json, which has no hashes
        differences = compare_tables(before, after, moved)
        num_differences += len(differences)
        print(f"{len(before)} before, {len(after)} after, {len(differences)} differences")
        for line in differences:
            print(f"  {line}")
    return int(num_differences > 0)


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.safety_net",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument(
        "--renew",
        nargs="?",
        type=Path,
        const=HERE,
        metavar="DIR",
        help="write files, by default those in this folder",
    )
    action.add_argument(
        "--compare",
        type=Path,
        default=HERE,
        metavar="DIR",
        help="compare with DIR, by default this folder",
    )
    parser.add_argument("--commit", help="with --renew DIR: the commit to describe")
    parser.add_argument(
        "--only",
        choices=KINDS,
        action="append",
        help="one kind of table; may be repeated",
    )
    parser.add_argument(
        "--case", default="", metavar="TEXT", help="only samples of cases whose names contain TEXT"
    )
    parser.add_argument("--moved", type=Path, metavar="FILE", help="JSON file with {old: new}")
    return parser


def compute_table(kind: str, case: str = "") -> dict[str, Any]:
    """Return the rows of this checkout, and print how long they take."""
    start = time.process_time()
    if kind == "configurations":
        table: dict[str, Any] = configurations()
    elif kind == "interface":
        table = interface()
    else:
        table = samples(case)
    print(f"{kind}: {len(table)} rows in {time.process_time() - start:.0f} CPU seconds", flush=True)
    return table


def save_table(folder: Path, kind: str, table: Mapping[str, Any]) -> None:
    """Write a table to a folder; the folder of this module gets no hashes of samples."""
    folder.mkdir(parents=True, exist_ok=True)
    if kind == "configurations":
        table = compress(table)
    if kind == "samples":
        _write_json(folder / "cases.json", outcomes(table))
        if folder == HERE:
            return
    _write_json(folder / f"{kind}.json", table)


def load_table(folder: Path, kind: str) -> dict[str, Any] | None:
    """Read a table from a folder, or return None; without hashes of samples read the cases."""
    names = ["samples.json", "cases.json"] if kind == "samples" else [f"{kind}.json"]
    for name in names:
        file = folder / name
        if file.exists():
            table: dict[str, Any] = json.loads(file.read_text())
            return expand(table) if kind == "configurations" else table
    return None


def _write_json(file: Path, table: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")


def _without_messages(rows: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the messages of commands that are refused or fail; they may be reworded."""
    return {name: outcome(row) if isinstance(row, str) else row for name, row in rows.items()}


def renew_commit(commit: str, folder: Path, kinds: tuple[str, ...]) -> int:
    """Write the tables of another commit, by the safety net of this one; return the exit code."""
    with tempfile.TemporaryDirectory() as checkout:
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True)
        if archive.returncode:
            print(f"error: {archive.stderr.decode().strip()}", file=sys.stderr)
            return 2
        subprocess.run(["tar", "-x", "-C", checkout], input=archive.stdout, check=True)
        copy = Path(checkout) / HERE.relative_to(ROOT)
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(HERE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        command = [sys.executable, "-m", "tests.safety_net", "--renew", str(folder)]
        for kind in kinds:
            command += ["--only", kind]
        environment = os.environ | {"PYTHONPATH": checkout}
        return subprocess.run(command, cwd=checkout, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
