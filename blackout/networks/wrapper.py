"""From counts and time to the raw output of a network: input scaling and the time label."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

NUM_STEPS = 1000
"""Observation times T of the paper; labels run from 0 to T - 1 over its schedule."""

LOGIT_RANGE = math.log(math.expm1(15.0))
"""L of the paper's schedule: the logits of survival it uses fill [-L, L]."""

VARIANCE_FLOOR = 1e-12
"""Far below the variance of any count that still occurs; it only keeps 0 / 0 from arising."""

Inputs = Callable[[Tensor, Tensor], Tensor]
"""Scales counts [B, *shape] at float64 times [B] to the float32 input of a network, [B, *shape]."""


def time_label(t: Tensor) -> Tensor:
    """The paper's time index, continued to all real times: (T - 1)(L - u) / 2L with u = logit(e^-t).

    It equals k - 1 at the paper's observation time t_k = softplus(-u_k) (Santos et al., ICML 2023, eq. 60).

    Args:
        t: positive times, any shape.

    Returns:
        float64 labels of the same shape.
    """
    t = t.double()
    minus_logit = t + torch.log(-torch.expm1(-t))
    return (NUM_STEPS - 1) / 2 * (1 + minus_logit / LOGIT_RANGE)


@dataclass(frozen=True)
class PaperInputs:
    """The paper's input: X_t minus half of the largest possible mean, in counts and not scaled.

    Args:
        max_count: largest possible count, at least 1.

    Raises:
        ValueError: `max_count` is below 1.
    """

    max_count: int

    def __post_init__(self) -> None:
        if self.max_count < 1:
            raise ValueError(f"max_count of the network's inputs must be at least 1, got {self.max_count}")

    def __call__(self, xt: Tensor, t: Tensor) -> Tensor:
        return xt.float() - _per_example(torch.exp(-t) * (self.max_count / 2), xt)


@dataclass(frozen=True)
class StandardisedInputs:
    """X_t minus its mean, over its standard deviation, for one `mean` and `std` of X_0 throughout.

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
            raise ValueError(
                f"mean and std of the network's inputs must be finite and >= 0, got {self.mean}, {self.std}"
            )

    def __call__(self, xt: Tensor, t: Tensor) -> Tensor:
        survival, decay = torch.exp(-t), -torch.expm1(-t)
        variance = survival**2 * self.std**2 + survival * decay * self.mean
        deviation = xt.float() - _per_example(survival * self.mean, xt)
        return deviation * _per_example(variance.clamp_min(VARIANCE_FLOOR).rsqrt(), xt)


def _per_example(values: Tensor, x: Tensor) -> Tensor:
    """Values [B] as float32, shaped to broadcast against `x` [B, ...]."""
    return values.float().reshape(-1, *[1] * (x.dim() - 1))


class CountNetwork(nn.Module):
    """A network on counts: scales them, labels the time, and calls `body(x, label)`.

    Args:
        body: maps float [B, *shape] and labels [B] to [B, outputs * shape[0], *shape[1:]]; when there are classes it
            is called as `body(x, label, classes)`.
        inputs: the scaling of counts.
        channels_last: keep images and convolutions in channels_last memory, which changes nothing but the speed.
    """

    def __init__(self, body: nn.Module, inputs: Inputs, channels_last: bool = False) -> None:
        super().__init__()
        self.body = body.to(memory_format=torch.channels_last) if channels_last else body
        self.inputs = inputs

    @property
    def num_classes(self) -> int | None:
        """How many classes the body can be told; its null class has this number. None if it knows of none."""
        embedding = getattr(self.body, "classes", None)
        return None if embedding is None else embedding.null

    def forward(self, xt: Tensor, t: Tensor, classes: Tensor | None = None) -> Tensor:
        """Raw outputs, whose meaning a head defines.

        Args:
            xt: integer counts, [B, *shape].
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
        t = t.to(xt.device, torch.float64).expand(len(xt))
        told = () if classes is None else (classes,)
        raw = self.body(self.inputs(xt, t), time_label(t).float(), *told)
        return raw.unflatten(1, (-1, xt.shape[1])).float()
