"""Classifier-free guidance of the reverse rates, and the null label that takes the place of some classes in training.

With exact predictions the reverse rates kappa of p(x) and kappa_c of p(x | c) are ratios of probabilities, so that

    kappa^(1 - g) kappa_c^g

are those ratios for p_t(x) p_t(c | x)^g at every time t (for pure death: births at y^(1 - g) y_c^g). Walking back at
these rates does not sample p(x) p(c | x)^g for all that: the tilted laws of different times are not one process's,

    d/dtau pi = L* pi + V pi,   pi = p^(1 - g) p_c^g,   V = sum [kappa^(1 - g) kappa_c^g - (1 - g) kappa - g kappa_c],

where L is the guided generator, and V >= 0 for g > 1 (tests/verification/test_particle_laws.py).
Guided rates: [Nisonoff 2024]; classifier-free guidance: [Ho 2022].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from blackout.component import component
from blackout.diffusion.predictions import NEVER, TINY, CountPrediction, Denoiser, Prediction
from blackout.diffusion.schedules import check_range, in_range
from blackout.errors import ensure
from blackout.random import RandomSource, bernoulli

_LARGEST = 600.0
"""Of logarithms of rates: their sums must stay finite."""


@component("guidance")
@dataclass(frozen=True)
class Guidance:
    """How strongly and where samples are guided towards their class.

    Args:
        scale: g of the rates kappa^(1 - g) kappa_c^g; 1 is the plain conditional model, 0 the unconditional one.
        between: (lowest, highest) logit of survival where guidance acts; None for everywhere.

    Raises:
        ValueError: a negative scale or an empty range.
    """

    scale: float = 1.0
    between: Sequence[float] | None = None

    def __post_init__(self) -> None:
        ensure(self.scale >= 0, f"scale must not be negative, not {self.scale}")
        check_range(self.between, "between")

    def scale_at(self, t: float) -> float:
        """Return the scale at time t."""
        return self.scale if in_range(self.between, t) else 1.0

    def evaluations_at(self, t: float) -> int:
        """Return the number of models that are evaluated at time t."""
        return 1 if self.scale_at(t) in (0, 1) else 2


@dataclass(frozen=True)
class GuidedPair:
    """Two predictions whose rates, or whose steps' distributions, are to be guided by whoever makes them.

    A prediction other than a count is not guided itself: the rates are linear in it, and its geometric mean gives
    other rates than the geometric mean of rates.

    Attributes:
        conditional, unconditional: given and not given the class.
        scale: g.
    """

    conditional: Prediction
    unconditional: Prediction
    scale: float

    @property
    def mean(self) -> Tensor:
        """The conditional one, [B, ...], for callbacks that show predictions."""
        return self.conditional.mean

    @property
    def expected(self) -> Tensor:
        """The same in float64, [B, ...]."""
        return self.conditional.expected

    @property
    def both(self) -> tuple[Prediction, Prediction]:
        """(conditional, unconditional)."""
        return self.conditional, self.unconditional

    def tilt(self, conditional: Tensor, unconditional: Tensor) -> Tensor:
        """a^(1 - g) a_c^g of rates [Nisonoff 2024] or probabilities, of any shape, float64; 0 where a_c is."""
        log = (1 - self.scale) * unconditional.clamp(min=TINY).log() + self.scale * conditional.clamp(min=TINY).log()
        return torch.where(conditional > 0, log.clamp(max=_LARGEST).exp(), 0.0)


@dataclass(frozen=True)
class GuidedCount(CountPrediction):
    """The geometric mean of two predicted counts."""


def guided(conditional: CountPrediction, unconditional: CountPrediction, scale: float, headroom: Tensor) -> GuidedCount:
    """The geometric mean y^(1 - g) y_c^g, formed from the logarithms and clipped to what can be missing.

    For pure death these are the guided rates [Nisonoff 2024], up to their known factor of time.

    A distribution has no such mean and is left out.

    Args:
        conditional, unconditional: y(x | c) and y(x), [B, ...].
        scale: g.
        headroom: max_count - x, int64 [B, ...].
    """
    log_guided = (1 - scale) * unconditional.log_mean.double() + scale * conditional.log_mean.double()
    log_mean = torch.where(headroom > 0, torch.minimum(log_guided, torch.log(headroom.double())), NEVER)
    mean = torch.exp(log_mean).to(conditional.mean.dtype)
    return GuidedCount(mean, log_mean)


@dataclass(frozen=True)
class GuidedDenoiser:
    """A denoiser whose reverse rates are kappa^(1 - g) kappa_c^g, at twice the cost of one.

    References: Nisonoff et al. 2024.

    Args:
        conditional, unconditional: denoisers of p(x | c) and p(x).
        guidance: g and where it acts; elsewhere the model is the conditional one. A scale of 0 is the unconditional
            model, 1 the conditional one, exactly and without the other's evaluation.
        max_count: largest count.
    """

    conditional: Denoiser
    unconditional: Denoiser
    guidance: Guidance
    max_count: int

    def __call__(self, xt: Tensor, t: Tensor) -> Prediction:
        """The guided count [B, ...] of states xt [B, ...] at t, a scalar, where counts are predicted, else the pair to
        guide.

        See `guided` and `GuidedPair.tilt`.
        """
        scale = self.guidance.scale_at(float(t))
        if scale == 1:
            return self.conditional(xt, t)
        if scale == 0:
            return self.unconditional(xt, t)
        conditional = self.conditional(xt, t)
        unconditional = self.unconditional(xt, t)
        if isinstance(conditional, CountPrediction) and isinstance(unconditional, CountPrediction):
            return guided(conditional, unconditional, scale, self.max_count - xt.to(torch.int64))
        return GuidedPair(conditional, unconditional, scale)


def start_mean(
    mean: Tensor, class_mean: Tensor | None, classes: Tensor | None, scale: float = 1.0, largest: float = inf
) -> Tensor:
    """mu^(1 - g) mu_c^g: what is missing at the dark end, where X_t tells nothing, and so where guided samples start.

    Ours (tests/diffusion/test_class_starts.py).

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
    """Labels, int64 [B], with a random share replaced by the null label, to train both models at once [Ho 2022]."""
    dropped = bernoulli(torch.full(classes.shape, share, dtype=torch.float64, device=classes.device), generator)
    return torch.where(dropped, null, classes)
