"""From counts and time to the raw output of a network: scaled input, time label, body."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from blackout.networks.inputs import Inputs
from blackout.networks.precision import best_memory_format
from blackout.times import time_on

NUM_STEPS = 1000
"""Observation times T of the paper; labels run from 0 to T - 1 over its schedule."""

FINAL_TIME = 15.0
"""The paper's, but for binarised MNIST."""


def time_label(t: Tensor, final_time: float = FINAL_TIME) -> Tensor:
    """The paper's time index, continued to all real times: (T - 1)(L - u) / 2L with u = logit(e^-t).

    It equals k - 1 at the paper's observation time t_k = softplus(-u_k) (Santos et al., ICML 2023, eq. 60), where u_k
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
        self.body, self.inputs = body, inputs
        self.channels_last, self.final_time = channels_last, final_time
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
        t = time_on(t, xt.device).expand(len(xt))
        condition = () if classes is None else (classes,)
        raw = self.body(self.inputs(xt, t), time_label(t, self.final_time).float(), *condition)
        return raw.unflatten(1, (-1, xt.shape[1])).float()
