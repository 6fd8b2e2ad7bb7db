"""`python -m benchmarks.energy_discrepancy moons`: pre-train the energy network of a planar
density.

References: Ou et al. 2025, appendix E.1.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from blackout.errors import CommandParser, UserError, run_command
from blackout.files import new_file, save_arrays
from blackout.flows.energies.data import DENSITIES, code_scale, sample_density
from blackout.flows.energies.negative import energy_discrepancy
from blackout.flows.targets.energy_network import BITS_PER_COORDINATE, EnergyNetwork, encode

_RATE = 0.1
# Probability that a bit flips, each time, and negatives of every state.
_NEGATIVES = 32


def pretrain(
    density: str, steps: int, lr: float, batch_size: int, widths: list[int], seed: int
) -> EnergyNetwork:
    """Return the trained energy network, in eval mode."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    scale = code_scale(density)
    network = EnergyNetwork(2 * BITS_PER_COORDINATE, widths)
    with torch.no_grad():  # as PyTorch starts a layer, not as energies with a sampler start
        input_layer = network.layers[0]
        assert isinstance(input_layer, nn.Linear)
        input_layer.bias.add_(input_layer.weight.sum(1) / 2)
        input_layer.weight.div_(6)
    optimizer = torch.optim.Adam(network.parameters(), lr)
    points = torch.from_numpy(sample_density(density, steps * batch_size, seed + 2))

    def perturbed(x: Tensor) -> Tensor:
        return x ^ (torch.rand(x.shape, generator=generator) < _RATE).to(x.dtype)

    for batch in encode(points, scale).split(batch_size):
        optimizer.zero_grad()
        energy_discrepancy(network.energy, batch, perturbed, _NEGATIVES).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 5.0)
        optimizer.step()
    return network.requires_grad_(False).eval()


def save(network: EnergyNetwork, path: Path) -> None:
    """Write the .npz file that `read_energy` reads, atomically."""
    arrays: dict[str, Any] = {}
    for name, value in network.state_dict().items():
        _, layer, part = name.split(".")
        arrays[f"{part}_{layer}"] = value.numpy()
    save_arrays(path, **arrays)


def run(options: argparse.Namespace) -> None:
    """Train the network and write it.

    Raises:
        UserError: if numbers are out of range, or the file exists already.
    """
    if min(options.steps, options.batch_size, *options.widths) < 1 or not 0 < options.lr < math.inf:
        raise UserError(
            "steps, batch size and widths must be at least 1, and lr positive and finite"
        )
    out = new_file(options.out or Path("data") / f"planar_{options.density}.npz", is_fixed=True)
    save(
        pretrain(
            options.density,
            options.steps,
            options.lr,
            options.batch_size,
            options.widths,
            options.seed,
        ),
        out,
    )
    print(f"{options.density}: energy network of {2 * BITS_PER_COORDINATE} bits in {out}")


def main(argv: list[str] | None = None) -> None:
    parser = CommandParser(
        prog="python -m benchmarks.energy_discrepancy",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("density", choices=DENSITIES)
    parser.add_argument(
        "--out", type=Path, help="default: data/planar_<density>.npz, where target=planar looks"
    )
    parser.add_argument("--steps", type=int, default=350, help="the paper: 100000")
    parser.add_argument("--lr", type=float, default=1e-3, help="the paper: 1e-4")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--widths", type=int, nargs="+", default=[256, 256, 256])
    parser.add_argument("--seed", type=int, default=0)
    run_command(run, parser, argv)


if __name__ == "__main__":
    main()
