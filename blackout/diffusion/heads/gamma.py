"""A head for counts of any scale: a negative binomial posterior times the network's factor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from blackout.component import Stats, component
from blackout.counts import expand_time
from blackout.diffusion.predictions import CountPrediction
from blackout.networks.elements import Elements

LINEAR_ABOVE = 3.0  # the exponential link continues as its tangent, so that no rate overflows


def choose_elementwise_posterior(settings: Mapping[str, Any], stats: Stats) -> dict[str, bool]:
    """Return a `GammaHead`'s null `elementwise_posterior`: true for vectors in no order.

    References: this project; checked in tests/networks/test_elements.py.
    """
    if settings.get("elementwise_posterior", True) is not None:
        return {}
    return {"elementwise_posterior": len(stats["shape"]) == 1 and not stats.get("ordered")}


@component("head", "base", from_stats=choose_elementwise_posterior)
@dataclass(frozen=True)
class GammaHead:
    """Head for counts of any scale: y = y0 e^f, where e^f continues as its tangent above f = 3.

    y0 = (1 - q) m S (r + X_t) / (r + q m S) is the posterior mean of every element by itself, and
    e^f is what the other elements add. y0 = E[X_0 - X_t | X_t] of a negative binomial count with
    mean m S and concentration r: X_0 ~ Poisson(L), L gamma of shape r and mean m S, so that given
    X_t the rate of the missing units is gamma of shape r + X_t. The gain S, which all elements
    share, is estimated from all of them as if it were gamma of shape R and mean 1,

        S = (R + sum w X_t) / (R + sum w q m),   w = r / (r + q m),

    where dispersed elements count less. In y0 the concentration is that of an element given the
    gain, which is larger than r (`Elements`).

    A network of zeros is the model of independent counts times a gain. The exponential is the
    Poisson loss's canonical link: where its gradient by a bias vanishes, so does the weighted sum
    of y - N, so that totals are not predicted too small. (A relative error of y that is the
    same at all times would be made again in every e-fold of the growth of X_t.)

    References: this project; checked in tests/networks/test_elements.py.

    Args:
        elements: mean and concentration of every element, float32 [*shape], and the concentration
            of their gain.
        elementwise_posterior: whether y0 is the posterior mean given X_t of the element; if not, it
            is the prior mean (1 - q) m S. False suits pixels and bins, whose neighbours predict
            their rate better: the network would have to undo the noise of X_t in every element.
    """

    elements: Elements
    elementwise_posterior: bool = True
    outputs: ClassVar[int] = 1
    _copies: dict[torch.device, Elements] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __call__(self, raw: Tensor, xt: Tensor, t: Tensor) -> CountPrediction:
        """Return y, [B, ...]; arguments as for `Head`."""
        f = raw[:, 0].float()
        elements = self._elements_on(f.device)
        t = expand_time(t, f)
        x = xt.float()

        # 1. Gain of every sample.
        survival = torch.exp(-t).float()
        r = elements.concentration
        expected = survival * elements.mean
        weight = r / (r + expected)
        axes = tuple(range(1, x.ndim))
        observed_sum = (weight * x).sum(axes, keepdim=True)
        expected_sum = (weight * expected.expand(x.shape)).sum(axes, keepdim=True)
        gain = (elements.gain + observed_sum) / (elements.gain + expected_sum)

        # 2. Posterior mean y0 of every element by itself.
        posterior = gain
        if self.elementwise_posterior:
            r_given_gain = elements.conditional_concentration
            posterior = gain * (r_given_gain + x) / (r_given_gain + gain * expected)
        y0 = -torch.expm1(-t).float() * elements.mean * posterior

        # 3. Times the network's factor.
        log_factor = f.clamp(max=LINEAR_ABOVE) + torch.log1p((f - LINEAR_ABOVE).clamp(min=0))
        return CountPrediction(y0 * torch.exp(log_factor), torch.log(y0) + log_factor)

    def _elements_on(self, device: torch.device) -> Elements:
        """Return the elements on a device, to which they are copied once."""
        if device not in self._copies:
            elements = self.elements
            self._copies[device] = Elements(
                elements.mean.to(device),
                elements.concentration.to(device),
                elements.gain.to(device),
            )
        return self._copies[device]
