"""Losses: a prediction and its target, to one weighted value per element before any reduction.

Weights belong to an interval (s, t) of the grid, s < t, with q = e^-t:

    paper, instantaneous   (t - s) q_t                       Santos et al. 2023, eq. 14
    paper, finite time     q_s - q_t                         Santos et al. 2023, eq. 15
    likelihood             the same / (1 - q_t)              Santos et al. 2023, eqs. 64 and 70
    growth                 the likelihood's / sqrt(q_t)      this project

The published weights are the likelihood's times 1 - q_t: appendix F divides by the sampling density
of the times twice. They favour global structure and gave the published FID. The likelihood's make
the loss a bound on -log p, up to a constant (checked in
tests/verification/test_likelihood_bounds.py).

In reverse time, counts grow by e-folds of q, and a share that is missing from one of them is
missing in the end. The likelihood weighs an e-fold with its number of births, so that the first
ones hardly matter; the weights of growth lie half-way to equal ones.

Where a head predicts a distribution, its score is added (`count_loss`), with the same weights.
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
    mismatch_error,
    require,
)
from blackout.diffusion.processes import FiniteProcess, JumpProcess, Observation
from blackout.errors import ensure

Predicted = TypeVar("Predicted", contravariant=True)
Target = TypeVar("Target", contravariant=True)

# (s, t) float64 [B] -> weight of the interval, float64 [B]
Weight: TypeAlias = Callable[[Tensor, Tensor], Tensor]
# (published weight of the interval, t) float64 [B] -> weight in the loss, float64 [B]
Reweighting: TypeAlias = Callable[[Tensor, Tensor], Tensor]


class Loss(Protocol[Predicted, Target]):
    """One value per element, before any reduction."""

    def __call__(self, prediction: Predicted, target: Target, s: Tensor, t: Tensor) -> Tensor:
        """Return the loss of a batch observed at times t, float32 [B, ...] of the data's shape.

        Args:
            prediction: of the head, from the network's output.
            target: of the process's `observe`, which also drew X_t.
            s: float64 [B], one step of the grid before t.
            t: float64 [B].
        """


@dataclass(frozen=True, kw_only=True)
class _WeightedLoss:
    """A loss with a weighting, chosen by name, and a scale that multiplies every weight."""

    weightings: ClassVar[Mapping[str, Weight]]
    weighting: str = "paper"
    scale: float = 1.0

    def __post_init__(self) -> None:
        check_name(self.weightings, self.weighting, "weighting")
        check_scale(self.scale)

    def weights(self, s: Tensor, t: Tensor) -> Tensor:
        """Return the weights of intervals (s, t), all float64 [T]."""
        return self.scale * self.weightings[self.weighting](s, t)


def check_scale(scale: float) -> None:
    """Raise ValueError unless the scale is positive."""
    ensure(scale > 0, f"the loss's scale must be positive, not {scale}")


def check_name(table: Mapping[str, object], name: str, setting: str) -> None:
    """Raise ValueError unless the value of a setting is a name in a table.

    Args:
        table: entries by name.
        name: value of a setting of the loss.
        setting: name of the setting, for the message.
    """
    ensure(name in table, f"{setting} must be one of {', '.join(table)}, not {name!r}")


def weigh(weight: Tensor, x: Tensor) -> Tensor:
    """Multiply values x [B, ...] by the weights [B] of their samples.

    References: Santos et al. 2023, Algorithm 1, where the weights are w_k.
    """
    return per_row(weight, x) * x


# --- pure death


def poisson_loss(prediction: MeanPrediction, target: Tensor) -> Tensor:
    """Return y - N log y, float32, without reduction; least over y at E[N].

    References: Santos et al. 2023, eq. 14, without its weight.

    Args:
        prediction: of a count or of a pair of counts, y and log y of shape [B, ...] or [B, 2, ...].
        target: N, integers of the same shape.
    """
    return prediction.mean.float() - target.float() * prediction.log_mean.float()


def count_loss(prediction: CountPrediction, target: Tensor) -> Tensor:
    """Return `poisson_loss` of the mean, plus -log P(N) of a distribution, float32 [B, ...].

    Both are proper scores at N = target, and the distribution does not change the mean's training.

    References: this project; checked in tests/diffusion/test_dispersed_heads.py.
    """
    loss = poisson_loss(prediction, target)
    if prediction.distribution is None:
        return loss
    return loss - prediction.distribution.log_prob(target)


def instantaneous_weight(s: Tensor, t: Tensor) -> Tensor:
    """Return the weight (t - s) q_t of the paper's instantaneous loss.

    References: Santos et al. 2023, eq. 14.
    """
    return (t - s) * torch.exp(-t)


def finite_time_weight(s: Tensor, t: Tensor) -> Tensor:
    """Return the weight q_s - q_t of the paper's finite-time loss.

    References: Santos et al. 2023, eq. 15.
    """
    return -torch.exp(-s) * torch.expm1(s - t)


COUNT_LOSS_KINDS: dict[str, Weight] = {
    "instantaneous": instantaneous_weight,
    "finite_time": finite_time_weight,
}


def keep_weight(weight: Tensor, t: Tensor) -> Tensor:
    """Return the published weight of an interval as it is.

    References: Santos et al. 2023, eqs. 14 and 15.
    """
    return weight


def likelihood_weight(weight: Tensor, t: Tensor) -> Tensor:
    """Return the weight over 1 - q_t, with which the loss is a bound on -log p.

    References: Santos et al. 2023, eqs. 64 and 70.
    """
    return weight / -torch.expm1(-t)


def growth_weight(weight: Tensor, t: Tensor) -> Tensor:
    """Return the likelihood's weight over sqrt(q_t).

    References: this project; checked in tests/diffusion/test_losses.py.
    """
    return likelihood_weight(weight, t) * torch.exp(t / 2)


COUNT_WEIGHTINGS: dict[str, Reweighting] = {
    "paper": keep_weight,
    "likelihood": likelihood_weight,
    "growth": growth_weight,
}


@component("loss")
@dataclass(frozen=True)
class CountLoss(_WeightedLoss):
    """Weighted loss y - N log y of a batch of counts observed at times t.

    References: Santos et al. 2023, eqs. 14 and 15, Algorithm 1.

    Args:
        kind: "instantaneous" or "finite_time".
        weighting: "paper", "likelihood" or "growth".
        scale: multiplies every weight; T makes the mean over uniform k the sum over the grid.

    Raises:
        ValueError: an unknown name, or a scale that is not positive; when called, a process or a
            head that is not for counts.

    Example:
        >>> loss = CountLoss()
        >>> prediction = CountPrediction(torch.tensor([[2.0]]), torch.tensor([[2.0]]).log())
        >>> s = torch.tensor([0.9], dtype=torch.float64)
        >>> t = torch.tensor([1.0], dtype=torch.float64)
        >>> loss(prediction, torch.tensor([[3]]), s, t).shape
        torch.Size([1, 1])
    """

    kind: str = "instantaneous"
    weightings: ClassVar[Mapping[str, Reweighting]] = COUNT_WEIGHTINGS

    def __post_init__(self) -> None:
        check_name(COUNT_LOSS_KINDS, self.kind, "kind")
        super().__post_init__()

    def weights(self, s: Tensor, t: Tensor) -> Tensor:
        """Return the weights of intervals (s, t), all float64 [T].

        References: Santos et al. 2023, eqs. 14 and 15; see the table above.
        """
        published_weight = COUNT_LOSS_KINDS[self.kind](s, t)
        return self.scale * COUNT_WEIGHTINGS[self.weighting](published_weight, t)

    def __call__(self, prediction: CountPrediction, target: Tensor, s: Tensor, t: Tensor) -> Tensor:
        """Return w times `count_loss`, float32 [B, ...]; s and t are float64 [B]."""
        if not isinstance(target, Tensor):
            process = getattr(target, "process", None)
            raise mismatch_error(self, process, "a process whose target is the missing count")
        if not isinstance(prediction, CountPrediction):
            raise mismatch_error(self, None, "a head that predicts the missing count")
        return weigh(self.weights(s, t).float(), count_loss(prediction, target))


# --- processes on finitely many states


@component("loss")
@dataclass(frozen=True)
class CrossEntropy:
    """-log P(X_0 | X_t) of heads that predict a distribution over levels: D3PM's auxiliary loss.

    References: Austin et al. 2021, eq. 5.

    Args:
        scale: multiplies every value.

    Raises:
        ValueError: a scale that is not positive; when called, another kind of head.
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        check_scale(self.scale)

    def __call__(
        self, prediction: CategoricalPrediction, target: Observation, s: Tensor, t: Tensor
    ) -> Tensor:
        """Return -log P(X_0 | X_t), float32 [B, ...]; s and t are float64 [B]."""
        target, prediction = _require_levels(self, prediction, target)
        log_prob = prediction.log_probs.gather(1, target.x0.long()[:, None]).squeeze(1)
        return -self.scale * log_prob.float()


