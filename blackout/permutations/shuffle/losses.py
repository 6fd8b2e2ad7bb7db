"""Losses of shuffle diffusion.

They compare with the true permutations, or with the appearance of the items alone.

References: Zhang et al. 2025 (SymmetricDiffusers), eqs. 12 and 20, appendix G.4; Mena et al. 2018.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Size, Tensor, nn

from blackout.component import component
from blackout.distributed import sum_over_processes
from blackout.networks.layers import check_sizes
from blackout.permutations.distributions import Matching, PermutationDistribution
from blackout.permutations.forward_process import ForwardProcess
from blackout.permutations.group import compose
from blackout.permutations.shuffle.decoding import Denoiser, prepend_first
from blackout.random import StepStreams, uniform


@dataclass(frozen=True)
class LossInputs:
    """A training batch, and the walks of the forward process from it.

    Args:
        denoiser: of the items in their right order.
        process: the forward process.
        items: in their right order, [b, n, ...].
        streams: random numbers of every list.
    """

    denoiser: Denoiser
    process: ForwardProcess
    items: Tensor
    streams: StepStreams

    def sample_walks(self, num_walks: int) -> tuple[Tensor, Tensor, Tensor]:
        """Draw walks from each list.

        Returns:
            States and inverse steps, int64 [b, num_walks, k, m] each, and the times [num_walks, k].
        """
        states, inverse_steps = self.process.sample_walks(
            self.denoiser.num_free, len(self.items), num_walks, self.streams
        )
        device = self.items.device
        times = torch.tensor(self.process.times, device=device).expand(num_walks, -1)
        return states.to(device), inverse_steps.to(device), times

    def reverse_steps(self, num_walks: int) -> tuple[PermutationDistribution, Tensor, Tensor]:
        """Evaluate the reverse process at all scheduled steps of walks from each list.

        Returns:
            The distributions of the reverse steps, the states and the inverse steps, int64 [b, r,
            m] each, with r = num_walks * k.
        """
        states, inverse_steps, times = self.sample_walks(num_walks)
        states = states.flatten(1, 2)
        inverse_steps = inverse_steps.flatten(1, 2)
        return self.denoiser(states, times.flatten()), states, inverse_steps

    def reverse_steps_and_distances(self, num_walks: int) -> tuple[PermutationDistribution, Tensor]:
        """Return the reverse steps, and how far items look different before and after each step.

        Returns:
            The distributions of the reverse steps, [b, r], and the squared distances [b, r, m, m]
            between the item that was at every position before the step (row) and the items at all
            positions after it.

        References: Zhang et al. 2025, appendix G.4.
        """
        distribution, states, inverse_steps = self.reverse_steps(num_walks)
        first_fixed = self.denoiser.first_fixed
        before = prepend_first(compose(states, inverse_steps), first_fixed)
        after = prepend_first(states, first_fixed)
        distances = squared_distances(self.items, before)
        distances = distances.gather(-1, after.unsqueeze(-2).expand_as(distances))
        return distribution, distances[..., 1:, 1:] if first_fixed else distances


class ShuffleLoss(Protocol):
    """A loss of shuffle diffusion."""

    # whether the loss needs the true permutations; otherwise it uses the items alone
    labels: ClassVar[bool]

    def __call__(self, inputs: LossInputs) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the loss, a scalar, and scalars to log, by name."""


@component("loss")
@dataclass(frozen=True)
class TrajectoryLoss(ShuffleLoss):
    """The negative log-likelihood of every scheduled reverse step.

    It is averaged over steps, walks and lists.

    Args:
        walks: of the forward process from each list.

    Raises:
        ValueError: walks < 1.

    References: Zhang et al. 2025, eq. 12.
    """

    walks: int = 1
    labels: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_sizes("loss", walks=self.walks)

    def __call__(self, inputs: LossInputs) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the loss, a scalar, and no further scalars."""
        distribution, _, inverse_steps = inputs.reverse_steps(self.walks)
        return -distribution.log_prob(inverse_steps).mean(), {}


@component("loss")
@dataclass(frozen=True)
class RandomTimeLoss(TrajectoryLoss):
    """The negative log-likelihood of one random step of each walk, for long lists and schedules.

    It has the expectation of `TrajectoryLoss`, whose arguments and errors it shares.

    References: Zhang et al. 2025, eq. 20.
    """

    def __call__(self, inputs: LossInputs) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the loss, a scalar, and no further scalars."""
        states, inverse_steps, times = inputs.sample_walks(self.walks)
        num_steps = states.shape[2]
        u = uniform(tuple(states.shape[:2]), inputs.streams, states.device).to(states.device)
        step = (u * num_steps).long().clamp(max=num_steps - 1)
        index = step[..., None, None]
        states = states.take_along_dim(index, 2).squeeze(2)
        inverse_steps = inverse_steps.take_along_dim(index, 2).squeeze(2)
        distribution = inputs.denoiser(states, times[0][step])
        return -distribution.log_prob(inverse_steps).mean(), {}


