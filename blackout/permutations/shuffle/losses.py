"""What a denoiser of shuffled lists is trained on: with the permutations, or only with what the items look like."""

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
from blackout.permutations.group import compose
from blackout.permutations.shuffle.decoding import Denoiser, with_first
from blackout.permutations.shuffles import ForwardProcess
from blackout.random import StepStreams, uniform


@dataclass(frozen=True)
class LossInputs:
    """A batch to learn from.

    Args:
        denoiser: of the items in their right order.
        process: the forward process.
        items: [b, n, ...] in their right order.
        streams: every list's own random numbers.
    """

    denoiser: Denoiser
    process: ForwardProcess
    items: Tensor
    streams: StepStreams

    def walks(self, number: int) -> tuple[Tensor, Tensor, Tensor]:
        """States and steps back of `number` walks of each list, int64 [b, number, k, m], and times [number, k]."""
        states, back = self.process.sample_walks(self.denoiser.free, len(self.items), number, self.streams)
        device = self.items.device
        return states.to(device), back.to(device), torch.tensor(self.process.times, device=device).expand(number, -1)

    def steps(self, number: int) -> tuple[PermutationDistribution, Tensor, Tensor]:
        """All scheduled steps of `number` walks of each list: the law of the steps back, and int64 [b, r, m] both the
        states and the steps back, r = number * k.
        """
        states, back, times = self.walks(number)
        states, back = states.flatten(1, 2), back.flatten(1, 2)
        return self.denoiser(states, times.flatten()), states, back

    def looks(self, number: int) -> tuple[PermutationDistribution, Tensor]:
        """What may be known without permutations of the steps of `number` walks of each list.

        Of the label-free likelihood [Zhang 2025, appendix G.4].

        Returns:
            The law of the steps back, [b, r], and the squared distances [b, r, m, m] of the item that was at every
            place to those of the list.
        """
        law, states, back = self.steps(number)
        fixed = self.denoiser.first_fixed
        before, after = (with_first(orders, fixed) for orders in (compose(states, back), states))
        between = squared_distances(self.items, before)
        between = between.gather(-1, after.unsqueeze(-2).expand_as(between))
        return law, between[..., 1:, 1:] if fixed else between


class ShuffleLoss(Protocol):
    """A scalar, and what is to be logged beside it by name."""

    labels: ClassVar[bool]
    """Whether it uses the permutations, or only what the items look like."""

    def __call__(self, inputs: LossInputs) -> tuple[Tensor, Mapping[str, Tensor]]:
        """The loss, [], and figures by name, [] each."""


@component("loss")
@dataclass(frozen=True)
class TrajectoryLoss(ShuffleLoss):
    """-log p of every scheduled step back, averaged over steps, walks and lists [Zhang 2025, eq. 12].

    Args:
        walks: of each list.

    Raises:
        ValueError: no walk.
    """

    walks: int = 1
    labels: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_sizes("loss", walks=self.walks)

    def __call__(self, inputs: LossInputs) -> tuple[Tensor, Mapping[str, Tensor]]:
        """A scalar, the mean of [Zhang 2025, eq. 12] over steps back [b, r, m], and figures by name: see
        `ShuffleLoss`.
        """
        law, _, back = inputs.steps(self.walks)
        return -law.log_prob(back).mean(), {}


@component("loss")
@dataclass(frozen=True)
class RandomTimeLoss(TrajectoryLoss):
    """-log p of one step of each walk, chosen uniformly: the same on average, for long lists and schedules.

    [Zhang 2025, eq. 20]. Arguments and errors as `TrajectoryLoss`.
    """

    def __call__(self, inputs: LossInputs) -> tuple[Tensor, Mapping[str, Tensor]]:
        """A scalar, of one step [b, walks, m] of each walk [Zhang 2025, eq. 20], and figures by name: see
        `ShuffleLoss`.
        """
        states, back, times = inputs.walks(self.walks)
        u = uniform(tuple(states.shape[:2]), inputs.streams, states.device).to(states.device)
        step = (u * states.shape[2]).long().clamp(max=states.shape[2] - 1)
        states, back = (orders.take_along_dim(step[..., None, None], 2).squeeze(2) for orders in (states, back))
        return -inputs.denoiser(states, times[0][step]).log_prob(back).mean(), {}