@component("loss")
@dataclass(frozen=True)
class StepLoss:
    """KL(P(X_s | X_0, X_t) || the model's step), for any finite process.

    It is the variational bound of a chain's steps. The model's step is the bridge averaged over the
    predicted distribution of X_0; at s = 0 the divergence is the cross-entropy.

    References: Austin et al. 2021, eqs. 1, 4 and 5.

    Args:
        cross_entropy: weight of -log P(X_0 | X_t), D3PM's auxiliary loss, which is added.
        scale: multiplies every weight; T makes the mean over uniform k the sum over the grid.

    Raises:
        ValueError: scale is not positive or cross_entropy is negative; when called, another kind of
            process or head.
    """

    cross_entropy: float = 0.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        check_scale(self.scale)
        ensure(
            self.cross_entropy >= 0,
            f"cross_entropy must be at least 0, not {self.cross_entropy}",
        )

    def __call__(
        self, prediction: CategoricalPrediction, target: Observation, s: Tensor, t: Tensor
    ) -> Tensor:
        """Return `FiniteProcess.step_divergence`, float32 [B, ...]; s, t are float64 [B]."""
        target, prediction = _require_levels(self, prediction, target)
        requirement = "a process of finitely many states"
        process = require(target.process, FiniteProcess, self, target.process, requirement)
        loss = process.step_divergence(prediction.expected, target.x0, target.xt, s, t).float()
        if self.cross_entropy:
            loss = loss + self.cross_entropy * CrossEntropy()(prediction, target, s, t)
        return self.scale * loss


