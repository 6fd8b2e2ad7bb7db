"""Class conditioning: classifier-free guidance as a geometric mean of counts, and the null label it needs.

With exact counts y_i(x | c) / y_i(x) = p(c | x + e_i) / p(c | x), e_i one unit more in element i. Births at the rates
of p(x) p(c | x)^g are therefore

    y_g = y(x)^(1 - g) y(x | c)^g.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from blackout.diffusion.predictions import CountPrediction, Denoiser, Prediction
from blackout.diffusion.schedules import check_range, in_range
from blackout.random import RandomSource, bernoulli


@dataclass(frozen=True)
class Guidance:
    """How strongly and where samples are guided towards their class.

    Args:
        scale: of p(x) p(c | x)^scale; 1 is the plain conditional model, 0 the unconditional one.
        between: (lowest, highest) logit of survival where guidance acts; None for everywhere.

    Raises:
        ValueError: a negative scale, or an empty range.
    """

    scale: float = 1.0
    between: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if not self.scale >= 0:
            raise ValueError(f"guidance must not be negative, not {self.scale}")
        check_range(self.between, "guidance_between")

    def doubles(self, t: float) -> bool:
        """Whether both models are evaluated at time t."""
        return self.scale not in (0, 1) and in_range(self.between, t)

    def at(self, t: float) -> float:
        """The scale at time t."""
        return self.scale if in_range(self.between, t) else 1.0


def guided(
    conditional: CountPrediction, unconditional: CountPrediction, scale: float, headroom: Tensor
) -> CountPrediction:
    """The geometric mean, formed from the logarithms and clipped to what can be missing.

    A variance keeps the conditional's ratio to the mean; a distribution has no such mean and is left out.

    Args:
        conditional, unconditional: y(x | c) and y(x), [B, ...].
        scale: g.
        headroom: max_count - x, int64 [B, ...].
    """
    log_mean = (1 - scale) * unconditional.log_mean + scale * conditional.log_mean
    mean = torch.minimum(torch.exp(log_mean), headroom.to(log_mean.dtype))
    variance = conditional.variance
    if variance is not None:
        variance = variance * (mean / conditional.mean.clamp(min=1e-30))
    return CountPrediction(mean, torch.minimum(log_mean, torch.log(headroom.clamp(min=1).to(log_mean.dtype))), variance)


@dataclass(frozen=True)
class GuidedDenoiser:
    """A denoiser of p(x) p(c | x)^scale, at twice the cost of the conditional one.

    Args:
        conditional, unconditional: denoisers of p(x | c) and p(x).
        scale: 0 is the unconditional model, 1 the conditional one, exactly and without the other's evaluation.
        max_count: largest count.
        between: (lowest, highest) logit of survival where guidance acts; elsewhere the model is the conditional one.

    Raises:
        ValueError: when called, predictions of something else than missing counts.
    """

    conditional: Denoiser
    unconditional: Denoiser
    scale: float
    max_count: int
    between: Sequence[float] | None = None

    def __call__(self, xt: Tensor, t: Tensor) -> Prediction:
        if self.scale == 1 or not in_range(self.between, float(t)):
            return self.conditional(xt, t)
        if self.scale == 0:
            return self.unconditional(xt, t)
        conditional, unconditional = self.conditional(xt, t), self.unconditional(xt, t)
        if not (isinstance(conditional, CountPrediction) and isinstance(unconditional, CountPrediction)):
            raise ValueError("guidance is known for predictions of the missing count, as of process=pure_death, only")
        return guided(conditional, unconditional, self.scale, self.max_count - xt.to(torch.int64))


def start_mean(
    mean: Tensor, class_mean: Tensor | None, classes: Tensor | None, scale: float = 1.0, largest: float = inf
) -> Tensor:
    """mu^(1 - g) mu_c^g: what is missing at the dark end, where X_t tells nothing, and so where guided samples start.

    Args:
        mean: mu = E[X_0], positive, [*shape].
        class_mean: E[X_0 | class], positive, [num_classes, *shape]; None where it is not known.
        classes: int64 [B], or None for samples of all classes.
        scale: g.
        largest: where a guided mean is clipped, as guided predictions are.

    Returns:
        [B, *shape], or the mean itself where there are no classes or scale is 0.
    """
    if classes is None or class_mean is None or scale == 0:
        return mean
    of_class = class_mean[classes]
    if scale == 1:
        return of_class
    return torch.exp((1 - scale) * torch.log(mean) + scale * torch.log(of_class)).clamp(max=largest)


def check_classes(classes: Tensor, num_samples: int, num_classes: int | None) -> None:
    """Raises ValueError unless classes is an int64 vector of num_samples numbers below num_classes."""
    if num_classes is None:
        raise ValueError("this model was trained without classes")
    if classes.dtype != torch.int64 or tuple(classes.shape) != (num_samples,):
        raise ValueError(f"classes must be {num_samples} int64 numbers, not {classes.dtype} {tuple(classes.shape)}")
    if num_samples and not 0 <= int(classes.min()) <= int(classes.max()) < num_classes:
        raise ValueError(f"classes must be in 0..{num_classes - 1}")


def drop_labels(classes: Tensor, null: int, share: float, generator: RandomSource = None) -> Tensor:
    """Labels, int64 [B], with a random share of them replaced by the null label, to train both models at once."""
    dropped = bernoulli(torch.full(classes.shape, share, dtype=torch.float64, device=classes.device), generator)
    return torch.where(dropped, null, classes)
