"""Heads: what the network's raw output means, from [B, outputs, ...] to a prediction.

For counts: the expected missing count y = E[X_0 - X_t | X_t], and the pair of immigration and death.
`LogisticMixtureHead` wraps another head, reads the outputs behind its own, and is trained together with it; the mean's
loss, and with it every likelihood bound, stays what it was. For processes on finitely many states: a distribution over
the data levels.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from blackout.component import Stats, component
from blackout.counts import expand_time, per_row
from blackout.diffusion.predictions import (
    BirthDeathPrediction,
    CategoricalPrediction,
    CountPrediction,
    Prediction,
)
from blackout.diffusion.processes import Process
from blackout.errors import ensure
from blackout.networks.elements import Elements
from blackout.random import RandomSource, categorical, uniform

Made = TypeVar("Made", bound=Prediction, covariant=True)


class Head(Protocol[Made]):
    """From a network's raw output to a prediction of one kind."""

    @property
    def outputs(self) -> int:
        """Numbers per element of the data that the network must give."""

    def __call__(self, raw: Tensor, xt: Tensor, t: Tensor) -> Made:
        """The prediction given X_t.

        Args:
            raw: [B, outputs, ...], any floating type.
            xt: counts [B, ...].
            t: float64, a scalar or [B].
        """


def log_softplus(f: Tensor) -> Tensor:
    """log(log(1 + e^f)) of any shape; below -15 the series f - e^f / 2 replaces a logarithm of what underflows.

    The series is Taylor's in e^f. Ours (tests/diffusion/test_losses.py).
    """
    series = f - torch.exp(f.clamp(max=0.0)) / 2
    return torch.where(f < -15, series, torch.log(F.softplus(f.clamp(min=-15))))


@component("head", "base")
@dataclass(frozen=True)
class SoftplusHead:
    """The paper's: y = softplus(f), directly in counts [Santos 2023, section 3]."""

    outputs: ClassVar[int] = 1

    def __call__(self, raw: Tensor, xt: Tensor, t: Tensor) -> CountPrediction:
        """softplus of raw [B, outputs, ...], [B, ...] [Santos 2023, section 3]; xt [B, ...] and t as for `Head`."""
        f = raw[:, 0].float()
        return CountPrediction(F.softplus(f), log_softplus(f))


