"""Training curves: columns of metrics.csv, thinned for pages and as panels for their script."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from blackout.cli.metrics_file import label
from blackout.safe_reading import read_rows, reading

Curve: TypeAlias = tuple[list[int], list[float]]
"""Steps and values, as many of each."""

MIN_POINTS = 30  # curves of fewer points are never called noisy
MIN_ROUGHNESS = 6.0  # sum of absolute steps of a noisy curve, in units of its range
NUM_STRETCHES = 500  # of a long curve; the extremes of each stretch are selected
DIGITS = 6  # significant digits of values in a page
PANEL_ORDER = {"train/loss": 0, "val": 1, "train": 3}  # scores, which are not listed, have 2


def read_curves(path: Path) -> dict[str, Curve]:
    """Return the steps and finite values of every column of a metrics.csv; empty without a file.

    Raises:
        UserError: the file is damaged.
    """
    curves: dict[str, Curve] = {}
    with reading(path, "it is damaged"):
        rows = read_rows(path) if path.exists() else {}
        for step, row in rows.items():
            for name, text in row.items():
                if name == "step":
                    continue
                value = float(text)
                if math.isfinite(value):
                    steps, values = curves.setdefault(name, ([], []))
                    steps.append(step)
                    values.append(value)
    return curves


def is_noisy(values: list[float]) -> bool:
    """Whether a running mean helps to read a curve with these values [n].

    References: this project; checked in tests/cli/test_curves.py.
    """
    if len(values) <= MIN_POINTS:
        return False
    with np.errstate(over="ignore"):  # of numbers near the largest: infinite, and never noisy
        return float(np.abs(np.diff(values)).sum()) > MIN_ROUGHNESS * float(np.ptp(values))


def curve_panels(
    runs: Mapping[str, Path], references: Mapping[str, Mapping[str, float]]
) -> dict[str, Any]:
    """Return what a page's script draws: a panel for each curve of two points or more.

    Args:
        runs: metrics.csv by the name of its run.
        references: reference values by score, which are drawn as levels.

    Returns:
        runs: their names; panels: one line for each run; step: the last one.

    Raises:
        UserError: a file is damaged.
    """
    curves = {run: read_curves(path) for run, path in runs.items()}
    names = {name for run_curves in curves.values() for name in run_curves}
    details = re.compile(r"_std$|(^|/)(class_)?share_")
    names = {name for name in names if not details.search(name)}

    def order(name: str) -> tuple[int, str]:
        group = name.split("/")[0]
        return PANEL_ORDER.get(name, PANEL_ORDER.get(group, 2)), name

    panels: list[dict[str, Any]] = []
    for name in sorted(names, key=order):
        lines: list[dict[str, Any]] = []
        for colour, (run, run_curves) in enumerate(curves.items()):
            if name in run_curves:
                steps, values = run_curves[name]
                line = {"run": run, "colour": colour, "noisy": is_noisy(values)}
                lines.append({**line, **_thin(steps, values)})
        if max(len(line["steps"]) for line in lines) > 1:
            levels = [(label(key), value) for key, value in references.get(name, {}).items()]
            panels.append({"name": name, "lines": lines, "levels": levels})
    last_steps = [steps[-1] for run_curves in curves.values() for steps, _ in run_curves.values()]
    return {"runs": list(curves), "panels": panels, "step": max(last_steps, default=0)}


def _thin(steps: list[int], values: list[float]) -> dict[str, list[Any]]:
    """Return a curve with only the extremes of its stretches, to six digits.

    References: this project; checked in tests/cli/test_curves.py.
    """
    x = np.array(values)
    selected = list(range(len(x)))
    if len(x) > 2 * NUM_STRETCHES:
        extremes = {0, len(x) - 1}
        for stretch in np.array_split(np.arange(len(x)), NUM_STRETCHES):
            extremes.add(int(stretch[np.argmin(x[stretch])]))
            extremes.add(int(stretch[np.argmax(x[stretch])]))
        selected = sorted(extremes)
    return {
        "steps": [steps[k] for k in selected],
        "values": [float(f"{x[k]:.{DIGITS}g}") for k in selected],
    }
