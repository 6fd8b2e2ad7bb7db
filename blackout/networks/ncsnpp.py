"""NCSN++, the network of the paper's experiments: its residual blocks, FIR resampling and attention.

In the form `vp/cifar10_ncsnpp_continuous` with a positional time embedding [Song 2021, appendix H; Santos 2023, section
3].

Modules are registered in the order of that reference's list of modules, and parameters within each in the
reference's order, so the two lists of parameters correspond one to one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blackout.component import component
from blackout.networks.layers import (
    NEAR_ZERO,
    Attention,
    ClassEmbedding,
    Dropout,
    TimeEmbedding,
    check_sizes,
    conv1x1,
    conv3x3,
    dense,
    full_precision,
    group_norm,
    init_weights,
    rescaled_sum,
    sides_per_level,
)


def _depthwise(x: Tensor, kernel: Tensor, convolution: Callable[..., Tensor], **options: int) -> Tensor:
    """Every channel of `x` [B, C, H, W] with the same kernels [K, 1, h, w]: [B, C K, ...], in the dtype of `x`.

    A depthwise convolution by definition (tests/networks/test_layers.py).

    On a CPU it is computed in float32 and channels_last: the kernels for bfloat16 and for other layouts of this odd
    convolution take up to a hundred times as long there, forwards or backwards. On other devices it is computed in NCHW
    and never transposed: only for that has PyTorch depthwise kernels of its own; the rest is left to cuDNN, which
    promises none for this shape.
    """
    if x.device.type == "cpu":
        h = x.to(torch.promote_types(x.dtype, torch.float32)).contiguous(memory_format=torch.channels_last)
    else:
        h = x.contiguous()
    with full_precision(x):
        weight = kernel.to(h.dtype).repeat(x.shape[1], 1, 1, 1)
        return convolution(h, weight, groups=x.shape[1], **options).to(x.dtype)


class FIRFilter(nn.Module):
    """The anti-aliasing filter [1, 3, 3, 1] x [1, 3, 3, 1] / 64, applied to every channel with zeros outside.

    [Zhang 2019], as in NCSN++ [Song 2021, appendix H].

    The plain filter sees two rows and columns of zeros on every side, so it lengthens each side by one.
    """

    kernel: Tensor

    def __init__(self) -> None:
        super().__init__()
        taps = torch.tensor([1.0, 3.0, 3.0, 1.0]) / 8
        self.register_buffer("kernel", torch.outer(taps, taps)[None, None], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, C, H + 1, W + 1] [Zhang 2019]."""
        return _depthwise(x, self.kernel, F.conv2d, padding=2)


class FIRDownsample(FIRFilter):
    """Filter and keep every second pixel: [B, C, 2H, 2W] -> [B, C, H, W] [Zhang 2019]."""

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, 2H, 2W] -> [B, C, H, W] [Zhang 2019]."""
        return _depthwise(x, self.kernel, F.conv2d, stride=2, padding=1)


class FIRUpsample(FIRFilter):
    """Put zeros between the pixels, filter, and restore the mean: [B, C, H, W] -> [B, C, 2H, 2W].

    As in NCSN++ [Song 2021, appendix H].
    """

    phases: Tensor

    def __init__(self) -> None:
        super().__init__()
        # an output pixel of even or odd place along an axis, from the input pixels before, at and after it
        taps = torch.tensor([[1.0, 3.0, 0.0], [0.0, 3.0, 1.0]]) / 4
        self.register_buffer("phases", torch.einsum("ai,bj->abij", taps, taps).reshape(4, 1, 3, 3), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, C, 2H, 2W], as in the class; off a CPU by the four phases of the filter, to the same
        result.
        """
        if x.device.type == "cpu":
            return _depthwise(x, 4 * self.kernel, F.conv_transpose2d, stride=2, padding=1)
        return F.pixel_shuffle(_depthwise(x, self.phases, F.conv2d, padding=1), 2)


class ResidualBlock(nn.Module):
    """BigGAN residual block that can change the resolution of both its branches [Song 2021, appendix H].

    Maps [B, in_channels, H, W] and an embedding [B, features] to [B, out_channels, H', W'].
    """

    def __init__(
        self, in_channels: int, out_channels: int, features: int, dropout: float, resample: FIRFilter | None = None
    ) -> None:
        super().__init__()
        self.norm0 = group_norm(in_channels)
        self.conv0 = conv3x3(in_channels, out_channels)
        self.time = dense(features, out_channels)
        self.norm1 = group_norm(out_channels)
        self.dropout = Dropout(dropout)
        self.conv1 = conv3x3(out_channels, out_channels, scale=NEAR_ZERO)
        self.resample = resample or nn.Identity()
        project = resample is not None or in_channels != out_channels
        self.shortcut = conv1x1(in_channels, out_channels) if project else nn.Identity()

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """[B, in_channels, H, W] and an embedding [B, features] -> [B, out_channels, H', W'], as in the class."""
        h = self.resample(self.norm0.activate(x))
        h = self.conv0(h) + self.time(embedding)[:, :, None, None]
        h = self.conv1(self.norm1.activate(h, dropout=self.dropout))
        return rescaled_sum(self.shortcut(self.resample(x)), h)


Residual = Callable[..., ResidualBlock]
"""`ResidualBlock` with the arguments that are the same everywhere in a network filled in."""


class AttendedBlock(nn.Module):
    """A residual block, followed by self-attention where wanted."""

    def __init__(self, residual: Residual, in_channels: int, channels: int, attend: bool) -> None:
        super().__init__()
        self.residual = residual(in_channels, channels)
        self.attention = Attention(channels) if attend else nn.Identity()

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """[B, in_channels, H, W] and an embedding [B, features] -> [B, channels, H, W]."""
        return self.attention(self.residual(x, embedding))