@component("loss")
class LabelFreeLoss(nn.Module, ShuffleLoss):
    """Learns from what lists look like before and after a step, not from the permutation between them.

    [Zhang 2025, appendix G.4, eqs 22-23]. With p(x | list, sigma) Gaussian about the rearranged list, the gradient of
    its log-likelihood weighs permutations by their posterior. That is estimated with `draws` of them: each counts by
    its share of their likelihoods, less the entropy term, less a running mean of both that leaves the gradient's mean
    alone and is kept in checkpoints.
    An entropy of c adds c times the entropy of the reverse law to what is maximised; as published and printed, without
    1 / draws, a weight of .05 acts as .5.

    Args:
        walks: of each list.
        draws: of permutations, at least 2.
        entropy: weight of the entropy.
        deviation: standard deviation of the Gaussian, in units of the items.
        decay: of the running mean.

    Raises:
        ValueError: a number out of range.
    """

    labels: ClassVar[bool] = False

    def __init__(
        self, walks: int = 1, draws: int = 10, entropy: float = 0.05, deviation: float = 1.0, decay: float = 0.995
    ) -> None:
        super().__init__()
        check_sizes("loss", walks=walks)
        if draws < 2 or not 0 <= entropy < float("inf") or not 0 < deviation < float("inf") or not 0 <= decay < 1:
            allowed = "draws must be at least 2, entropy not negative, deviation positive and decay in [0, 1)"
            raise ValueError(f"{allowed}, not {draws}, {entropy}, {deviation} and {decay}")
        self.walks, self.draws, self.entropy, self.deviation, self.decay = walks, draws, entropy, deviation, decay
        self.baseline = nn.Buffer(torch.zeros(()))

    def forward(self, inputs: LossInputs) -> tuple[Tensor, Mapping[str, Tensor]]:
        """A scalar, of `draws` permutations of steps back [b, r, m] [Zhang 2025, eq. 23], and figures: see
        `ShuffleLoss`.
        """
        law, between = inputs.looks(self.walks)
        drawn = law.sample(Size((self.draws,)), inputs.streams)
        log_probs = law.log_prob(drawn)
        with torch.no_grad():
            shares = log_likelihoods(between, drawn, self.deviation).softmax(0)
            weights = shares - self.entropy / self.draws * log_probs
            # the running mean moves towards the weights of all processes
            total = sum_over_processes(torch.stack([weights.sum(), weights.new_tensor(weights.numel())]))
            self.baseline.lerp_(total[0] / total[1], 1 - self.decay)
        return -((weights - self.baseline) * log_probs).sum(0).mean(), {"train/match": shares.amax(0).mean()}


@component("loss")
@dataclass(frozen=True)
class SinkhornLoss(ShuffleLoss):
    """-log of the right entries of doubly stochastic matrices: Gumbel-Sinkhorn [Mena 2018] with labels.

    Args:
        draws: of Gumbel noise for each list.
        iterations: of Sinkhorn's normalisation in training.
        temperature: of the matrices.

    Raises:
        ValueError: numbers below 1, or a temperature that is not positive; another law of the steps back.
    """

    draws: int = 1
    iterations: int = 20
    temperature: float = 1.0
    labels: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.draws < 1 or self.iterations < 1 or not 0 < self.temperature < math.inf:
            raise ValueError(f"draws and iterations must be at least 1 and temperature positive, not {self}")

    def __call__(self, inputs: LossInputs) -> tuple[Tensor, Mapping[str, Tensor]]:
        """A scalar, of matrices [draws, b, r, m, m] [Mena 2018], and figures by name: see `ShuffleLoss`."""
        law, _, back = inputs.steps(1)
        if not isinstance(law, Matching):
            raise ValueError("Gumbel-Sinkhorn matches items with places: reverse=assignment")
        noisy = law.perturbed_scores((self.draws,), inputs.streams) / self.temperature  # [draws, b, r, m, m]
        return -Matching(noisy, self.iterations).log_prob(back).mean(), {}


def log_likelihoods(between: Tensor, drawn: Tensor, deviation: float) -> Tensor:
    """log p(list before | list, sigma) but for a constant, [draws, b, r] [Zhang 2025, appendix G.4].

    Args:
        between: [b, r, m, m], squared distances of what was at every place to the items of the list.
        drawn: int64 [draws, b, r, m], permutations of the list.
        deviation: standard deviation of a value.
    """
    square = between.expand(len(drawn), *between.shape).gather(-1, drawn.unsqueeze(-1)).squeeze(-1).sum(-1)
    return -square / (2 * deviation**2)


def squared_distances(items: Tensor, before: Tensor) -> Tensor:
    """||item before[i] - item j||^2 for every place i of a list and item j, float32 [b, r, n, n].

    Of [Zhang 2025, appendix G.4], the exponent of its Gaussian.

    Args:
        items: [b, n, ...].
        before: int64 [b, r, n], lists.
    """
    flat = items.float().flatten(2)
    between = torch.cdist(flat, flat, compute_mode="donot_use_mm_for_euclid_dist").square()
    rows = torch.arange(len(items), device=items.device).view(-1, 1, 1)
    return between[rows, before]
