"""Building blocks of the networks: initialisation, normalisation, embeddings, attention.

They follow NCSN++ closely enough for its weights to carry over. `GroupNorm` and `Convolution3x3`
have compiled versions for CPUs in `blackout.networks.numba_layers`; `compiled_kernels` chooses.

References: Song et al. 2021, appendix H.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import Any, TypeAlias, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blackout.errors import ensure
from blackout.networks.dropout import Dropout

# --- Precision and memory formats


def full_precision(x: Tensor) -> torch.autocast:
    """Return a context that disables autocast, for the first and last layers of a network.

    bfloat16 has 8 significant bits. At the ends, where counts go in and out, it would blur
    neighbouring counts and hardly save time.
    """
    return torch.autocast("cpu" if x.is_meta else x.device.type, enabled=False)


def best_memory_format(
    device: torch.device, has_volumes: bool = False, is_compiled: bool = False
) -> torch.memory_format:
    """Return the memory format in which convolutions and group norms are fastest on a device.

    This is channels_last on CPUs (measured by `python -m benchmarks.training`), and on CUDA devices
    in compiled code or from PyTorch 2.15 on. Before 2.15, CUDA's group norm returned NCHW, so that
    every block converted back and forth; compiled code does not call it. The choice for CUDA
    follows from PyTorch's sources and was not measured.

    Args:
        device: of the network.
        has_volumes: whether convolutions have three spatial axes.
        is_compiled: whether the network is compiled by `torch.compile`.
    """
    cuda_keeps_format = is_compiled or torch.__version__ >= "2.15"
    keeps_format = device.type == "cpu" or (device.type == "cuda" and cuda_keeps_format)
    channels_last = torch.channels_last_3d if has_volumes else torch.channels_last
    return channels_last if keeps_format else torch.contiguous_format


def _is_channels_last(x: Tensor) -> bool:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.ndim in formats and x.is_contiguous(memory_format=formats[x.ndim])


# --- Choice of compiled kernels


@cache
def compiled_kernels() -> ModuleType | None:
    """Return `blackout.networks.numba_layers`, or None if numba is switched off."""
    try:
        from blackout.networks import numba_layers
    except ImportError:  # NUMBA_DISABLE_JIT is set: PyTorch's own layers are used
        return None
    return numba_layers


def _is_compilable(x: Tensor) -> bool:
    """Return whether the compiled kernels accept x.

    They take float32 in channels_last, on at most two CPU threads: they use one thread each, so
    with more threads PyTorch's own layers are preferred.
    """
    is_plain = type(x) is Tensor and x.is_cpu and x.dtype == torch.float32 and _is_channels_last(x)
    is_eager = not torch.is_autocast_enabled("cpu") and not torch.compiler.is_compiling()
    return is_plain and is_eager and torch.get_num_threads() <= 2


# --- Initialisation

# Variance scale of layers whose output is almost zero at first, but whose gradients are not
NEAR_ZERO = 1e-10

Affine = TypeVar("Affine", nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
Convolution: TypeAlias = nn.Conv1d | nn.Conv2d | nn.Conv3d

# By the number of spatial axes
CONVOLUTIONS: dict[int, type[Any]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


def init_weights(layer: Affine, scale: float = 1.0) -> Affine:
    """Initialise a layer: uniform weights of variance 2 scale / (fan in + fan out), bias 0.

    Returns:
        The layer itself.

    References: Glorot and Bengio 2010, eq. 16.
    """
    nn.init.xavier_uniform_(layer.weight, gain=math.sqrt(scale))
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


# --- Linear layers and convolutions

# Below these sizes, PyTorch's convolution is faster than Winograd's products
WINOGRAD_MIN_CHANNELS = 128
WINOGRAD_MIN_WIDTH = 8
WINOGRAD_MIN_PIXELS = 1024  # pixels of the whole batch
WINOGRAD_TILE = 4  # sides must be multiples of it


class Convolution3x3(nn.Conv2d):
    """PyTorch's convolution; on a CPU by Winograd's F(4x4, 3x3), where that is faster.

    References: Lavin and Gray 2016.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Convolve [B, in_channels, H, W]; returns [B, out_channels, H, W]."""
        kernels = compiled_kernels() if self._suits_winograd(x) else None
        if kernels is None:
            return super().forward(x)
        convolved: Tensor = kernels.WinogradConvolution.apply(x, self.weight, self.bias)
        return convolved

    def _suits_winograd(self, x: Tensor) -> bool:
        if min(self.weight.shape[:2]) < WINOGRAD_MIN_CHANNELS:
            return False
        if x.shape[-1] < WINOGRAD_MIN_WIDTH or len(x) * x[0, 0].numel() < WINOGRAD_MIN_PIXELS:
            return False
        if self.weight.dtype != x.dtype or any(side % WINOGRAD_TILE for side in x.shape[2:]):
            return False
        return _is_channels_last(self.weight) and _is_compilable(x)


def conv3x3(in_channels: int, out_channels: int, scale: float = 1.0, axes: int = 2) -> Convolution:
    """Make a convolution of side 3 that keeps the size: [B, in, H, W] -> [B, out, H, W].

    Args:
        in_channels: of the input.
        out_channels: of the output.
        scale: of the variance of the weights, see `init_weights`.
        axes: number of spatial axes: 1 for series [B, in, L], 2 for images, 3 for volumes.
    """
    kind = Convolution3x3 if axes == 2 else CONVOLUTIONS[axes]
    return init_weights(kind(in_channels, out_channels, 3, padding=1), scale)


def conv1x1(in_channels: int, out_channels: int, scale: float = 1.0, axes: int = 2) -> Convolution:
    """Make a linear map of every pixel's channels: [B, in, H, W] -> [B, out, H, W]."""
    return init_weights(CONVOLUTIONS[axes](in_channels, out_channels, 1), scale)


