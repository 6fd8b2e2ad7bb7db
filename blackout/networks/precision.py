"""Which precision and which memory format a network computes in, where PyTorch's own choice is slow or inexact."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def full_precision(x: Tensor) -> torch.autocast:
    """A context without autocast on the device of `x`, for the ends of a network, where counts go in and out.

    bfloat16 has 8 significant bits. It would blur neighbouring counts, and hardly save time there.
    """
    return torch.autocast(x.device.type, enabled=False)


def best_memory_format(device: torch.device, volumes: bool = False) -> torch.memory_format:
    """The memory format in which convolutions with group norms between them are quickest.

    channels_last on CPUs (measured, docs/performance.md) and, from PyTorch 2.15 on, on CUDA devices: before that its
    CUDA group norm returned NCHW, so that every block converted back and forth (read in its sources, not measured).
    `volumes` have three axes in space.
    """
    keeps = device.type == "cpu" or (device.type == "cuda" and torch.__version__ >= "2.15")
    last = torch.channels_last_3d if volumes else torch.channels_last
    return last if keeps else torch.contiguous_format


class _Affine:
    """Weight and bias of a norm in another dtype: cast once, until they change, where no gradients are wanted."""

    def __init__(self) -> None:
        self._key: Any = None
        self._cast: tuple[Tensor | None, Tensor | None] = (None, None)

    def of(self, norm: GroupNorm | LayerNorm, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
        both = norm.weight, norm.bias
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return _to(both, dtype)
        key = dtype, *((id(one), one.device, one._version) for one in both if one is not None)
        if key != self._key:
            self._key, self._cast = key, _to(both, dtype)
        return self._cast


def _to(both: tuple[Tensor | None, Tensor | None], dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
    weight, bias = (None if one is None else one.to(dtype) for one in both)
    return weight, bias


class GroupNorm(nn.GroupNorm):
    """PyTorch's, in the dtype of its input under autocast too, and by another way where its own is slow or inexact.

    Under CUDA's autocast PyTorch computes it in float32, and all that follows; its kernels for bfloat16 keep mean and
    variance in float32 anyway.

    On a CPU, in channels_last memory, groups of fewer than 16 channels do not fill a vector of bfloat16: [16, 256, 16,
    16] in 32 groups takes 3.2 ms forward and 9.0 ms with its backward pass, and 0.6 and 1.9 ms by way of float32. With
    1,024 pixels or more another kernel runs that is slow only backwards. In float32 it takes E[x^2] - E[x]^2 for the
    variance there, with an error of 3e-4 at a mean of ten deviations and 3e-2 at a hundred: so the mean is subtracted
    first.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._affine = _Affine()

    def forward(self, x: Tensor) -> Tensor:
        """Normalised features, of the shape [B, C, ...] and dtype of `x`."""
        if x.device.type != "cpu":
            with full_precision(x):
                return F.group_norm(x, self.num_groups, *self._affine.of(self, x.dtype), self.eps)
        narrow = self.num_channels < 16 * self.num_groups
        slow = narrow and (torch.is_grad_enabled() or x[0, 0].numel() < 1024)
        if slow and x.dtype == torch.bfloat16:
            weight, bias = self.weight.float(), self.bias.float()
            return F.group_norm(x.float(), self.num_groups, weight, bias, self.eps).to(x.dtype)
        if x.dtype == torch.float32 and _has_channels_last(x):
            x = x - self._group_means(x.detach())
        return super().forward(x)

    def _group_means(self, x: Tensor) -> Tensor:
        """The mean of its group for every channel, [B, C, 1, ...]."""
        means = x.mean(tuple(range(2, x.ndim))).unflatten(1, (self.num_groups, -1))
        return means.mean(2, keepdim=True).expand_as(means).reshape(*x.shape[:2], *[1] * (x.ndim - 2))


def _has_channels_last(x: Tensor) -> bool:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.ndim in formats and x.is_contiguous(memory_format=formats[x.ndim])


class LayerNorm(nn.LayerNorm):
    """PyTorch's, in the dtype of its input under CUDA's autocast too."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._affine = _Affine()

    def forward(self, x: Tensor) -> Tensor:
        """Normalised features, of the shape [..., *normalized_shape] and dtype of `x`."""
        if x.device.type == "cpu":
            return super().forward(x)
        with full_precision(x):
            return F.layer_norm(x, self.normalized_shape, *self._affine.of(self, x.dtype), self.eps)
