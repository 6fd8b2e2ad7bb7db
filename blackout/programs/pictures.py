"""Animation and strip of the states from noise to samples; curves of what a run logged."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from blackout.errors import UserError
from blackout.family import Draw
from blackout.files import read_rows, replacing, save_picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FRAMES = 60
_SECONDS, _REST = 4.0, 1500
"""Length of an animation, and the milliseconds it rests on the last frame."""
_ROWS, _COLUMNS = 4, 12
"""Of the strip: samples, and states of each."""


class Trajectory:
    """States of the first batch that it is shown, for an animation, about evenly spaced, the start first.

    Args:
        samples: how many of the batch are shown.
    """

    def __init__(self, samples: int) -> None:
        self.states: list[Tensor] = []
        self._samples = samples
        self._whole = False

    def add(self, step: int, steps: int, state: Tensor) -> None:
        """Keep the state [B, ...] after `step` of `steps` steps if it is one of the frames."""
        k = steps - step
        if self._whole:
            return
        self._whole = k == 0
        if k in (0, steps) or (k * _FRAMES) // steps != ((k + 1) * _FRAMES) // steps:
            self.states.append(state[: self._samples].cpu().clone())

    def save(self, draw: Draw, directory: Path) -> None:
        """Write trajectory.webp, an animation, and trajectory.png, a few samples as rows from start to end."""
        frames = [draw.picture({"samples": state}) for state in self.states]
        shown = [frame for frame in frames if frame is not None]
        if not shown:
            return
        each = max(20, int(1000 * _SECONDS / len(shown)))
        with replacing(directory / "trajectory.webp") as part:
            shown[0].save(
                part, format="webp", save_all=True, append_images=shown[1:],
                duration=[each] * (len(shown) - 1) + [_REST], loop=0, lossless=True,
            )  # fmt: skip
        chosen = [self.states[round(i * (len(self.states) - 1) / (_COLUMNS - 1))] for i in range(_COLUMNS)]
        rows = torch.stack([state[:_ROWS] for state in chosen], dim=1).flatten(0, 1)
        save_picture(draw.picture({"samples": rows}, columns=_COLUMNS), directory / "trajectory.png")


_PANELS = 9
_CROWDED = 60
"""Points of a curve beyond which it is pale, with a running mean over it."""


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
    """Draw a run's metrics.csv as PNG, if it holds anything."""
    figure = draw_curves({"": metrics})
    if figure is not None:
        with replacing(path) as part:
            figure.savefig(part, format="png", dpi=110)


def draw_curves(runs: Mapping[str, Path]) -> Figure | None:
    """The training loss, the validation metrics and the scores of runs: a panel each, a line for every run.

    What a single run has measured only once, such as the scores of the finished model, is written out in a last panel.

    Args:
        runs: metrics.csv by the name of its run.

    Returns:
        None where there is nothing to see.

    Raises:
        UserError: a file is damaged.
    """
    curves = {run: read_curves(path) for run, path in runs.items()}
    points: dict[str, int] = {}
    for curve in curves.values():
        for name, (steps, _) in curve.items():
            if not name.endswith(("per_second", "_std")) and "share_" not in name:
                points[name] = max(points.get(name, 0), len(steps))
    order = {"train": 0, "val": 1}
    shown = sorted(points, key=lambda name: (order.get(name.split("/")[0], 2), name))
    alone = next(iter(curves.values())) if len(curves) == 1 else {}
    once = [f"{name}   {alone[name][1][0]:.4g}" for name in shown if points[name] == 1 and alone]
    panels = [name for name in shown if points[name] > 1][: _PANELS - bool(once)]
    number = len(panels) + bool(once)
    if not number:
        return None
    from matplotlib.figure import Figure  # only here: importing it takes a second

    columns = min(3, number)
    rows = math.ceil(number / columns)
    legend = 0.0 if alone else 0.3 * len(runs)
    figure = Figure(figsize=(4.2 * columns, 2.9 * rows + legend), layout="constrained")
    for place, name in enumerate(panels, 1):
        axes = figure.add_subplot(rows, columns, place)
        axes.set_title(name, fontsize=10)
        axes.set_xlabel("optimiser step", fontsize=9)
        axes.grid(alpha=0.3)
        for colour, (run, curve) in enumerate(curves.items()):
            steps, values = curve.get(name, ([], []))
            crowded = len(values) > _CROWDED
            means = _running_mean(values, len(values) // 20 if crowded else 1)
            pale = 0.3 if crowded else 1.0
            axes.plot(steps, values, "-" if len(values) > 30 else "o-", color=f"C{colour}", markersize=4, alpha=pale)
            axes.plot(steps, means, color=f"C{colour}", label=run)
    if legend and panels:
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", fontsize=8)
    if once:
        axes = figure.add_subplot(rows, columns, number)
        axes.set_title("measured once", fontsize=10)
        axes.text(0.05, 0.95, "\n".join(once), va="top", family="monospace", fontsize=9)
        axes.axis("off")
    return figure


def _running_mean(values: list[float], width: int) -> np.ndarray:
    total = np.cumsum(values)
    total[width:] -= total[:-width].copy()
    return total / np.minimum(np.arange(len(values)) + 1, width)
