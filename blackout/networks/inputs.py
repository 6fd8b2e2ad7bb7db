"""Network wrapper for counts: input scaling, time index, and the call of the network body.

Samplers and losses hand counts and times to a `CountNetwork`. Its `inputs` scale the counts to
numbers of order one, and `time_index` converts times to the time index of the paper. Its `body` (a
U-Net, an MLP, ...) maps both to raw outputs.

References: Santos et al. 2023, section 3.
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
from blackout.errors import ensure
from blackout.networks.automatic import body_and_inputs
from blackout.networks.elements import Elements
from blackout.networks.layers import best_memory_format

# Scales counts [B, *shape] at float64 times [B] to the float32 input of a network, [B, *shape]
Inputs: TypeAlias = Callable[[Tensor, Tensor], Tensor]

MASK_INPUT = -2.0  # network input of a masked state; data levels fill [-1, 1]
VARIANCE_FLOOR = 1e-12  # far below the variance of any count; avoids 0 / 0

NUM_STEPS = 1000  # observation times T of the paper; time indices run from 0 to T - 1
FINAL_TIME = 15.0  # last observation time of the paper, except for binarised MNIST


@component("inputs")
@dataclass(frozen=True)
class PaperInputs:
    """Input of the paper's code: X_t - e^-t max_count / 2, in counts.

    Args:
        max_count: largest possible count, at least 1.

    Raises:
        ValueError: `max_count` is below 1.

    References: Santos et al. 2023, the authors' code.

    Example:
        >>> t = torch.tensor([0.0], dtype=torch.float64)
        >>> PaperInputs(255)(torch.tensor([[0, 255]]), t).tolist()
        [[-127.5, 127.5]]
    """

    max_count: int

    def __post_init__(self) -> None:
        message = f"max_count of the network's inputs must be at least 1, not {self.max_count}"
        ensure(self.max_count >= 1, message)

    def __call__(self, xt: Tensor, t: Tensor) -> Tensor:
        """Subtract e^-t max_count / 2 from counts [B, *shape] at float64 times [B].

        Returns:
            float32 [B, *shape].
        """
        center = torch.exp(-t) * (self.max_count / 2)
        return xt.float() - per_row(center.float(), xt)


@component("inputs")
@dataclass(frozen=True)
class StandardisedInputs:
    """Input (X_t - E[X_t]) / std(X_t), with one mean and standard deviation for all elements.

    With the survival probability q = e^-t, thinning gives E[X_t] = q mean and
    Var[X_t] = q^2 std^2 + q (1 - q) mean.

    Args:
        mean: mean of X_0 over samples and elements, in counts.
        std: standard deviation of X_0 over samples and elements, in counts.

    Raises:
        ValueError: `mean` or `std` is negative or not finite.

    Example:
        >>> inputs = StandardisedInputs(mean=4.0, std=2.0)
        >>> t = torch.tensor([0.0], dtype=torch.float64)
        >>> inputs(torch.tensor([[2, 4, 8]]), t).tolist()
        [[-1.0, 0.0, 2.0]]

    References: this project; checked in tests/networks/test_wrapper.py.
    """

    mean: float
    std: float

    def __post_init__(self) -> None:
        if not (0 <= self.mean < math.inf and 0 <= self.std < math.inf):
            raise ValueError(
                f"mean and std of the inputs must be finite and at least 0, "
                f"not mean={self.mean} and std={self.std}"
            )

    def __call__(self, xt: Tensor, t: Tensor) -> Tensor:
        """Standardise counts [B, *shape] at float64 times [B]; returns float32 [B, *shape]."""
        survival = torch.exp(-t)
        decay = -torch.expm1(-t)
        variance = survival**2 * self.std**2 + survival * decay * self.mean
        inverse_std = variance.clamp_min(VARIANCE_FLOOR).rsqrt()
        centered = xt.float() - per_row((survival * self.mean).float(), xt)
        return centered * per_row(inverse_std.float(), xt)


@component("inputs")
@dataclass(frozen=True)
class ArcsineInputs:
    """Input asin(sqrt(X_t / M)) / sqrt(q C / M + 1 / 4M), for counts up to M with mean C, q = e^-t.

    The arcsine of the square root is about equally noisy for all binomial counts. It separates 0
    from 1 and M - 1 from M, which are close together where counts are scaled linearly. The divisor
    makes the mean square 1 to 2.5, as long as counts are not nearly all 0.

    Args:
        mean: mean of X_0 over samples and elements, in counts.
        max_count: M, the largest count, at least 1.

    Raises:
        ValueError: `mean` is negative or not finite, or `max_count` is below 1.

    Example:
        >>> inputs = ArcsineInputs(mean=4.0, max_count=16)
        >>> t = torch.tensor([0.0], dtype=torch.float64)
        >>> [round(z, 2) for z in inputs(torch.tensor([[0, 1, 15, 16]]), t)[0].tolist()]
        [0.0, 0.49, 2.56, 3.05]

    References: Anscombe 1948; the divisor is this project's, checked in
        tests/networks/test_wrapper.py.
    """

    mean: float
    max_count: int

    def __post_init__(self) -> None:
        if not 0 <= self.mean < math.inf:
            raise ValueError(
                f"mean of the inputs must be finite and at least 0, not mean={self.mean}"
            )
        message = f"max_count of the network's inputs must be at least 1, not {self.max_count}"
        ensure(self.max_count >= 1, message)

    def __call__(self, xt: Tensor, t: Tensor) -> Tensor:
        """Transform counts [B, *shape] at float64 times [B]; returns float32 [B, *shape]."""
        angle = torch.asin(torch.sqrt((xt.float() / self.max_count).clamp(max=1)))
        mean_square = (torch.exp(-t) * self.mean + 0.25) / self.max_count
        return angle * per_row(mean_square.rsqrt().float(), xt)


@component("inputs")
@dataclass(frozen=True)
class LevelInputs(PaperInputs):
    """Input that maps levels 0..max_count to [-1, 1] at every time, and a mask above them to -2.

    Args:
        max_count: largest data level, at least 1.

    Raises:
        ValueError: `max_count` is below 1.

    References: this project; checked in tests/networks/test_wrapper.py.

    Example:
        >>> t = torch.tensor([0.5], dtype=torch.float64)
        >>> LevelInputs(4)(torch.tensor([[0, 2, 4, 5]]), t).tolist()  # 5 is the mask
        [[-1.0, 0.0, 1.0, -2.0]]
    """

    def __call__(self, xt: Tensor, t: Tensor) -> Tensor:
        """Compute 2 x / max_count - 1 of levels [B, *shape]; returns float32 [B, *shape]."""
        scaled = xt.float() * (2 / self.max_count) - 1
        return torch.where(xt > self.max_count, MASK_INPUT, scaled)


@component("inputs")
@dataclass(frozen=True)
class BirthDeathInputs(StandardisedInputs):
    """Input for immigration and death: (X_t - mean) / sqrt(q^2 std^2 + (1 - q^2) mean), q = e^-t.

    Args:
        mean: mean of X_0 over samples and elements, and of the stationary distribution, in
            counts, above 0.
        std: standard deviation of X_0 over samples and elements, in counts.

    Raises:
        ValueError: `mean` or `std` is negative or not finite.

    References: this project; checked in tests/networks/test_wrapper.py.
    """

    def __call__(self, xt: Tensor, t: Tensor) -> Tensor:
        """Standardise counts [B, *shape] at float64 times [B]; returns float32 [B, *shape]."""
        squared_survival = torch.exp(-2 * t)
        variance = squared_survival * self.std**2 - torch.expm1(-2 * t) * self.mean
        return (xt.float() - self.mean) / per_row(torch.sqrt(variance).float(), xt)


@component("inputs")
class StateInputs:
    """Input for bodies that embed states: the states themselves."""

    def __call__(self, xt: Tensor, t: Tensor) -> Tensor:
        """Return the states [B, *shape] as float32."""
        return xt.float()


@component("inputs")
class CountInputs(nn.Module):
    """Input on a variance-stabilising scale of negative binomial counts, per element.

    With q = e^-t, an element's mean m and its concentration r,

        z = log((r + X_t) / (r + q m)) sqrt(r (r + q m) / (1 + q m)).

    For large r (Poisson counts) this is (X_t - q m) / sqrt(1 + q m). For small r it is a
    logarithm, which separates 0 from 1 where the largest counts are thousands. At late times, when
    nearly all counts have decayed, |z| is at most about X_t.

    Args:
        shape: of one sample.

    Raises:
        ValueError: from `set_elements`, for statistics of another shape.

    References: this project; checked in tests/networks/test_elements.py.
    """

    mean: Tensor
    concentration: Tensor

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        # Not part of the weights: the model saves both itself, and sets them when it is loaded.
        self.register_buffer("mean", torch.ones(tuple(shape)), persistent=False)
        self.register_buffer("concentration", torch.ones(tuple(shape)), persistent=False)

    def set_elements(self, elements: Elements) -> None:
        """Set mean and concentration of every element, which are 1 before.

        Raises:
            ValueError: they have another shape than the inputs.
        """
        if elements.mean.shape != self.mean.shape:
            raise ValueError(
                f"statistics of the inputs must have the shape {list(self.mean.shape)}, "
                f"not {list(elements.mean.shape)}"
            )
        self.mean.copy_(elements.mean)
        self.concentration.copy_(elements.concentration)

    def forward(self, xt: Tensor, t: Tensor, log_ratio: Tensor | None = None) -> Tensor:
        """Scale counts [B, *shape] at float64 times [B] to float32 z, [B, *shape].

        Args:
            xt: counts, [B, *shape].
            t: times, float64 [B].
            log_ratio: log of the class's mean over the data's mean, [B, *shape]; None for 0.
        """
        survival = per_row(torch.exp(-t).float(), xt)
        mean = self.mean if log_ratio is None else self.mean * torch.exp(log_ratio)
        expected = survival * mean
        r = self.concentration
        relative = (xt.float() - expected) / (r + expected)
        # log1p is exact near 0; near -1, `relative` has lost the digits of r
        log_term = torch.where(
            relative < -0.9999, torch.log((r + xt) / (r + expected)), torch.log1p(relative)
        )
        return log_term * torch.sqrt(r * ((r + expected) / (1 + expected)))

    def prediction_log_ratio(self, t: Tensor, log_ratio: Tensor) -> Tensor:
        """Return by how much log E[X_0 - X_t | X_t] changes if the means change by e^log_ratio.

        Given X_t, the rate of the missing counts has a gamma distribution of shape r + X_t, whose
        mean changes by this factor.

        Args:
            t: times, float64 [B].
            log_ratio: log of the new over the old means, [B, *shape].

        Returns:
            float32 [B, *shape].
        """
        expected = per_row(torch.exp(-t).float(), log_ratio) * self.mean
        r = self.concentration
        return log_ratio - torch.log((r + expected * torch.exp(log_ratio)) / (r + expected))


def time_index(t: Tensor, final_time: float = FINAL_TIME) -> Tensor:
    """Return the paper's time index, (T - 1) (L - u) / 2L with u = logit e^-t, for any real time.

    It equals k - 1 at the paper's observation time t_k = softplus(-u_k), where u_k runs from
    L = log(e^final_time - 1) down to -L in T = 1000 steps.

    Args:
        t: positive times, any shape.
        final_time: last time of the schedule whose steps are counted.

    Returns:
        float64, of the shape of `t`.

    Example:
        >>> time_index(torch.tensor([15.0])).round().tolist()
        [999.0]

    References: Santos et al. 2023, eq. 60.
    """
    t = t.double()
    minus_logit = t + torch.log(-torch.expm1(-t))
    return (NUM_STEPS - 1) / 2 * (1 + minus_logit / math.log(math.expm1(final_time)))


@component("network", from_stats=body_and_inputs)
class CountNetwork(nn.Module):
    """Network on counts: scales the counts, converts times to time indices, and calls a body.

    A body maps float [B, *shape] and time indices [B] to [B, outputs * shape[0], *shape[1:]]. It
    may have these attributes:

    - `classes`, a `ClassEmbedding` or None. With one, `body(x, time_index, classes)` is called.
    - `reads_counts`. If true it also gets the unscaled counts, as `counts=`.

    Args:
        body: the network behind the scaling.
        inputs: the scaling of counts.
        channels_last: keep images and convolutions in channels_last memory on devices where that
            is faster (see `best_memory_format`); changes only the speed.
        final_time: last time of the schedule that is mapped to the last time index, above log 2.

    Raises:
        ValueError: `final_time` is out of range.

    Example:
        >>> from blackout.networks import ResidualMLP
        >>> network = CountNetwork(ResidualMLP((5,), width=8), StandardisedInputs(3.0, 2.0))
        >>> counts = torch.tensor([[0, 1, 2, 3, 4], [9, 0, 0, 2, 1]])
        >>> network(counts, torch.tensor(0.7)).shape  # [B, outputs, *shape]
        torch.Size([2, 1, 5])
    """

    def __init__(
        self,
        body: nn.Module,
        inputs: Inputs,
        channels_last: bool = False,
        final_time: float = FINAL_TIME,
    ) -> None:
        super().__init__()
        if not math.log(2) < final_time < 700:
            raise ValueError(
                f"final_time of the network must be above log 2 and below 700, not {final_time}"
            )
        self.body = body
        self.inputs = inputs
        self.channels_last = channels_last
        self.final_time = final_time
        self._is_compiled = False
        # log E[X_0 | class] - log E[X_0], [num_classes + 1, *shape], see `set_elements`
        self.class_log_ratios: Tensor | None
        self.register_buffer("class_log_ratios", None, persistent=False)
        self.training_log_ratios: Tensor | None
        self.register_buffer("training_log_ratios", None, persistent=False)
        self._set_memory_format()

    def _apply(self, fn: Any, recurse: bool = True) -> CountNetwork:
        """Apply `to` and the like, then set the memory format that suits the new device."""
        super()._apply(fn, recurse)
        self._set_memory_format()
        return self

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the network in place with torch.compile, in the memory format that suits it."""
        self._is_compiled = True
        self._set_memory_format()
        super().compile(*args, **kwargs)

    def _set_memory_format(self) -> None:
        parameters = list(self.body.parameters())
        if self.channels_last and parameters:
            has_volumes = any(parameter.ndim == 5 for parameter in parameters)
            memory_format = best_memory_format(parameters[0].device, has_volumes, self._is_compiled)
            self.body.to(memory_format=memory_format)

    @property
    def num_classes(self) -> int | None:
        """Number of classes, which is also the label of the null class; None without classes."""
        embedding = getattr(self.body, "classes", None)
        return None if embedding is None else embedding.null_class

    def forward(self, xt: Tensor, t: Tensor, classes: Tensor | None = None) -> Tensor:
        """Return the raw outputs, whose meaning a head defines.

        Args:
            xt: integer counts, [B, *shape].
            t: positive float64 times, a scalar or [B].
            classes: labels, int64 [B]; None for the null class.

        Returns:
            float32 [B, outputs, *shape], whatever the precision of the body.

        Raises:
            ValueError: `t` is neither a scalar nor [B].
        """
        if t.dim() > 1 or (t.dim() == 1 and len(t) != len(xt)):
            raise ValueError(
                f"times must be a scalar or [{len(xt)}], one per sample, not shape {list(t.shape)}"
            )
        # 1. Scale the counts. Scaling and time index need 1 - q down to 3e-7, hence float64 times.
        t = time_on(t, xt.device).expand(len(xt))
        log_ratio = None
        if classes is not None and self.class_log_ratios is not None:
            log_ratio = self.class_log_ratios[classes]
        ratios = () if log_ratio is None else (log_ratio,)  # only `CountInputs` takes them
        x = self.inputs(xt, t, *ratios)

        # 2. Run the body.
        labels = () if classes is None else (classes,)
        unscaled = {"counts": xt} if getattr(self.body, "reads_counts", False) else {}
        raw = self.body(x, time_index(t, self.final_time).float(), *labels, **unscaled)
        raw = raw.unflatten(1, (-1, xt.shape[1])).float()

        # 3. Add what the means of the classes imply, so that the body learns only the rest.
        if log_ratio is not None:
            raw[:, 0] += self._prediction_log_ratio(t, log_ratio)
        if self.training and classes is not None and self.training_log_ratios is not None:
            raw[:, 0] += self._prediction_log_ratio(t, self.training_log_ratios[classes])
        return raw

    def _prediction_log_ratio(self, t: Tensor, log_ratio: Tensor) -> Tensor:
        assert isinstance(self.inputs, CountInputs)  # others have no log ratios
        return self.inputs.prediction_log_ratio(t, log_ratio)


def set_elements(
    network: nn.Module,
    elements: Elements,
    class_log_ratios: Tensor | None = None,
    training_log_ratios: Tensor | None = None,
) -> None:
    """Set the statistics of the data in all `CountInputs` of a network, by which they scale counts.

    Args:
        network: a `CountNetwork`, or a module that contains some.
        elements: mean, concentration and gain of the data.
        class_log_ratios: log E[X_0 | class] - log E[X_0] of every class, and 0 for the null class,
            [num_classes + 1, *shape].
        training_log_ratios: log ratios of the class means of the training samples to those of the
            model, [num_classes + 1, *shape]; used in training only.
    """
    for module in network.modules():
        if isinstance(module, CountInputs):
            module.set_elements(elements)
        elif isinstance(module, CountNetwork) and isinstance(module.inputs, CountInputs):
            module.class_log_ratios = class_log_ratios
            module.training_log_ratios = training_log_ratios
