"""Losses: a prediction and what really happened, to one weighted value per element before any reduction.

Weights belong to an interval (s, t) of the grid, s < t, with q = e^-t:

    paper, instantaneous   (t - s) q_t                       [Santos 2023, eq. 14]
    paper, finite time     q_s - q_t                         [Santos 2023, eq. 15]
    likelihood             the same / (1 - q_t)              [Santos 2023, eqs. 64 and 70]
    growth                 the likelihood's / sqrt(q_t)      ours

The published weights are the likelihood's times 1 - q_t: appendix F divides by the sampling density of the times twice.
They favour global structure and gave the published FID; the likelihood's make the loss a bound on -log p (plus a
constant), which is tested in tests/verification/test_likelihood_laws.py. Going back, counts grow by e-folds of q, and
a share that is missing at one of them is missing in the end. The likelihood weighs an e-fold with its number of births,
so that the first ones hardly matter; growth's weights lie half-way to equal ones.

Where a head predicts a distribution, its score is added (`count_loss`); the weights are the same for both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor

from blackout.component import component
from blackout.counts import per_row
from blackout.diffusion.predictions import (
    TINY,
    BirthDeathPrediction,
    CategoricalPrediction,
    CountPrediction,
    MeanPrediction,
    Prediction,
    misfit,
    require,
)
from blackout.diffusion.processes import FiniteProcess, JumpProcess, Observation
from blackout.errors import ensure

Predicted = TypeVar("Predicted", contravariant=True)
Target = TypeVar("Target", contravariant=True)
Weight: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""(s, t) float64 [B] -> the weight of the interval, float64 [B]."""


class Loss(Protocol[Predicted, Target]):
    """One value per element, before any reduction."""

    def __call__(self, prediction: Predicted, target: Target, s: Tensor, t: Tensor) -> Tensor:
        """The loss of a batch observed at times t.

        Args:
            prediction: what the head made of the network's output.
            target: what the process's `observe` returned beside X_t.
            s: float64 [B], one step of the grid before t.
            t: float64 [B].

        Returns:
            float32 [B, ...], the data's shape.
        """


def weigh(weight: Tensor, x: Tensor) -> Tensor:
    """Values x [B, ...] times weights [B] of their samples, the w_k of [Santos 2023, Algorithm 1]: [B, ...]."""
    return per_row(weight, x) * x


@dataclass(frozen=True, kw_only=True)
class _Weighted:
    """A loss with a weighting by name, and a scale that multiplies every weight; both are given by name."""

    weightings: ClassVar[Mapping[str, Weight]]
    weighting: str = "paper"
    scale: float = 1.0

    def __post_init__(self) -> None:
        check_name(self.weightings, self.weighting, "weighting")
        check_scale(self.scale)

    def weights(self, s: Tensor, t: Tensor) -> Tensor:
        """The weights of intervals (s, t), of s and t float64 [T]: [T], `scale` times those above by name."""
        return self.scale * self.weightings[self.weighting](s, t)


def check_scale(scale: float) -> None:
    """Raises ValueError unless the scale is positive."""
    ensure(scale > 0, f"the loss's scale must be positive, not {scale}")


def check_name(table: Mapping[str, object], name: str, what: str) -> None:
    """Raises ValueError unless the table has an entry of that name."""
    ensure(name in table, f"unknown {what} '{name}': one of {', '.join(table)}")


def poisson_loss(prediction: MeanPrediction, target: Tensor) -> Tensor:
    """y - N log y in float32, unreduced; its minimum over y is at E[N] [Santos 2023, eq. 14 without its weight].

    Args:
        prediction: of a count or of a pair of counts, y and log y of shape [B, ...] or [B, 2, ...].
        target: N, integers of the same shape.
    """
    return prediction.mean.float() - target.float() * prediction.log_mean.float()


def count_loss(prediction: CountPrediction, target: Tensor) -> Tensor:
    """The mean's score at N = target, and -log P(N) where there is a distribution: proper, unreduced, float32 [B, ...].

    Ours; that a distribution leaves the mean's training as it was is tested in
    `tests/diffusion/test_dispersed_heads.py`.
    """
    loss = poisson_loss(prediction, target)
    return loss if prediction.distribution is None else loss - prediction.distribution.log_prob(target)


