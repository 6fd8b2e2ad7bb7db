"""Pictures of what was learned: couplings beside the truth; data, energy landscape and samples in the plane."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from blackout.family import Source
from blackout.files import replacing
from blackout.flows.energies.couplings import couplings_found, truth_of
from blackout.flows.energies.data import BinaryData
from blackout.flows.energies.energies import Learned, PairEnergy
from blackout.flows.planar import code_scale, decode, encode

_SHOWN, _CELLS = 4000, 160


def save_couplings(target: PairEnergy, source: Source, path: Path) -> None:
    """J beside the truth, if it is known, on one scale."""
    from matplotlib.figure import Figure  # only here: importing it takes a second

    truth, found = truth_of(source), target.couplings.detach().cpu()
    scores = couplings_found(target, source)
    parts = [("learned J", found)] if truth is None else [("true J", truth), ("learned J", found)]
    scale = float(max(part.abs().max() for _, part in parts)) or 1.0
    figure = Figure(figsize=(4.4 * len(parts), 4.2), layout="constrained")
    for axes, (title, part) in zip(figure.subplots(1, len(parts), squeeze=False)[0], parts, strict=True):
        image = axes.imshow(part.numpy(), cmap="RdBu_r", vmin=-scale, vmax=scale)
        axes.set_title(title, fontsize=10)
        axes.set(xlabel="site j", ylabel="site i")
    figure.colorbar(image, ax=figure.axes, label="coupling J_ij")
    if scores:
        said = f"-log RMSE {scores['minus_log_rmse']:.2f}, of J = 0 {scores['minus_log_rmse_of_zero']:.2f}"
        figure.suptitle(said, fontsize=10)
    with replacing(path) as part_file:
        figure.savefig(part_file, format="png", dpi=90)


@torch.no_grad()
def save_landscape(target: Learned, source: BinaryData, arrays: dict[str, Tensor], path: Path) -> None:
    """Held-out points, -E over the plane, and samples."""
    from matplotlib.figure import Figure

    assert source.density is not None
    scale = code_scale(source.density)
    data = decode(source.counts.test[:_SHOWN].flatten(1), scale).numpy()
    samples = decode(arrays["samples"].flatten(1), scale).numpy()
    side = float(abs(data).max()) * 1.1
    line = torch.linspace(-side, side, _CELLS, dtype=torch.float64)
    points = torch.stack(torch.meshgrid(line, line, indexing="xy"), -1).view(-1, 2)
    heights = target.log_density(encode(points, scale).to(target.device)).cpu().view(_CELLS, _CELLS).numpy()
    figure = Figure(figsize=(13, 4.4), layout="constrained")
    panels = figure.subplots(1, 3)
    panels[0].scatter(*data.T, s=2)
    panels[1].imshow(heights, extent=(-side, side, -side, side), origin="lower", vmin=heights.max() - 12)
    panels[2].scatter(*samples.T, s=2, color="C1")
    for axes, title in zip(
        panels, ("held-out data", "learned -E (bright: likely)", "samples of the flow, unweighted"), strict=True
    ):
        axes.set(title=title, xlim=(-side, side), ylim=(-side, side), aspect="equal")
    with replacing(path) as part:
        figure.savefig(part, format="png", dpi=90)
