"""The head for counts of very different scale: the posterior mean of every element by itself, times what others say."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from blackout.diffusion.heads.counts import log_softplus
from blackout.diffusion.predictions import CountPrediction
from blackout.diffusion.processes.base import expand_time
from blackout.networks.elements import Elements

_UNIT_SOFTPLUS = math.log(math.expm1(1.0))
"""softplus of this is 1."""


@dataclass(frozen=True)
class GammaHead:
    """y = y0 softplus(f + 0.54), y0 = (1 - q) m (r + X_t) / (r + q m), which is y0 for f = 0.

    y0 = E[X_0 - X_t | X_t] of one negative binomial count with mean m and concentration r: X_0 ~ Poisson(L), L gamma of
    shape r and mean m, so that given X_t the rate of what decayed is gamma of shape r + X_t. A network of zeros is the
    model of independent negative binomial counts, and f is of order 1 for every element and at every time.

    Args:
        elements: mean and concentration of every element, float32 [*shape].
    """

    elements: Elements
    outputs: ClassVar[int] = 1
    _placed: dict[torch.device, Elements] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __call__(self, raw: Tensor, xt: Tensor, t: Tensor) -> CountPrediction:
        f = raw[:, 0].float() + _UNIT_SOFTPLUS
        known, q = self._on(f.device), torch.exp(-expand_time(t, f)).float()
        decayed = -torch.expm1(-expand_time(t, f)).float()
        shrunk = (known.concentration + xt.float()) / (known.concentration + q * known.mean)
        alone = decayed * known.mean * shrunk
        return CountPrediction(alone * F.softplus(f), torch.log(alone) + log_softplus(f))

    def _on(self, device: torch.device) -> Elements:
        """The elements there, moved once."""
        if device not in self._placed:
            self._placed[device] = Elements(self.elements.mean.to(device), self.elements.concentration.to(device))
        return self._placed[device]
