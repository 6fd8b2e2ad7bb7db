"""The part of the likelihood's gradient that needs samples of the model, by a flow, by persistent chains, or the energy
discrepancy in its place.

The gradient of the mean log-likelihood is E_model[dE] - E_data[dE] [Ou 2025, eq. 44].
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from blackout.errors import ensure
from blackout.flows.path import States
from blackout.flows.refinement import Gibbs, Refinement
from blackout.flows.targets.energy_network import Learned
from blackout.random import SampleStreams


class NegativeSampler(nn.Module, ABC):
    """A loss whose gradient is that of the negative log-likelihood, or stands for it."""

    sampled = False
    """Whether a sampler is trained for it."""

    def prepare(self, levels: int, sites: int, seed: int) -> None:
        """Make what is kept of states, once the data are known."""

    @abstractmethod
    def loss(self, model: Any, x: Tensor, seed: int) -> Tensor:
        """Of data [b, d] for an `EnergySampler`, a scalar; everything random is a function of the seed."""


class FlowSamples(NegativeSampler):
    """Weighted end states of fresh chains of the flow that is trained beside the energy [Ou 2025, eq. 13].

    The weights are exact for any rates (`Events`), so that the gradient is right on average of many chains however
    little the sampler knows; without them it would be that of another law. Of few states all are summed over instead.

    Args:
        chains: fresh ones for every step of the energy.
        listed: number of states up to which E_model is their sum, and the loss the negative log-likelihood itself.

    Raises:
        ValueError: fewer than two chains, or a negative number of states.
    """

    sampled = True

    def __init__(self, chains: int = 128, listed: int = 1 << 13) -> None:
        super().__init__()
        ensure(chains >= 2, f"negative.chains must be at least 2, not {chains}")
        ensure(listed >= 0, f"negative.listed must be at least 0, not {listed}")
        self.chains, self.listed = chains, listed

    def sums(self, energy: Learned) -> bool:
        """Whether all states are summed over: S^d is at most `listed`, an integer."""
        return energy.levels**energy.sites <= self.listed

    def loss(self, model: Any, x: Tensor, seed: int) -> Tensor:
        """A scalar, of data [b, d], whose gradient is minus [Ou 2025, eq. 44]: see `NegativeSampler.loss`."""
        if self.sums(model.energy):
            return model.energy.energy(x).mean() + model.energy.log_partition()
        paths = model.fresh(self.chains, seed)
        energy = model.energy.energy(paths.states.x)
        share = torch.softmax(paths.log_weights, 0).to(energy.dtype)
        return model.energy.energy(x).mean() - (share * energy).sum()


class PersistentChains(NegativeSampler):
    """Chains that go on from step to step: persistent contrastive divergence [Tieleman 2008].

    Args:
        chains: how many.
        refine: moves of each at every step, such as DMALA [Zhang 2022]; None for a Gibbs sweep.

    Raises:
        ValueError: there is none.
    """

    def __init__(self, chains: int = 128, refine: Refinement | None = None) -> None:
        super().__init__()
        ensure(chains >= 1, f"negative.chains must be at least 1, not {chains}")
        self.chains, self.refine = chains, refine or Gibbs()

    def prepare(self, levels: int, sites: int, seed: int) -> None:
        """Chains begin uniformly: uint8 [chains, sites], see the class."""
        uniforms = SampleStreams(seed, torch.arange(self.chains)).step(0).next_draw().uniform((self.chains, sites))
        self.state = nn.Buffer((uniforms * levels).clamp_(max=levels - 1).to(torch.uint8))

    def loss(self, model: Any, x: Tensor, seed: int) -> Tensor:
        """A scalar, of data [b, d] [Tieleman 2008]: see `NegativeSampler.loss`."""
        stream = SampleStreams(seed, torch.arange(self.chains, device=x.device)).step(0)
        self.state.copy_(self.refine(model.energy, States.of(model.energy, self.state), 1.0, stream).x)
        return model.energy.energy(x).mean() - model.energy.energy(self.state).mean()


class Discrepancy(NegativeSampler):
    """Energy discrepancy [Schroeder 2024]: no sampler, but data with some sites drawn anew. See `discrepancy`.

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

    def loss(self, model: Any, x: Tensor, seed: int) -> Tensor:
        """A scalar, of data [b, d] [Schroeder 2024]: see `NegativeSampler.loss`."""
        levels, stream = model.energy.levels, SampleStreams(seed, torch.arange(len(x), device=x.device)).step(0)

        def perturbed(states: Tensor) -> Tensor:
            """States [..., d] with each site another one with probability `rate`, as the class says."""
            u = stream.next_draw().uniform(tuple(states.shape))
            # of uniforms below the rate the quotient is uniform again: which other state
            other = (u / self.rate * (levels - 1)).long() + 1
            return torch.where(u < self.rate, (states.long() + other) % levels, states.long())

        return discrepancy(model.energy.energy, x, perturbed, self.negatives)


def discrepancy(
    energy: Callable[[Tensor], Tensor], x: Tensor, perturbed: Callable[[Tensor], Tensor], negatives: int
) -> Tensor:
    """The mean of log(1 + sum_j exp(E(x) - E(x''_j))), a scalar: x' is x perturbed, every x''_j is x' perturbed.

    [Schroeder 2024], in its Bernoulli form.

    Args:
        energy: E of states [..., d].
        x: data, integers [b, d].
        perturbed: states [..., d] with some sites drawn anew.
        negatives: x'' of every x'.
    """
    drawn = perturbed(perturbed(x)[:, None].expand(-1, negatives, -1))
    difference = energy(x)[:, None] - energy(drawn)
    return nn.functional.softplus(difference.logsumexp(1)).mean()
