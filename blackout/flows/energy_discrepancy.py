"""`python -m blackout.flows.energy_discrepancy moons`: pre-train the energy network of a density in the plane.

Energy discrepancy with Bernoulli perturbations: x' = x xor Bernoulli(rate), x''_j = x' xor Bernoulli(rate), and the
loss is the mean of log(1 + sum_j exp(E(x) - E(x''_j))).
"""

from __future__ import annotations

import argparse
import zipfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from blackout.files import replacing
from blackout.flows.planar import BITS, DENSITIES, Planar, code_scale, encode, sample_density
from blackout.flows.targets import EnergyNetwork, save_energy_network

_NEGATIVES = 32


def energy_discrepancy(network: EnergyNetwork, x: Tensor, rate: float, generator: torch.Generator) -> Tensor:
    """The loss of a batch of states, integers [B, d]; a scalar."""

    def flips(*shape: int) -> Tensor:
        return (torch.rand(shape, generator=generator) < rate).to(x.dtype)

    perturbed = x ^ flips(*x.shape)
    negatives = perturbed[:, None] ^ flips(len(x), _NEGATIVES, x.shape[1])
    difference = network.energy(x)[:, None] - network.energy(negatives)
    return torch.nn.functional.softplus(difference.logsumexp(1)).mean()


def pretrain(density: str, steps: int, lr: float, batch_size: int, widths: list[int], seed: int) -> Planar:
    """The trained energy network, in eval mode."""
    torch.manual_seed(seed)
    generator, scale = torch.Generator().manual_seed(seed), code_scale(density)
    network = Planar(widths, scale)
    optimizer = torch.optim.Adam(network.parameters(), lr)
    points = torch.from_numpy(sample_density(density, steps * batch_size, seed + 2))
    bits = encode(points, scale)
    for batch in bits.split(batch_size):
        optimizer.zero_grad()
        energy_discrepancy(network, batch, 0.1, generator).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 5.0)
        optimizer.step()
    return network.requires_grad_(False).eval()


def save(network: Planar, path: Path) -> None:
    """Write the .npz that `read_planar` reads, whole or not at all."""
    with replacing(path) as part:
        save_energy_network(network, part)
        with zipfile.ZipFile(part, "a") as archive, archive.open("scale.npy", "w") as member:
            np.lib.format.write_array(member, np.array(network.scale))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m blackout.flows.energy_discrepancy", description=__doc__)
    parser.add_argument("density", choices=DENSITIES)
    parser.add_argument("--out", type=Path, help="default: data/planar_<density>.npz, where target=planar looks")
    parser.add_argument("--steps", type=int, default=350, help="the paper: 100000")
    parser.add_argument("--lr", type=float, default=1e-3, help="the paper: 1e-4")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--widths", type=int, nargs="+", default=[256, 256, 256])
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if min(given.steps, given.batch_size, *given.widths) < 1 or not given.lr > 0:
        parser.error("steps, batch size and widths must be at least 1, and lr positive")
    network = pretrain(given.density, given.steps, given.lr, given.batch_size, given.widths, given.seed)
    out = given.out or Path("data") / f"planar_{given.density}.npz"
    save(network, out)
    print(f"{given.density}: energy network of {2 * BITS} bits in {out}")


if __name__ == "__main__":
    main()