def dense(in_features: int, out_features: int, scale: float = 1.0) -> nn.Linear:
    """Make a linear layer: [B, in_features] -> [B, out_features]."""
    return init_weights(nn.Linear(in_features, out_features), scale)


# --- Normalisation and modulation

FUSED_NORM_MIN_ELEMENTS = 65_536  # below this, loading numba (0.5 s) does not pay off
BFLOAT16_LANES = 16  # narrower groups do not fill a vector in PyTorch's CPU kernel


def _affine_parameters(
    norm: GroupNorm | LayerNorm, dtype: torch.dtype
) -> tuple[Tensor | None, Tensor | None]:
    """Return weight and bias of a norm in a dtype; None for those it does not have."""
    weight = None if norm.weight is None else norm.weight.to(dtype)
    bias = None if norm.bias is None else norm.bias.to(dtype)
    return weight, bias


class GroupNorm(nn.GroupNorm):
    """Group norm in the dtype of its input; on CPUs faster or more exact than PyTorch's.

    It computes (x - mean) / std over the pixels and channels of a group, then applies a weight and
    a bias per channel.

    - CUDA's autocast would compute it, and what follows, in float32. Its bfloat16 kernels keep
      mean and variance in float32 anyway, so they are used here.
    - On a CPU in channels_last memory, PyTorch's bfloat16 kernel is slow for groups of fewer than
      16 channels: [16, 256, 16, 16] in 32 groups takes 3.2 ms forward and 9.0 ms with backward,
      but 0.6 and 1.9 ms via float32. From 1,024 pixels on, another kernel is slow only backward.
    - In channels_last float32 PyTorch computes the variance as E[x^2] - E[x]^2. Its error is 3e-4
      at a mean of ten standard deviations and 3e-2 at a hundred, so the mean is subtracted first.

    References: Wu and He 2018, eq. 1.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Normalise [B, C, ...]; returns the shape and dtype of `x`."""
        if x.device.type != "cpu":
            with full_precision(x):
                weight, bias = _affine_parameters(self, x.dtype)
                return F.group_norm(x, self.num_groups, weight, bias, self.eps)
        if x.dtype == torch.bfloat16 and self._is_slow_in_bfloat16(x):
            weight, bias = _affine_parameters(self, torch.float32)
            return F.group_norm(x.float(), self.num_groups, weight, bias, self.eps).to(x.dtype)
        normalised = self._apply_compiled_kernel(x)
        if normalised is not None:
            return normalised
        if x.dtype == torch.float32 and _is_channels_last(x):
            x = x - self._group_means(x.detach())
        return super().forward(x)

    def activate(
        self, x: Tensor, film: Tensor | None = None, dropout: Dropout | None = None
    ) -> Tensor:
        """Normalise, modulate, and apply SiLU and dropout; on a CPU in one pass where faster.

        Args:
            x: features, [B, C, ...].
            film: scale and shift for `modulate`, [B, 2 C]; None for no modulation.
            dropout: applied last; None for no dropout.

        Returns:
            [B, C, ...].
        """
        activated = self._apply_compiled_kernel(x, film, dropout, silu=True)
        if activated is not None:
            return activated
        h = self(x)
        if film is not None:
            h = modulate(h, film)
        h = F.silu(h)
        return h if dropout is None else dropout(h)

    def _is_slow_in_bfloat16(self, x: Tensor) -> bool:
        has_narrow_groups = self.num_channels < BFLOAT16_LANES * self.num_groups
        return has_narrow_groups and (torch.is_grad_enabled() or x[0, 0].numel() < 1024)

    def _apply_compiled_kernel(
        self,
        x: Tensor,
        film: Tensor | None = None,
        dropout: Dropout | None = None,
        silu: bool = False,
    ) -> Tensor | None:
        """Return the result of the compiled kernel on [B, C, H, W], or None where it is slower."""
        is_large = x.ndim == 4 and x.numel() >= FUSED_NORM_MIN_ELEMENTS
        if not (is_large and x.dtype == self.weight.dtype and _is_compilable(x)):
            return None
        kernels = compiled_kernels()
        if kernels is None:
            return None
        bits = x.new_empty(0, dtype=torch.int16)
        options = kernels.NormOptions(self.num_groups, self.eps, silu)
        if dropout is not None:
            bits = dropout.random_bits(x)
            options = options._replace(threshold=dropout.threshold, keep_scale=dropout.keep_scale)
        normalised: Tensor = kernels.FusedGroupNorm.apply(
            x, self.weight, self.bias, film, bits, options
        )
        return normalised

    def _group_means(self, x: Tensor) -> Tensor:
        """Return the mean of every channel's group, [B, C, 1, ...] of x [B, C, ...]."""
        channel_means = x.mean(tuple(range(2, x.ndim))).unflatten(1, (self.num_groups, -1))
        group_means = channel_means.mean(2, keepdim=True).expand_as(channel_means)
        return group_means.reshape(*x.shape[:2], *[1] * (x.ndim - 2))


