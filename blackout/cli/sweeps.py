"""Multirun: every job adds a row to the sweep's table and keeps to its own folders; one that fails ends no other."""

from __future__ import annotations

import csv
import gc
import hashlib
import io
import math
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode

from blackout.config.explain import parse_command_line
from blackout.distributed import is_first
from blackout.errors import Preempted, UserError
from blackout.files import read_mapping, replacing, write_table

_COLUMNS = ["job", "state", "error", "overrides", "run", "seconds"]
"""Of the table, before those of the scores."""
failures: list[str] = []
"""Tables of the jobs of this process that failed, in order."""


def sweeping() -> bool:
    """Whether this process runs a job of a multirun."""
    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN


def job_folder() -> Path:
    """The folder of a job of a multirun."""
    job = HydraConfig.get()
    return Path(job.sweep.dir) / job.sweep.subdir


def claim(folder: Path) -> None:
    """Keep a folder for this job of the sweep, on whatever machine the others are.

    Args:
        folder: what the job writes to.

    Raises:
        UserError: another job of the sweep has it.
    """
    settings = HydraConfig.get()
    number = str(settings.job.num)
    mark = Path(settings.sweep.dir) / ".runs" / hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:16]
    mark.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(mark.with_suffix(".lock")):
        if mark.exists() and mark.read_text() != number:
            what = f"job {mark.read_text()} of this sweep has {folder}"
            raise UserError(f"{what}: leave out run_id=, or vary it too")
        mark.write_text(number)


def job(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run one job of a sweep and write its row to `results.csv` in the sweep's directory.

    Raises:
        Preempted: a signal asked the whole sweep to leave.
    """
    settings = HydraConfig.get()
    table = Path(settings.sweep.dir) / "results.csv"
    row: dict[str, Any] = {"job": settings.job.num, "overrides": " ".join(settings.overrides.task), "error": ""}
    if is_first():
        of = f" of {number}" if (number := number_of_jobs(sys.argv[1:])) else ""
        print(f"job {settings.job.num + 1}{of}: {row['overrides']}; its scores go to {table}", flush=True)
    began = time.monotonic()
    try:
        run = function(*args, **kwargs)
        row |= {"state": "done", "run": str(run)}
        if (scores := run / "metrics.json").exists():
            row |= read_mapping(scores).get("values", {})
        return run
    except Preempted:
        row["state"] = "stopped"
        raise
    except Exception as error:
        line = " ".join(str(error).split()) or type(error).__name__
        if not isinstance(error, UserError):
            line = f"{type(error).__name__}: {line}"
            with replacing(table.with_name(f"error_{settings.job.num}.txt")) as part:
                part.write_text(traceback.format_exc(), encoding="utf-8")
        row |= {"state": "failed", "error": line}
        failures.append(str(table))
        print(f"error: job {settings.job.num} ({row['overrides']}): {line}", file=sys.stderr)
        return None
    finally:
        row["seconds"] = round(time.monotonic() - began, 1)
        if is_first():
            _add_row(table, row)
        gc.collect()  # so that the next job starts as in a fresh process
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def number_of_jobs(words: list[str]) -> int | None:
    """Jobs of a sweep over the values in a command line; None if a sweeper of the user's decides."""
    line = parse_command_line(words)
    try:
        overrides = OverridesParser.create().parse_overrides(list(line.overrides))
        if any(override.key_or_group == "hydra/sweeper" for override in overrides):
            return None
        swept = [override for override in overrides if override.is_sweep_override()]
        return math.prod(len([*override.sweep_string_iterator()]) for override in swept)
    except HydraException:  # what only Hydra's own composition can read, such as glob(...)
        return None


def _add_row(table: Path, row: dict[str, Any]) -> None:
    """Add a row, or replace the job's earlier one; jobs on other machines may do the same at the same time."""
    table.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(table.with_name(".results.lock")):
        text = table.read_text(encoding="utf-8") if table.exists() else ""
        known = csv.DictReader(io.StringIO(text, newline=""))
        rows = [row, *(old for old in known if old["job"] != str(row["job"]))]
        rows.sort(key=lambda r: int(r["job"]))
        scores = sorted({name for r in rows for name in r} - set(_COLUMNS))
        write_table(_COLUMNS + scores, rows, table)
