"""Output of draws and of commands of flows: arrays, tables, and pictures."""

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

from blackout.files import replacing, write_table
from blackout.flows.annealed_importance import draw_reference_samples
from blackout.flows.path import estimate_along_path
from blackout.flows.refinement import Clusters, is_ferromagnetic
from blackout.flows.simulation import Paths
from blackout.flows.targets import Target, can_enumerate
from blackout.flows.targets.energy_network import BITS_PER_COORDINATE, decode, encode
from blackout.flows.weights import Z_95, effective_sample_size, log_mean_exp
from blackout.pictures import arrange_tiles, save_picture
from blackout.protocols import Samples

# reference samples of the diagnostics
NUM_REFERENCE_CHAINS = 512
GIBBS_SWEEPS = 200  # of each reference chain
EXACT_SAMPLES_PER_CHAIN = 16  # exact samples are cheaper than chains
MAX_CLUSTER_CHAINS = 256
CLUSTER_MOVES = 48  # of each reference chain

# grids of states
BACKGROUND_GREY = 96  # between the states, of 255
GAP = 4  # pixels between the states
STATE_PIXELS = 64  # along a state, about
VECTOR_ASPECT = 8  # width over height of a state that is a vector

# landscapes of energies of the plane
LANDSCAPE_CELLS = 100  # along each axis
LANDSCAPE_FRACTION = 0.75  # of the range that the bits can encode
LANDSCAPE_DEPTH = 12.0  # nats below the maximum that are black
LANDSCAPE_BRIGHTNESS = 160  # of the maximum, of 255
LANDSCAPE_PIXELS = 400  # along each axis
POINT_RADIUS = 2  # pixels
POINT_COLOUR = (251, 146, 60)  # orange


@torch.no_grad()
def plot_landscape(target: Target) -> Image.Image:
    """Draw log rho over the plane that states [n, 32] encode; brighter is higher.

    References: Ou et al. 2025, fig. 4.
    """
    largest = 2 ** (BITS_PER_COORDINATE - 1)
    line = torch.linspace(
        -LANDSCAPE_FRACTION,
        LANDSCAPE_FRACTION,
        LANDSCAPE_CELLS,
        dtype=torch.float64,
    )
    line = line * largest
    points = torch.stack(torch.meshgrid(line, line.flip(0), indexing="xy"), -1).view(-1, 2)
    states = encode(points, 1.0).to(target.device)
    log_density = target.log_density(states).double().cpu()
    height = 1 + (log_density - log_density.max()) / LANDSCAPE_DEPTH
    shades = (LANDSCAPE_BRIGHTNESS * height).clamp(min=0).to(torch.uint8)
    image = Image.fromarray(shades.view(LANDSCAPE_CELLS, LANDSCAPE_CELLS).numpy())
    return image.convert("RGB").resize((LANDSCAPE_PIXELS, LANDSCAPE_PIXELS))


def plot_points(landscape: Image.Image, states: Tensor) -> Image.Image:
    """Draw the points that states [n, 32] encode over a landscape.

    References: Ou et al. 2025, fig. 4.
    """
    picture = landscape.copy()
    points = decode(states.cpu(), 2.0 ** (BITS_PER_COORDINATE - 1)) / LANDSCAPE_FRACTION
    pixels = (points * torch.tensor([1, -1]) + 1) * LANDSCAPE_PIXELS / 2
    canvas = ImageDraw.Draw(picture)
    r = POINT_RADIUS
    for x, y in pixels.tolist():
        canvas.ellipse((x - r, y - r, x + r, y + r), fill=POINT_COLOUR)
    return picture