class Descent(nn.Module):
    """Halve the features and add the pyramid to them: the input, shrunk alongside by convolution."""

    def __init__(self, residual: Residual, channels: int, pyramid_channels: int) -> None:
        super().__init__()
        self.residual = residual(channels, channels, resample=FIRDownsample())
        self.blur = FIRFilter()
        self.conv = init_weights(nn.Conv2d(pyramid_channels, channels, 3, stride=2))

    def forward(self, x: Tensor, pyramid: Tensor, embedding: Tensor) -> Tensor:
        """Features and pyramid [B, ..., 2H, 2W] -> [B, channels, H, W], `rescaled_sum` [Song 2021, appendix H]."""
        return rescaled_sum(self.conv(self.blur(pyramid)), self.residual(x, embedding))


@component("body")
class NCSNpp(nn.Module):
    """The NCSN++ U-Net: BigGAN residual blocks, FIR resampling and a residual input pyramid.

    The defaults are the paper's CIFAR-10 network, of 62,693,251 parameters. Attention projections are 1x1
    convolutions; see `Attention` for how the reference's matrices map onto them.

    Args:
        shape: of the data, (channels, height, width); the sides must be divisible by 2 ** (levels - 1).
        outputs: number of output channel groups per data channel.
        channels: width of the finest level, an even number of at least 4.
        multipliers: width of each level, finest first, in units of `channels`.
        blocks_per_level: residual blocks per level on the way down (one more on the way up).
        attention_resolutions: longer image sides at which levels attend; the bottleneck always does.
        dropout: probability in the residual blocks.
        num_classes: number of classes of a conditional network; None for an unconditional one.

    Raises:
        ValueError: the levels do not fit the image, or a number is out of its range.
    """

    def __init__(
        self,
        shape: Sequence[int] = (3, 32, 32),
        outputs: int = 1,
        channels: int = 128,
        multipliers: Sequence[int] = (1, 2, 2, 2),
        blocks_per_level: int = 4,
        attention_resolutions: Sequence[int] = (16,),
        dropout: float = 0.1,
        num_classes: int | None = None,
    ) -> None:
        super().__init__()
        least = min(multipliers, default=0)
        check_sizes("NCSN++", outputs=outputs, blocks_per_level=blocks_per_level, multipliers=least)
        self.shape = tuple(shape)
        attend = [side in attention_resolutions for side in sides_per_level(shape, len(multipliers))]
        widths = [channels * multiplier for multiplier in multipliers]

        self.time = TimeEmbedding(channels, 4 * channels)
        residual = partial(ResidualBlock, features=4 * channels, dropout=dropout)
        self.stem = conv3x3(shape[0], channels)

        # a level is entered by a descent, unless it is the finest, and left by an ascent
        self.down: Any = nn.ModuleList()
        skips, pyramid = [channels], shape[0]
        for level, width in enumerate(widths):  # `skips` are the widths of the features that the way up takes
            steps: Any = nn.ModuleDict()
            if level > 0:
                steps["descent"] = Descent(residual, skips[-1], pyramid)
                pyramid = skips[-1]
                skips.append(pyramid)
            steps["blocks"] = nn.ModuleList()
            for _ in range(blocks_per_level):
                steps["blocks"].append(AttendedBlock(residual, skips[-1], width, attend[level]))
                skips.append(width)
            self.down.append(steps)
        width = skips[-1]
        self.middle0 = AttendedBlock(residual, width, width, attend=True)
        self.middle1 = residual(width, width)
        self.up: Any = nn.ModuleList()
        for level in reversed(range(len(widths))):
            inputs = [width] + blocks_per_level * [widths[level]]
            width = widths[level]
            steps = nn.ModuleDict()
            steps["blocks"] = nn.ModuleList(residual(features + skips.pop(), width) for features in inputs)
            steps["attention"] = Attention(width) if attend[level] else nn.Identity()
            if level > 0:
                steps["ascent"] = residual(width, width, resample=FIRUpsample())
            self.up.append(steps)
        self.norm = group_norm(widths[0])
        self.head = conv3x3(widths[0], outputs * shape[0], scale=NEAR_ZERO)
        self.classes = None if num_classes is None else ClassEmbedding(num_classes, 4 * channels)

    def forward(self, x: Tensor, label: Tensor, classes: Tensor | None = None) -> Tensor:
        """Map scaled data and time labels to raw outputs.

        Args:
            x: float, [B, *shape].
            label: float time indices, [B].
            classes: int64 [B], for a network that was made with `num_classes`; None is the null class.

        Returns:
            [B, outputs * C, H, W], channel groups in order: output 0 of all channels, then output 1.

        Raises:
            ValueError: `x` has another shape than the network was made for.
        """
        if x.shape[1:] != self.shape:
            raise ValueError(f"the network was made for data of shape {self.shape}, got {tuple(x.shape[1:])}")
        embedding = self.time(label)
        embedding = F.silu(embedding if self.classes is None else self.classes(embedding, classes))
        x = x.to(self.stem.weight.dtype)
        with full_precision(x):
            skips, pyramid = [self.stem(x)], x
        for level in self.down:
            if "descent" in level:
                pyramid = level["descent"](skips[-1], pyramid, embedding)
                skips.append(pyramid)
            for block in level["blocks"]:
                skips.append(block(skips[-1], embedding))
        h = self.middle1(self.middle0(skips[-1], embedding), embedding)
        for level in self.up:
            for block in level["blocks"]:
                h = block(torch.cat([h, skips.pop()], dim=1), embedding)
            h = level["attention"](h)
            h = level["ascent"](h, embedding) if "ascent" in level else h
        with full_precision(h):
            return self.head(self.norm.activate(h.to(self.head.weight.dtype)))
