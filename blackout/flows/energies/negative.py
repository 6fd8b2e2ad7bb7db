"""The part of the likelihood's gradient that needs samples of the model: three ways to it.

The gradient of the mean log-likelihood is E_model[dE] - E_data[dE].
"""

from __future__ import annotations

import argparse
import zipfile
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from blackout.files import replacing
from blackout.flows.energies.energies import Learned
from blackout.flows.planar import BITS, DENSITIES, Planar, code_scale, encode, sample_density
from blackout.flows.simulation import Paths
from blackout.flows.targets import EnergyNetwork, save_energy_network
from blackout.random import SampleStreams


class Sampler(Protocol):
    """What phases ask of the model."""

    @property
    def energy(self) -> Learned:
        """In training."""
        ...

    def fresh(self, number: int, seed: int) -> Paths:
        """So many weighted chains of the energy in training."""
        ...


class NegativeSampler(nn.Module, ABC):
    """A loss whose gradient is that of the negative log-likelihood, or stands for it."""

    sampled = False
    """Whether a sampler is trained for it."""

    def prepare(self, levels: int, sites: int, seed: int) -> None:
        """Make what is kept of states, once the data are known."""

    @abstractmethod
    def loss(self, model: Sampler, x: Tensor, seed: int) -> Tensor:
        """Of data [b, d], a scalar; everything random is a function of the seed."""


class FlowSamples(NegativeSampler):
    """Weighted end states of fresh chains of the flow that is trained beside the energy (section 5.2 of the paper).

    The weights are exact for any rates (`Events`), so that the gradient is right on average of many chains however
    little the sampler knows; without them it would be that of another law.

    Args:
        chains: fresh ones for every step of the energy.
        weighted: False leaves the weights out, which is wrong and shown by tests.

    Raises:
        ValueError: fewer than two chains.
    """

    sampled = True

    def __init__(self, chains: int = 128, weighted: bool = True) -> None:
        super().__init__()
        if chains < 2:
            raise ValueError(f"negative.chains must be at least 2, not {chains}")
        self.chains, self.weighted = chains, weighted

    def loss(self, model: Sampler, x: Tensor, seed: int) -> Tensor:
        paths = model.fresh(self.chains, seed)
        weights = paths.log_weights if self.weighted else torch.zeros_like(paths.log_weights)
        energy = model.energy.energy(paths.states.x)
        return model.energy.energy(x).mean() - (torch.softmax(weights, 0).to(energy.dtype) * energy).sum()


class PersistentChains(NegativeSampler):
    """Gibbs chains that go on from step to step (PCD; Tieleman 2008).

    Args:
        chains: how many.
        sweeps: of each at every step.

    Raises:
        ValueError: none of either.
    """

    state: Tensor

    def __init__(self, chains: int = 128, sweeps: int = 1) -> None:
        super().__init__()
        if chains < 1 or sweeps < 1:
            raise ValueError(f"negative.chains and sweeps must be at least 1, not {chains} and {sweeps}")
        self.chains, self.sweeps = chains, sweeps

    def prepare(self, levels: int, sites: int, seed: int) -> None:
        uniforms = SampleStreams(seed, torch.arange(self.chains)).at(0).next_draw().uniform((self.chains, sites))
        self.register_buffer("state", (uniforms * levels).clamp_(max=levels - 1).to(torch.uint8))

    def loss(self, model: Sampler, x: Tensor, seed: int) -> Tensor:
        stream = SampleStreams(seed, torch.arange(self.chains, device=x.device)).at(0)
        state = self.state
        for _ in range(self.sweeps):
            state = model.energy.swept(state, stream.next_draw().uniform(tuple(state.shape)), 1.0)
        self.state.copy_(state)
        return model.energy.energy(x).mean() - model.energy.energy(state).mean()


class Discrepancy(NegativeSampler):
    """Energy discrepancy (Schroeder et al. 2023): no sampler. x' is x with some sites drawn anew, x'' is x' likewise.

    The loss is the mean of log(1 + sum_j exp(E(x) - E(x''_j))).

    Args:
        rate: probability that a site changes, each time.
        negatives: x'' of every x'.

    Raises:
        ValueError: a rate outside (0, 1), or no negatives.
    """

    def __init__(self, rate: float = 0.1, negatives: int = 32) -> None:
        super().__init__()
        if not 0 < rate < 1 or negatives < 1:
            raise ValueError(f"negative.rate must be in (0, 1) and negatives at least 1, not {rate} and {negatives}")
        self.rate, self.negatives = rate, negatives

    def loss(self, model: Sampler, x: Tensor, seed: int) -> Tensor:
        levels, stream = model.energy.levels, SampleStreams(seed, torch.arange(len(x), device=x.device)).at(0)

        def perturbed(states: Tensor) -> Tensor:
            u = stream.next_draw().uniform(tuple(states.shape))
            # of uniforms below the rate the quotient is uniform again: which other state
            other = (u / self.rate * (levels - 1)).long() + 1
            return torch.where(u < self.rate, (states.long() + other) % levels, states.long())

        once = perturbed(x)
        negatives = perturbed(once[:, None].expand(-1, self.negatives, -1))
        difference = model.energy.energy(x)[:, None] - model.energy.energy(negatives)
        return nn.functional.softplus(difference.logsumexp(1)).mean()


# --- `python -m blackout.flows.energies.negative moons`: pre-train the energy network of a density in the plane.
#
# Energy discrepancy with Bernoulli perturbations: x' = x xor Bernoulli(rate), x''_j = x' xor Bernoulli(rate), and the
# loss is the mean of log(1 + sum_j exp(E(x) - E(x''_j))).

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
    parser = argparse.ArgumentParser(prog="python -m blackout.flows.energies.negative", description=__doc__)
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
