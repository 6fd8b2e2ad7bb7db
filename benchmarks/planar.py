"""`python -m benchmarks.planar runs/moons/<run_id>`: flows and energies of planar densities.

It writes trajectories.png, and landscape.png for an energy. Of an energy it prints the entropy of
the points, a lower bound of any NLL, and the four quantities of Table 3 of Ou et al. 2025, of which
Table 2 has the first and the last:

    nll_ebm     of 4,000 test points, with log Z by 1,000,000 uniform states
    nll_dnfs    of as many, an upper bound by the reverse chain (appendix D.1)
    mmd_ebm     of 4,000 states by Gibbs sampling of the energy, in units of 1e-4
    mmd_dnfs    of 4,000 samples of the flow, unweighted, in units of 1e-4

MMDs are means and standard deviations of ten sets of samples. The paper does not say how long its
Gibbs chains are: --sweeps.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from blackout.cli.run_results import read_settings
from blackout.errors import CommandParser, UserError, run_command
from blackout.flows.annealed_importance import anneal
from blackout.flows.energies.data import DENSITIES, Points, StateData, code_scale
from blackout.flows.energies.model import EnergySampler
from blackout.flows.model import ChainSampler
from blackout.flows.path import States
from blackout.flows.simulation import Paths, run_reverse
from blackout.flows.targets import Target
from blackout.flows.targets.energy_network import BITS_PER_COORDINATE, LearnedEnergy, decode, encode
from blackout.flows.weights import jackknife_error, log_mean_exp
from blackout.pictures import save_picture
from blackout.random import SampleStreams, fold_seed
from blackout.training.loading import load_model

_POINTS = 512
_TIMES = 6
# Chains in the plane, the times at which they are shown, and sweeps of Gibbs chains on the way.
_ANNEALED = 64
_UNIFORM = 1_000_000
# Uniform states, as many as the paper's estimate of log Z is made of, and how many are evaluated
# together.
_AT_ONCE = 1 << 14
# Points times centres whose distances are in memory together.
_PAIRS = 1 << 22
_SHOWN = 4000
# Points in a picture, and cells of the landscape along a side.
_CELLS = 160
_MMD_UNIT = 1e-4  # of Tables 2 and 3
_GIBBS_KEY = 1  # separates the draws of the Gibbs chains from those of the flow
_BOUND_KEY = 2  # likewise of the reverse chain


def entropy(density: str, number: int = 4000, centres: int = 20_000) -> tuple[float, float]:
    """Entropy of the points as states of 32 bits, in nats, and its standard error, by the density
    itself.

    The density is that of noise around centres, which are drawn; where there is no such form the
    answer is nan. This project's; a test compares it with another estimate.

    Args:
        density: which.
        number: of points over which -log p is averaged.
        centres: that a density without closed form is a mean over.
    """
    cell = 2 * math.log(code_scale(density))
    if density == "checkerboard":
        return math.log(32.0) + cell, 0.0  # uniform on half of a square of side 8
    if density not in _NOISE:
        return math.nan, math.nan
    rng = np.random.default_rng(11)
    noise = _NOISE[density]
    points = DENSITIES[density](rng, number)
    middles = DENSITIES[density](cast(np.random.Generator, _Still(rng)), centres)
    log_means = []
    for part in np.array_split(points, math.ceil(number * centres / _PAIRS)):
        square = ((part[:, None] - middles[None]) ** 2).sum(-1) / (2 * noise**2)
        smallest = square.min(1, keepdims=True)
        log_means.append(
            np.log(np.exp(smallest - square).mean(1))
            - smallest[:, 0]
            - math.log(2 * math.pi * noise**2)
        )
    log_density = np.concatenate(log_means)
    return float(cell - log_density.mean()), float(log_density.std() / math.sqrt(number))


# Standard deviation of the normal noise around the centres of a density.
_NOISE = {
    "2spirals": 0.1,
    "8gaussians": 0.5 / math.sqrt(2),
    "circles": 0.24,
    "moons": 0.2,
    "swissroll": 0.2,
}


class _Still:
    """Random numbers whose normal ones are 0, which gives the centres of densities."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.random = rng.random
        self.integers = rng.integers

    def standard_normal(self, shape: tuple[int, ...]) -> Points:
        return np.zeros(shape)


