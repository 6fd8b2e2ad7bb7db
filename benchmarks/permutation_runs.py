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
    """A model and what it is asked.

    Args:
        name: of its rows.
        train: settings of `train.py`.
        asked: settings of `sample.py`, by name.
    """

    name: str
    train: tuple[str, ...]
    asked: Mapping[str, tuple[str, ...]]

    def shortened(self) -> Run:
        """Return the run with a few steps and samples, for a check that it works."""
        asked = {name: (*settings, "num_samples=4") for name, settings in self.asked.items()}
        return replace(self, train=(*self.train, "debug=fast", "trainer.max_steps=4"), asked=asked)

    def commands(self, scale: str, runs: Path, data_dir: str) -> dict[str, list[str]]:
        """train.py under the name "", and sample.py for everything asked, with where it writes
        last."""
        directory = runs / "tables" / _plain(f"{self.name}_{scale}")
        places = [
            f"runs_dir={runs}",
            "experiment_name=tables",
            f"run_id={directory.name}",
            f"data_dir={data_dir}",
        ]
        found = {
            "": [
                "train.py",
                *self.train,
                *places,
                "callbacks.progress=null",
                "callbacks.samples=null",
            ]
        }
        for name, settings in self.asked.items():
            out = f"out={directory / _plain(name)}"
            found[name] = ["sample.py", f"ckpt={directory}", *settings, f"data_dir={data_dir}", out]
        return found


def make(
    table: Iterable[Run],
    read: Callable[[str, str, Mapping[str, Any]], Rows],
    scale: str,
    runs: Path,
    data_dir: str,
    show: bool,
) -> Rows:
    """Run the commands, or only print them.

    Args:
        read: from a run's name, what was asked and metrics.json to rows.
    """
    found: Rows = []
    for run in table:
        for name, command in run.commands(scale, runs, data_dir).items():
            if show:
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
                found += read(run.name, name, report)
    return found


def _plain(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name)
