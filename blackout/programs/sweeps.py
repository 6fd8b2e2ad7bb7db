"""Multirun: every job adds a row to the sweep's table, and a job that fails does not end the others."""

from __future__ import annotations

import csv
import gc
import json
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from hydra.core.hydra_config import HydraConfig
from lightning_utilities.core.rank_zero import rank_zero_only

from blackout.errors import Preempted, UserError
from blackout.files import replacing

FIRST = ["job", "state", "error", "overrides", "run", "seconds"]
failures: list[str] = []
"""Tables of the jobs of this process that failed, in order."""


def job(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run one job of a sweep and write its row to `results.csv` in the sweep's directory.

    Raises:
        Preempted: a signal asked the whole sweep to leave.
    """
    settings = HydraConfig.get()
    table = Path(settings.sweep.dir) / "results.csv"
    row: dict[str, Any] = {"job": settings.job.num, "overrides": " ".join(settings.overrides.task), "error": ""}
    began = time.monotonic()
    try:
        result = function(*args, **kwargs)
        row |= {"state": "done", **_scores(result)}
        return result
    except Preempted:
        row |= {"state": "stopped"}
        raise
    except Exception as error:
        line = " ".join(str(error).split()) or type(error).__name__
        row |= {"state": "failed", "error": line if isinstance(error, UserError) else f"{type(error).__name__}: {line}"}
        if not isinstance(error, UserError):
            with replacing(table.with_name(f"error_{settings.job.num}.txt")) as part:
                part.write_text(traceback.format_exc())
        failures.append(str(table))
        print(f"error: job {settings.job.num} ({row['overrides']}): {row['error']}", file=sys.stderr)
        return None
    finally:
        row["seconds"] = round(time.monotonic() - began, 1)
        if getattr(rank_zero_only, "rank", 0) == 0:
            add_row(table, row)
        free_memory()


def add_row(table: Path, row: dict[str, Any]) -> None:
    """Add a row, or replace the job's earlier one; jobs on other machines may do the same at the same time."""
    table.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(table.with_name(".results.lock")):
        rows: list[dict[str, Any]] = []
        if table.exists():
            with table.open(newline="") as file:
                rows = [old for old in csv.DictReader(file) if old["job"] != str(row["job"])]
        rows = sorted([*rows, row], key=lambda r: int(r["job"]))
        columns = FIRST + sorted({name for r in rows for name in r} - set(FIRST))
        with replacing(table) as part, part.open("w", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(rows)


def free_memory() -> None:
    """Free memory and close dashboards, so that the next job starts as in a fresh process."""
    if (wandb := sys.modules.get("wandb")) is not None and getattr(wandb, "run", None) is not None:
        wandb.finish()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _scores(run: Any) -> dict[str, Any]:
    if not isinstance(run, Path):
        return {}
    path = run / "metrics.json"
    values = json.loads(path.read_text()).get("values", {}) if path.exists() else {}
    return {"run": str(run), **values}
