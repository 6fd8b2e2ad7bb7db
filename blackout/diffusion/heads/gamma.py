"""The head for counts of very different scale: the posterior mean of every element by itself, times what others say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from blackout.diffusion.predictions import CountPrediction
from blackout.diffusion.processes.base import expand_time
from blackout.networks.elements import Elements

_STRAIGHT = 3.0
"""Above it the exponential goes on as its tangent: no network's output makes a rate overflow."""


@dataclass(frozen=True)
class GammaHead:
    """y = y0 e^f, y0 = (1 - q) m S (r + X_t) / (r + q m S); e^f as its tangent above f = 3.

    y0 = E[X_0 - X_t | X_t] of a negative binomial count with mean m S and concentration r: X_0 ~ Poisson(L), L gamma of
    shape r and mean m S, so that given X_t the rate of what decayed is gamma of shape r + X_t. The gain S, which all
    elements share, is estimated from all of them as if it were gamma of shape R and mean 1,

        S = (R + sum w X_t) / (R + sum w q m),   w = r / (r + q m),

    where dispersed elements count less. A network of zeros is the model of independent counts times a gain, and f is of
    order 1 for every element and at every time. The exponential is the Poisson loss's own link: where its gradient by
    a bias vanishes, so does the weighted sum of y - N, so that totals are not predicted too small. That counts: a
    predicted share that is missing at all times is missing from every e-fold of the growth of X_t.

    Args:
        elements: mean and concentration of every element, float32 [*shape], and the concentration of their gain.
        own_counts: whether y0 knows an element's own count. Without, it is (1 - q) m S: for pixels and bins, of whose
            rate neighbours say more, so that a network would have to undo the noise of X_t in every place.
    """

    elements: Elements
    own_counts: bool = True
    outputs: ClassVar[int] = 1
    _placed: dict[torch.device, Elements] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __call__(self, raw: Tensor, xt: Tensor, t: Tensor) -> CountPrediction:
        f = raw[:, 0].float()
        known, time, x = self._on(f.device), expand_time(t, f), xt.float()
        q, r = torch.exp(-time).float(), known.concentration
        expected = q * known.mean
        weight, over = r / (r + expected), tuple(range(1, x.ndim))
        seen, foreseen = ((weight * of).sum(over, keepdim=True) for of in (x, expected.expand(x.shape)))
        gain = (known.gain + seen) / (known.gain + foreseen)
        own = known.own_concentration
        posterior = gain * (own + x) / (own + gain * expected) if self.own_counts else gain
        alone = -torch.expm1(-time).float() * known.mean * posterior
        log_factor = f.clamp(max=_STRAIGHT) + torch.log1p((f - _STRAIGHT).clamp(min=0))
        return CountPrediction(alone * torch.exp(log_factor), torch.log(alone) + log_factor)

    def _on(self, device: torch.device) -> Elements:
        """The elements there, moved once."""
        if device not in self._placed:
            known = self.elements
            self._placed[device] = Elements(*(x.to(device) for x in (known.mean, known.concentration, known.gain)))
        return self._placed[device]
