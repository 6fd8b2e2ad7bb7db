"""NCSN++, the network of the Blackout Diffusion paper: residual blocks, FIR resampling, attention.

It has the form `vp/cifar10_ncsnpp_continuous` of the reference, with a positional time embedding.
Modules, and the parameters of each, are registered in the order of the reference. The two lists of
parameters therefore correspond one to one.

References: Song et al. 2021, appendix H; Santos et al. 2023, section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blackout.component import component
from blackout.networks.dropout import Dropout
from blackout.networks.layers import (
    NEAR_ZERO,
    Attention,
    ClassEmbedding,
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

FIR_TAPS = (1.0, 3.0, 3.0, 1.0)  # of the anti-aliasing filter, up to a factor


def _depthwise(
    x: Tensor, kernel: Tensor, convolution: Callable[..., Tensor], **options: int
) -> Tensor:
    """Convolve every channel of x with the same kernels, in the dtype of x.

    On a CPU it computes in float32 and channels_last: PyTorch's kernels for bfloat16 and for other
    layouts take up to a hundred times as long for this convolution, forward or backward. On other
    devices it computes in NCHW without a transpose, the only layout for which PyTorch has
    depthwise kernels of its own; for others it leaves the choice to cuDNN.

    Args:
        x: [B, C, H, W].
        kernel: [K, 1, h, w].
        convolution: `F.conv2d` or `F.conv_transpose2d`.
        options: of the convolution.

    Returns:
        [B, C K, ...].
    """
    if x.device.type == "cpu":
        dtype = torch.promote_types(x.dtype, torch.float32)
        h = x.to(dtype).contiguous(memory_format=torch.channels_last)
    else:
        h = x.contiguous()
    with full_precision(x):
        weight = kernel.to(h.dtype).repeat(x.shape[1], 1, 1, 1)
        return convolution(h, weight, groups=x.shape[1], **options).to(x.dtype)


class FIRFilter(nn.Module):
    """Anti-aliasing filter [1, 3, 3, 1] x [1, 3, 3, 1] / 64 of every channel, with zero padding.

    The padding is two on every side, so each side grows by one.

    References: Zhang 2019; Song et al. 2021, appendix H.
    """

    kernel: Tensor

    def __init__(self) -> None:
        super().__init__()
        taps = torch.tensor(FIR_TAPS) / 8
        self.register_buffer("kernel", torch.outer(taps, taps)[None, None], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Filter [B, C, H, W]; returns [B, C, H + 1, W + 1]."""
        return _depthwise(x, self.kernel, F.conv2d, padding=2)


class FIRDownsample(FIRFilter):
    """Filter that keeps every second pixel.

    References: Zhang 2019.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Filter [B, C, 2H, 2W]; returns [B, C, H, W]."""
        return _depthwise(x, self.kernel, F.conv2d, stride=2, padding=1)


class FIRUpsample(FIRFilter):
    """Filter of the image with zeros between its pixels, rescaled to keep the mean.

    References: Song et al. 2021, appendix H.
    """

    phases: Tensor

    def __init__(self) -> None:
        super().__init__()
        # Weights of the input pixels before, at and after an output pixel, for even and odd ones
        taps = torch.tensor([[1.0, 3.0, 0.0], [0.0, 3.0, 1.0]]) / 4
        phases = torch.einsum("ai,bj->abij", taps, taps).reshape(4, 1, 3, 3)
        self.register_buffer("phases", phases, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Filter [B, C, H, W]; returns [B, C, 2H, 2W].

        The four phases of the filter give the same result as the transposed convolution, and are
        faster on devices other than CPUs.
        """
        if x.device.type == "cpu":
            return _depthwise(x, 4 * self.kernel, F.conv_transpose2d, stride=2, padding=1)
        return F.pixel_shuffle(_depthwise(x, self.phases, F.conv2d, padding=1), 2)


class ResidualBlock(nn.Module):
    """BigGAN residual block that can change the resolution of both its branches.

    Args:
        in_channels: of the input.
        out_channels: of the output.
        features: of the time embedding.
        dropout: probability before the second convolution.
        resample: filter that changes the resolution; None to keep it.

    References: Song et al. 2021, appendix H.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        features: int,
        dropout: float,
        resample: FIRFilter | None = None,
    ) -> None:
        super().__init__()
        self.norm0 = group_norm(in_channels)
        self.conv0 = conv3x3(in_channels, out_channels)
        self.time = dense(features, out_channels)
        self.norm1 = group_norm(out_channels)
        self.dropout = Dropout(dropout)
        self.conv1 = conv3x3(out_channels, out_channels, scale=NEAR_ZERO)
        self.resample = resample or nn.Identity()
        self.shortcut: nn.Module = nn.Identity()
        if resample is not None or in_channels != out_channels:
            self.shortcut = conv1x1(in_channels, out_channels)

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """Map [B, in_channels, H, W] and an embedding [B, features] to [B, out, H', W']."""
        h = self.resample(self.norm0.activate(x))
        h = self.conv0(h) + self.time(embedding)[:, :, None, None]
        h = self.conv1(self.norm1.activate(h, dropout=self.dropout))
        return rescaled_sum(self.shortcut(self.resample(x)), h)


