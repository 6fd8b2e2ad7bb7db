"""From counts, time and class to the raw output of a network: scaled input, time label, and the body that is told all.

Input scaling turns counts at a time into what a network likes to read. Counts of very different scale are measured in
every element's own mean and dispersion: an element's concentration r is that of the negative binomial distribution with
its mean m and variance m + m^2 / r. Thinning to a share q keeps r and makes the mean q m, so that one number serves all
times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from blackout.component import component
from blackout.counts import per_row, time_on
from blackout.errors import UserError, ensure
from blackout.networks.automatic import body_and_inputs
from blackout.networks.layers import best_memory_format

Inputs: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Scales counts [B, *shape] at float64 times [B] to the float32 input of a network, [B, *shape]."""

_MASK = -2.0
"""Input of a state that is no data level: well apart from the levels, which fill [-1, 1]."""
_VARIANCE_FLOOR = 1e-12
"""Far below the variance of any count that still occurs; it only keeps 0 / 0 from arising."""


@component("inputs")
@dataclass(frozen=True)
class PaperInputs:
    """The input of the paper's code: X_t minus half of the largest possible mean, in counts, unscaled [Santos 2023].

    Args:
        max_count: largest possible count, at least 1.

    Raises:
        ValueError: `max_count` is below 1.
    """

    max_count: int

    def __post_init__(self) -> None:
        ensure(self.max_count >= 1, f"max_count of the network's inputs must be at least 1, got {self.max_count}")

    def __call__(self, xt: Tensor, t: Tensor) -> Tensor:
        """X_t - q max_count / 2: counts [B, *shape] at float64 times [B] -> float32 [B, *shape], see the class."""
        return xt.float() - per_row((torch.exp(-t) * (self.max_count / 2)).float(), xt)


@component("inputs")
@dataclass(frozen=True)
class StandardisedInputs:
    """X_t minus its mean, over its standard deviation, for one `mean` and `std` of X_0 throughout.

    Ours (tests/networks/test_wrapper.py).

    With q = e^-t, thinning gives E[X_t] = q mean and Var[X_t] = q^2 std^2 + q (1 - q) mean.

    Args:
        mean: of X_0 over data and elements, in counts.
        std: of X_0 over data and elements, in counts.

    Raises:
        ValueError: `mean` or `std` is negative or not finite.
    """

    mean: float
    std: float

    def __post_init__(self) -> None:
        if not (0 <= self.mean < math.inf and 0 <= self.std < math.inf):
            raise ValueError(f"mean and std of the inputs must be finite and >= 0, got {self.mean}, {self.std}")

    def __call__(self, xt: Tensor, t: Tensor) -> Tensor:
        """Counts [B, *shape] at float64 times [B] -> float32 [B, *shape], standardised as in the class."""
        survival, decay = torch.exp(-t), -torch.expm1(-t)
        variance = survival**2 * self.std**2 + survival * decay * self.mean
        deviation = xt.float() - per_row((survival * self.mean).float(), xt)
        return deviation * per_row(variance.clamp_min(_VARIANCE_FLOOR).rsqrt().float(), xt)


@component("inputs")
@dataclass(frozen=True)
class LevelInputs(PaperInputs):
    """Levels 0..max_count to [-1, 1] at every time; states above (a mask) to -2. Ours (tests/networks/test_wrapper.py).

    Args:
        max_count: largest data level.

    Raises:
        ValueError: `max_count` is below 1.
    """

    def __call__(self, xt: Tensor, t: Tensor) -> Tensor:
        """2 x / max_count - 1: counts [B, *shape] at float64 times [B] -> float32 [B, *shape], see the class."""
        return torch.where(xt > self.max_count, _MASK, xt.float() * (2 / self.max_count) - 1)


@component("inputs")
@dataclass(frozen=True)
class BirthDeathInputs(StandardisedInputs):
    """X_t of immigration and death about the data's mean: (X_t - mean) / sqrt(q^2 std^2 + (1 - q^2) mean).

    Ours (tests/networks/test_wrapper.py).

    Args:
        mean: of X_0 over data and elements and of the stationary distribution, in counts, above 0.
        std: of X_0 over data and elements, in counts.

    Raises:
        ValueError: `mean` or `std` is negative or not finite.
    """

    def __call__(self, xt: Tensor, t: Tensor) -> Tensor:
        """Counts [B, *shape] at float64 times [B] -> float32 [B, *shape], by the class's formula."""
        square = torch.exp(-2 * t)
        deviation = torch.sqrt(square * self.std**2 - torch.expm1(-2 * t) * self.mean).float()
        return (xt.float() - self.mean) / per_row(deviation, xt)


@component("inputs")
class StateInputs:
    """The states themselves, for bodies that embed them."""

    def __call__(self, xt: Tensor, t: Tensor) -> Tensor:
        """Levels [B, *shape] -> the same as float32."""
        return xt.float()


NUM_STEPS = 1000
"""Observation times T of the paper; labels run from 0 to T - 1 over its schedule."""

FINAL_TIME = 15.0
"""The paper's, but for binarised MNIST."""


