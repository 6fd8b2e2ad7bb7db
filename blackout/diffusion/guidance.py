"""Classifier-free guidance of the reverse rates, and the null label of training.

With exact predictions the reverse rates kappa of p(x) and kappa_c of p(x | c) are ratios of
probabilities, so that

    kappa^(1 - g) kappa_c^g

are those ratios for p_t(x) p_t(c | x)^g at every time t (for pure death: births at y^(1 - g)
y_c^g). A reverse run at these rates does not sample p(x) p(c | x)^g, however: the tilted
distributions of different times do not belong to one process,

    d/dtau pi = L* pi + V pi,   pi = p^(1 - g) p_c^g,
    V = sum [kappa^(1 - g) kappa_c^g - (1 - g) kappa - g kappa_c],

where L is the guided generator, and V >= 0 for g > 1.

References: Ho and Salimans 2022; Nisonoff et al. 2024, eq. 2; of V this project, checked in
    tests/verification/test_particles.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from blackout.component import component
from blackout.diffusion.predictions import NEVER, TINY, CountPrediction, Denoiser, Prediction
from blackout.diffusion.survival import check_logit_range, in_logit_range
from blackout.errors import ensure
from blackout.random import RandomSource, bernoulli
from blackout.representation import format_fields

MAX_LOG_RATE = 600.0  # of guided rates, whose sums must stay finite


@component("guidance")
@dataclass(frozen=True)
class Guidance:
    """Settings of classifier-free guidance: its scale, and the times at which it acts.

    Args:
        scale: g of the rates kappa^(1 - g) kappa_c^g; 1 is the plain conditional model, 0 the
            unconditional one.
        logit_range: (lowest, highest) logit of survival where guidance acts; None for everywhere.

    Raises:
        ValueError: a negative scale or an empty range.
    """

    scale: float = 1.0
    logit_range: Sequence[float] | None = None

    def __post_init__(self) -> None:
        ensure(self.scale >= 0, f"scale must be at least 0, not {self.scale}")
        check_logit_range(self.logit_range, "logit_range")

    def scale_at(self, t: float) -> float:
        """Return the scale at time t."""
        return self.scale if in_logit_range(self.logit_range, t) else 1.0

    def evaluations_at(self, t: float) -> int:
        """Return the number of models that are evaluated at time t."""
        return 1 if self.scale_at(t) in (0, 1) else 2


@dataclass(frozen=True)
class GuidedPair:
    """A conditional and an unconditional prediction, which a kernel combines to guided rates.

    Only counts can be guided as predictions (`guide_counts`). Rates are linear in other
    predictions, whose geometric mean would give other rates than the geometric mean of rates.

    Attributes:
        conditional: prediction given the class.
        unconditional: prediction without it.
        scale: g.
    """

    conditional: Prediction
    unconditional: Prediction
    scale: float

    @property
    def mean(self) -> Tensor:
        """The conditional mean, [B, ...], which callbacks show."""
        return self.conditional.mean

    @property
    def expected(self) -> Tensor:
        """The conditional mean in float64, [B, ...]."""
        return self.conditional.expected

    @property
    def both(self) -> tuple[Prediction, Prediction]:
        """(conditional, unconditional)."""
        return self.conditional, self.unconditional

    def tilt(self, conditional: Tensor, unconditional: Tensor) -> Tensor:
        """Return guided rates or probabilities a^(1 - g) a_c^g, float64; 0 where a_c is 0.

        References: Nisonoff et al. 2024, eq. 2.
        """
        log_unconditional = unconditional.clamp(min=TINY).log()
        log_conditional = conditional.clamp(min=TINY).log()
        log_tilted = (1 - self.scale) * log_unconditional + self.scale * log_conditional
        return torch.where(conditional > 0, log_tilted.clamp(max=MAX_LOG_RATE).exp(), 0.0)


@dataclass(frozen=True)
class GuidedCount(CountPrediction):
    """The geometric mean of two predicted counts; it has no distribution."""

    __repr__ = format_fields


def guide_counts(
    conditional: CountPrediction, unconditional: CountPrediction, scale: float, headroom: Tensor
) -> GuidedCount:
    """Return the guided count y^(1 - g) y_c^g, clipped to the units that can be missing.

    For pure death these are the guided rates, up to their known factor of time. A predicted
    distribution has no such mean and is left out.

    References: Nisonoff et al. 2024, eq. 2.

    Args:
        conditional: y_c = y(x | c), [B, ...].
        unconditional: y = y(x), [B, ...].
        scale: g.
        headroom: max_count - x, int64 [B, ...].
    """
    log_unconditional = unconditional.log_mean.double()
    log_guided = (1 - scale) * log_unconditional + scale * conditional.log_mean.double()
    log_headroom = torch.log(headroom.double())
    log_mean = torch.where(headroom > 0, torch.minimum(log_guided, log_headroom), NEVER)
    mean = torch.exp(log_mean).to(conditional.mean.dtype)
    return GuidedCount(mean, log_mean)


@dataclass(frozen=True)
class GuidedDenoiser:
    """A denoiser whose reverse rates are kappa^(1 - g) kappa_c^g, at twice the cost of one.

    References: Nisonoff et al. 2024, eq. 2.

    Args:
        conditional: denoiser of p(x | c).
        unconditional: denoiser of p(x).
        guidance: g and where it acts; elsewhere the model is the conditional one. A scale of 0 is
            the unconditional model, 1 the conditional one, exactly and without evaluating the
            other.
        max_count: largest count.
    """

    conditional: Denoiser
    unconditional: Denoiser
    guidance: Guidance
    max_count: int

    def __call__(self, xt: Tensor, t: Tensor) -> Prediction:
        """Return the guided count for predictions of counts, else the pair for a kernel to guide.

        See `guide_counts` and `GuidedPair.tilt`.

        Args:
            xt: states [B, ...].
            t: time, a scalar.
        """
        scale = self.guidance.scale_at(float(t))
        if scale == 1:
            return self.conditional(xt, t)
        if scale == 0:
            return self.unconditional(xt, t)
        conditional = self.conditional(xt, t)
        unconditional = self.unconditional(xt, t)
        if isinstance(conditional, CountPrediction) and isinstance(unconditional, CountPrediction):
            headroom = self.max_count - xt.to(torch.int64)
            return guide_counts(conditional, unconditional, scale, headroom)
        return GuidedPair(conditional, unconditional, scale)


def start_mean(
    data_mean: Tensor,
    class_mean: Tensor | None,
    classes: Tensor | None,
    scale: float = 1.0,
    largest: float = inf,
) -> Tensor:
    """Return mu^(1 - g) mu_c^g, the mean of the Poisson start of guided samples.

    It is the guided prediction of the missing count at late times, where X_t has no information.

    References: this project; checked in tests/diffusion/test_class_means.py.

    Args:
        data_mean: mu = E[X_0], positive, [*shape].
        class_mean: E[X_0 | class], positive, [num_classes, *shape]; None if it is not known.
        classes: int64 [B], or None for samples of all classes.
        scale: g.
        largest: where a guided mean is clipped, as guided predictions are.

    Returns:
        [B, *shape], or `data_mean` itself if there are no classes or scale is 0.
    """
    if classes is None or class_mean is None or scale == 0:
        return data_mean
    conditional = class_mean[classes]
    if scale == 1:
        return conditional
    log_guided = (1 - scale) * torch.log(data_mean) + scale * torch.log(conditional)
    return torch.exp(log_guided).clamp(max=largest)


def check_classes(classes: Tensor, num_samples: int, num_classes: int | None) -> None:
    """Raise ValueError unless classes are int64 numbers below num_classes, one per sample."""
    if num_classes is None:
        raise ValueError("this model was trained without classes: leave classes out")
    if classes.dtype != torch.int64 or tuple(classes.shape) != (num_samples,):
        raise ValueError(
            f"classes must be {num_samples} int64 numbers, "
            f"not {classes.dtype} {tuple(classes.shape)}"
        )
    if num_samples and not 0 <= int(classes.min()) <= int(classes.max()) < num_classes:
        values = f"{int(classes.min())}..{int(classes.max())}"
        raise ValueError(f"classes must be in 0..{num_classes - 1}, not {values}")


def drop_labels(classes: Tensor, null: int, share: float, generator: RandomSource = None) -> Tensor:
    """Return labels, int64 [B], with a random share replaced by the null label.

    One network is thereby trained with and without classes.

    References: Ho and Salimans 2022, Algorithm 1.
    """
    probability = torch.full(classes.shape, share, dtype=torch.float64, device=classes.device)
    return torch.where(bernoulli(probability, generator), null, classes)