# Makes a `ResidualBlock` from its channels, and optionally a filter
BlockFactory: TypeAlias = Callable[..., ResidualBlock]


class AttentionBlock(nn.Module):
    """Residual block, optionally followed by self-attention."""

    def __init__(
        self, make_block: BlockFactory, in_channels: int, out_channels: int, attend: bool
    ) -> None:
        super().__init__()
        self.residual = make_block(in_channels, out_channels)
        self.attention = Attention(out_channels) if attend else nn.Identity()

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """Map [B, in_channels, H, W] and an embedding [B, features] to [B, out_channels, H, W]."""
        return self.attention(self.residual(x, embedding))


class Downsample(nn.Module):
    """Halves the features and adds the input pyramid, downsampled by a convolution.

    References: Song et al. 2021, appendix H.
    """

    def __init__(self, make_block: BlockFactory, channels: int, pyramid_channels: int) -> None:
        super().__init__()
        self.residual = make_block(channels, channels, resample=FIRDownsample())
        self.blur = FIRFilter()
        self.conv = init_weights(nn.Conv2d(pyramid_channels, channels, 3, stride=2))

    def forward(self, x: Tensor, pyramid: Tensor, embedding: Tensor) -> Tensor:
        """Map features and pyramid, [B, ..., 2H, 2W] each, to [B, channels, H, W]."""
        return rescaled_sum(self.conv(self.blur(pyramid)), self.residual(x, embedding))


