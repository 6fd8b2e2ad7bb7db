"""Class conditioning: classifier-free guidance as a geometric mean of counts, and the null label it needs.

With exact counts y_i(x | c) / y_i(x) = p(c | x + e_i) / p(c | x), e_i one unit more in element i. Births at the rates
of p(x) p(c | x)^g are therefore

    y_g = y(x)^(1 - g) y(x | c)^g.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from blackout.diffusion.counts import bernoulli
from blackout.diffusion.heads import Prediction
from blackout.diffusion.kernels import Denoiser
from blackout.diffusion.samplers import in_range
from blackout.diffusion.streams import RandomSource


def guided(conditional: Prediction, unconditional: Prediction, scale: float, room: Tensor) -> Prediction:
    """The geometric mean, formed from the logarithms and clipped to [0, room].

    A variance keeps the conditional's ratio to the mean; a distribution has no such mean and is left out.
    """
    log_mean = (1 - scale) * unconditional.log_mean + scale * conditional.log_mean
    mean = torch.minimum(torch.exp(log_mean), room.to(log_mean.dtype))
    variance = conditional.variance
    if variance is not None:
        variance = variance * (mean / conditional.mean.clamp(min=1e-30))
    return Prediction(mean, torch.minimum(log_mean, torch.log(room.clamp(min=1).to(log_mean.dtype))), variance)


@dataclass(frozen=True)
class GuidedDenoiser:
    """A denoiser of p(x) p(c | x)^scale, at twice the cost of the conditional one.

    Args:
        conditional, unconditional: denoisers of p(x | c) and p(x).
        scale: 0 is the unconditional model, 1 the conditional one, exactly and without the other's evaluation.
        max_count: largest count.
        between: (lowest, highest) logit of survival where guidance acts; elsewhere the model is the conditional one.
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
        room = self.max_count - xt.to(torch.int64)
        return guided(self.conditional(xt, t), self.unconditional(xt, t), self.scale, room)


def check_classes(classes: Tensor, num_samples: int, num_classes: int | None) -> None:
    """Raises ValueError unless classes is an int64 vector of num_samples numbers below num_classes."""
    if num_classes is None:
        raise ValueError("this model was trained without classes")
    if classes.dtype != torch.int64 or tuple(classes.shape) != (num_samples,):
        raise ValueError(f"classes must be {num_samples} int64 numbers, not {classes.dtype} {tuple(classes.shape)}")
    if num_samples and not 0 <= int(classes.min()) <= int(classes.max()) < num_classes:
        raise ValueError(f"classes must be in 0..{num_classes - 1}")


def drop_labels(classes: Tensor, null: int, share: float, generator: RandomSource = None) -> Tensor:
    """Labels [B] with a random share of them replaced by the null label, for training both models at once."""
    dropped = bernoulli(torch.full(classes.shape, share, dtype=torch.float64, device=classes.device), generator)
    return torch.where(dropped, null, classes)
