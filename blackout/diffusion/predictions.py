"""Predictions of X_0 given X_t: one kind per kind of process.

Every process has a statistic of X_0 and X_t in which the rates of its reverse jumps are linear. A
prediction is the conditional mean of that statistic, and a process names its kind
(`Process.prediction`):

    CountPrediction         missing count N = X_0 - X_t          [B, ...]      pure death
    BirthDeathPrediction    (X_0 - survivors S, immigrants I)    [B, 2, ...]   immigration and death
    CategoricalPrediction   X_0 one-hot: P(X_0 = . | X_t)        [B, S, ...]   finitely many states

References: Santos et al. 2023, section 2.4 and appendix G; Campbell et al. 2022, Proposition 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor

from blackout.random import RandomSource
from blackout.representation import format_fields


class Prediction(Protocol):
    """Protocol of a prediction: the conditional mean of a statistic, float32 and float64."""

    @property
    def mean(self) -> Tensor:
        """E[statistic | X_t] in the network's precision, float32, for training losses."""

    @property
    def expected(self) -> Tensor:
        """E[statistic | X_t] from its logarithm, float64, for kernels and bounds.

        A mean and a logarithm that are rounded separately in float32 do not belong to one Poisson
        distribution: at 2^31 counts its log probabilities are off by hundreds of nats.
        """


# (xt [B, ...], t float64 scalar or [B]) -> prediction given X_t
Denoiser: TypeAlias = Callable[[Tensor, Tensor], Prediction]
Kind = TypeVar("Kind")

TINY = 1e-300  # probabilities and rates are at least this before their logarithm is taken
NEVER = -1e4  # log of a mean of 0: finite, so that 0 births times it are 0; e^NEVER = 0 in float64


class MissingCount(Protocol):
    """Protocol of a distribution of the missing count N = X_0 - X_t, independent per element."""

    def log_prob(self, missing: Tensor) -> Tensor:
        """Return log P(N = missing), float32 of the shape of the integers `missing`."""

    def sample(self, generator: RandomSource = None) -> Tensor:
        """Draw N, int64, at most max_count - X_t."""


@dataclass(frozen=True)
class MeanPrediction:
    """The mean of one or two numbers of units, with its logarithm.

    Attributes:
        mean: float32 >= 0.
        log_mean: its logarithm, finite where the mean underflows.
    """

    mean: Tensor
    log_mean: Tensor

    __repr__ = format_fields

    @property
    def expected(self) -> Tensor:
        """The mean in float64, of its shape, from `log_mean`."""
        return self.log_mean.double().exp()


class BirthDeathPrediction(MeanPrediction):
    """E[(X_0 - S, I) | X_t], the means of the pair of `BirthDeath`, [B, 2, ...]."""


@dataclass(frozen=True)
class CountPrediction(MeanPrediction):
    """y = E[N | X_t] of the missing count N = X_0 - X_t, of the data's shape [B, ...].

    References: Santos et al. 2023, eq. 14.

    Attributes:
        distribution: of N, from heads that predict it.
    """

    distribution: MissingCount | None = None

    __repr__ = format_fields


@dataclass(frozen=True)
class CategoricalPrediction:
    """A distribution over the data levels, in every element.

    Attributes:
        log_probs: log P(X_0 = o | X_t) for every level o = 0..S - 1, S = max_count + 1, float32
            [B, S, ...].
    """

    log_probs: Tensor

    __repr__ = format_fields

    @property
    def mean(self) -> Tensor:
        """P(X_0 = o | X_t), float32 [B, S, ...], which is E[X_0 | X_t] for one-hot X_0."""
        return torch.exp(self.log_probs)

    @property
    def expected(self) -> Tensor:
        """P(X_0 = o | X_t), float64 [B, S, ...]."""
        return self.log_probs.double().exp()


def require(
    value: object, kind: type[Kind], part: object, process: object, requirement: str
) -> Kind:
    """Return `value`, after checking that it is of the class that a component needs.

    Args:
        value: a prediction, a target or a process.
        kind: its class.
        part: the component that needs it, for the message.
        process: the process it is used with, for the message; None if that is not known.
        requirement: what the part needs, in words.

    Raises:
        ValueError: `value` is of another kind.
    """
    if isinstance(value, kind):
        return value
    raise mismatch_error(part, process, requirement)


def mismatch_error(part: object, process: object, requirement: str) -> ValueError:
    """Return the error for a component that does not fit a process or a head; see `require`."""
    name = "this process" if process is None else f"the process {type(process).__name__}"
    return ValueError(
        f"{type(part).__name__} does not fit {name} with this head: it needs {requirement}; "
        "`process=` alone chooses head, loss and sampler that do"
    )


class PredictedProcess(Protocol):
    """Protocol of a process that names the kind of prediction its rates need."""

    @property
    def prediction(self) -> type[Prediction]:
        """Class of its predictions."""


def predict_statistic(denoiser: Denoiser, process: PredictedProcess, xt: Tensor, t: Tensor) -> Any:
    """Evaluate the denoiser, and check that its prediction is of the kind that the process needs.

    Raises:
        ValueError: it is of another kind.
    """
    prediction = denoiser(xt, t)
    kind = process.prediction
    if isinstance(prediction, kind):
        return prediction
    raise ValueError(
        f"the likelihood bound of the process {type(process).__name__} needs a {kind.__name__}, "
        f"not the head's {type(prediction).__name__}"
    )