_KINDS: dict[str, Weight] = {
    "instantaneous": lambda s, t: (t - s) * torch.exp(-t),
    "finite_time": lambda s, t: -torch.exp(-s) * torch.expm1(s - t),
}
_COUNT_WEIGHTINGS: dict[str, Weight] = {
    "paper": lambda weight, t: weight,
    "likelihood": lambda weight, t: weight / -torch.expm1(-t),
    "growth": lambda weight, t: weight / -torch.expm1(-t) * torch.exp(t / 2),
}
"""Of an interval's weight and t, for a loss of counts; see above."""


@component("loss")
@dataclass(frozen=True)
class CountLoss(_Weighted):
    """Weighted loss y - N log y of a batch of counts observed at times t [Santos 2023, eqs. 14 and 15, Algorithm 1].

    Args:
        kind: "instantaneous" or "finite_time".
        weighting: "paper", "likelihood" or "growth".
        scale: multiplies every weight; T makes the mean over uniform k the sum over the grid.

    Raises:
        ValueError: an unknown name, or a scale that is not positive; when called, another process or head than counts'.
    """

    kind: str = "instantaneous"
    weightings: ClassVar[Mapping[str, Weight]] = _COUNT_WEIGHTINGS

    def __post_init__(self) -> None:
        check_name(_KINDS, self.kind, "loss")
        super().__post_init__()

    def weights(self, s: Tensor, t: Tensor) -> Tensor:
        """The weights of intervals (s, t), of s and t float64 [T]: [T] [Santos 2023, eqs. 14 and 15], see above."""
        return super().weights(_KINDS[self.kind](s, t), t)

    def __call__(self, prediction: CountPrediction, target: Tensor, s: Tensor, t: Tensor) -> Tensor:
        """w (y - N log y), or with a distribution's score, float32 of target's shape [B, ...]; s, t are float64 [B].

        [Santos 2023, eqs. 14 and 15], by `count_loss`.
        """
        if not isinstance(target, Tensor):
            raise misfit(self, getattr(target, "process", None), "a process whose target is the missing count")
        if not isinstance(prediction, CountPrediction):
            raise misfit(self, None, "a head that predicts the missing count")
        return weigh(self.weights(s, t).float(), count_loss(prediction, target))


