"""Heads: from the raw output of a network, [B, outputs, ...], to a prediction.

    SoftplusHead           E[X_0 - X_t | X_t], the paper's         pure death
    ScaledHead             the same, of order 1 at every time      pure death
    BoundedHead            the same, never above max_count - X_t   pure death
    GammaHead              the same, for counts of any scale       pure death
    BinnedHead             the same, by Bayes' rule from bins      pure death
    LogisticMixtureHead    a head for the mean, and a distribution of X_0 - X_t
    BirthDeathHead         the pair of `BirthDeath`                immigration and death
    LevelHead              P(X_0 = . | X_t), a logit per level     finitely many states
    LogisticHead           the same from two outputs               finitely many states

`LogisticMixtureHead` wraps another head, reads the outputs behind those of that head, and is
trained together with it. The mean's loss, and with it every likelihood bound, stays as it was.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from blackout.component import Stats, component
from blackout.counts import expand_time, per_row
from blackout.diffusion.predictions import (
    NEVER,
    BirthDeathPrediction,
    CategoricalPrediction,
    CountPrediction,
    Prediction,
)
from blackout.diffusion.processes import Process
from blackout.diffusion.schedules import logit_survival, time_of_logit
from blackout.errors import ensure
from blackout.networks.elements import Elements
from blackout.random import RandomSource, categorical, uniform
from blackout.representation import format_fields

SERIES_BELOW = -15.0  # where log_softplus uses its series, since log(1 + e^f) underflows
MIN_QUANTILE = 1e-16  # draws of a logistic distribution are finite
MIN_MEAN = 0.01  # of a logistic's scale: it then makes a single unit about as rare as it is
MIN_WIDTH = 0.02  # of a logistic, in standard deviations of the count's posterior
SMALL_SHARE = 1e-3  # below it, 1 - e^-r is r (1 - r / 2) in float32
MAX_BINNED_COUNT = 1023  # `BinnedHead` has tables of all pairs of counts
SMALLEST_MEAN = 1e-30  # of float32 numbers before their logarithm
NODES_PER_LOGIT = 32  # of its tables in time; logarithms are then right to 0.01 nats up to 255
LAST_NODE = 16  # logit of survival, up to which it interpolates
MAX_TILT = 50.0  # of e^(-b n), beyond which one end has everything
BISECTIONS = 60  # to float64's precision
LINEAR_ABOVE = 3.0  # the exponential link continues as its tangent, so that no rate overflows

AnyPrediction = TypeVar("AnyPrediction", bound=Prediction, covariant=True)


class Head(Protocol[AnyPrediction]):
    """From a network's raw output to a prediction of one kind."""

    @property
    def outputs(self) -> int:
        """Numbers per element of the data that the network must return."""

    def __call__(self, raw: Tensor, xt: Tensor, t: Tensor) -> AnyPrediction:
        """Return the prediction given X_t.

        Args:
            raw: [B, outputs, ...], any floating type.
            xt: counts [B, ...].
            t: float64, a scalar or [B].
        """


# --- heads for the mean of the missing count


def log_softplus(f: Tensor) -> Tensor:
    """Return log(log(1 + e^f)), of f's shape.

    Below -15 the series f - e^f / 2 replaces a logarithm that would underflow.

    References: this project; checked in tests/diffusion/test_losses.py.
    """
    series = f - torch.exp(f.clamp(max=0.0)) / 2
    logarithm = torch.log(F.softplus(f.clamp(min=SERIES_BELOW)))
    return torch.where(f < SERIES_BELOW, series, logarithm)


@component("head", "base")
@dataclass(frozen=True)
class SoftplusHead:
    """y = softplus(f), in counts.

    References: Santos et al. 2023, section 3.
    """

    outputs: ClassVar[int] = 1

    def __call__(self, raw: Tensor, xt: Tensor, t: Tensor) -> CountPrediction:
        """Return y, [B, ...]; arguments as for `Head`."""
        f = raw[:, 0].float()
        return CountPrediction(F.softplus(f), log_softplus(f))


