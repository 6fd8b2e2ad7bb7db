"""A head for the distribution of the missing count: a mixture of discretised logistics."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from blackout.component import Stats, component
from blackout.counts import per_row
from blackout.diffusion.heads.base import Head
from blackout.diffusion.heads.discretised_logistic import log_logistic
from blackout.diffusion.heads.gamma import choose_elementwise_posterior
from blackout.diffusion.predictions import CountPrediction
from blackout.errors import ensure
from blackout.random import RandomSource, categorical, uniform
from blackout.representation import format_fields

MIN_QUANTILE = 1e-16  # draws of a logistic distribution are finite
MIN_MEAN = 0.01  # floor of y in the scale of a logistic, so that the scale stays positive
MIN_WIDTH = 0.02  # of a logistic, in standard deviations of the count's posterior


@dataclass(frozen=True)
class LogisticMixture:
    """A mixture of logistic distributions, discretised to the whole numbers 0..largest.

    Each component gives N = n its mass between n - 1/2 and n + 1/2; 0 and `largest` also take the
    mass that lies beyond them.

    References: Salimans et al. 2017, section 2.1.

    Args:
        log_weight, location, log_scale: of K components, float32 [B, K, ...].
        largest: int64 [B, ...], the largest possible N.
    """

    log_weight: Tensor
    location: Tensor
    log_scale: Tensor
    largest: Tensor

    __repr__ = format_fields

    def log_prob(self, missing: Tensor) -> Tensor:
        """Return log P(N = missing), float32 [B, ...], for integers of this shape."""
        # float64: float32 cannot represent half-integers above 2^23
        n = missing.double().unsqueeze(1)
        location = self.location.double()
        log_mass = log_logistic(n, location, self.log_scale, self.largest.unsqueeze(1))
        return torch.logsumexp(self.log_weight + log_mass, dim=1)

    def sample(self, generator: RandomSource = None) -> Tensor:
        """Draw N, int64 [B, ...]: first its component, then a quantile of it, rounded."""
        weight = torch.exp(self.log_weight.double()).movedim(1, -1)
        component = categorical(weight, generator).unsqueeze(1)
        quantile = uniform(tuple(self.largest.shape), generator, self.largest.device)
        quantile = quantile.clamp_(MIN_QUANTILE, 1 - MIN_QUANTILE)
        location = self.location.gather(1, component).squeeze(1).double()
        scale = torch.exp(self.log_scale.gather(1, component).squeeze(1).double())
        n = torch.round(location + scale * torch.logit(quantile))
        return torch.minimum(n.clamp(min=0.0), self.largest.double()).to(torch.int64)


def choose_components(settings: Mapping[str, Any], stats: Stats) -> Mapping[str, Any]:
    """Return `components` of a `LogisticMixtureHead` where it is null, by the data.

    Narrow counts, which vary less than Poisson counts, get a distribution; others get the settings
    of the base head alone.

    References: this project; checked in tests/cli/test_configs.py.

    Warns:
        UserWarning: a distribution is chosen; the text names the head without one.
    """
    if settings.get("components", 0) is not None:
        return {}
    if not stats.get("narrow"):
        return {**settings["base"], **choose_elementwise_posterior(settings["base"], stats)}
    warnings.warn(
        "counts vary less than Poisson counts: a distribution is predicted (head=gamma: none)",
        stacklevel=2,
    )
    return {"components": 4}


@component("head", "base", from_stats=choose_components)
@dataclass(frozen=True)
class LogisticMixtureHead:
    """A head for the mean, and a mixture of logistics for the distribution of the missing count.

    Locations and scales are in units of the standard deviation of a negative binomial count's
    posterior, sqrt(y + y^2 / (r + X_t)), with the predicted mean y and the concentration r of all
    data. Locations are relative to y. The network's outputs are thereby O(1) at every t, for dark
    elements as for bright ones.

    References: Salimans et al. 2017, section 2.1, for the mixture; its units are this project's,
        checked in tests/diffusion/test_dispersed_heads.py.

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
        ensure(
            self.components >= 1,
            f"the mixture needs at least 1 component, not {self.components}",
        )
        ensure(
            self.mean > 0 and self.std >= 0,
            f"the mixture needs mean > 0 and std >= 0, not {self.mean}, {self.std}",
        )

    @property
    def outputs(self) -> int:
        """Outputs of the base, then a weight, a location and a scale per component."""
        return self.base.outputs + 3 * self.components

    def __call__(self, raw: Tensor, xt: Tensor, t: Tensor) -> CountPrediction:
        """Return the base's mean, [B, ...], with the mixture; arguments as for `Head`."""
        prediction = self.base(raw, xt, t)
        y = prediction.mean
        mixture_outputs = raw[:, self.base.outputs : self.outputs].float()
        weight, shift, width = mixture_outputs.chunk(3, dim=1)

        # 1. Standard deviation of the posterior of a negative binomial count.
        excess_variance = max(self.std**2 - self.mean, MIN_MEAN * self.mean)
        concentration = self.mean**2 / excess_variance
        fixed_mean = y.detach()  # the distribution does not train the mean
        floored_mean = fixed_mean.clamp(min=MIN_MEAN)
        variance = floored_mean + floored_mean.square() / (concentration + xt)
        deviation = torch.sqrt(variance).unsqueeze(1)

        # 2. Components spread around the mean: at equal locations they would get equal gradients.
        offsets = raw.new_zeros(1)
        if self.components > 1:
            offsets = torch.linspace(-1, 1, self.components, device=raw.device)
        distribution = LogisticMixture(
            log_weight=F.log_softmax(weight, dim=1),
            location=fixed_mean.unsqueeze(1) + deviation * (shift + per_row(offsets, y)),
            log_scale=torch.log(deviation) + torch.log(F.softplus(width) + MIN_WIDTH),
            largest=self.max_count - xt.to(torch.int64),
        )
        return CountPrediction(y, prediction.log_mean, distribution)
