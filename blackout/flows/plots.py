"""What draws and commands of flows leave behind: arrays, tables, pictures of states and of how a flow did."""

from __future__ import annotations

import math
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from blackout.files import laid_out, replacing, save_picture, write_table
from blackout.flows.annealed_importance import samples_of
from blackout.flows.path import along_path
from blackout.flows.refinement import Clusters, attracts
from blackout.flows.simulation import Paths
from blackout.flows.targets import Target, can_enumerate
from blackout.flows.targets.energy_network import BITS, decode, encode
from blackout.flows.weights import effective_sample_size, log_mean_exp
from blackout.protocols import Samples

_REFERENCE, _SWEEPS = 512, 200
"""Chains and sweeps of the Gibbs sampler that exact energies are replaced by."""
_CLUSTERED = 256
"""Chains of clusters in its place, where the target has them."""
_GREY, _GAP, _SIDE = 96, 4, 64
"""Between the states of a grid, pixels there, and pixels along a state, about."""
_CELLS, _REACH, _DEPTH, _PLANE = 100, 0.75, 12.0, 400
"""Of a landscape: cells along it, its share of the plane of all states, nats below the top that are black; pixels."""


@torch.no_grad()
def landscape(target: Target) -> Image.Image:
    """log rho over the plane that states [n, 32] code, the highest the brightest.

    Cells are coded by `encode`, [cells, 32]; the shade is 1 + (log rho - its largest) / 12. [Ou 2025, fig. 4].
    """
    line = torch.linspace(-_REACH, _REACH, _CELLS, dtype=torch.float64) * 2 ** (BITS - 1)
    plane = torch.stack(torch.meshgrid(line, line.flip(0), indexing="xy"), -1).view(-1, 2)
    height = target.log_density(encode(plane, 1.0).to(target.device)).double().cpu()
    shades = (160 * (1 + (height - height.max()) / _DEPTH)).clamp(min=0).to(torch.uint8)
    return Image.fromarray(shades.view(_CELLS, _CELLS).numpy()).convert("RGB").resize((_PLANE, _PLANE))


def points_over(ground: Image.Image, states: Tensor) -> Image.Image:
    """States [n, 32] that code points, over the landscape of their law [Ou 2025, fig. 4]."""
    picture, places = ground.copy(), decode(states.cpu(), 2.0 ** (BITS - 1)) / _REACH
    for x, y in ((places * torch.tensor([1, -1]) + 1) * _PLANE / 2).tolist():
        ImageDraw.Draw(picture).ellipse((x - 2, y - 2, x + 2, y + 2), fill=(251, 146, 60))
    return picture