def _require_levels(
    part: object, prediction: object, target: object
) -> tuple[Observation, CategoricalPrediction]:
    """Return target and prediction of a finite process; raise ValueError for others."""
    process = getattr(target, "process", None)
    observation = require(target, Observation, part, process, "a process of finitely many states")
    requirement = "a head that predicts a distribution over levels"
    return observation, require(prediction, CategoricalPrediction, part, process, requirement)


# --- jump processes


def rate_likelihood_weight(s: Tensor, t: Tensor) -> Tensor:
    """Return t - s, the weight of an interval where times are drawn uniformly from a grid.

    Algorithm 3 multiplies by it twice, which is an error.

    References: Santos et al. 2023, eq. 72.
    """
    return t - s


def rate_paper_weight(s: Tensor, t: Tensor) -> Tensor:
    """Return (t - s) (1 - q_t), the likelihood's weight times 1 - q_t, as for pure death.

    References: Santos et al. 2023, Algorithm 3.
    """
    return (t - s) * -torch.expm1(-t)


RATE_WEIGHTINGS: dict[str, Weight] = {
    "paper": rate_paper_weight,
    "likelihood": rate_likelihood_weight,
}


def rate_loss(kappa: Tensor, rate: Tensor) -> Tensor:
    """Return kappa - lambda log kappa, elementwise float64; least over kappa at E[lambda].

    References: Santos et al. 2023, eq. 72.
    """
    return kappa - torch.special.xlogy(rate, kappa.clamp(min=TINY))