@component("head", "base")
@dataclass(frozen=True)
class ScaledHead:
    """y = (1 - q) C softplus(f), q = e^-t: the missing count is O(1 - q), so f is O(1) at every t.

    Ours (tests/diffusion/test_losses.py).

    Args:
        mean: C, the mean count of the data.

    Raises:
        ValueError: mean is not positive.
    """

    mean: float
    outputs: ClassVar[int] = 1

    def __post_init__(self) -> None:
        ensure(self.mean > 0, f"the head needs a positive mean count, not {self.mean}: is the data all zeros?")

    def __call__(self, raw: Tensor, xt: Tensor, t: Tensor) -> CountPrediction:
        """(1 - q) C softplus(f), [B, ...], of f = raw[:, 0] of raw [B, outputs, ...]; xt [B, ...] and t as for `Head`.

        Ours, see the class.
        """
        return CountPrediction(*self._of(raw[:, 0].float(), t))

    def _of(self, f: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """(1 - q) C softplus(f) and its logarithm, float32 of f's shape [B, ...]; t is a scalar or [B].

        Ours, see the class.
        """
        factor = -torch.expm1(-expand_time(t, f)) * self.mean
        return factor.float() * F.softplus(f), torch.log(factor).float() + log_softplus(f)


@component("head", "base")
class BirthDeathHead(ScaledHead):
    """E[X_0 - S | X_t] and E[I | X_t] of `BirthDeath`: (1 - q) C softplus(f), one output each, [B, 2, ...].

    Ours (tests/diffusion/test_losses.py).

    Args:
        mean: C, the mean count of the data and of the stationary distribution.

    Raises:
        ValueError: mean is not positive.
    """

    outputs: ClassVar[int] = 2

    def __call__(self, raw: Tensor, xt: Tensor, t: Tensor) -> BirthDeathPrediction:  # type: ignore[override]
        """The pair [B, 2, ...] of the class from raw [B, outputs, ...]; xt [B, ...] and t as for `Head`."""
        return BirthDeathPrediction(*self._of(raw.float(), t))


def log_logistic(n: Tensor, location: Tensor, log_scale: Tensor, largest: Tensor | int) -> Tensor:
    """The logarithm of a logistic's mass between n - 1/2 and n + 1/2; 0 and `largest` take what lies beyond them.

    [Salimans 2017, section 2.1]. Float32, of the shape that whole numbers n, location and log_scale broadcast to.
    """
    inverse = torch.exp(-log_scale)
    above, below = (n + 0.5 - location).float() * inverse, (n - 0.5 - location).float() * inverse
    # sigma(a) - sigma(b) = sigma(a) sigma(-b) (1 - e^(b - a)): no cancellation
    last, first = n >= largest, n <= 0
    return (
        torch.where(last, 0.0, F.logsigmoid(above))
        + torch.where(first, 0.0, F.logsigmoid(-below))
        + torch.where(first | last, 0.0, torch.log(-torch.expm1(-inverse)))
    )


@dataclass(frozen=True)
class LogisticMixture:
    """A mixture of logistics cut into the whole numbers 0..largest [Salimans 2017, section 2.1].

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
        """log P(N = missing) [Salimans 2017, section 2.1]: float32 [B, ...], the shape of the integers `missing`."""
        # single precision has no halves beyond 2^23
        n, location, largest = missing.double().unsqueeze(1), self.location.double(), self.largest.unsqueeze(1)
        log_mass = log_logistic(n, location, self.log_scale, largest)
        return torch.logsumexp(self.log_weight + log_mass, dim=1)

    def sample(self, generator: RandomSource = None) -> Tensor:
        """A draw of N, int64 [B, ...]: first its component, then its quantile there, rounded to the unit it is in.

        Of the law in [Salimans 2017, section 2.1].
        """
        shape, device = tuple(self.largest.shape), self.largest.device
        chosen = categorical(torch.exp(self.log_weight.double()).movedim(1, -1), generator).unsqueeze(1)
        quantile = uniform(shape, generator, device).clamp_(1e-16, 1 - 1e-16)
        location = self.location.gather(1, chosen).squeeze(1).double()
        scale = torch.exp(self.log_scale.gather(1, chosen).squeeze(1).double())
        drawn = torch.round(location + scale * torch.logit(quantile))
        return torch.minimum(drawn.clamp(min=0.0), self.largest.double()).to(torch.int64)


def components_of_data(given: Mapping[str, Any], stats: Stats) -> Mapping[str, Any]:
    """How a head left to the data, whose `components` is null, predicts: a distribution of narrow counts alone. Ours.

    Warns:
        UserWarning: a distribution is chosen, and how it is left out.
    """
    if given.get("components", 0) is not None:
        return {}
    if not stats.get("narrow"):
        return {**given["base"], **own_counts_of_data(given["base"], stats)}
    warnings.warn("counts vary less than Poisson counts: a distribution is predicted (head=gamma: none)", stacklevel=2)
    return {"components": 4}


_FEW = 0.01
"""What is expected at least where a scale is chosen: a logistic of its deviation makes a unit as rare as it is."""


@component("head", "base", from_stats=components_of_data)
@dataclass(frozen=True)
class LogisticMixtureHead:
    """A head for the mean, and a mixture of logistics [Salimans 2017] for the distribution of the missing count.

    Locations and scales are in units of the deviation that a negative binomial count's posterior has, sqrt(y + y^2 /
    (r + X_t)) with the predicted mean y and the concentration r of all data, and locations are relative to y, so that
    the network's outputs are O(1) at every t, in dark places as in bright ones. Ours, with its law in
    `tests/diffusion/test_dispersed_heads.py`.

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
        ensure(self.components >= 1, f"the mixture needs at least 1 component, not {self.components}")
        ensure(self.mean > 0 and self.std >= 0, f"the mixture needs mean > 0 and std >= 0, not {self.mean}, {self.std}")

    @property
    def outputs(self) -> int:
        """The mean's, and a weight, a location and a scale per component."""
        return self.base.outputs + 3 * self.components

    def __call__(self, raw: Tensor, xt: Tensor, t: Tensor) -> CountPrediction:
        """The base's mean [B, ...] with the mixture of the class; raw [B, outputs, ...], xt [B, ...] and t as for
        `Head`.
        """
        rest = self.base(raw, xt, t)
        y = rest.mean
        weight, shift, width = raw[:, self.base.outputs : self.outputs].float().chunk(3, dim=1)
        shape = self.mean**2 / max(self.std**2 - self.mean, _FEW * self.mean)
        known = y.detach().clamp(min=_FEW)
        spread = torch.sqrt(known + known.square() / (shape + xt)).unsqueeze(1)
        # components that start at one location would stay there
        start = torch.linspace(-1, 1, self.components, device=raw.device) if self.components > 1 else raw.new_zeros(1)
        distribution = LogisticMixture(
            F.log_softmax(weight, dim=1),
            y.detach().unsqueeze(1) + spread * (shift + per_row(start, y)),
            torch.log(spread) + torch.log(F.softplus(width) + 0.02),
            self.max_count - xt.to(torch.int64),
        )
        return CountPrediction(y, rest.log_mean, distribution)


