"""What a head says about X_0 given X_t: one kind of prediction per kind of process.

Every process has a statistic of X_0 and X_t in which the rates of its reverse jumps are linear; a prediction is the
conditional mean of that statistic, and a process names its kind (`Process.prediction`):

    CountPrediction         N = X_0 - X_t, the missing count           [B, ...]      pure death
    BirthDeathPrediction    (X_0 - S, I), survivors S, immigrants I    [B, 2, ...]   immigration and death
    CategoricalPrediction   X_0 one-hot: P(X_0 = . | X_t)              [B, S, ...]   finitely many states
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor

from blackout.random import RandomSource


class Prediction(Protocol):
    """The conditional mean of a process's statistic, as a kernel and as a likelihood bound need it."""

    @property
    def mean(self) -> Tensor:
        """E[statistic | X_t] in the network's precision, float32: what training losses compare."""

    @property
    def expected(self) -> Tensor:
        """The same from its logarithm, float64: what kernels draw from and bounds are of.

        Both rounded apart in float32 are no Poisson law: at 2^31 counts its sum is off by hundreds of nats.
        """


Denoiser: TypeAlias = Callable[[Tensor, Tensor], Prediction]
"""(xt [B, ...], t float64 scalar or [B]) -> prediction given X_t."""
Kind = TypeVar("Kind")
TINY = 1e-300
"""What probabilities and rates are raised to before their logarithm is taken."""
NEVER = -1e4
"""The logarithm of a mean of 0: finite, so that no births times it are 0, and 0 when it is exponentiated in float64."""


class MissingCount(Protocol):
    """A distribution of N = X_0 - X_t for every element, independent of one another."""

    def log_prob(self, missing: Tensor) -> Tensor:
        """log P(N = missing): float32, shape of the integers `missing`."""

    def sample(self, generator: RandomSource = None) -> Tensor:
        """A draw of N, int64, at most max_count - X_t."""


@dataclass(frozen=True)
class MeanPrediction:
    """The mean of one or two numbers of units, with its logarithm.

    Attributes:
        mean: float32 >= 0.
        log_mean: its logarithm, finite where the mean underflows.
    """

    mean: Tensor
    log_mean: Tensor

    @property
    def expected(self) -> Tensor:
        """The mean in float64, of its shape: the exponential of `log_mean`. Ours (tests/diffusion/test_sampling.py)."""
        return self.log_mean.double().exp()


class BirthDeathPrediction(MeanPrediction):
    """E[(X_0 - S, I) | X_t], the means of the pair of `BirthDeath`, [B, 2, ...]."""


@dataclass(frozen=True)
class CountPrediction(MeanPrediction):
    """What is predicted of N = X_0 - X_t, of the data's shape [B, ...]: y = E[N | X_t].

    Attributes:
        distribution: that of N, from heads that predict it.
    """

    distribution: MissingCount | None = None


@dataclass(frozen=True)
class CategoricalPrediction:
    """A distribution over the data levels, in every element.

    Attributes:
        log_probs: log P(X_0 = o | X_t) for every level o = 0..S - 1, S = max_count + 1, float32 [B, S, ...].
    """

    log_probs: Tensor

    @property
    def mean(self) -> Tensor:
        """P(X_0 = o | X_t), float32 [B, S, ...]: E of X_0 as a one-hot vector, the exponential of `log_probs`."""
        return torch.exp(self.log_probs)

    @property
    def expected(self) -> Tensor:
        """P(X_0 = o | X_t), float64 [B, S, ...], the exponential of `log_probs`."""
        return self.log_probs.double().exp()


def require(value: object, kind: type[Kind], part: object, process: object, needed: str) -> Kind:
    """`value`, if it is what a kernel, corrector or loss can work with.

    Args:
        value: a prediction, a target or a process.
        kind: its class.
        part: the component that needs it; like the rest for the message.
        process: the process it is used with, None if that is not known.
        needed: what it needs, in words.

    Raises:
        ValueError: it is of another kind.
    """
    if isinstance(value, kind):
        return value
    raise misfit(part, process, needed)


def misfit(part: object, process: object, needed: str) -> ValueError:
    """What is raised where a part does not fit a process or a head: see `require`."""
    which = "this process" if process is None else f"the process {type(process).__name__}"
    return ValueError(
        f"{type(part).__name__} does not fit {which} with this head: it needs {needed}; "
        "`process=` alone chooses head, loss and sampler that do"
    )