@component("head", "base")
@dataclass(frozen=True)
class ScaledHead:
    """y = (1 - q) C softplus(f), q = e^-t: the missing count is O(1 - q), so f is O(1) at every t.

    References: this project; checked in tests/diffusion/test_losses.py.

    Args:
        mean: C, the mean count of the data.

    Raises:
        ValueError: mean is not positive.
    """

    mean: float
    outputs: ClassVar[int] = 1

    def __post_init__(self) -> None:
        ensure(
            self.mean > 0,
            f"the head needs a positive mean count, not {self.mean}: is the data all zeros?",
        )

    def __call__(self, raw: Tensor, xt: Tensor, t: Tensor) -> CountPrediction:
        """Return y, [B, ...]; arguments as for `Head`."""
        return CountPrediction(*self._mean_and_log(raw[:, 0].float(), t))

    def _mean_and_log(self, f: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return (1 - q) C softplus(f) and its logarithm, float32 of f's shape."""
        factor = -torch.expm1(-expand_time(t, f)) * self.mean
        mean = factor.float() * F.softplus(f)
        log_mean = torch.log(factor).float() + log_softplus(f)
        return mean, log_mean


@component("head", "base")
@dataclass(frozen=True)
class BoundedHead(ScaledHead):
    """y = h (1 - e^(-s / h)), with h = max_count - X_t and s = (1 - q) C softplus(f), q = e^-t.

    No more than h units can be missing. Far below h, y is that of `ScaledHead`. Near max_count it
    falls with every unit of X_t, even if the network's input is scaled to the whole range of the
    data and cannot resolve single units. Elements that are nearly full then do not overshoot.

    References: this project; checked in tests/diffusion/test_losses.py.

    Args:
        mean: C, the mean count of the data.
        max_count: the largest count.

    Raises:
        ValueError: mean is not positive.
    """

    max_count: int

    def __call__(self, raw: Tensor, xt: Tensor, t: Tensor) -> CountPrediction:
        """Return y, [B, ...]; arguments as for `Head`."""
        unbounded, log_unbounded = self._mean_and_log(raw[:, 0].float(), t)
        headroom = (self.max_count - xt.float()).clamp(min=0)
        log_headroom = torch.log(headroom.clamp(min=1))
        ratio = unbounded / headroom.clamp(min=1)
        share = -torch.expm1(-ratio)
        log_share = torch.where(
            ratio > SMALL_SHARE,
            torch.log(share.clamp(min=SMALL_SHARE / 2)),
            log_unbounded - log_headroom - ratio / 2,
        )
        log_mean = torch.where(headroom > 0, log_headroom + log_share, NEVER)
        return CountPrediction(headroom * share, log_mean)


def choose_own_counts(settings: Mapping[str, Any], stats: Stats) -> dict[str, bool]:
    """Return `own_counts` of a `GammaHead` where it is null: true for vectors without an order.

    References: this project; checked in tests/networks/test_elements.py.
    """
    if settings.get("own_counts", True) is not None:
        return {}
    return {"own_counts": len(stats["shape"]) == 1 and not stats.get("ordered")}


@component("head", "base", from_stats=choose_own_counts)
@dataclass(frozen=True)
class GammaHead:
    """y = y0 e^f for counts of any scale; e^f continues as its tangent above f = 3.

    y0 = (1 - q) m S (r + X_t) / (r + q m S) is the posterior mean of every element by itself, and
    e^f is what the other elements add. y0 = E[X_0 - X_t | X_t] of a negative binomial count with
    mean m S and concentration r: X_0 ~ Poisson(L), L gamma of shape r and mean m S, so that given
    X_t the rate of the missing units is gamma of shape r + X_t. The gain S, which all elements
    share, is estimated from all of them as if it were gamma of shape R and mean 1,

        S = (R + sum w X_t) / (R + sum w q m),   w = r / (r + q m),

    where dispersed elements count less. In y0 the concentration is that of an element given the
    gain, which is larger than r (`Elements`).

    A network of zeros is the model of independent counts times a gain, and f is of order 1 for
    every element and at every time. The exponential is the Poisson loss's canonical link: where its
    gradient by a bias vanishes, so does the weighted sum of y - N, so that totals are not predicted
    too small. (A share that is missing in predictions at all times is missing from every e-fold of
    the growth of X_t.)

    References: this project; checked in tests/networks/test_elements.py.

    Args:
        elements: mean and concentration of every element, float32 [*shape], and the concentration
            of their gain.
        own_counts: whether y0 uses an element's own count. Without, it is (1 - q) m S: for pixels
            and bins, whose neighbours predict their rate better, so that a network would have to
            undo the noise of X_t in every place.
    """

    elements: Elements
    own_counts: bool = True
    outputs: ClassVar[int] = 1
    _copies: dict[torch.device, Elements] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __call__(self, raw: Tensor, xt: Tensor, t: Tensor) -> CountPrediction:
        """Return y, [B, ...]; arguments as for `Head`."""
        f = raw[:, 0].float()
        elements = self._elements_on(f.device)
        t = expand_time(t, f)
        x = xt[:, : f.shape[1]].float()  # without a student's noise

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
        if self.own_counts:
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


@component("head", "base")
@dataclass(frozen=True)
class BinnedHead:
    """y = E[X_0 | X_t] - X_t, by Bayes' rule from a predicted distribution of X_0 over bins.

    The network says what the other elements tell about an element: a probability for every bin of
    its count. The element's own count enters by its exact likelihood, P(X_t | bin, t), so that the
    network need not learn how fast y falls with single units near 0 and max_count. Missing counts
    of a bin follow from likelihoods alone: E[N | x] = (x + 1) (1 - q) / q P(x + 1) / P(x).

    Bins are equally wide in asin(sqrt(n / max_count)), on which binomial counts are about equally
    noisy; 0 and max_count have their own. Within a bin, and for a network of zeros, counts have
    the distribution of largest entropy with the data's mean, P(n) ~ e^(-b n).

    References: Robbins 1956 for E[N | x]; Austin et al. 2021, section 3.3, for the likelihood in
        the head; the bins are this project's, checked in tests/diffusion/test_binned_head.py.

    Args:
        mean: C, the mean count of the data.
        max_count: the largest count.
        intervals: number of bins less one; bins without a count are left out.

    Raises:
        ValueError: the mean is not between 0 and max_count, there are less than two intervals, or
            counts go beyond 1,023.
    """

    mean: float
    max_count: int
    intervals: int = 24
    _copies: dict[torch.device, tuple[Tensor, Tensor]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        ensure(
            0 < self.mean < self.max_count,
            f"the head needs a mean count between 0 and {self.max_count}, not {self.mean}",
        )
        ensure(self.intervals >= 2, f"the head needs at least 2 intervals, not {self.intervals}")
        ensure(
            self.max_count <= MAX_BINNED_COUNT,
            f"head=binned takes counts up to {MAX_BINNED_COUNT:,}, not {self.max_count:,}",
        )

    @cached_property
    def bins(self) -> Tensor:
        """Distributions of the bins over counts with their prior weight, float64 [bins, levels]."""
        levels = torch.arange(self.max_count + 1, dtype=torch.float64)
        angles = torch.asin(torch.sqrt(levels / self.max_count)) * (2 / math.pi)
        numbers = torch.round(angles * self.intervals).long()
        joint = F.one_hot(numbers).T * largest_entropy(self.mean, self.max_count)
        return joint[joint.sum(1) > 0]

    @property
    def outputs(self) -> int:
        """One logit per bin."""
        return len(self.bins)

    def __call__(self, raw: Tensor, xt: Tensor, t: Tensor) -> CountPrediction:
        """Return y, [B, ...]; arguments as for `Head`."""
        # 1. log P(bin, x | t) and E[N | bin, x, t] for every x: [B or 1, levels, bins].
        log_evidence, missing = self._tables(t.reshape(-1))

        # 2. Those of the elements' own counts, [B, bins, ...].
        size = xt[0].numel()
        x = xt.reshape(len(xt), -1).long()
        if len(log_evidence) > 1:
            x = x + len(log_evidence[0]) * torch.arange(len(x), device=x.device)[:, None]
        rows = x.flatten()
        shape = (len(xt), size, -1)
        log_evidence = log_evidence.flatten(0, 1)[rows].view(shape)
        missing = missing.flatten(0, 1)[rows].view(shape)

        # 3. Mean over bins, by their posterior.
        logits = raw[:, : self.outputs].float().flatten(2).movedim(1, 2)
        posterior = F.softmax(logits + log_evidence, dim=2)
        y = (posterior * missing).sum(2).view(xt.shape)
        log_y = torch.log(y.clamp(min=SMALLEST_MEAN))
        return CountPrediction(y, torch.where(y > 0, log_y, NEVER))

    @torch.no_grad()
    def _tables(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return log P(x | bin, t) P(bin) and E[N | bin, x, t] at times t, float64 [B].

        Both are interpolated linearly in the logit of survival, E[N] over 1 - q. Logarithms are up
        to a function of x and t.

        Returns:
            float32 [B, levels, bins] each.
        """
        nodes = self._nodes_on(t.device)
        position = (logit_survival(t).clamp(-LAST_NODE, LAST_NODE) + LAST_NODE) * NODES_PER_LOGIT
        lower = position.long().clamp(max=len(nodes[0]) - 2)
        fraction = (position - lower).float()[:, None, None]
        log_evidence, share = (
            torch.lerp(values[lower], values[lower + 1], fraction) for values in nodes
        )
        return log_evidence, share * -torch.expm1(-t).float()[:, None, None]

    def _nodes_on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the tables at the nodes of the interpolation, [nodes, levels, bins]."""
        if device not in self._copies:
            number = 2 * LAST_NODE * NODES_PER_LOGIT + 1
            logits = torch.linspace(-LAST_NODE, LAST_NODE, number, dtype=torch.float64)
            parts = [self._table_at(t) for t in time_of_logit(logits)]
            log_evidence, share = (
                torch.stack(values).to(device) for values in zip(*parts, strict=True)
            )
            self._copies[device] = (log_evidence, share)
        return self._copies[device]

    def _table_at(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logarithm, and E[N | bin, x] / (1 - q), at a node t, [levels, bins]."""
        # 1. P(x | n) of all x and n over the largest of every x; q^x is the same for all n.
        log_ways, missing = self._log_ways
        log_lost = torch.log(-torch.expm1(-t))
        log_pmf = log_ways + missing * log_lost
        pmf = torch.exp(log_pmf - log_pmf.amax(1, keepdim=True))

        # 2. Sums over the counts of a bin.
        joint = (pmf @ self.bins.T).clamp(min=SMALLEST_MEAN)
        mean = (pmf * missing) @ self.bins.T / joint
        return torch.log(joint).float(), (mean / -torch.expm1(-t)).float()

    @cached_property
    def _log_ways(self) -> tuple[Tensor, Tensor]:
        """Logarithms of n over x, and n - x or 0, float64 [x, n]."""
        n = torch.arange(self.max_count + 1, dtype=torch.float64)
        missing = (n - n[:, None]).clamp(min=0)
        log_ways = torch.lgamma(n + 1) - torch.lgamma(n[:, None] + 1) - torch.lgamma(missing + 1)
        return torch.where(n >= n[:, None], log_ways, -math.inf), missing


def largest_entropy(mean: float, max_count: int) -> Tensor:
    """Return the distribution of largest entropy over 0..max_count with a mean.

    It is P(n) ~ e^(-b n), where b follows by bisection.

    Returns:
        float64 [max_count + 1].

    References: Cover and Thomas 2006, section 12.1.
    """
    n = torch.arange(max_count + 1, dtype=torch.float64)
    low, high = -MAX_TILT, MAX_TILT
    for _ in range(BISECTIONS):
        tilt = (low + high) / 2
        if float(torch.softmax(-tilt * n, 0) @ n) > mean:
            low = tilt
        else:
            high = tilt
    return torch.softmax(-(low + high) / 2 * n, 0)


# --- a head for the distribution of the missing count


def log_logistic(n: Tensor, location: Tensor, log_scale: Tensor, largest: Tensor | int) -> Tensor:
    """Return the log mass of a logistic distribution between n - 1/2 and n + 1/2.

    0 and `largest` take what lies beyond them.

    References: Salimans et al. 2017, section 2.1.

    Args:
        n: whole numbers.
        location: of the distribution.
        log_scale: logarithm of its scale.
        largest: the largest possible number.

    Returns:
        float32, of the shape that the arguments broadcast to.
    """
    inverse_scale = torch.exp(-log_scale)
    upper = (n + 0.5 - location).float() * inverse_scale
    lower = (n - 0.5 - location).float() * inverse_scale
    # sigma(a) - sigma(b) = sigma(a) sigma(-b) (1 - e^(b - a)): no cancellation
    is_last = n >= largest
    is_first = n <= 0
    return (
        torch.where(is_last, 0.0, F.logsigmoid(upper))
        + torch.where(is_first, 0.0, F.logsigmoid(-lower))
        + torch.where(is_first | is_last, 0.0, torch.log(-torch.expm1(-inverse_scale)))
    )


@dataclass(frozen=True)
class LogisticMixture:
    """A mixture of logistic distributions, discretised to the whole numbers 0..largest.

    Component j gives N = n the mass between n - 1/2 and n + 1/2; the ends take what lies beyond
    them.

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
        return {**settings["base"], **choose_own_counts(settings["base"], stats)}
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


# --- heads for the other processes


@component("head", "base")
class BirthDeathHead(ScaledHead):
    """E[X_0 - S | X_t] and E[I | X_t] of `BirthDeath`: (1 - q) C softplus(f), an output for each.

    References: this project; checked in tests/diffusion/test_losses.py.

    Args:
        mean: C, the mean count of the data and of the stationary distribution.

    Raises:
        ValueError: mean is not positive.
    """

    outputs: ClassVar[int] = 2

    def __call__(  # type: ignore[override]
        self, raw: Tensor, xt: Tensor, t: Tensor
    ) -> BirthDeathPrediction:
        """Return the pair, [B, 2, ...]; arguments as for `Head`."""
        return BirthDeathPrediction(*self._mean_and_log(raw.float(), t))


@dataclass(frozen=True)
class _PosteriorHead:
    """A head for logits of all data levels, with or without the likelihood of X_t itself."""

    process: Process
    max_count: int
    likelihood: bool = True

    def _normalise(self, logits: Tensor, xt: Tensor, t: Tensor) -> CategoricalPrediction:
        """Return P(X_0 = o | X_t) from logits [B, S, ...], with the likelihood by Bayes' rule.

        References: Austin et al. 2021, section 3.3, for the logits alone; the likelihood is this
            project's, checked in tests/diffusion/test_level_heads.py.
        """
        if self.likelihood:
            logits = logits + self.process.log_likelihood(xt, t).float()
        return CategoricalPrediction(F.log_softmax(logits, dim=1))


@component("head", "base")
class LevelHead(_PosteriorHead):
    """P(X_0 = o | X_t) for every data level o: one logit per level, [B, max_count + 1, ...].

    References: Austin et al. 2021, section 3.3; Campbell et al. 2022.

    Args:
        process: gives the likelihood of every level.
        max_count: largest data level.
        likelihood: add log P(X_t,i | X_0,i = o) to the logits, so that the network predicts only
            what the other elements say about element i, which is smooth in time and finite at
            t -> 0. Without it the network's logits stand alone, as in D3PM and tauLDR.
    """

    @property
    def outputs(self) -> int:
        """One logit per level."""
        return self.max_count + 1

    def __call__(self, raw: Tensor, xt: Tensor, t: Tensor) -> CategoricalPrediction:
        """Return P(X_0 = o | X_t), [B, max_count + 1, ...]; arguments as for `Head`."""
        return self._normalise(raw.float(), xt, t)


@component("head", "base")
class LogisticHead(_PosteriorHead):
    """P(X_0 = o | X_t) from two outputs, whatever the number of levels: a discretised logistic.

    Its location is affine in the first output and its log scale in the second; levels take the mass
    of their unit interval, the outermost all that is beyond.

    References: Austin et al. 2021, appendix A.8.

    Args:
        process: gives the likelihood of every level.
        max_count: largest data level.
        likelihood: as for `LevelHead`.
    """

    outputs: ClassVar[int] = 2

    def __call__(self, raw: Tensor, xt: Tensor, t: Tensor) -> CategoricalPrediction:
        """Return P(X_0 = o | X_t), [B, max_count + 1, ...]; arguments as for `Head`."""
        half = self.max_count / 2
        location = half * (1 + raw[:, :1].float())
        log_scale = math.log(half / 2) + raw[:, 1:2].float().clamp(-12.0, 6.0)
        levels = per_row(torch.arange(self.max_count + 1, device=raw.device), xt)
        logits = log_logistic(levels, location, log_scale, self.max_count)
        return self._normalise(logits, xt, t)