def save_trajectories(
    model: ChainSampler, observed: Paths, scale: float, path: Path, seed: int
) -> None:
    """Plot states that encode planar points: the chain, its target marginals, and the reverse
    chain.

    References: Ou et al. 2025, fig. 17.
    """
    gibbs = anneal(model.target, _POINTS, _ANNEALED, seed)
    indices = torch.arange(_POINTS, device=model.device)
    steps = max(16, model.simulation.num_steps)
    _, backwards = run_reverse(model.target, model.rates(), gibbs.states.x, steps, indices, seed)
    figure = Figure(figsize=(12, 6.6), layout="constrained")
    side = 2 ** (BITS_PER_COORDINATE - 1) / scale
    rows = (
        ("the chain, from noise", [states.x for states in observed.recorded_states], True),
        (
            "Gibbs chains, annealed\nwith the distribution p_t",
            [states.x for states in gibbs.recorded_states],
            True,
        ),
        ("the reverse chain,\nfrom their ends", backwards, False),
    )
    for panels, (title, states, onwards) in zip(
        figure.subplots(len(rows), _TIMES), rows, strict=True
    ):
        panels[0].set_ylabel(title)
        for k, axes in enumerate(panels):
            share = k / (_TIMES - 1)
            points = decode(states[round(share * (len(states) - 1))][:_POINTS].cpu(), scale)
            axes.scatter(*points.numpy().T, s=2, color="C0" if onwards else "C1")
            axes.set(
                xlim=(-side, side),
                ylim=(-side, side),
                aspect="equal",
                xticks=[-4, 0, 4],
                yticks=[-4, 0, 4],
            )
            axes.set_title(f"t = {share if onwards else 1 - share:.2f}", fontsize=9)
    save_picture(figure, path)


@torch.no_grad()
def save_landscape(target: LearnedEnergy, source: StateData, x: Tensor, path: Path) -> None:
    """Plot held-out points, -E over the plane, and samples."""
    scale = code_scale(source.name)
    data = decode(source.test[:_SHOWN].flatten(1), scale).numpy()
    samples = decode(x, scale).numpy()
    side = float(abs(data).max()) * 1.1
    line = torch.linspace(-side, side, _CELLS, dtype=torch.float64)
    points = torch.stack(torch.meshgrid(line, line, indexing="xy"), -1).view(-1, 2)
    heights = (
        target.log_density(encode(points, scale).to(target.device))
        .cpu()
        .view(_CELLS, _CELLS)
        .numpy()
    )
    figure = Figure(figsize=(13, 4.4), layout="constrained")
    panels = figure.subplots(1, 3)
    panels[0].scatter(*data.T, s=2)
    panels[1].imshow(
        heights, extent=(-side, side, -side, side), origin="lower", vmin=heights.max() - 12
    )
    panels[2].scatter(*samples.T, s=2, color="C1")
    titles = "held-out data", "learned -E (bright: likely)", "samples of the flow, unweighted"
    for axes, title in zip(panels, titles, strict=True):
        axes.set(title=title, xlim=(-side, side), ylim=(-side, side), aspect="equal")
    save_picture(figure, path)


@torch.no_grad()
def uniform_weights(target: Target, seed: int, number: int = _UNIFORM) -> Tensor:
    """Return log-weights of uniform states, float64 [number].

    References: Ou et al. 2025, eq. 30.
    """
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for start in range(0, number, _AT_ONCE):
        shape = (min(_AT_ONCE, number - start), target.sites)
        x = torch.randint(target.levels, shape, generator=generator, dtype=torch.uint8)
        parts.append(target.log_density(x.to(target.device)).double().cpu())
    return torch.cat(parts) + target.sites * math.log(target.levels)


def mmd(x: Tensor, y: Tensor, width: float = 0.1) -> float:
    """Unbiased squared maximum mean discrepancy with k = exp(-width * number of sites that differ).

    [Gretton 2012, lemma 6]; a test sums the kernel directly.

    Args:
        x, y: states [n, d] and [m, d].
        width: of the kernel.
    """
    levels = int(max(x.max(), y.max())) + 1

    def total(a: Tensor, b: Tensor) -> Tensor:
        one_hot_a, one_hot_b = (
            torch.nn.functional.one_hot(part.long(), levels).flatten(1).float() for part in (a, b)
        )
        rows = [
            (-width * (a.shape[1] - part @ one_hot_b.T)).exp().sum(dtype=torch.float64)
            for part in one_hot_a.split(512)
        ]
        return torch.stack(rows).sum()

    n = len(x)
    m = len(y)
    within = (total(x, x) - n) / (n * (n - 1)) + (total(y, y) - m) / (m * (m - 1))
    return float(within - 2 * total(x, y) / (n * m))


@torch.no_grad()
def gibbs_samples(target: Target, number: int, sweeps: int, seed: int) -> Tensor:
    """Return states [number, d] after Gibbs sweeps of the target from uniform states.

    References: Geman and Geman 1984.
    """
    streams = SampleStreams(seed, torch.arange(number, device=target.device))
    shape = (number, target.sites)
    x = States.initial(target, streams.step(0).next_draw().uniform(shape)).x
    for sweep in range(sweeps):
        x = target.gibbs_sweep(x, streams.step(sweep + 1).next_draw().uniform(shape), 1.0)
    return x