@component("loss")
class LabelFreeLoss(nn.Module, ShuffleLoss):
    """A loss for puzzles without labels, from how lists look before and after a step.

    p(x | list, sigma) is Gaussian about the rearranged list. The gradient of its log-likelihood
    weighs permutations by their posterior, which is estimated by `draws` of them (REINFORCE). The
    weight of a draw is its share of the likelihoods, less the entropy term, less a running mean.
    The running mean leaves the expected gradient unchanged, and is saved in checkpoints. An entropy
    of c adds c times the entropy of the reverse distribution to the objective; as published,
    without 1 / draws, a weight of 0.05 has the effect of 0.5.

    Args:
        walks: of the forward process from each list.
        draws: permutations drawn for each step, at least 2.
        entropy: weight of the entropy.
        deviation: standard deviation of the Gaussian, in units of the items.
        decay: of the running mean.

    Raises:
        ValueError: a number out of range.

    References: Zhang et al. 2025, appendix G.4, eqs. 22 and 23.
    """

    labels: ClassVar[bool] = False

    def __init__(
        self,
        walks: int = 1,
        draws: int = 10,
        entropy: float = 0.05,
        deviation: float = 1.0,
        decay: float = 0.995,
    ) -> None:
        super().__init__()
        check_sizes("loss", walks=walks)
        valid = (
            draws >= 2
            and 0 <= entropy < float("inf")
            and 0 < deviation < float("inf")
            and 0 <= decay < 1
        )
        if not valid:
            raise ValueError(
                "draws must be at least 2, entropy not negative, deviation positive "
                f"and decay in [0, 1), not {draws}, {entropy}, {deviation} and {decay}"
            )
        self.walks = walks
        self.draws = draws
        self.entropy = entropy
        self.deviation = deviation
        self.decay = decay
        self.baseline = nn.Buffer(torch.zeros(()))

    def forward(self, inputs: LossInputs) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the loss, a scalar, and the largest share of the likelihoods as `train/match`.

        References: Zhang et al. 2025, eq. 23.
        """
        distribution, distances = inputs.reverse_steps_and_distances(self.walks)
        samples = distribution.sample(Size((self.draws,)), inputs.streams)
        log_probs = distribution.log_prob(samples)
        with torch.no_grad():
            shares = log_likelihoods(distances, samples, self.deviation).softmax(0)
            weights = shares - self.entropy / self.draws * log_probs
            # the running mean follows the weights of all processes
            sums = torch.stack([weights.sum(), weights.new_tensor(weights.numel())])
            total, count = sum_over_processes(sums)
            self.baseline.lerp_(total / count, 1 - self.decay)
        loss = -((weights - self.baseline) * log_probs).sum(0).mean()
        return loss, {"train/match": shares.amax(0).mean()}


@component("loss")
@dataclass(frozen=True)
class SinkhornLoss(ShuffleLoss):
    """The Gumbel-Sinkhorn loss with labels.

    It is the negative log of the right entries of doubly stochastic matrices.

    Args:
        draws: of Gumbel noise for each list.
        iterations: of Sinkhorn normalisation in training.
        temperature: of the matrices.

    Raises:
        ValueError: draws or iterations < 1, a temperature that is not positive, or a reverse
            distribution other than `reverse=assignment`.

    References: Mena et al. 2018.
    """

    draws: int = 1
    iterations: int = 20
    temperature: float = 1.0
    labels: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.draws < 1 or self.iterations < 1 or not 0 < self.temperature < math.inf:
            raise ValueError(
                f"draws and iterations must be at least 1 and temperature positive, not {self}"
            )

    def __call__(self, inputs: LossInputs) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the loss, a scalar, and no further scalars."""
        distribution, _, inverse_steps = inputs.reverse_steps(1)
        if not isinstance(distribution, Matching):
            raise ValueError(
                "loss=sinkhorn needs a matching of items and places: type reverse=assignment"
            )
        noisy = distribution.perturbed_scores((self.draws,), inputs.streams) / self.temperature
        return -Matching(noisy, self.iterations).log_prob(inverse_steps).mean(), {}


def log_likelihoods(distances: Tensor, orders: Tensor, deviation: float) -> Tensor:
    """Return log p(list before | list, order) up to a constant, [draws, b, r].

    Args:
        distances: squared distances of `LossInputs.reverse_steps_and_distances`, [b, r, m, m].
        orders: permutations of the list, int64 [draws, b, r, m].
        deviation: standard deviation of a value.

    References: Zhang et al. 2025, appendix G.4.
    """
    expanded = distances.expand(len(orders), *distances.shape)
    total = expanded.gather(-1, orders.unsqueeze(-1)).squeeze(-1).sum(-1)
    return -total / (2 * deviation**2)


def squared_distances(items: Tensor, states: Tensor) -> Tensor:
    """Return ||items[state[i]] - items[j]||^2 for positions i and items j, float32 [b, r, n, n].

    Args:
        items: [b, n, ...].
        states: orders of the items, int64 [b, r, n].

    References: Zhang et al. 2025, appendix G.4.
    """
    flat = items.float().flatten(2)
    distances = torch.cdist(flat, flat, compute_mode="donot_use_mm_for_euclid_dist").square()
    rows = torch.arange(len(items), device=items.device).view(-1, 1, 1)
    return distances[rows, states]