def time_label(t: Tensor, final_time: float = FINAL_TIME) -> Tensor:
    """The paper's time index, continued to all real times: (T - 1)(L - u) / 2L with u = logit(e^-t).

    It equals k - 1 at the paper's observation time t_k = softplus(-u_k) [Santos 2023, eq. 60], where u_k
    runs from L = log(e^final_time - 1) down to -L.

    Args:
        t: positive times, any shape.
        final_time: of the schedule whose steps are counted.

    Returns:
        float64 labels of the same shape.
    """
    t = t.double()
    minus_logit = t + torch.log(-torch.expm1(-t))
    return (NUM_STEPS - 1) / 2 * (1 + minus_logit / math.log(math.expm1(final_time)))


@component("network", from_stats=body_and_inputs)
class CountNetwork(nn.Module):
    """A network on counts: scales them, labels the time, and calls `body(x, label)`.

    Args:
        body: maps float [B, *shape] and labels [B] to [B, outputs * shape[0], *shape[1:]]; when there are classes it
            is called as `body(x, label, classes)`, and has an attribute `classes` (a `ClassEmbedding`) whose `null` is
            the label of the null class, or None.
        inputs: the scaling of counts.
        channels_last: keep images and convolutions in channels_last memory on devices where that is quicker (see
            `best_memory_format`); it changes nothing but the speed.
        final_time: of the schedule by which times are labelled, at least log 2.

    Raises:
        ValueError: final_time is too small.
    """

    def __init__(
        self, body: nn.Module, inputs: Inputs, channels_last: bool = False, final_time: float = FINAL_TIME
    ) -> None:
        super().__init__()
        if not math.log(2) < final_time < 700:
            raise ValueError(f"final_time of the network's labels must be above log 2 and below 700, not {final_time}")
        self.body, self.inputs, self.noise = body, inputs, getattr(body, "noise", 0)
        self.channels_last, self.final_time = channels_last, final_time
        self.shifts: Tensor | None
        self.learnt: Tensor | None
        for name in ("shifts", "learnt"):
            self.register_buffer(name, None, persistent=False)
        self._arrange()

    def _apply(self, fn: Any, recurse: bool = True) -> CountNetwork:
        """Whatever `to` and its like do, and then the memory format that the device they lead to asks for."""
        super()._apply(fn, recurse)
        self._arrange()
        return self

    def _arrange(self) -> None:
        parameters = list(self.body.parameters())
        if self.channels_last and parameters:
            volumes = any(parameter.ndim == 5 for parameter in parameters)
            self.body.to(memory_format=best_memory_format(parameters[0].device, volumes))

    @property
    def num_classes(self) -> int | None:
        """Number of classes of a conditional body, which is also the label of its null class; None without classes."""
        embedding = getattr(self.body, "classes", None)
        return None if embedding is None else embedding.null

    def forward(self, xt: Tensor, t: Tensor, classes: Tensor | None = None) -> Tensor:
        """Raw outputs, whose meaning a head defines: the body's of `inputs` and `time_label`, plus what shifts tell.

        Args:
            xt: integer counts, [B, *shape]; for a body with `noise` as many channels of bytes more.
            t: positive float64 times, a scalar or [B].
            classes: int64 [B], or None for no (the null) class.

        Returns:
            float32, [B, outputs, *shape], whatever the precision of the body.

        Raises:
            ValueError: `t` is neither a scalar nor [B].
        """
        if t.dim() > 1 or (t.dim() == 1 and len(t) != len(xt)):
            raise ValueError(f"times must be a scalar or [{len(xt)}], one per example, got shape {list(t.shape)}")
        # The scaling and the label need 1 - q down to 3e-7: they are formed in float64, then rounded.
        t = time_on(t, xt.device).expand(len(xt))
        condition = () if classes is None else (classes,)
        counts = xt if not self.noise else xt[:, : -self.noise]
        shift = None if classes is None or self.shifts is None else self.shifts[classes]
        x = self.inputs(counts, t) if shift is None else self.inputs(counts, t, shift)  # type: ignore[call-arg]
        if self.noise:
            if counts.shape[1] != self.body.shape[0]:  # type: ignore[index]  # of a UNet
                raise UserError(
                    "a student draws from noise, which only its own sampler's kernel, JointBridge, gives it"
                )
            x = torch.cat([x, (xt[:, -self.noise :].float() - 127.5) / 73.9], dim=1)  # of mean 0 and variance 1
        own = {} if getattr(self.body, "own", None) is None else {"counts": counts}
        raw = self.body(x, time_label(t, self.final_time).float(), *condition, **own)
        raw = raw.unflatten(1, (-1, counts.shape[1])).float()
        if shift is not None:
            raw[:, 0] += self.inputs.told(t, shift)  # type: ignore[attr-defined]
        if self.training and classes is not None and self.learnt is not None:  # what is learnt stands beside it
            raw[:, 0] += self.inputs.told(t, self.learnt[classes])  # type: ignore[attr-defined]
        return raw


_LEAST, _MOST, _ROUNDING = 0.02, 1e4, 1e-12
"""Bounds of the concentration: an element that is hardly ever above 0; counts that are Poisson or less dispersed. A
share of a sum below which a difference is rounding.
"""