def nll_by_uniform_states(target: LearnedEnergy, test: Tensor, seed: int) -> tuple[float, float]:
    """Return the mean NLL of states [n, d] in nats, with log Z by uniform states, and its error."""
    weights = uniform_weights(target, seed)
    energy = target.energy(test).double().mean().detach()
    return float(energy) + float(log_mean_exp(weights)), jackknife_error(weights)


@torch.no_grad()
def nll_by_chain(model: ChainSampler, test: Tensor, seed: int) -> tuple[float, float]:
    """Return an upper bound of the mean NLL of states [n, d] in nats, and its standard error.

    References: Ou et al. 2025, appendix D.1.
    """
    indices = torch.arange(len(test), device=model.device)
    steps = model.simulation.num_steps
    log_likelihood, _ = run_reverse(model.target, model.rates(), test, steps, indices, seed)
    return -float(log_likelihood.mean()), float(log_likelihood.std() / math.sqrt(len(test)))


def published_quantities(
    model: ChainSampler, test: Tensor, seed: int, repeats: int, sweeps: int
) -> dict[str, tuple[float, float]]:
    """Return each quantity of Table 3 with its error or standard deviation.

    References: Ou et al. 2025, Tables 2 and 3, appendix E.2.

    Args:
        model: a flow whose target is a learned energy.
        test: states [n, d] of the data.
        seed: of all draws.
        repeats: sets of samples, n each, of which MMDs are means.
        sweeps: of a Gibbs chain.
    """
    assert isinstance(model.target, LearnedEnergy)
    values = {
        "nll_ebm": nll_by_uniform_states(model.target, test, seed),
        "nll_dnfs": nll_by_chain(model, test, fold_seed(seed, _BOUND_KEY)),
    }
    discrepancies: dict[str, list[float]] = {"mmd_ebm": [], "mmd_dnfs": []}
    for repeat in range(repeats):
        key = seed + repeat
        gibbs = gibbs_samples(model.target, len(test), sweeps, fold_seed(key, _GIBBS_KEY))
        flow = model.simulate(torch.arange(len(test)), key).states.x
        discrepancies["mmd_ebm"].append(mmd(gibbs, test) / _MMD_UNIT)
        discrepancies["mmd_dnfs"].append(mmd(flow, test) / _MMD_UNIT)
    for name, distances in discrepancies.items():
        values[name] = float(np.mean(distances)), float(np.std(distances))
    return values


def _density(model: ChainSampler, options: argparse.Namespace) -> str | None:
    """Return the density of a model's points: of its data, as given, or of the file of its run."""
    if isinstance(model, EnergySampler):
        return str(model.require_source().name)
    if options.density is not None:
        return str(options.density)
    if not (options.run / "config.yaml").is_file():
        return None
    path = read_settings(options.run).get("target", {}).get("path")
    return Path(str(path)).stem.removeprefix("planar_")


def run(options: argparse.Namespace) -> None:
    """Write the figures and print the quantities of the tables.

    Raises:
        UserError: for another kind of model.
    """
    model = load_model(options.run)
    if not isinstance(model, ChainSampler) or model.target.sites != 2 * BITS_PER_COORDINATE:
        raise UserError(
            f"{options.run} is neither a flow of target=planar nor an energy of dataset=planar"
        )
    density = _density(model, options)
    if density not in DENSITIES:
        raise UserError(
            f"the density of {options.run} is not known: --density {', '.join(DENSITIES)}"
        )
    options.out.mkdir(parents=True, exist_ok=True)
    paths = model.simulate(torch.arange(_SHOWN), options.seed, record=True)
    scale = code_scale(density)
    save_trajectories(model, paths, scale, options.out / "trajectories.png", options.seed)
    if isinstance(model, EnergySampler):
        source: Any = model.require_source()
        save_landscape(model.target, source, paths.states.x, options.out / "landscape.png")
        value, error = entropy(source.name)
        print(
            f"entropy of {source.name}: {value:.3f} ± {error:.3f} nats; "
            "an NLL below it is a wrong log Z"
        )
        test = source.test[:_SHOWN].flatten(1)
        values = published_quantities(model, test, options.seed, options.repeats, options.sweeps)
        for name, (value, error) in values.items():
            print(f"{name:<8} {value:.3f} ± {error:.3f}")


def main(argv: list[str] | None = None) -> None:
    parser = CommandParser(
        prog="python -m benchmarks.planar",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", type=Path, help="a run, checkpoint or exported model")
    parser.add_argument(
        "--density",
        choices=DENSITIES,
        default=None,
        help="of a flow of target=planar; if not given, that of the file in its run directory",
    )
    parser.add_argument("--repeats", type=int, default=10, help="sets of samples of the MMDs")
    parser.add_argument("--sweeps", type=int, default=100, help="of every Gibbs chain")
    parser.add_argument("--out", type=Path, default=Path("results/planar"))
    parser.add_argument("--seed", type=int, default=0)
    run_command(run, parser, argv)


if __name__ == "__main__":
    main()
