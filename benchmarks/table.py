r"""`python -m benchmarks.table blackout_cifar10`: run a published table and compare the results.

    python -m benchmarks.table blackout_cifar10 --plan                     # what would be run
    python -m benchmarks.table blackout_cifar10 --train trainer.devices=8  # resumes if repeated
    python -m benchmarks.table blackout_cifar10 --train trainer.max_steps=9 \
        --sample num_samples=20                                            # a rehearsal

A table is a YAML file in `tables/` next to this program, or a file of the user. It has trainings,
and rows that each sample one of them. The results of a row are in
`<runs_dir>/<table>/table_<training>`, in the folder `table_<number of the row>`. Additional
settings add a hash to these names.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from blackout.config.allowed_components import copy_plain_values
from blackout.errors import CommandParser, UserError, run_command, summary
from blackout.files import CONF
from blackout.safe_reading import open_regular

TABLES = Path(__file__).with_name("tables")


@dataclass(frozen=True)
class Job:
    """A command of a table.

    Args:
        program: train or sample.
        settings: of the program.
        result: the last file it writes.
    """

    program: str
    settings: tuple[str, ...]
    result: Path

    def values(self) -> Mapping[str, Any] | None:
        """Return the results; None if it has not finished."""
        content = (
            json.loads(self.result.read_text(encoding="utf-8")) if self.result.exists() else {}
        )
        complete = content.get("finished") is True if self.program == "train" else bool(content)
        return content.get("values", {}) if complete else None


def read_table(name: str) -> Mapping[str, Any]:
    """Return the table of that name or in that file.

    Raises:
        UserError: if there is none.
    """
    path = Path(name) if name.endswith(".yaml") else TABLES / f"{name}.yaml"
    if not path.is_file():
        names = sorted(p.stem for p in TABLES.glob("*.yaml"))
        raise UserError(f"{name}: no such table; one of {', '.join(names)}")
    try:
        with open_regular(path) as file:
            table: Mapping[str, Any] = copy_plain_values(yaml.safe_load(file), str(path))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{path} is no table: {summary(error)}") from None
    return table


def jobs(
    name: str, table: Mapping[str, Any], runs: str, train: Sequence[str], sample: Sequence[str]
) -> tuple[list[Job], list[Job]]:
    """Return the trainings, and a sampling per row; settings for all come last."""
    folder = Path(runs) / Path(name).stem
    trainings = dict[str, Job]()
    samplings = []
    for key, settings in table["train"].items():
        run = f"table_{key}{_suffix(train)}"
        where = (f"experiment_name={folder.name}", f"run_id={run}", f"runs_dir={runs}")
        trainings[key] = Job("train", (*settings, *where, *train), folder / run / "metrics.json")
    for number, row in enumerate(table["rows"], 1):
        trained = trainings[row["train"]].result.parent
        out = trained / f"table_{number}{_suffix(sample)}"
        settings = (f"ckpt={trained}", f"out={out}", *row["sample"], *table["sample"], *sample)
        samplings.append(Job("sample", settings, out / "metrics.json"))
    return list(trainings.values()), samplings


def _suffix(settings: Sequence[str]) -> str:
    """Return a suffix of directories, so that rehearsals do not overwrite a table."""
    return f"_{hashlib.sha256(' '.join(settings).encode()).hexdigest()[:6]}" if settings else ""


def run(job: Job) -> None:
    """Run or resume an unfinished job; exit with its code if it fails."""
    if job.values() is not None:
        return
    print(f"$ {job.program} {' '.join(job.settings)}", flush=True)
    script = CONF.parent / f"{job.program}.py"  # in the repository; else the command of the wheel
    installed = Path(sys.executable).with_name(f"blackout-{job.program}")
    program = [sys.executable, script] if script.exists() else [installed]
    if code := subprocess.run([*program, *job.settings], check=False).returncode:
        sys.exit(code)


def lines(table: Mapping[str, Any], samplings: Sequence[Job]) -> Iterator[str]:
    """Return the table, with published values in brackets."""
    scores: Mapping[str, str] = table["scores"]
    yield table["title"] + "; published values in brackets"
    yield f"{'':<40}" + "".join(f"{title:>20}" for title in scores.values())
    for row, job in zip(table["rows"], samplings, strict=True):
        values = job.values() or {}
        cells = []
        for key in scores:
            value = format(values[key], ".3f") if key in values else "-"
            cells.append(f"{value} ({row['published'].get(key, '-')})")
        yield f"{row['name']:<40}" + "".join(f"{cell:>20}" for cell in cells)


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing and print the table."""
    parser = CommandParser(
        prog="python -m benchmarks.table",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("table", help="a name, such as blackout_cifar10, or a .yaml file")
    parser.add_argument("--plan", action="store_true", help="print the commands and run none")
    parser.add_argument("--runs_dir", default="runs")
    parser.add_argument(
        "--train", nargs="+", default=[], metavar="KEY=VALUE", help="settings of every training"
    )
    parser.add_argument(
        "--sample", nargs="+", default=[], metavar="KEY=VALUE", help="settings of every sampling"
    )
    run_command(_run, parser, arguments)


def _run(options: argparse.Namespace) -> None:
    table = read_table(options.table)
    try:
        trainings, samplings = jobs(
            options.table, table, options.runs_dir, options.train, options.sample
        )
        "\n".join(lines(table, samplings))  # what it lacks is said before anything runs
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UserError(
            f"{options.table} is no table of trainings and rows: {summary(error)}"
        ) from None
    for job in (*trainings, *samplings):
        if options.plan:
            state = "to do" if job.values() is None else "done "
            print(f"{state} {job.program} {' '.join(job.settings)}")
        else:
            run(job)
    print("\n".join(lines(table, samplings)))


if __name__ == "__main__":
    main()