@dataclass(frozen=True)
class _Posterior:
    """A head that gives logits of all data levels, with or without what X_t itself says of them."""

    process: Process
    max_count: int
    likelihood: bool = True

    def _given(self, logits: Tensor, xt: Tensor, t: Tensor) -> CategoricalPrediction:
        """Logits [B, S, ...] normalised over the levels: Bayes' rule, with them as log prior, if `likelihood`.

        [Austin 2021, section 3.3] has the logits alone; the likelihood beside them is ours
        (tests/diffusion/test_level_heads.py).
        """
        if self.likelihood:
            logits = logits + self.process.log_likelihood(xt, t).float()
        return CategoricalPrediction(F.log_softmax(logits, dim=1))


@component("head", "base")
class LevelHead(_Posterior):
    """P(X_0 = o | X_t) for every data level o: one logit per level, [B, max_count + 1, ...].

    Args:
        process: gives the likelihood of every level.
        max_count: largest data level.
        likelihood: add log P(X_t,i | X_0,i = o) to the logits, so that the network predicts only what the other
            elements say about element i, which is smooth in time and finite at t -> 0; without it the logits are all
            there is, as in D3PM and tauLDR [Austin 2021, section 3.3; Campbell 2022].
    """

    @property
    def outputs(self) -> int:
        """One logit per level."""
        return self.max_count + 1

    def __call__(self, raw: Tensor, xt: Tensor, t: Tensor) -> CategoricalPrediction:
        """P(X_0 = o | X_t) [B, max_count + 1, ...] of the class; raw [B, outputs, ...], xt [B, ...] and t as for
        `Head`.
        """
        return self._given(raw.float(), xt, t)


@component("head", "base")
class LogisticHead(_Posterior):
    """P(X_0 = o | X_t) from two outputs, whatever the number of levels: a discretised logistic [Austin 2021, A.8].

    Its location is affine in the first output and its log scale in the second; levels take the mass of their unit
    interval, the outermost all that is beyond.

    Args:
        process: gives the likelihood of every level.
        max_count: largest data level.
        likelihood: as for `LevelHead`.
    """

    outputs: ClassVar[int] = 2

    def __call__(self, raw: Tensor, xt: Tensor, t: Tensor) -> CategoricalPrediction:
        """`log_logistic` of all levels, [B, max_count + 1, ...]; raw [B, outputs, ...], xt [B, ...] and t as for
        `Head`.

        [Austin 2021, A.8], see the class.
        """
        half = self.max_count / 2
        location = half * (1 + raw[:, :1].float())
        log_scale = math.log(half / 2) + raw[:, 1:2].float().clamp(-12.0, 6.0)
        levels = per_row(torch.arange(self.max_count + 1, device=raw.device), xt)
        return self._given(log_logistic(levels, location, log_scale, self.max_count), xt, t)


_STRAIGHT = 3.0
"""Above it the exponential goes on as its tangent: no network's output makes a rate overflow."""


def own_counts_of_data(given: Mapping[str, Any], stats: Stats) -> dict[str, bool]:
    """Whether a `GammaHead` looks at an element's own count where that is null: if they are in no order. Ours."""
    if given.get("own_counts", True) is not None:
        return {}
    return {"own_counts": len(stats["shape"]) == 1 and not stats.get("ordered")}


@component("head", "base", from_stats=own_counts_of_data)
@dataclass(frozen=True)
class GammaHead:
    """y = y0 e^f, y0 = (1 - q) m S (r + X_t) / (r + q m S); e^f as its tangent above f = 3. For counts of any scales.

    Ours (tests/networks/test_elements.py): the posterior mean of every element by itself, times what others say. y0 =
    E[X_0 - X_t | X_t] of a negative binomial count with mean m S and concentration r: X_0 ~ Poisson(L), L gamma of
    shape r and mean m S, so that given X_t the rate of what decayed is gamma of shape r + X_t. The gain S, which all
    elements share, is estimated from all of them as if it were gamma of shape R and mean 1,

        S = (R + sum w X_t) / (R + sum w q m),   w = r / (r + q m),

    where dispersed elements count less. In y0 the concentration is that of an element given the gain, which is larger
    than r (`Elements.conditional_concentration`). A network of zeros is the model of independent counts times a gain,
    and f is of order 1 for every element and at every time. The exponential is the Poisson loss's own link: where its
    gradient by a bias vanishes, so does the weighted sum of y - N, so that totals are not predicted too small. That
    counts: a predicted share that is missing at all times is missing from every e-fold of the growth of X_t.

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
        """y0 e^f [B, ...] of the class, f = raw[:, 0] of raw [B, outputs, ...]; xt [B, ...] and t as for `Head`."""
        f = raw[:, 0].float()
        known, time, x = self._on(f.device), expand_time(t, f), xt[:, : f.shape[1]].float()  # without a student's noise
        q, r = torch.exp(-time).float(), known.concentration
        expected = q * known.mean
        weight, over = r / (r + expected), tuple(range(1, x.ndim))
        seen, foreseen = ((weight * of).sum(over, keepdim=True) for of in (x, expected.expand(x.shape)))
        gain = (known.gain + seen) / (known.gain + foreseen)
        own = known.conditional_concentration
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
