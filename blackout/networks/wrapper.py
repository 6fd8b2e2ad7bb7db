"""From counts and time to the raw output of a network: scaled input, time label, body."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from blackout.networks.inputs import Inputs

NUM_STEPS = 1000
"""Observation times T of the paper; labels run from 0 to T - 1 over its schedule."""

LOGIT_RANGE = math.log(math.expm1(15.0))
"""L of the paper's schedule: the logits of survival it uses fill [-L, L]."""


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


class CountNetwork(nn.Module):
    """A network on counts: scales them, labels the time, and calls `body(x, label)`.

    Args:
        body: maps float [B, *shape] and labels [B] to [B, outputs * shape[0], *shape[1:]]; when there are classes it
            is called as `body(x, label, classes)`, and has an attribute `classes` (a `ClassEmbedding`) whose `null` is
            the label of the null class, or None.
        inputs: the scaling of counts.
        channels_last: keep images and convolutions in channels_last memory, which changes nothing but the speed.
    """

    def __init__(self, body: nn.Module, inputs: Inputs, channels_last: bool = False) -> None:
        super().__init__()
        self.body = _channels_last(body) if channels_last else body
        self.inputs = inputs

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
        t = t.to(xt.device, torch.float64).expand(len(xt))
        condition = () if classes is None else (classes,)
        raw = self.body(self.inputs(xt, t), time_label(t).float(), *condition)
        return raw.unflatten(1, (-1, xt.shape[1])).float()


def _channels_last(body: nn.Module) -> nn.Module:
    volumes = any(parameter.ndim == 5 for parameter in body.parameters())
    return body.to(memory_format=torch.channels_last_3d if volumes else torch.channels_last)
