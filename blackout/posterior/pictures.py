"""Pictures of posteriors."""

from __future__ import annotations

import io

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from blackout.diffusion.pictures import grid

_CURVES = ("total", "hidden total", "log_likelihood", "projection 0")


def reconstruction(
    truth: Tensor | None, near: Tensor | None, mean: Tensor, std: Tensor, samples: list[Tensor], max_count: int
) -> Image.Image:
    """A row for every measurement: truth | measurement | mean | standard deviation | samples.

    Args:
        truth: counts [M, *shape]; black where it is not known, like `near`.
        near: data that the measurement suggests, [M, *shape].
        mean, std: [M, *shape]; the largest standard deviation is white.
        samples: of the rows that are shown, counts [k, *shape] each.
        max_count: white.
    """
    columns = 4 + max(len(one) for one in samples)
    cells = []
    for row, drawn in enumerate(samples):
        blank = torch.zeros_like(mean[row])
        cells.append(blank if truth is None else truth[row].double())
        cells.append(blank if near is None else near[row].double().clamp(0, max_count))
        cells += [mean[row], std[row] * (max_count / max(float(std.max()), 1e-12))]
        cells += [one.double() for one in drawn] + [blank] * (columns - 4 - len(drawn))
    return grid(torch.stack(cells), max_count, columns)


def calibration_picture(ranks: dict[str, np.ndarray], elements: np.ndarray) -> Image.Image:
    """Histograms of the positions of truths among samples, and how often intervals cover.

    Args:
        ranks: positions [M] by statistic.
        elements: positions of elements [M, D].
    """
    from matplotlib.figure import Figure

    shown = [name for name in _CURVES if name in ranks]
    figure = Figure(figsize=(3 * (len(shown) + 1), 2.6), layout="constrained")
    axes = figure.subplots(1, len(shown) + 1)
    for axis, name in zip(axes, shown, strict=False):
        bins = max(2, min(10, len(ranks[name]) // 5))
        axis.hist(ranks[name], bins, (0, 1))
        axis.axhline(len(ranks[name]) / bins, color="black", linewidth=1)
        axis.set_title(f"rank of the true {name.replace('_', ' ')}", fontsize=8)
    share = np.linspace(0.02, 0.98, 49)
    axes[-1].plot(share, [(np.abs(elements - 0.5) <= one / 2).mean() for one in share])
    axes[-1].plot((0, 1), (0, 1), color="black", linewidth=1)
    axes[-1].set_title("coverage of intervals by their share", fontsize=8)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=100)
    return Image.open(buffer).convert("RGB")
