"""Rows of tables: a run of `train.py`, resumed if it exists, and `sample.py` for every
evaluation."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Run:
    """A training and the evaluations of its model.

    Args:
        name: of its rows.
        train: settings of `train.py`.
        evaluations: settings of `sample.py`, by name.
    """

    name: str
    train: tuple[str, ...]
    evaluations: Mapping[str, tuple[str, ...]]

    def shortened(self) -> Run:
        """Return the run with a few steps and samples, for a check that it works."""
        evaluations = {
            name: (*settings, "num_samples=4") for name, settings in self.evaluations.items()
        }
        return replace(
            self, train=(*self.train, "debug=fast", "trainer.max_steps=4"), evaluations=evaluations
        )

    def commands(self, scale: str, runs: Path, data_dir: str) -> dict[str, list[str]]:
        """Return the commands by name: "" for train.py, and one of sample.py for each evaluation.

        The last word of an evaluation says where it writes.
        """
        directory = runs / "tables" / _plain(f"{self.name}_{scale}")
        locations = [
            f"runs_dir={runs}",
            "experiment_name=tables",
            f"run_id={directory.name}",
            f"data_dir={data_dir}",
        ]
        commands = {
            "": [
                "train.py",
                *self.train,
                *locations,
                "callbacks.progress=null",
                "callbacks.samples=null",
            ]
        }
        for name, settings in self.evaluations.items():
            out = f"out={directory / _plain(name)}"
            commands[name] = [
                "sample.py",
                f"ckpt={directory}",
                *settings,
                f"data_dir={data_dir}",
                out,
            ]
        return commands


def make(
    table: Iterable[Run],
    read: Callable[[str, str, Mapping[str, Any]], Rows],
    scale: str,
    runs: Path,
    data_dir: str,
    only_print: bool,
) -> Rows:
    """Run the commands, or only print them.

    Args:
        table: the runs.
        read: from the names of a run and of an evaluation, and metrics.json, to rows.
        scale: cpu or paper.
        runs: folder of the runs.
        data_dir: folder of the data sets.
        only_print: whether commands are printed and not run.
    """
    rows: Rows = []
    for run in table:
        for name, command in run.commands(scale, runs, data_dir).items():
            if only_print:
                print("python", *command)
                continue
            subprocess.run(
                [sys.executable, *command], cwd=ROOT, check=True, stdout=subprocess.DEVNULL
            )
            if name:
                report = json.loads(
                    (Path(command[-1].removeprefix("out=")) / "metrics.json").read_text(
                        encoding="utf-8"
                    )
                )
                rows += read(run.name, name, report)
    return rows


def _plain(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name)