@dataclass(frozen=True)
class Elements:
    """What is known of every element of the data, float32 [*shape] each, and of a gain that all of them share.

    Attributes:
        mean: E[X_0], positive.
        concentration: r, positive.
        gain: R = 1 / Var(S), [], where E[X_0 | S] = S E[X_0]: the average covariance of two elements over the product
            of their means is 1 / R. Depth, exposure and brightness are such gains; very large for data without one.
    """

    mean: Tensor
    concentration: Tensor
    gain: Tensor

    @property
    def own_concentration(self) -> Tensor:
        """That of an element given the gain, r' [*shape] with 1 + 1 / r = (1 + 1 / R) (1 + 1 / r').

        Ours (tests/networks/test_elements.py).
        """
        inverse = (1 / self.concentration - 1 / self.gain) / (1 + 1 / self.gain)
        return 1 / torch.maximum(inverse, 1 / (_MOST * (1 + self.mean)))


def gain(total_variance: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """R, float64 []: from the variance of totals beyond the sum of variances; its most where one element has all units.

    Ours (tests/networks/test_elements.py).

    Args:
        total_variance: Var(sum X_0), [].
        mean, variance: of every element, float64 [*shape].
    """
    pairs = mean.sum().square() - mean.square().sum()
    shared = torch.where(pairs > _ROUNDING * mean.sum().square(), (total_variance - variance.sum()) / pairs, 0.0)
    return 1 / shared.clamp(min=1 / _MOST, max=1 / _LEAST)


def concentration(mean: Tensor, variance: Tensor) -> Tensor:
    """r = m^2 / (v - m) by moments, float64 [*shape]. Ours.

    Within [0.02, 10^4 + 10^4 m]: never so large that float32 loses counts in it (tests/networks/test_elements.py).

    Args:
        mean, variance: of every element, float64 [*shape].
    """
    most = _MOST * (1 + mean)
    excess = variance - mean
    r = torch.where(excess > 0, mean.square() / excess.clamp(min=1e-30), most)
    return torch.minimum(r, most).clamp(min=_LEAST)


@component("inputs")
class CountInputs(nn.Module):
    """Counts on the scale that makes negative binomial counts about equally noisy, every element on its own. Ours.

    With q = e^-t, an element's mean m and its concentration r,

        z = log((r + X_t) / (r + q m)) sqrt(r (r + q m) / (1 + q m)):

    for large r (Poisson counts) (X_t - q m) / sqrt(1 + q m), for small r a logarithm, which tells 0 from 1 where the
    largest counts are thousands. At most X_t itself where nearly all has decayed (tests/networks/test_elements.py).

    Args:
        shape: of the data.
    """

    mean: Tensor
    concentration: Tensor

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        for name in ("mean", "concentration"):  # a model's own, from which it is made again
            self.register_buffer(name, torch.ones(tuple(shape)), persistent=False)

    def measure(self, elements: Elements) -> None:
        """Take the data's means and concentrations in place of ones.

        Raises:
            ValueError: they are of another shape.
        """
        if elements.mean.shape != self.mean.shape:
            raise ValueError(f"inputs of shape {list(self.mean.shape)}, data of {list(elements.mean.shape)}")
        self.mean.copy_(elements.mean)
        self.concentration.copy_(elements.concentration)

    def forward(self, xt: Tensor, t: Tensor, shift: Tensor | None = None) -> Tensor:
        """z of counts [B, *shape] at float64 times [B], float32 [B, *shape], by the class's formula.

        Means are e^shift, [B, *shape], times.
        """
        survival = per_row(torch.exp(-t).float(), xt)
        expected, r = survival * (self.mean if shift is None else self.mean * torch.exp(shift)), self.concentration
        beside = (xt.float() - expected) / (r + expected)  # near -1 it has lost what is left of r
        ratio = torch.where(beside < -0.9999, torch.log((r + xt) / (r + expected)), torch.log1p(beside))
        return ratio * torch.sqrt(r * ((r + expected) / (1 + expected)))

    def told(self, t: Tensor, shift: Tensor) -> Tensor:
        """What e^shift times the means, [B, *shape], say of the logarithm of what is missing at times [B].

        The change in the mean of a Gamma posterior of shape r. Ours (tests/networks/test_elements.py).
        """
        expected, r = per_row(torch.exp(-t).float(), shift) * self.mean, self.concentration
        return shift - torch.log((r + expected * torch.exp(shift)) / (r + expected))


def measure(network: nn.Module, elements: Elements, shifts: Tensor | None = None, learnt: Tensor | None = None) -> None:
    """Give the data's elements to every part of a network that asks for them.

    Args:
        network: or a part of one.
        elements: of all data.
        shifts: log E[X_0 | class] - log E[X_0] of every class and, 0, of none, [num_classes + 1, *shape].
        learnt: the same of the training samples' means beside the model's, for training alone.
    """
    for part in network.modules():
        if isinstance(part, CountInputs):
            part.measure(elements)
        elif isinstance(part, CountNetwork) and isinstance(part.inputs, CountInputs):
            part.shifts, part.learnt = shifts, learnt
