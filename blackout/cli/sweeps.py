"""Multirun: every job adds a row to the sweep's table and keeps to its own folders.

A job that fails does not end the others.
"""

from __future__ import annotations

import csv
import gc
import hashlib
import io
import math
import shlex
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

from blackout.cli.sweep_table import RESULT_COLUMNS, RESULTS
from blackout.config.explain import parse_command_line
from blackout.distributed import is_first
from blackout.errors import Preempted, UserError
from blackout.files import replacing, write_table
from blackout.safe_reading import read_mapping

# results.csv of every job of this process that failed, in order
tables_with_failures: list[str] = []


def is_sweep_job() -> bool:
    """Return whether this process runs a job of a multirun."""
    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN


def job_folder() -> Path:
    """Return the folder of this job of a multirun."""
    config = HydraConfig.get()
    return Path(config.sweep.dir) / config.sweep.subdir


def find_job_number() -> int:
    """Return Hydra's number of this job of a multirun, from 0, which is also its folder's name."""
    return int(HydraConfig.get().job.num)


def claim_folder(folder: Path) -> None:
    """Reserve a folder for this job, so that no other job of the sweep writes to it.

    It holds for jobs on other machines too, if they share the sweep's directory.

    Args:
        folder: that the job writes to.

    Raises:
        UserError: another job of the sweep has it.
    """
    config = HydraConfig.get()
    job_number = str(find_job_number())
    folder_key = hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:16]
    record = Path(config.sweep.dir) / ".runs" / folder_key
    record.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(record.with_suffix(".lock")):
        if record.exists() and record.read_text(encoding="utf-8") != job_number:
            owner = record.read_text(encoding="utf-8")
            raise UserError(
                f"job {owner} of this sweep writes to {folder}: omit run_id=, or vary it too"
            )
        record.write_text(job_number, encoding="utf-8")


def run_job(function: Callable[..., Path], *args: Any, **kwargs: Any) -> Path | None:
    """Run one job of a sweep and write its row to `results.csv` in the sweep's directory.

    Args:
        function: returns the directory of the run, whose scores go into the row.
        args: of the function.
        kwargs: of the function.

    Returns:
        What the function returned; None if it failed.

    Raises:
        Preempted: a signal asked the whole sweep to stop.
    """
    config = HydraConfig.get()
    job_number = find_job_number()
    overrides = shlex.join(config.overrides.task)
    table = Path(config.sweep.dir) / RESULTS
    row: dict[str, Any] = {"job": job_number, "overrides": overrides, "error": ""}
    if is_first():
        total = number_of_jobs(sys.argv[1:])
        progress = f" ({job_number + 1} of {total})" if total else ""
        print(f"job {job_number}{progress}: {overrides}; its scores go to {table}", flush=True)
    start = time.monotonic()
    try:
        run = function(*args, **kwargs)
        row |= {"state": "done", "run": str(run)}
        metrics = run / "metrics.json"
        if metrics.exists():
            row |= read_mapping(metrics).get("values", {})
        return run
    except Preempted:
        row["state"] = "stopped"
        raise
    except Exception as error:
        message = " ".join(str(error).split()) or type(error).__name__
        if not isinstance(error, UserError):
            message = f"{type(error).__name__}: {message}"
            with replacing(table.with_name(f"error_{job_number}.txt")) as part:
                part.write_text(traceback.format_exc(), encoding="utf-8")
        row |= {"state": "failed", "error": message}
        tables_with_failures.append(str(table))
        print(f"error: job {job_number} ({overrides}): {message}", file=sys.stderr)
        return None
    finally:
        row["seconds"] = round(time.monotonic() - start, 1)
        if is_first():
            _add_row(table, row)
        gc.collect()  # so that the next job has the memory of a fresh process
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def number_of_jobs(words: list[str]) -> int | None:
    """Return the number of jobs that a command line sweeps over.

    None if a sweeper of the user's decides, or only Hydra's composition can tell (`glob(...)`).
    """
    line = parse_command_line(words)
    try:
        overrides = OverridesParser.create().parse_overrides(list(line.overrides))
        if any(override.key_or_group == "hydra/sweeper" for override in overrides):
            return None
        sweeps = [override for override in overrides if override.is_sweep_override()]
        return math.prod(len(list(override.sweep_string_iterator())) for override in sweeps)
    except HydraException:  # Hydra refuses these words itself, with a message about them
        return None


def _add_row(table: Path, row: dict[str, Any]) -> None:
    """Add a row, or replace the job's earlier one, while jobs on other machines may do the same."""
    table.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(table.with_name(".results.lock")):
        text = table.read_text(encoding="utf-8") if table.exists() else ""
        earlier_rows = csv.DictReader(io.StringIO(text, newline=""))
        rows = [row]
        rows += [earlier for earlier in earlier_rows if earlier["job"] != str(row["job"])]
        rows.sort(key=lambda job: int(job["job"]))
        names = {name for values in rows for name in values}
        scores = sorted(names - set(RESULT_COLUMNS))
        write_table(RESULT_COLUMNS + scores, rows, table)
