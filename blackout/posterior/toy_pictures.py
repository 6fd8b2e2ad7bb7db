"""Pictures of what comes of laws that are known exactly."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_REST = 128


def heat_maps(laws: Mapping[str, np.ndarray]) -> Image.Image:
    """Probabilities of two elements side by side, on one scale."""
    figure = _figure((3 * len(laws), 3.2))
    largest = max(float(law.max()) for law in list(laws.values())[:1]) * 1.5
    for axis, (name, law) in zip(np.atleast_1d(figure.subplots(1, len(laws))), laws.items(), strict=True):
        axis.imshow(law, vmin=0, vmax=largest, cmap="magma", origin="lower")
        axis.set_title(name)
        axis.set_axis_off()
    return _picture(figure)


def tilt_curve(rows: Sequence[Mapping[str, float]]) -> Image.Image:
    """The reward over its scale, and the price of it in log p(x): sampled points beside exact lines."""
    rows = sorted(rows, key=lambda row: row["scale"])
    scale = [row["scale"] for row in rows]
    figure = _figure((8, 3))
    left, right = figure.subplots(1, 2)
    left.plot(scale, [row["exact_reward"] for row in rows], color="black", label="exact")
    errors = [2 * row["standard_error"] for row in rows]
    left.errorbar(scale, [row["reward"] for row in rows], errors, fmt="o", label="samples, 2 standard errors")
    left.set(xlabel="scale", ylabel="mean reward")
    left.legend()
    right.plot([row["exact_reward"] for row in rows], [row["exact_log_prior"] for row in rows], color="black")
    right.plot([row["reward"] for row in rows], [row["log_prior"] for row in rows], "o")
    right.set(xlabel="mean reward", ylabel="mean log p(x)")
    return _picture(figure)


def piano_rolls(melodies: Mapping[str, Tensor]) -> Image.Image:
    """Melodies one below the other, pitch over time; rests and elements of -1, which were not seen, are left out."""
    figure = _figure((9, 1.5 * len(melodies)))
    for axis, (name, x) in zip(
        np.atleast_1d(figure.subplots(len(melodies), 1, sharex=True, sharey=True)), melodies.items(), strict=True
    ):
        at = np.flatnonzero((x.numpy() >= 0) & (x.numpy() != _REST))
        axis.plot(at, x.numpy()[at], "s", markersize=2, color="black")
        axis.set_ylabel(name)
    return _picture(figure)


def _figure(size: tuple[float, float]) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=size, layout="constrained")


def _picture(figure: Figure) -> Image.Image:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=100)
    return Image.open(buffer).convert("RGB")