def plot_state_grid(states: Tensor, levels: int, columns: int | None = None) -> Image.Image:
    """Draw states [B, H, W] or [B, d] in a grid, black at 0 and white at the last level."""
    images = states.cpu()
    if states.ndim != 3:  # vectors as stripes
        height = max(1, states.shape[1] // VECTOR_ASPECT)
        images = images[:, None].expand(-1, height, -1)
    height, width = images.shape[1:]
    pixels_per_site = max(2, round(STATE_PIXELS / math.sqrt(height * width)))
    shades = (images.double() * 255 / (levels - 1)).to(torch.uint8)
    enlarged = shades.repeat_interleave(pixels_per_site, 1).repeat_interleave(pixels_per_site, 2)
    pictures = [Image.fromarray(state) for state in enlarged.numpy()]
    return arrange_tiles(pictures, columns, GAP, GAP, (BACKGROUND_GREY,) * 3)


def correlations(states: Tensor, levels: int, weights: Any = None) -> list[float]:
    """Return the correlation of two sites of a torus by distance 0, 1, ... along an axis.

    It is 1 for sites that always agree, and 0 for independent uniform ones; of spins ±1 it is
    the mean of s_0 s_r.

    References: this project; checked in tests/flows/test_annealing.py.

    Args:
        states: [n, H, W].
        levels: number S of values of a site.
        weights: of the states, [n]; None for equal ones.
    """
    values = []
    for distance in range(min(states.shape[1:]) // 2 + 1):
        vertical = (states == states.roll(distance, 1)).double().mean((1, 2))
        horizontal = (states == states.roll(distance, 2)).double().mean((1, 2))
        agreement = float(np.average(vertical + horizontal, weights=weights))
        values.append((levels / 2 * agreement - 1) / (levels - 1))
    return values


def reference_samples(
    target: Target,
    num_samples: int = NUM_REFERENCE_CHAINS,
) -> tuple[Tensor, str]:
    """Draw samples of the target without a flow, uint8 [n, d], and describe the method.

    They are exact if the target can be enumerated, then 16 times as many.
    """
    if can_enumerate(target):
        exact_samples = EXACT_SAMPLES_PER_CHAIN * num_samples
        return draw_reference_samples(target, exact_samples, 0, 0), "exact"
    if is_ferromagnetic(target):
        num_chains = min(num_samples, MAX_CLUSTER_CHAINS)
        samples = draw_reference_samples(target, num_chains, CLUSTER_MOVES, 0, Clusters())
        return samples, f"clusters, {CLUSTER_MOVES} moves"
    samples = draw_reference_samples(target, num_samples, GIBBS_SWEEPS, 0)
    return samples, f"Gibbs, {GIBBS_SWEEPS} sweeps"


def save_diagnostics(
    target: Target,
    arrays: dict[str, Tensor],
    paths: Paths,
    values: dict[str, float],
    file: Path,
) -> None:
    """Plot energies, a statistic and correlations next to reference samples, ESS and log Z.

    Args:
        target: the distribution.
        arrays: of the samples, see `sample_arrays`.
        paths: recorded chains, for ESS and log Z along the path.
        values: with `log_z_exact` where it is known.
        file: of the picture.
    """
    from matplotlib.figure import Figure  # slow to import

    # 1. References and panels; only lattices have correlations.
    num_samples = min(NUM_REFERENCE_CHAINS, len(arrays["samples"]))
    references, method = reference_samples(target, num_samples)
    is_lattice = len(target.shape) == 2
    figure = Figure(figsize=(12.6 if is_lattice else 8.6, 7.2), layout="constrained")
    upper, lower = figure.subplots(2, 3 if is_lattice else 2)
    weights = torch.softmax(arrays["log_weights"], 0).numpy()

    # 2. Energies and the first statistic.
    energies = -target.log_density(references.to(target.device)).cpu()
    sample_energies = -arrays["log_density"].numpy()
    _plot_histograms(upper[0], sample_energies, weights, energies.numpy(), method)
    upper[0].set(title="energy of the samples", xlabel="energy, -log rho")
    statistics = target.statistics(arrays["samples"].flatten(1))
    reference_statistics = target.statistics(references)
    if statistics:
        name = next(iter(statistics))
        _plot_histograms(
            upper[1],
            statistics[name].numpy(),
            weights,
            reference_statistics[name].numpy(),
            method,
        )
        upper[1].set(title=name.replace("_", " "), xlabel=name.replace("_", " "))

    # 3. Correlations.
    if is_lattice:
        _plot_correlations(upper[2], target, references, arrays["samples"], weights)
    handles_and_labels = upper[0].get_legend_handles_labels()
    figure.legend(*handles_and_labels, loc="outside upper center", ncols=3)

    # 4. ESS and log Z along the path.
    _plot_path(lower[:2], paths, values)
    for axes in [*upper, *lower]:
        axes.set_visible(axes.has_data())
    save_picture(figure, file)


def _plot_histograms(axes: Any, samples: Any, weights: Any, references: Any, method: str) -> None:
    """Plot densities of samples [n], unweighted and weighted [n], and of references [m]."""
    low = min(samples.min(), references.min())
    high = max(samples.max(), references.max())
    bins = np.linspace(low - 0.05, high + 0.05, 34)  # means such as magnetisations
    if high - low > 4:  # sums such as energies
        bins = np.linspace(low - 0.5, high + 0.5, 42)
    step = {"density": True, "histtype": "step"}
    axes.set_ylabel("probability density")
    axes.hist(references, bins, density=True, color="0.8", label=f"target ({method})")
    axes.hist(samples, bins, color="C1", label="samples, unweighted", **step)
    axes.hist(samples, bins, weights=weights, color="C0", linewidth=1.8, label="weighted", **step)


def _plot_correlations(
    axes: Any,
    target: Target,
    references: Tensor,
    samples: Tensor,
    weights: Any,
) -> None:
    """Plot correlations of references [m, d] and samples [n, ...], unweighted and weighted."""
    curves = (
        (references, None, "0.7", 5),
        (samples, None, "C1", 1.5),
        (samples, weights, "C0", 1.5),
    )
    for states, curve_weights, colour, width in curves:
        lattices = states.cpu().view(-1, *target.shape)
        values = correlations(lattices, target.levels, curve_weights)
        axes.plot(values, "o-", markersize=3, color=colour, linewidth=width)
        axes.set_xticks(range(len(values)))
    axes.set(
        title="correlation",
        xlabel="distance of two sites along an axis",
        ylabel="1: always equal",
    )


def _plot_path(panels: Any, paths: Paths, values: dict[str, float]) -> None:
    """Plot ESS and log Z of recorded chains over time."""
    times = paths.times
    log_weights = [w.double().cpu() for w in paths.recorded_log_weights]
    ess = [float(effective_sample_size(w)) for w in log_weights]
    log_z = [float(log_mean_exp(w)) for w in log_weights]
    panels[0].plot(times, ess, "o-", markersize=3)
    panels[0].set(
        title="effective sample size (1: all weights equal)",
        ylim=(0, 1.05),
        ylabel="fraction of the samples",
    )
    panels[1].plot(times, log_z, "o-", markersize=3, label="estimate of log Z_t")
    if "log_z_exact" in values:
        panels[1].axhline(values["log_z_exact"], color="0.5", linestyle="--", label="exact log Z")
    panels[1].legend(fontsize=8)
    panels[1].set(title="log Z along the path", ylabel="log Z_t")
    for axes in panels:
        axes.set_xlabel("time t, from noise (0) to the target (1)")


class CollectedSamples:
    """Samples of a draw, collected batch by batch in order.

    Args:
        draw: source of the samples.
        seed: of the samples.
    """

    def __init__(self, draw: Any, seed: int) -> None:
        self.draw = draw
        self.seed = seed
        self._batches: list[Samples] = []
        self._indices: list[Tensor] = []

    def update(self, samples: Samples, indices: Tensor) -> None:
        """Add a batch."""
        self._batches.append(samples)
        self._indices.append(indices.cpu())

    def indices(self) -> Tensor:
        """Return the indices of all samples, int64 [n]."""
        return torch.cat(self._indices)

    def arrays(self) -> dict[str, Tensor]:
        """Return all batches as one, by name."""
        names = self._batches[0]
        return {name: torch.cat([batch[name] for batch in self._batches]) for name in names}


def sample_arrays(paths: Paths, shape: tuple[int, ...]) -> dict[str, Tensor]:
    """Return the arrays of samples.npz."""
    return {
        "samples": paths.states.x.view(-1, *shape),
        "log_weights": paths.log_weights,
        "log_density": paths.states.log_density,
        "jumps": paths.jumps.int(),
        "evaluations": paths.evaluations.int(),
    }


def save_path(
    target: Target,
    times: list[float],
    observables: Tensor,
    directory: Path,
    groups: Tensor | None = None,
    log_z_errors: list[float] | None = None,
) -> dict[str, Any]:
    """Write path.csv and path.png, properties of the target at every temperature of the path.

    Args:
        target: the distribution.
        times: see `estimate_along_path`.
        observables: see `estimate_along_path`.
        directory: of the files.
        groups: see `estimate_along_path`.
        log_z_errors: see `estimate_along_path`.

    Returns:
        A summary for metrics.json.
    """
    from matplotlib.figure import Figure  # slow to import

    rows = estimate_along_path(target, times, observables.cpu(), groups, log_z_errors)
    write_table(list(rows[0]), rows, directory / "path.csv")

    names = [name for name in rows[0] if f"{name}_error" in rows[0] and name != "log_z"]
    num_columns = (len(names) + 2) // 2
    figure = Figure(figsize=(4 * num_columns, 6.4), layout="constrained")
    panels = figure.subplots(2, num_columns).flatten()
    t = [row["t"] for row in rows]
    for axes, name in zip(panels, ["ess", *names], strict=False):
        values = [row[name] for row in rows]
        half_widths = [Z_95 * row.get(f"{name}_error", 0.0) for row in rows]
        axes.errorbar(t, values, half_widths, fmt="o-", markersize=2, label="estimated, 95 %")
        if name == "energy" and "energy_exact" in rows[0]:
            exact = [row["energy_exact"] for row in rows]
            axes.plot(t, exact, color="0.5", linestyle="--", label="exact")
            axes.legend(fontsize=8)
        axes.set(
            title=name.replace("_", " "),
            xlabel="t, the inverse temperature in units of the target's",
        )
    description = "Properties of the target at every temperature of the path."
    save_picture(figure, directory / "path.png", description, 90)

    summary: dict[str, Any] = {
        "temperatures": len(rows),
        "min_ess": min(row["ess"] for row in rows),
    }
    if "log_z_exact" in rows[0]:
        errors = [row["log_z"] - row["log_z_exact"] for row in rows]
        summary["max_log_z_error"] = max(errors, key=abs)
    return summary


def append_array(file: Path, name: str, values: Tensor) -> None:
    """Add an array to an .npz file, which is replaced atomically."""
    with replacing(file) as copy:
        shutil.copyfile(file, copy)
        with zipfile.ZipFile(copy, "a", zipfile.ZIP_DEFLATED) as archive:
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, values.numpy())
