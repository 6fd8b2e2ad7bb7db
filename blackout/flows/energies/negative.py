"""Training losses of energies: the negative phase of the likelihood's gradient, or a replacement.

The gradient of the mean log-likelihood is E_model[dE] - E_data[dE]. The first term needs samples
of the model: of the flow, or of persistent chains. Energy discrepancy needs none.

References: Ou et al. 2025, eq. 44.
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
from blackout.flows.targets.energy_network import LearnedEnergy
from blackout.random import SampleStreams
from blackout.representation import format_arguments


class NegativeSampler(nn.Module, ABC):
    """A loss whose gradient is that of the negative log-likelihood, or takes its place."""

    # whether a flow is trained for it
    needs_flow = False

    __repr__ = format_arguments

    def prepare(self, levels: int, sites: int, seed: int) -> None:
        """Allocate states that are kept, once the shape of the data is known."""

    @abstractmethod
    def loss(self, model: Any, x: Tensor, seed: int) -> Tensor:
        """Return the loss of data [b, d] for an `EnergySampler`, a scalar.

        All random numbers are a function of the seed.
        """


class FlowSamples(NegativeSampler):
    """Importance-weighted samples of the flow that is trained together with the energy.

    The weights of exact simulation are right for any rates. However little the flow has learned,
    the gradient is therefore right on average over many chains. Where there are few states, E_model
    is a sum over all of them instead.

    References: Ou et al. 2025, eq. 13.

    Args:
        chains: new chains for every step of the energy.
        max_enumerated_states: largest number of states that are summed over; the loss is then the
            negative log-likelihood itself.

    Raises:
        ValueError: fewer than two chains, or a negative number of states.
    """

    needs_flow = True

    def __init__(self, chains: int = 128, max_enumerated_states: int = 1 << 13) -> None:
        super().__init__()
        ensure(chains >= 2, f"negative.chains must be at least 2, not {chains}")
        ensure(
            max_enumerated_states >= 0,
            f"negative.max_enumerated_states must be at least 0, not {max_enumerated_states}",
        )
        self.chains = chains
        self.max_enumerated_states = max_enumerated_states

    def enumerates(self, energy: LearnedEnergy) -> bool:
        """Return whether all states of an energy are summed over."""
        return energy.levels**energy.sites <= self.max_enumerated_states

    def loss(self, model: Any, x: Tensor, seed: int) -> Tensor:
        """Return a scalar whose gradient is minus eq. 44 of Ou et al. 2025, of data [b, d]."""
        energy: LearnedEnergy = model.energy
        if self.enumerates(energy):
            return energy.energy(x).mean() + energy.log_partition()
        paths = model.draw_negative_chains(self.chains, seed)
        chain_energies = energy.energy(paths.states.x)
        weights = torch.softmax(paths.log_weights, 0).to(chain_energies.dtype)
        return energy.energy(x).mean() - (weights * chain_energies).sum()


class PersistentChains(NegativeSampler):
    """Persistent contrastive divergence: MCMC chains that continue from step to step.

    References: Tieleman 2008.

    Args:
        chains: number of chains.
        refine: moves of each chain at every step, such as `DMALA`; None for a Gibbs sweep.

    Raises:
        ValueError: no chains.
    """

    def __init__(self, chains: int = 128, refine: Refinement | None = None) -> None:
        super().__init__()
        ensure(chains >= 1, f"negative.chains must be at least 1, not {chains}")
        self.chains = chains
        self.refine = refine or Gibbs()

    def prepare(self, levels: int, sites: int, seed: int) -> None:
        """Start the chains uniformly, uint8 [chains, sites]."""
        streams = SampleStreams(seed, torch.arange(self.chains))
        uniforms = streams.step(0).next_draw().uniform((self.chains, sites))
        self.state = nn.Buffer((uniforms * levels).clamp_(max=levels - 1).to(torch.uint8))

    def loss(self, model: Any, x: Tensor, seed: int) -> Tensor:
        """Return the difference of the mean energies of data [b, d] and chains, a scalar.

        References: Tieleman 2008.
        """
        energy: LearnedEnergy = model.energy
        stream = SampleStreams(seed, torch.arange(self.chains, device=x.device)).step(0)
        states = States.evaluate(energy, self.state)
        self.state.copy_(self.refine(energy, states, 1.0, stream).x)
        return energy.energy(x).mean() - energy.energy(self.state).mean()


class EnergyDiscrepancy(NegativeSampler):
    """Energy discrepancy: data are compared with perturbed data, without a sampler.

    References: Schroeder et al. 2024.

    Args:
        perturb_probability: that a site changes, in each of two perturbations.
        num_negatives: perturbed states for each data point.

    Raises:
        ValueError: a probability outside (0, 1), or no negatives.
    """

    def __init__(self, perturb_probability: float = 0.1, num_negatives: int = 32) -> None:
        super().__init__()
        ensure(
            0 < perturb_probability < 1,
            f"negative.perturb_probability must be in (0, 1), not {perturb_probability}",
        )
        ensure(
            num_negatives >= 1,
            f"negative.num_negatives must be at least 1, not {num_negatives}",
        )
        self.perturb_probability = perturb_probability
        self.num_negatives = num_negatives

    def loss(self, model: Any, x: Tensor, seed: int) -> Tensor:
        """Return the energy discrepancy of data [b, d], a scalar."""
        energy: LearnedEnergy = model.energy
        stream = SampleStreams(seed, torch.arange(len(x), device=x.device)).step(0)

        def perturb(states: Tensor) -> Tensor:
            """Change each site of states [..., d] with `perturb_probability`."""
            u = stream.next_draw().uniform(tuple(states.shape))
            # below the probability the quotient is uniform again: which other value
            shift = (u / self.perturb_probability * (energy.levels - 1)).long() + 1
            changed = (states.long() + shift) % energy.levels
            return torch.where(u < self.perturb_probability, changed, states.long())

        return energy_discrepancy(energy.energy, x, perturb, self.num_negatives)


def energy_discrepancy(
    energy: Callable[[Tensor], Tensor],
    x: Tensor,
    perturb: Callable[[Tensor], Tensor],
    num_negatives: int,
) -> Tensor:
    """Return the mean of log(1 + sum_j exp(E(x) - E(x''_j))), a scalar.

    x' is x perturbed, and every x''_j is x' perturbed.

    References: Schroeder et al. 2024, with Bernoulli perturbations.

    Args:
        energy: E of states [..., d].
        x: data, integers [b, d].
        perturb: states [..., d] to perturbed ones.
        num_negatives: number of x'' for each x'.
    """
    intermediate = perturb(x)[:, None].expand(-1, num_negatives, -1)
    negatives = perturb(intermediate)
    difference = energy(x)[:, None] - energy(negatives)
    return nn.functional.softplus(difference.logsumexp(1)).mean()