@component("body")
class NCSNpp(nn.Module):
    """NCSN++: a U-Net of BigGAN residual blocks with FIR resampling and a residual input pyramid.

    The defaults are the paper's CIFAR-10 network with 62,693,251 parameters. Projections of
    attention are 1x1 convolutions; `Attention` describes how the reference's matrices map to them.

    Args:
        shape: of one sample, (channels, height, width); sides must be multiples of
            2 ** (levels - 1).
        outputs: number of output channels per data channel.
        channels: width of the finest level, an even number of at least 4.
        multipliers: width of each level, finest first, in units of `channels`.
        blocks_per_level: residual blocks per level on the way down; there is one more on the way
            up.
        attention_resolutions: lengths of the longer image side at which levels attend; the
            bottleneck always does.
        dropout: probability in the residual blocks.
        num_classes: number of classes of a conditional network; None for an unconditional one.

    Raises:
        ValueError: the levels do not fit the image, or a size is out of range.

    Example:
        >>> network = NCSNpp((1, 8, 8), channels=8, multipliers=(1, 2), blocks_per_level=1)
        >>> network(torch.zeros(2, 1, 8, 8), torch.tensor([0.0, 999.0])).shape
        torch.Size([2, 1, 8, 8])

    References: Song et al. 2021, appendix H; Santos et al. 2023, section 3.
    """

    def __init__(  # noqa: PLR0913 - built from YAML
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
        # 1. Check the sizes.
        check_sizes(
            "NCSN++",
            outputs=outputs,
            blocks_per_level=blocks_per_level,
            multipliers=min(multipliers, default=0),
        )
        self.shape = tuple(shape)
        level_sides = sides_per_level(shape, len(multipliers))
        attend = [side in attention_resolutions for side in level_sides]
        widths = [channels * multiplier for multiplier in multipliers]
        features = 4 * channels

        # 2. Time embedding and first convolution.
        self.time = TimeEmbedding(channels, features)
        make_block = partial(ResidualBlock, features=features, dropout=dropout)
        self.stem = conv3x3(shape[0], channels)

        # 3. Way down. `skip_widths` are the channels of the features that the way up concatenates.
        self.down: Any = nn.ModuleList()
        skip_widths = [channels]
        pyramid_channels = shape[0]
        for level, width in enumerate(widths):
            modules: Any = nn.ModuleDict()
            if level > 0:
                modules["downsample"] = Downsample(make_block, skip_widths[-1], pyramid_channels)
                pyramid_channels = skip_widths[-1]
                skip_widths.append(pyramid_channels)
            modules["blocks"] = nn.ModuleList()
            for _ in range(blocks_per_level):
                block = AttentionBlock(make_block, skip_widths[-1], width, attend[level])
                modules["blocks"].append(block)
                skip_widths.append(width)
            self.down.append(modules)

        # 4. Bottleneck.
        width = skip_widths[-1]
        self.middle0 = AttentionBlock(make_block, width, width, attend=True)
        self.middle1 = make_block(width, width)

        # 5. Way up.
        self.up: Any = nn.ModuleList()
        for level in reversed(range(len(widths))):
            in_widths = [width] + blocks_per_level * [widths[level]]
            width = widths[level]
            modules = nn.ModuleDict()
            modules["blocks"] = nn.ModuleList(
                make_block(in_width + skip_widths.pop(), width) for in_width in in_widths
            )
            modules["attention"] = Attention(width) if attend[level] else nn.Identity()
            if level > 0:
                modules["upsample"] = make_block(width, width, resample=FIRUpsample())
            self.up.append(modules)

        # 6. Output.
        self.norm = group_norm(widths[0])
        self.head = conv3x3(widths[0], outputs * shape[0], scale=NEAR_ZERO)
        self.classes: ClassEmbedding | None = None
        if num_classes is not None:
            self.classes = ClassEmbedding(num_classes, features)

    def forward(self, x: Tensor, time_index: Tensor, classes: Tensor | None = None) -> Tensor:
        """Map scaled data and time indices to raw outputs.

        Args:
            x: scaled data, float [B, *shape].
            time_index: time indices, float [B].
            classes: int64 [B], of a network with `num_classes`; None for the null class.

        Returns:
            [B, outputs * C, H, W], channel groups in order: output 0 of all channels, then output
            1, ...

        Raises:
            ValueError: `x` has another shape than the network was made for.
        """
        if x.shape[1:] != self.shape:
            shape = tuple(x.shape[1:])
            raise ValueError(f"the network was made for data of shape {self.shape}, not {shape}")

        # 1. Embed time and class.
        embedding = self.time(time_index)
        if self.classes is not None:
            embedding = self.classes(embedding, classes)
        embedding = F.silu(embedding)

        # 2. First convolution.
        x = x.to(self.stem.weight.dtype)
        with full_precision(x):
            skips = [self.stem(x)]
        pyramid = x

        # 3. Way down, with the input pyramid.
        for level in self.down:
            if "downsample" in level:
                pyramid = level["downsample"](skips[-1], pyramid, embedding)
                skips.append(pyramid)
            for block in level["blocks"]:
                skips.append(block(skips[-1], embedding))

        # 4. Bottleneck.
        h = self.middle0(skips[-1], embedding)
        h = self.middle1(h, embedding)

        # 5. Way up, with skip connections.
        for level in self.up:
            for block in level["blocks"]:
                h = block(torch.cat([h, skips.pop()], dim=1), embedding)
            h = level["attention"](h)
            if "upsample" in level:
                h = level["upsample"](h, embedding)

        # 6. Last convolution.
        with full_precision(h):
            return self.head(self.norm.activate(h.to(self.head.weight.dtype)))