def grid(states: Tensor, levels: int, columns: int | None = None) -> Image.Image:
    """States [B, H, W] or [B, d] as squares in a near-square grid, black at 0 and white at the last level."""
    images = states.cpu() if states.ndim == 3 else states.cpu()[:, None].expand(-1, max(1, states.shape[1] // 8), -1)
    height, width = images.shape[1:]
    pixels = max(2, round(_SIDE / math.sqrt(height * width)))
    shades = (images.double() * 255 / (levels - 1)).to(torch.uint8)
    large = shades.repeat_interleave(pixels, 1).repeat_interleave(pixels, 2).numpy()
    return laid_out([Image.fromarray(state) for state in large], columns, _GAP, _GAP, (_GREY,) * 3)


def correlations(states: Tensor, levels: int, share: Any = None) -> list[float]:
    """How much more often than by chance sites of a torus agree, by their distance along an axis: 1 if always.

    Of spins +-1 the mean of s_0 s_r. Ours (tests/flows/test_annealing.py). As many numbers as half a side, and one.

    Args:
        states: [n, H, W].
        levels: S.
        share: weight of each state, [n]; None for equal ones.
    """
    found = []
    for distance in range(min(states.shape[1:]) // 2 + 1):
        alike = sum((states == states.roll(distance, side)).double().mean((1, 2)) for side in (1, 2))
        found.append((levels / 2 * float(np.average(alike, weights=share)) - 1) / (levels - 1))
    return found


def reference(target: Target, number: int = _REFERENCE) -> tuple[Tensor, str]:
    """States of the target itself, uint8 [n, d], and how they were made: exactly, by clusters, or by Gibbs chains."""
    if can_enumerate(target):
        return samples_of(target, 16 * number, 0, 0), "exact"
    if attracts(target):
        return samples_of(target, min(number, _CLUSTERED), 48, 0, Clusters()), "clusters, 48 moves"
    return samples_of(target, number, _SWEEPS, 0), f"Gibbs, {_SWEEPS} sweeps"


def save_diagnostics(
    target: Target, arrays: dict[str, Tensor], observed: Paths, values: dict[str, float], path: Path
) -> None:
    """Energies, magnetisation and correlations against the target's own, ESS and log Z along the path."""
    from matplotlib.figure import Figure  # only here: importing it takes a second

    (states, how), lattice = reference(target, min(_REFERENCE, len(arrays["samples"]))), len(target.shape) == 2
    figure = Figure(figsize=(12.6 if lattice else 8.6, 7.2), layout="constrained")
    upper, lower = figure.subplots(2, 3 if lattice else 2)
    panels, share = [*upper, *lower], torch.softmax(arrays["log_weights"], 0).numpy()
    energies = -target.log_density(states.to(target.device)).cpu()
    _histogram(panels[0], -arrays["log_density"].numpy(), share, energies.numpy(), how)
    panels[0].set(title="energy of the samples", xlabel="energy, -log rho")
    mine, theirs = target.statistics(arrays["samples"].flatten(1)), target.statistics(states)
    if mine:
        name = next(iter(mine))
        _histogram(panels[1], mine[name].numpy(), share, theirs[name].numpy(), how)
        panels[1].set(title=name.replace("_", " "), xlabel=name.replace("_", " "))
    if lattice:
        sets = (states, None, "0.7"), (arrays["samples"], None, "C1"), (arrays["samples"], share, "C0")
        for x, weights, colour in sets:
            found = correlations(x.cpu().view(-1, *target.shape), target.levels, weights)
            panels[2].plot(found, "o-", markersize=3, color=colour, linewidth=5 if x is states else 1.5)
        panels[2].set(title="correlation", xlabel="distance of two sites along an axis", ylabel="1: always alike")
        panels[2].set_xticks(range(len(found)))
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    _along_the_path(lower[:2], observed, values)
    for axes in panels:
        axes.set_visible(axes.has_data())
    save_picture(figure, path)


def _histogram(axes: Any, mine: Any, share: Any, theirs: Any, how: str) -> None:
    """Densities of energies or the like, [n] of samples, of these weighted by shares [n], and of the target, [m]."""
    low, high = min(mine.min(), theirs.min()), max(mine.max(), theirs.max())
    bins = np.linspace(low - 0.5, high + 0.5, 42) if high - low > 4 else np.linspace(low - 0.05, high + 0.05, 34)
    axes.set_ylabel("probability density")
    axes.hist(theirs, bins, density=True, color="0.8", label=f"target ({how})")
    axes.hist(mine, bins, density=True, histtype="step", color="C1", label="samples, unweighted")
    axes.hist(mine, bins, weights=share, density=True, histtype="step", color="C0", linewidth=1.8, label="weighted")


def _along_the_path(panels: Any, observed: Paths, values: dict[str, float]) -> None:
    times = observed.times
    weights = [w.double().cpu() for w in observed.log_weights_at]
    panels[0].plot(times, [float(effective_sample_size(w)) for w in weights], "o-", markersize=3)
    panels[0].set(title="effective sample size (1: all weights equal)", ylim=(0, 1.05), ylabel="share of the samples")
    panels[1].plot(times, [float(log_mean_exp(w)) for w in weights], "o-", markersize=3, label="estimate of log Z_t")
    if "log_z_exact" in values:
        panels[1].axhline(values["log_z_exact"], color="0.5", linestyle="--", label="exact log Z")
    panels[1].legend(fontsize=8)
    panels[1].set(title="log Z along the path", ylabel="log Z_t")
    for axes in panels:
        axes.set_xlabel("time t, from noise (0) to the target (1)")


class Collected:
    """Samples of a draw, taken batch by batch in order.

    Args:
        draw: where the samples come from.
        seed: of the samples.
    """

    def __init__(self, draw: Any, seed: int) -> None:
        self.draw, self.seed = draw, seed
        self._taken: list[Samples] = []
        self._indices: list[Tensor] = []

    def update(self, samples: Samples, indices: Tensor) -> None:
        """Keep a batch."""
        self._taken.append(samples)
        self._indices.append(indices.cpu())

    def indices(self) -> Tensor:
        """The numbers of all samples, int64 [n]."""
        return torch.cat(self._indices)

    def arrays(self) -> dict[str, Tensor]:
        """All batches."""
        return {name: torch.cat([part[name] for part in self._taken]) for name in self._taken[0]}


def named(paths: Paths, shape: tuple[int, ...]) -> dict[str, Tensor]:
    """The arrays of samples.npz."""
    weighted = {"log_weights": paths.log_weights, "log_density": paths.states.log_density}
    costs = {"jumps": paths.jumps.int(), "evaluations": paths.evaluations.int()}
    return {"samples": paths.states.x.view(-1, *shape), **weighted, **costs}


def save_path(
    target: Target,
    times: list[float],
    at: Tensor,
    directory: Path,
    groups: Tensor | None = None,
    errors: list[float] | None = None,
) -> dict[str, Any]:
    """Write path.csv and path.png, what the law is at every temperature of the path (`along_path`); what to say of it.

    Args:
        target: the law.
        times, at: see `along_path`.
        directory: where to.
        groups, errors: see `along_path`.
    """
    from matplotlib.figure import Figure  # only here: importing it takes a second

    rows = along_path(target, times, at.cpu(), groups, errors)
    write_table(list(rows[0]), rows, directory / "path.csv")
    shown = [name for name in rows[0] if f"{name}_error" in rows[0] and name != "log_z"]
    figure, t = Figure(figsize=(4 * ((len(shown) + 2) // 2), 6.4), layout="constrained"), [row["t"] for row in rows]
    panels = figure.subplots(2, (len(shown) + 2) // 2).flatten()
    for axes, name in zip(panels, ["ess", *shown], strict=False):
        bars = [1.96 * row.get(f"{name}_error", 0.0) for row in rows]
        axes.errorbar(t, [row[name] for row in rows], bars, fmt="o-", markersize=2, label="estimated, 95 %")
        if name == "energy" and "energy_exact" in rows[0]:
            axes.plot(t, [row["energy_exact"] for row in rows], color="0.5", linestyle="--", label="exact")
            axes.legend(fontsize=8)
        axes.set(title=name.replace("_", " "), xlabel="t, the inverse temperature in units of the target's")
    save_picture(figure, directory / "path.png", "What the law is at every temperature of the path.", 90)
    said: dict[str, Any] = {"temperatures": len(rows), "least_ess": min(row["ess"] for row in rows)}
    if "log_z_exact" in rows[0]:
        said["worst_log_z_off"] = max((row["log_z"] - row["log_z_exact"] for row in rows), key=abs)
    return said


def add_array(path: Path, name: str, values: Tensor) -> None:
    """Add an array to an .npz, which is replaced whole or not at all."""
    with replacing(path) as part:
        shutil.copyfile(path, part)
        with zipfile.ZipFile(part, "a", zipfile.ZIP_DEFLATED) as archive, archive.open(f"{name}.npy", "w") as member:
            np.lib.format.write_array(member, values.numpy())