class LayerNorm(nn.LayerNorm):
    """PyTorch's layer norm, in the dtype of its input under CUDA's autocast too."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise [..., *normalized_shape]; returns the shape and dtype of `x`."""
        if x.device.type == "cpu":
            return super().forward(x)
        with full_precision(x):
            weight, bias = _affine_parameters(self, x.dtype)
            return F.layer_norm(x, self.normalized_shape, weight, bias, self.eps)


def group_norm(channels: int) -> GroupNorm:
    """Make a group norm over min(channels // 4, 32) groups, or fewer that divide the channels.

    References: Song et al. 2021, appendix H.
    """
    groups = max(1, min(channels // 4, 32))
    while channels % groups:
        groups -= 1
    return GroupNorm(groups, channels, eps=1e-6)


def modulate(x: Tensor, film: Tensor) -> Tensor:
    """Return x (1 + scale) + shift for x [B, C, ...]; `film` [B, 2 C] has scale, then shift.

    References: Perez et al. 2018, eq. 2.
    """
    scale, shift = film.unflatten(1, (-1, *[1] * (x.ndim - 2))).chunk(2, dim=1)
    return torch.addcmul(shift, x, 1 + scale)


def rescaled_sum(x: Tensor, h: Tensor) -> Tensor:
    """Return the residual sum (x + h) / sqrt(2), which preserves variance, in the dtype of h.

    References: Song et al. 2021, appendix H.
    """
    return (x.to(h.dtype) + h) / math.sqrt(2.0)


# --- Checks of sizes

LAYER_COUNTS = ("depth", "blocks_per_level", "dense_blocks")  # arguments that count layers
MAX_LAYERS = 10_000
MAX_FEATURES = 2**20  # larger networks are typing errors, and would exhaust the memory


def check_sizes(network: str, minimum: int = 1, **sizes: int) -> None:
    """Check the sizes of a network.

    Raises:
        ValueError: a size is below `minimum`, or so large that building would not end.
    """
    for name, size in sizes.items():
        maximum = MAX_LAYERS if name in LAYER_COUNTS else MAX_FEATURES
        ensure(size >= minimum, f"{name} of the {network} must be at least {minimum}, not {size}")
        ensure(size <= maximum, f"{name} of the {network} must be at most {maximum:,}, not {size}")


def sides_per_level(shape: Sequence[int], levels: int, axes: Sequence[int] = (2,)) -> list[int]:
    """Return the longest image side at each level of a U-Net, which halves sides between levels.

    Args:
        shape: of one sample, channels first.
        levels: number of levels of the network.
        axes: allowed numbers of spatial axes.

    Raises:
        ValueError: no levels, a `shape` with another number of axes, or sides that cannot be
            halved that often.
    """
    check_sizes("convolutional network", multipliers=levels)
    factor = 2 ** (levels - 1)
    sides = tuple(shape[1:])
    if len(sides) not in axes or min(shape) < 1:
        raise ValueError(
            f"a convolutional network needs data of shape (C, H, W), not {tuple(shape)}"
        )
    if any(side % factor for side in sides):
        needed = "height and width" if len(sides) == 2 else "sides"
        size = "x".join(map(str, sides))
        advice = ": network=mlp is for vectors" if len(sides) == 1 else ""
        raise ValueError(
            f"a network with {levels} multipliers halves the image {levels - 1} times and needs "
            f"{needed} that are multiples of {factor}, not {size}{advice}"
        )
    return [max(sides) >> level for level in range(levels)]


# --- Embeddings

MAX_PERIOD = 10_000.0  # of the sinusoids
MAX_COVARIATE_POSITION = 1000.0  # the highest level of a covariate; the lowest is at 0
NUM_COVARIATE_SINUSOIDS = 32


def sinusoids(position: Tensor, channels: int) -> Tensor:
    """Return sines, then cosines, of positions at channels / 2 frequencies from 1 to 1/10000.

    Args:
        position: real numbers, such as time indices, [B].
        channels: even number of features, at least 4.

    Returns:
        float32 features, [B, channels].

    References: Vaswani et al. 2017, section 3.5.
    """
    half = channels // 2
    index = torch.arange(half, device=position.device, dtype=torch.float32)
    frequencies = torch.exp(index * (-math.log(MAX_PERIOD) / (half - 1)))
    angles = position.float()[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class TimeEmbedding(nn.Module):
    """Sinusoids of the time index and a two-layer MLP, without autocast: [B] -> [B, features].

    Args:
        channels: number of sinusoids, even and at least 4.
        features: of the embedding.

    Raises:
        ValueError: `channels` is odd or below 4.
    """

    def __init__(self, channels: int, features: int) -> None:
        super().__init__()
        if channels < 4 or channels % 2:
            raise ValueError(
                f"the width of a network must be an even number of at least 4, not {channels}"
            )
        self.channels = channels
        self.dense0 = dense(channels, features)
        self.dense1 = dense(features, features)

    def forward(self, time_index: Tensor) -> Tensor:
        """Embed time indices, real numbers [B]; returns [B, features]."""
        with full_precision(time_index):
            h = sinusoids(time_index, self.channels).to(self.dense0.weight.dtype)
            return self.dense1(F.silu(self.dense0(h)))


class ClassEmbedding(nn.Module):
    """Learned vector per class, and one for the null class, added to the time embedding.

    With covariates, a class is a combination (class, level, level, ...), numbered with the last
    covariate fastest. Each covariate has a smooth curve of its levels, an MLP of their sinusoids,
    which few levels (also those of words) can fit as freely as a table. The curves add up, so
    combinations that were absent from training have an embedding as well.

    Args:
        num_classes: number of all combinations.
        features: of the embedding.
        covariate_levels: number of levels of each covariate.

    Raises:
        ValueError: `num_classes` is below 1, or not a multiple of the product of the levels.

    References: this project; checked in tests/diffusion/test_conditions.py.
    """

    def __init__(
        self, num_classes: int, features: int, covariate_levels: Sequence[int] | None = None
    ) -> None:
        super().__init__()
        ensure(num_classes >= 1, f"num_classes must be at least 1, not {num_classes}")
        self.null_class = num_classes
        self.levels = tuple(covariate_levels or ())
        num_labels, remainder = divmod(num_classes, math.prod(self.levels))
        if remainder or min(self.levels, default=1) < 1:
            raise ValueError(
                f"num_classes={num_classes} must be a multiple of the number of combinations of "
                f"covariates, whose levels are {self.levels}"
            )
        self.table = nn.Embedding(num_labels + 1, features)
        nn.init.normal_(self.table.weight, std=0.1)
        self.curves = nn.ModuleList(
            TimeEmbedding(NUM_COVARIATE_SINUSOIDS, features) for _ in self.levels
        )

    def forward(self, embedding: Tensor, classes: Tensor | None) -> Tensor:
        """Add the embedding of classes, int64 [B], to that of times, [B, features].

        Args:
            embedding: of the times, [B, features].
            classes: int64 [B]; None for the null class.

        Returns:
            [B, features].
        """
        if classes is None:
            classes = torch.full((len(embedding),), self.null_class, device=embedding.device)
        is_class = (classes < self.null_class)[:, None]
        for curve, levels in zip(reversed(self.curves), reversed(self.levels), strict=True):
            position = MAX_COVARIATE_POSITION * (classes % levels) / max(1, levels - 1)
            embedding = embedding + torch.where(is_class, curve(position), 0.0).to(embedding.dtype)
            classes = classes // levels
        return embedding + self.table(classes).to(embedding.dtype)


# --- Attention


class Attention(nn.Module):
    """Single-head self-attention over all pixels with a rescaled skip connection.

    Maps [B, C, H, W] to the same shape: (x + W softmax(q k / sqrt(C)) v) / sqrt(2). The projections
    are 1x1 convolutions. A reference that keeps them as matrices applied from the right
    (NIN layers, `W[in, out]`) corresponds to `conv.weight = W.T[:, :, None, None]`.

    Args:
        channels: C.
        axes: number of spatial axes.

    References: Song et al. 2021, appendix H; Vaswani et al. 2017, eq. 1.
    """

    def __init__(self, channels: int, axes: int = 2) -> None:
        super().__init__()
        self.norm = group_norm(channels)
        self.query = conv1x1(channels, channels, 0.1, axes)
        self.key = conv1x1(channels, channels, 0.1, axes)
        self.value = conv1x1(channels, channels, 0.1, axes)
        self.out = conv1x1(channels, channels, NEAR_ZERO, axes)

    def forward(self, x: Tensor) -> Tensor:
        """Attend among the pixels of [B, C, *sides]; returns the same shape."""
        h = self.norm(x)
        query = self._to_tokens(self.query(h))
        key = self._to_tokens(self.key(h))
        value = self._to_tokens(self.value(h))
        h = F.scaled_dot_product_attention(query, key, value)
        h = h.squeeze(1).transpose(1, 2).unflatten(2, x.shape[2:])
        return rescaled_sum(x, self.out(h))

    @staticmethod
    def _to_tokens(x: Tensor) -> Tensor:
        """Return [B, C, *sides] as [B, 1, pixels, C], without a copy in channels_last memory."""
        return x.flatten(2).transpose(1, 2).contiguous().unsqueeze(1)
