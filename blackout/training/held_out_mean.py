"""The mean of a metric over held-out samples, with its standard error."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torchmetrics import Metric

from blackout.errors import ensure


class HeldOutMean(Metric):
    """Mean over held-out samples with its standard error, and the values themselves, in float64.

    Attributes:
        error: standard error of the last mean, of independent samples; NaN for fewer than two.
        samples: numbers of the samples of that mean, int64 [N], increasing, and their values,
            float64 [N], on the CPU.

    References: this project; checked in tests/training/test_python.py.
    """

    full_state_update = False
    value: list[Tensor]
    index: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.add_state("value", default=[], dist_reduce_fx="cat")
        self.add_state("index", default=[], dist_reduce_fx="cat")
        self.error = math.nan
        self.samples = (torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.float64))

    def update(self, values: Tensor, index: Tensor) -> None:
        """Add the values of samples.

        Args:
            values: one value per sample, [b].
            index: numbers of the samples in the split, int64 [b].

        Raises:
            ValueError: `values` and `index` have different lengths.
        """
        message = f"values of shape {list(values.shape)}, but samples {list(index.shape)}"
        ensure(values.shape == index.shape, message)
        self.value.append(values.detach().to(self.device, self.dtype))
        self.index.append(index.to(self.device))

    def compute(self) -> Tensor:
        """Return the mean of all values, a scalar; NaN for none. Sets `error` and `samples`."""
        values = _concatenate(self.value, self.dtype)
        index = _concatenate(self.index, torch.int64)
        order = index.argsort()
        self.samples = (index[order].cpu(), values[order].cpu())
        self.error = math.nan
        if len(values) > 1:
            self.error = float(values.std(correction=0)) / math.sqrt(len(values) - 1)
        return values.mean()


def _concatenate(state: Tensor | list[Tensor], dtype: torch.dtype) -> Tensor:
    """Return the state of a metric as a tensor, which it is after several processes were joined."""
    if isinstance(state, Tensor):
        return state
    return torch.cat(state) if state else torch.zeros(0, dtype=dtype)
