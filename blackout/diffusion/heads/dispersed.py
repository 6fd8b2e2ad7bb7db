"""Heads that predict more than the mean: the variance of the missing count, or its whole distribution.

Both wrap another head, read the outputs behind its own, and are trained together with it; the mean's loss, and with it
every likelihood bound, stays what it was.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from blackout.diffusion.heads.base import Head
from blackout.diffusion.heads.counts import log_softplus
from blackout.diffusion.predictions import CountPrediction, DistributionPrediction, MissingCount, VariancePrediction
from blackout.diffusion.processes.base import expand_time
from blackout.random import RandomSource, uniform

_UNIT_SOFTPLUS = math.log(math.expm1(1.0))
"""softplus of this is 1."""


@dataclass(frozen=True)
class VarianceHead:
    """A head for the mean, and the dispersion F = Var[N | X_t] / y = softplus(f).

    Args:
        base: the head for the mean; it reads the first outputs.
    """

    base: Head[CountPrediction]

    @property
    def outputs(self) -> int:
        """The mean's, and one more."""
        return self.base.outputs + 1

    def __call__(self, raw: Tensor, xt: Tensor, t: Tensor) -> VariancePrediction:
        rest = self.base(raw, xt, t)
        f = raw[:, self.base.outputs].float() + _UNIT_SOFTPLUS
        # the variance is scored around the mean, but must not move it
        y, log_y = rest.mean.detach(), rest.log_mean.detach()
        log_variance = log_y + log_softplus(f)
        return VariancePrediction(
            rest.mean, rest.log_mean, y * F.softplus(f), rest.distribution, log_variance=log_variance, rest=rest
        )


@dataclass(frozen=True)
class LogisticMixture:
    """A mixture of logistics cut into the whole numbers 0..largest (Salimans et al. 2017, PixelCNN++).

    Component j gives N = n the mass between n - 1/2 and n + 1/2; the ends take what lies beyond them.

    Args:
        log_weight, location, log_scale: float32 [B, K, ...].
        largest: int64 [B, ...], the largest possible N.
    """

    log_weight: Tensor
    location: Tensor
    log_scale: Tensor
    largest: Tensor

    def log_prob(self, missing: Tensor) -> Tensor:
        """log P(N = missing): float32, shape of the integers `missing`."""
        # single precision has no halves beyond 2^23
        n, location = missing.double().unsqueeze(1), self.location.double()
        inverse = torch.exp(-self.log_scale)
        above, below = (n + 0.5 - location).float() * inverse, (n - 0.5 - location).float() * inverse
        # sigma(a) - sigma(b) = sigma(a) sigma(-b) (1 - e^(b - a)): no cancellation
        last, first = n >= self.largest.unsqueeze(1), n <= 0
        log_mass = (
            torch.where(last, 0.0, F.logsigmoid(above))
            + torch.where(first, 0.0, F.logsigmoid(-below))
            + torch.where(first | last, 0.0, torch.log(-torch.expm1(-inverse)))
        )
        return torch.logsumexp(self.log_weight + log_mass, dim=1)

    def sample(self, generator: RandomSource = None) -> Tensor:
        """A draw of N, int64 [B, ...]: first its component, then its quantile there."""
        shape, device = tuple(self.largest.shape), self.largest.device
        pick, quantile = (uniform(shape, generator, device).clamp_(1e-16, 1 - 1e-16) for _ in range(2))
        passed = torch.cumsum(torch.exp(self.log_weight.double()), dim=1) < pick.unsqueeze(1)
        chosen = passed.sum(1, keepdim=True).clamp(max=self.log_weight.shape[1] - 1)
        location = self.location.gather(1, chosen).squeeze(1).double()
        scale = torch.exp(self.log_scale.gather(1, chosen).squeeze(1).double())
        drawn = torch.round(location + scale * torch.logit(quantile))
        return torch.minimum(drawn.clamp(min=0.0), self.largest.double()).to(torch.int64)


@dataclass(frozen=True)
class LogisticMixtureHead:
    """A head for the mean, and a mixture of logistics for the distribution of the missing count.

    Locations and scales are in units of sqrt((1 - q) mean + (1 - q)^2 std^2), about the missing count's own spread,
    and locations are relative to the predicted mean, so that the network's outputs are O(1) at every t.

    Args:
        base: the head for the mean; it reads the first outputs.
        max_count: largest count.
        mean: of X_0 over data and elements, in counts.
        std: of X_0 over data and elements, in counts.
        components: logistics per element.

    Raises:
        ValueError: no component, or a spread that is not positive.
    """

    base: Head[CountPrediction]
    max_count: int
    mean: float
    std: float
    components: int = 4

    def __post_init__(self) -> None:
        if self.components < 1:
            raise ValueError(f"the mixture needs at least 1 component, not {self.components}")
        if not (self.mean > 0 and self.std >= 0):
            raise ValueError(f"the mixture needs a positive mean count and a std, not {self.mean} and {self.std}")

    @property
    def outputs(self) -> int:
        """The mean's, and a weight, a location and a scale per component."""
        return self.base.outputs + 3 * self.components

    def __call__(self, raw: Tensor, xt: Tensor, t: Tensor) -> DistributionPrediction:
        rest = self.base(raw, xt, t)
        distribution = self.distribution(raw, xt, t, rest.mean)
        return DistributionPrediction(rest.mean, rest.log_mean, rest.variance, distribution, rest=rest)

    def distribution(self, raw: Tensor, xt: Tensor, t: Tensor, y: Tensor) -> MissingCount:
        """The distribution alone, given the mean y [B, ...]."""
        weight, shift, width = raw[:, self.base.outputs : self.outputs].float().chunk(3, dim=1)
        decayed = -torch.expm1(-expand_time(t, y)).expand(y.shape)
        spread = torch.sqrt(decayed * self.mean + (decayed * self.std) ** 2).float().unsqueeze(1)
        # components that start at one location would stay there
        start = torch.linspace(-1, 1, self.components, device=raw.device) if self.components > 1 else raw.new_zeros(1)
        shift = shift + start.view(-1, *[1] * (y.ndim - 1))
        return LogisticMixture(
            F.log_softmax(weight, dim=1),
            y.detach().unsqueeze(1) + spread * shift,
            torch.log(spread) + torch.log(F.softplus(width) + 0.02),
            self.max_count - xt.to(torch.int64),
        )
