"""metrics.csv: one row per step, training and validation side by side; a resumed run continues the same file."""

from __future__ import annotations

import contextlib
import csv
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers import Logger
from pytorch_lightning.utilities.rank_zero import rank_zero_only

from blackout.files import read_rows, replacing


class MetricsCSV(Logger):
    """A logger with one row per step, which keeps the rows up to the step from which a run continues.

    Args:
        path: the file; written atomically, at most every `seconds`.
        seconds: least time between two writes, after the first one.
        written: called after each.
    """

    def __init__(self, path: Path, seconds: float = 5.0, written: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self._path, self._seconds, self._tell = path, seconds, written
        self._rows: dict[int, dict[str, str | float]] = read_rows(path) if path.exists() else {}
        self._written = -math.inf
        for step, row in read_rows(self._closing).items() if self._closing.exists() else ():
            self._rows.pop(step, None)  # the run goes on: it has not ended there
            if len(row) > 1:
                self._rows[step] = row

    @property
    def _closing(self) -> Path:
        """The row of the last step as it was before the run was closed."""
        return self._path.with_name(".closing.csv")

    @rank_zero_only
    def close(self, step: int) -> None:
        """What is logged from here on belongs to the end of the run, and is forgotten if the run is extended."""
        self._write_rows(self._closing, {step: self._rows.get(step, {"step": step})})

    @property
    def name(self) -> str:
        """Of the logger, as Lightning asks for it."""
        return "csv"

    @property
    def version(self) -> str:
        """None: the file goes on."""
        return ""

    @rank_zero_only
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """The run directory's config.yaml holds them."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Add values to the row of a step, and drop the rows after it."""
        step = 0 if step is None else step
        for later in [s for s in self._rows if s > step]:  # written by a run that was killed past its last checkpoint
            del self._rows[later]
        values = {name: value for name, value in metrics.items() if name != "epoch"}
        self._rows.setdefault(step, {"step": step}).update(values)

    @rank_zero_only
    def save(self) -> None:
        """Write, unless that was just done."""
        if time.monotonic() - self._written > self._seconds:
            self.flush()

    @rank_zero_only
    def flush(self) -> None:
        """Write now: before every checkpoint, so that a run that goes on from it misses no row."""
        self._written = time.monotonic()
        if self._rows:
            self._write_rows(self._path, self._rows)
            self._tell()

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Write for the last time."""
        # a run that failed should end with its own error, not with this file's
        with contextlib.suppress(OSError) if status == "failed" else contextlib.nullcontext():
            self.flush()

    @staticmethod
    def _write_rows(path: Path, rows: Mapping[int, Mapping[str, str | float]]) -> None:
        columns = sorted({name for row in rows.values() for name in row} - {"step"})
        with replacing(path) as part, part.open("w", newline="") as file:
            writer = csv.DictWriter(file, ["step", *columns])
            writer.writeheader()
            writer.writerows(rows[step] for step in sorted(rows))