@component("loss")
@dataclass(frozen=True)
class RateLoss(_WeightedLoss):
    """The likelihood's loss of jump processes: sum over types of kappa_r - lambda_r log kappa_r.

    lambda_r are the reverse rates given X_0, kappa_r the model's. Integrated over t it is the bound
    on the negative log-likelihood, up to a constant. For a distribution over X_0 it is the score
    entropy of the rates derived from it; for absorption the cross-entropy of masked elements times
    q / (1 - q).

    References: Santos et al. 2023, eq. 72 and Algorithm 3; Campbell et al. 2022, Proposition 2;
        Shi et al. 2024 for absorption.

    Args:
        weighting: "paper" or "likelihood".
        scale: multiplies every weight; T makes the mean over uniform k the sum over the grid.

    Raises:
        ValueError: an unknown weighting, or a scale that is not positive; when called, a process
            without rates, or a prediction that they do not follow from.
    """

    weighting: str = "likelihood"
    weightings: ClassVar[Mapping[str, Weight]] = RATE_WEIGHTINGS

    def __call__(self, prediction: Prediction, target: Observation, s: Tensor, t: Tensor) -> Tensor:
        """Return w times `rate_loss`, summed over types, float32 [B, ...]; s, t are [B]."""
        requirement = "a process whose target holds the state it was observed in"
        target = require(target, Observation, self, None, requirement)
        xt = target.xt
        process = require(
            target.process, JumpProcess, self, target.process, "a process in continuous time"
        )
        prediction = require(
            prediction, process.prediction, self, process, "a head that predicts what rates need"
        )
        model_rates = process.rates(prediction.expected, xt, t)
        losses = rate_loss(model_rates, process.reverse_rates(target.x0, xt, t))
        return weigh(self.weights(s, t), losses.sum(1)).float()


@component("loss")
@dataclass(frozen=True)
class BirthDeathLoss(_WeightedLoss):
    """`RateLoss` of immigration and death, in terms of the predicted pair.

    It is the Poisson losses y - N log y of missing units and of immigrants, times their known
    factors, q and 1 over 1 - q.

    References: this project; checked in tests/verification/test_bounds_and_losses.py.

    Args:
        weighting: "paper" or "likelihood".
        scale: multiplies every weight; T makes the mean over uniform k the sum over the grid.

    Raises:
        ValueError: an unknown weighting, or a scale that is not positive; when called, another
            process.
    """

    weightings: ClassVar[Mapping[str, Weight]] = RATE_WEIGHTINGS

    def __call__(
        self, prediction: BirthDeathPrediction, target: Observation, s: Tensor, t: Tensor
    ) -> Tensor:
        """Return the sum of two weighted `poisson_loss`, float32 [B, ...]; s, t are [B]."""
        requirement = "the birth-death process, whose observations hold two numbers, and its head"
        process = getattr(target, "process", None)
        statistic = getattr(target, "statistic", None)
        pair = require(statistic, Tensor, self, process, requirement)
        prediction = require(prediction, BirthDeathPrediction, self, process, requirement)
        # per unit of time the missing are born at q / (1 - q), the immigrants leave at 1 / (1 - q)
        weight = self.weights(s, t) / -torch.expm1(-t)
        factors = torch.stack([weight * torch.exp(-t), weight], dim=1).float()
        factors = factors.view(-1, 2, *[1] * (pair.ndim - 2))
        return (factors * poisson_loss(prediction, pair)).sum(1)