@component("loss")
@dataclass(frozen=True)
class CrossEntropy:
    """-log P(X_0 | X_t) of heads that predict a distribution over levels, D3PM's auxiliary loss [Austin 2021, eq. 5].

    Args:
        scale: multiplies every value.

    Raises:
        ValueError: a scale that is not positive; when called, another kind of head.
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        check_scale(self.scale)

    def __call__(self, prediction: CategoricalPrediction, target: Observation, s: Tensor, t: Tensor) -> Tensor:
        """-log P(X_0 | X_t), float32 [B, ...] [Austin 2021, eq. 5]; s, t are float64 [B]."""
        target, prediction = _needed(self, prediction, target)
        return -self.scale * prediction.log_probs.gather(1, target.x0.long()[:, None]).squeeze(1).float()


@component("loss")
@dataclass(frozen=True)
class StepLoss:
    """KL(P(X_s | X_0, X_t) || the model's step), for any finite process: the variational bound of a chain's steps.

    The model's step is the bridge averaged over its distribution of X_0 [Austin 2021, eqs. 1 and 4]; at s = 0 this is
    the cross-entropy.

    Args:
        cross_entropy: adds this much of -log P(X_0 | X_t), D3PM's auxiliary loss [Austin 2021, eq. 5].
        scale: multiplies every weight; T makes the mean over uniform k the sum over the grid.

    Raises:
        ValueError: scale is not positive or cross_entropy is negative; when called, another kind of process or head.
    """

    cross_entropy: float = 0.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        check_scale(self.scale)
        ensure(self.cross_entropy >= 0, f"cross_entropy must not be negative, not {self.cross_entropy}")

    def __call__(self, prediction: CategoricalPrediction, target: Observation, s: Tensor, t: Tensor) -> Tensor:
        """The KL of `step_divergence`, float32 [B, ...] [Austin 2021, eq. 1]; s, t are float64 [B]."""
        target, prediction = _needed(self, prediction, target)
        process = require(target.process, FiniteProcess, self, target.process, "a process of finitely many states")
        loss = process.step_divergence(prediction.expected, target.x0, target.xt, s, t).float()
        if self.cross_entropy:
            loss = loss + self.cross_entropy * CrossEntropy()(prediction, target, s, t)
        return self.scale * loss


def _needed(part: object, prediction: object, target: object) -> tuple[Observation, CategoricalPrediction]:
    """Target and prediction as these losses need them."""
    process = getattr(target, "process", None)
    return (
        require(target, Observation, part, process, "a process of finitely many states"),
        require(prediction, CategoricalPrediction, part, process, "a head that predicts a distribution over levels"),
    )


_RATE_WEIGHTINGS: dict[str, Weight] = {
    "paper": lambda s, t: (t - s) * -torch.expm1(-t),
    "likelihood": lambda s, t: t - s,
}
"""Of times drawn uniformly from a grid an interval has weight t - s, once, which Algorithm 3 multiplies by twice. The
`paper` weighting further multiplies by 1 - q, q = e^-t, as the published losses of pure death do."""


def rate_loss(kappa: Tensor, rate: Tensor) -> Tensor:
    """kappa - lambda log kappa, elementwise float64, least over kappa at E[lambda] [Santos 2023, eq. 72]."""
    return kappa - torch.special.xlogy(rate, kappa.clamp(min=TINY))


@component("loss")
@dataclass(frozen=True)
class RateLoss(_Weighted):
    """The likelihood's own loss for every jump process: sum over types of kappa_r - lambda_r log kappa_r.

    lambda_r are the reverse rates given X_0, kappa_r the model's; integrated over t it is the negative log-likelihood's
    bound up to a constant [Santos 2023, eq. 72 and Algorithm 3; Campbell 2022, Proposition 2]. For a distribution over
    X_0 it is the score entropy of the rates derived from it; for absorption the cross-entropy of masked elements, times
    q / (1 - q) [Shi 2024].

    Args:
        weighting: "paper" or "likelihood".
        scale: multiplies every weight; T makes the mean over uniform k the sum over the grid.

    Raises:
        ValueError: an unknown weighting, or a scale that is not positive; when called, a process without rates, or a
            prediction that they do not follow from.
    """

    weighting: str = "likelihood"
    weightings: ClassVar[Mapping[str, Weight]] = _RATE_WEIGHTINGS

    def __call__(self, prediction: Prediction, target: Observation, s: Tensor, t: Tensor) -> Tensor:
        """w times the sum of `rate_loss` over types, float32 [B, ...] [Santos 2023, eq. 72]; s, t are float64 [B]."""
        target = require(target, Observation, self, None, "a process whose target holds the state it was observed in")
        process, xt = target.process, target.xt
        process = require(process, JumpProcess, self, process, "a process in continuous time")
        prediction = require(prediction, process.prediction, self, process, "a head that predicts what rates need")
        losses = rate_loss(process.rates(prediction.expected, xt, t), process.reverse_rates(target.x0, xt, t))
        return weigh(self.weights(s, t), losses.sum(1)).float()


@component("loss")
@dataclass(frozen=True)
class BirthDeathLoss(_Weighted):
    """Poisson losses y - N log y of the missing and of the immigrants, times their known factors q, 1 over 1 - q.

    Ours (tests/verification/test_process_laws.py): `RateLoss` in terms of what is predicted.

    Args:
        weighting: "paper" or "likelihood".
        scale: multiplies every weight; T makes the mean over uniform k the sum over the grid.

    Raises:
        ValueError: an unknown weighting, or a scale that is not positive; when called, another process.
    """

    weightings: ClassVar[Mapping[str, Weight]] = _RATE_WEIGHTINGS

    def __call__(self, prediction: BirthDeathPrediction, target: Observation, s: Tensor, t: Tensor) -> Tensor:
        """Two times `poisson_loss` with its factor, summed: float32 [B, ...]; s and t are float64 [B].

        Ours, see the class.
        """
        needed = "the birth-death process, whose observations hold two numbers, and its head"
        process = getattr(target, "process", None)
        pair = require(getattr(target, "statistic", None), Tensor, self, process, needed)
        prediction = require(prediction, BirthDeathPrediction, self, process, needed)
        weight = self.weights(s, t) / -torch.expm1(-t)
        # per unit of time the missing are born at q / (1 - q), the immigrants leave at 1 / (1 - q)
        factors = torch.stack([weight * torch.exp(-t), weight], dim=1).float()
        return (factors.view(-1, 2, *[1] * (pair.ndim - 2)) * poisson_loss(prediction, pair)).sum(1)
