"""curves.png: the columns of metrics.csv as plots."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from blackout.errors import UserError
from blackout.files import read_rows, replacing

_SMOOTHED = 60
"""Points of a training curve beyond which a running mean is drawn over it."""


def read_curves(path: Path) -> dict[str, tuple[list[int], list[float]]]:
    """(steps, values) of every column of a metrics.csv, finite values only.

    Raises:
        UserError: the file is damaged.
    """
    curves: dict[str, tuple[list[int], list[float]]] = {}
    rows = read_rows(path) if path.exists() else {}
    for step, row in rows.items():
        for name, text in row.items():
            try:
                value = float(text)
            except (TypeError, ValueError):
                raise UserError(f"{path} is damaged: {text!r} is no number") from None
            if name != "step" and math.isfinite(value):
                steps, values = curves.setdefault(name, ([], []))
                steps.append(step)
                values.append(value)
    return curves


def save_curves(metrics: Path, path: Path) -> None:
    """Draw the training loss, the validation metrics and the scores of a run as PNG: a panel each.

    What was measured only once, such as the scores of the finished model, is written out in a last panel.
    """
    curves = {name: curve for name, curve in read_curves(metrics).items() if not name.endswith("per_second")}
    shown = sorted((name for name in curves if "share_" not in name and not name.endswith("_std")), key=_order)
    panels = [name for name in shown if len(curves[name][1]) > 1][:8]
    single = [f"{name}   {curves[name][1][-1]:.4g}" for name in shown if len(curves[name][1]) == 1]
    if not shown:
        return
    from matplotlib.figure import Figure  # only here: importing it takes a second

    number = len(panels) + bool(single)
    columns = min(3, number)
    rows = math.ceil(number / columns)
    figure = Figure(figsize=(4.2 * columns, 2.9 * rows), layout="constrained")
    for panel, name in enumerate(panels):
        _draw(figure.add_subplot(rows, columns, panel + 1), name, *curves[name])
    if single:
        axes = figure.add_subplot(rows, columns, number)
        axes.set_title("measured once", fontsize=10)
        axes.text(0.05, 0.95, "\n".join(single), va="top", family="monospace", fontsize=9)
        axes.axis("off")
    with replacing(path) as part:
        figure.savefig(part, format="png", dpi=110)


def _draw(axes: Any, name: str, steps: list[int], values: list[float]) -> None:
    crowded = len(values) > _SMOOTHED
    axes.plot(steps, values, "-" if len(values) > 30 else "o-", color="0.75" if crowded else "C0", markersize=4)
    if crowded:
        axes.plot(steps, _running_mean(values, len(values) // 20), color="C0")
    axes.set_title(name, fontsize=10)
    axes.set_xlabel("optimiser step", fontsize=9)
    axes.grid(alpha=0.3)


def _order(name: str) -> tuple[int, str]:
    return (0 if name.startswith("train/") else 1 if name.startswith("val/") else 2), name


def _running_mean(values: list[float], width: int) -> list[float]:
    means, window = [], 0.0
    for end, value in enumerate(values):
        window += value - (values[end - width] if end >= width else 0.0)
        means.append(window / min(end + 1, width))
    return means
