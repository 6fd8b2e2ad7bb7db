"""Building blocks of the networks: precision, initialisation, normalisation, dropout, time embedding, attention.

They follow NCSN++ [Song 2021, appendix H] closely enough for its weights to carry over; everything is plain PyTorch.
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
from blackout.random.words import random_words


def full_precision(x: Tensor) -> torch.autocast:
    """A context without autocast on the device of `x`, for the ends of a network, where counts go in and out.

    bfloat16 has 8 significant bits. It would blur neighbouring counts, and hardly save time there.
    """
    return torch.autocast("cpu" if x.is_meta else x.device.type, enabled=False)


def best_memory_format(device: torch.device, volumes: bool = False) -> torch.memory_format:
    """The memory format in which convolutions with group norms between them are quickest.

    channels_last on CPUs (`python -m benchmarks.training`) and, from PyTorch 2.15 on, on CUDA devices: before that its
    CUDA group norm returned NCHW, so that every block converted back and forth (read in its sources, not measured).
    `volumes` have three axes in space.
    """
    keeps = device.type == "cpu" or (device.type == "cuda" and torch.__version__ >= "2.15")
    last = torch.channels_last_3d if volumes else torch.channels_last
    return last if keeps else torch.contiguous_format


def _affine(norm: GroupNorm | LayerNorm, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
    """Return weight and bias of a norm in another dtype; None where it has none."""
    weight = None if norm.weight is None else norm.weight.to(dtype)
    bias = None if norm.bias is None else norm.bias.to(dtype)
    return weight, bias


_LARGE = 65_536
"""Elements from which on a norm is worth a compiled pass: numba takes half a second to load."""


class GroupNorm(nn.GroupNorm):
    """PyTorch's, in the dtype of its input under autocast too, and by another way where its own is slow or inexact.

    (x - mean) / deviation over the pixels and channels of a group [Wu 2018, eq. 1], then weight and bias by channel.

    Under CUDA's autocast PyTorch computes it in float32, and all that follows; its kernels for bfloat16 keep mean and
    variance in float32 anyway.

    On a CPU, in channels_last memory, groups of fewer than 16 channels do not fill a vector of bfloat16: [16, 256, 16,
    16] in 32 groups takes 3.2 ms forward and 9.0 ms with its backward pass, and 0.6 and 1.9 ms by way of float32. With
    1,024 pixels or more another kernel runs that is slow only backwards. In float32 it takes E[x^2] - E[x]^2 for the
    variance there, with an error of 3e-4 at a mean of ten deviations and 3e-2 at a hundred: so the mean is subtracted
    first.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Normalised features, of the shape [B, C, ...] and dtype of `x`."""
        if x.device.type != "cpu":
            with full_precision(x):
                return F.group_norm(x, self.num_groups, *_affine(self, x.dtype), self.eps)
        narrow = self.num_channels < 16 * self.num_groups
        slow = narrow and (torch.is_grad_enabled() or x[0, 0].numel() < 1024)
        if slow and x.dtype == torch.bfloat16:
            weight, bias = self.weight.float(), self.bias.float()
            return F.group_norm(x.float(), self.num_groups, weight, bias, self.eps).to(x.dtype)
        if (normed := self._in_one_pass(x)) is not None:
            return normed
        if x.dtype == torch.float32 and _has_channels_last(x):
            x = x - self._group_means(x.detach())
        return super().forward(x)

    def active(self, x: Tensor, film: Tensor | None = None, dropout: Dropout | None = None) -> Tensor:
        """SiLU of the normalised features, `modulated` before by film [B, 2 C], and masked by a dropout after it.

        On a CPU this is one pass over many features (`blackout.networks.numba_layers`).
        """
        if (activated := self._in_one_pass(x, film, dropout, silu=True)) is not None:
            return activated
        h = F.silu(self(x) if film is None else modulated(self(x), film))
        return h if dropout is None else dropout(h)

    def _in_one_pass(
        self, x: Tensor, film: Tensor | None = None, dropout: Dropout | None = None, silu: bool = False
    ) -> Tensor | None:
        """The same of x [B, C, H, W], modulated and masked as in `active`, or None where it is not quicker."""
        large = x.ndim == 4 and x.numel() >= _LARGE and x.dtype == self.weight.dtype
        if not (large and _compilable(x) and (kernels := compiled_kernels())):
            return None
        masks = (dropout.bits(x), dropout.dropped) if dropout else (x.new_empty(0, dtype=torch.int16), 0)
        normed: Tensor = kernels.Normed.apply(x, self.weight, self.bias, film, self.num_groups, self.eps, *masks, silu)
        return normed

    def _group_means(self, x: Tensor) -> Tensor:
        """The mean of its group for every channel of x [B, C, ...]: [B, C, 1, ...] [Wu 2018, eq. 2]."""
        means = x.mean(tuple(range(2, x.ndim))).unflatten(1, (self.num_groups, -1))
        return means.mean(2, keepdim=True).expand_as(means).reshape(*x.shape[:2], *[1] * (x.ndim - 2))


def _has_channels_last(x: Tensor) -> bool:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.ndim in formats and x.is_contiguous(memory_format=formats[x.ndim])


class LayerNorm(nn.LayerNorm):
    """PyTorch's, in the dtype of its input under CUDA's autocast too."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalised features, of the shape [..., *normalized_shape] and dtype of `x`."""
        if x.device.type == "cpu":
            return super().forward(x)
        with full_precision(x):
            return F.layer_norm(x, self.normalized_shape, *_affine(self, x.dtype), self.eps)


class DropoutOfShare(nn.Dropout):
    """Dropout whose masks, in one of several processes, are those that one alone would draw for the whole batch.

    Every process draws all of them and keeps those of its positions, every W-th from its rank on, so that another
    number W of processes trains the same (`tests/soak/test_kills.py`).
    """

    share: tuple[int, int, int] = (0, 1, 1)
    """Rank, number of processes, and samples of a process."""

    def forward(self, x: Tensor) -> Tensor:
        """Of x [b k, ...], k rows of every sample one after the other; other rows are masked alike everywhere.

        Ours, see the class.
        """
        if not self.training or not self.p or self._processes(x) == 1:
            return super().forward(x)
        return x * self._own(F.dropout(torch.cat([torch.ones_like(x)] * self.share[1]), self.p)).reshape(x.shape)

    def _processes(self, x: Tensor) -> int:
        """Whose masks are drawn."""
        return 1 if len(x) % self.share[2] else self.share[1]

    def _own(self, whole: Tensor) -> Tensor:
        """Of what is drawn for the rows of all processes, in order, that of this one's: [b, ...], see the class."""
        rank, processes, samples = self.share
        return whole.reshape(samples, processes, -1)[:, rank]


class Dropout(DropoutOfShare):
    """On a CPU its masks take little of the time of PyTorch's, 16 bits an element of a hash that the generator seeds.

    The share that is dropped is `p` rounded to a multiple of 2^-16, and what is kept is divided by the rest (ours:
    tests/networks/test_layers.py).
    """

    @property
    def dropped(self) -> int:
        """Of 65,536 elements, how many are dropped, a number; see the class."""
        return round(65536 * self.p) if self.training else 0

    def bits(self, x: Tensor) -> Tensor:
        """Random int16 for the elements of x in the order of its memory, whose rows are outermost; none to keep all.

        By `words`, [elements].
        """
        if not self.dropped:  # and leave the generator alone
            return x.new_empty(0, dtype=torch.int16)
        processes = self._processes(x)
        seed, number = int(torch.empty((), dtype=torch.int64).random_()), math.ceil(processes * x.numel() / 4)
        bits = random_words(seed, number).view(torch.int16)[: processes * x.numel()]
        return self._own(bits).flatten() if processes > 1 else bits

    def forward(self, x: Tensor) -> Tensor:
        """x [...] with the share masked and the rest divided by what is kept: [...], see the class."""
        if not 0 < self.dropped < 65536 or x.device.type != "cpu" or torch.compiler.is_compiling():
            return super().forward(x)
        like = torch.empty_like(x.detach(), dtype=torch.bool)
        torch.ge(self.bits(x).as_strided(x.shape, like.stride()), self.dropped - 32768, out=like)
        return x * like.to(x.dtype).mul_(65536 / (65536 - self.dropped))


NEAR_ZERO = 1e-10
"""Variance scale of layers that start silent: too small to be heard, large enough to pass gradients on."""

Affine = TypeVar("Affine", nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
Convolution: TypeAlias = nn.Conv1d | nn.Conv2d | nn.Conv3d
CONVOLUTIONS: dict[int, type[Any]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
"""By the number of axes besides channels."""


def initialised(layer: Affine, scale: float = 1.0) -> Affine:
    """Draw the weights [out, in, ...] uniformly, of variance 2 scale / (fan in + fan out), bias 0
    [Glorot 2010, eq. 16].
    """
    nn.init.xavier_uniform_(layer.weight, gain=math.sqrt(scale))
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


class Convolution3x3(nn.Conv2d):
    """PyTorch's; where it is quicker, on a CPU, by Winograd's products (`blackout.networks.numba_layers`)."""

    def forward(self, x: Tensor) -> Tensor:
        """[B, in_channels, H, W] -> [B, out_channels, H, W]; where it is quicker by Winograd's F(4x4, 3x3)
        [Lavin 2016].
        """
        wide = min(self.weight.shape[:2]) >= 128 and x.shape[-1] >= 8 and len(x) * x[0, 0].numel() >= 1024
        whole = wide and self.weight.dtype == x.dtype and not any(side % 4 for side in x.shape[2:])
        if not (whole and _has_channels_last(self.weight) and _compilable(x) and (kernels := compiled_kernels())):
            return super().forward(x)
        convolved: Tensor = kernels.Winograd.apply(x, self.weight, self.bias)
        return convolved


def _compilable(x: Tensor) -> bool:
    """Whether compiled kernels take x: single precision in channels_last, on up to two threads of a CPU."""
    plain = type(x) is Tensor and x.is_cpu and x.dtype == torch.float32 and _has_channels_last(x)
    alone = not torch.is_autocast_enabled("cpu") and not torch.compiler.is_compiling()
    return plain and alone and torch.get_num_threads() <= 2


@cache
def compiled_kernels() -> ModuleType | None:
    """Return `blackout.networks.numba_layers`, or None where numba is switched off."""
    try:
        from blackout.networks import numba_layers
    except ImportError:
        return None
    return numba_layers


def conv3x3(in_channels: int, out_channels: int, scale: float = 1.0, axes: int = 2) -> Convolution:
    """A convolution of side 3 that keeps the image's size: [B, in_channels, H, W] -> [B, out_channels, H, W].

    Of a series [B, in_channels, L] with one of the `axes`, of a volume with three.
    """
    kind = Convolution3x3 if axes == 2 else CONVOLUTIONS[axes]
    return initialised(kind(in_channels, out_channels, 3, padding=1), scale)


def conv1x1(in_channels: int, out_channels: int, scale: float = 1.0, axes: int = 2) -> Convolution:
    """A linear map of every pixel's channels: [B, in_channels, H, W] -> [B, out_channels, H, W]."""
    return initialised(CONVOLUTIONS[axes](in_channels, out_channels, 1), scale)


def dense(in_features: int, out_features: int, scale: float = 1.0) -> nn.Linear:
    """A linear layer: [B, in_features] -> [B, out_features]."""
    return initialised(nn.Linear(in_features, out_features), scale)


def group_norm(channels: int) -> GroupNorm:
    """Group norm over min(channels // 4, 32) groups, or the next smaller number that divides the channels.

    Of features [B, channels, ...], as in NCSN++ [Song 2021, appendix H].
    """
    groups = max(1, min(channels // 4, 32))
    while channels % groups:
        groups -= 1
    return GroupNorm(groups, channels, eps=1e-6)


def modulated(x: Tensor, film: Tensor) -> Tensor:
    """x (1 + scale) + shift, for x [B, C, ...] and both in film [B, 2 C] [Perez 2018, eq. 2]."""
    scale, shift = film.unflatten(1, (-1, *[1] * (x.ndim - 2))).chunk(2, dim=1)
    return torch.addcmul(shift, x, 1 + scale)


def rescaled_sum(x: Tensor, h: Tensor) -> Tensor:
    """(x + h) / sqrt(2), of any shape, which keeps the variance of independent summands [Song 2021, appendix H].

    In the precision of `h`.
    """
    return (x.to(h.dtype) + h) / math.sqrt(2.0)


def sinusoids(label: Tensor, channels: int) -> Tensor:
    """Sines, then cosines, of a time label at channels / 2 frequencies from 1 to 1/10000 [Vaswani 2017, section 3.5].

    Args:
        label: real-valued time indices, [B].
        channels: even number of features, at least 4.

    Returns:
        float32 features, [B, channels].
    """
    half = channels // 2
    index = torch.arange(half, device=label.device, dtype=torch.float32)
    angles = label.float()[:, None] * torch.exp(index * (-math.log(10000.0) / (half - 1)))
    return torch.cat([angles.sin(), angles.cos()], dim=1)


_LAYERS = ("depth", "blocks_per_level", "dense_blocks")
_CURVE = 32
"""Sinusoids of a covariate."""
_MOST_LAYERS, _MOST_FEATURES = 10_000, 2**20


def check_sizes(network: str, least: int = 1, **sizes: int) -> None:
    """Check the sizes of a network.

    Raises:
        ValueError: one is below `least`, or so large that making the network would not end.
    """
    for name, size in sizes.items():
        ensure(size >= least, f"{name} of the {network} must be at least {least}, got {size}")
        if size > (most := _MOST_LAYERS if name in _LAYERS else _MOST_FEATURES):
            raise ValueError(f"{name} of the {network} must be at most {most:,}, got {size}")


def sides_per_level(shape: Sequence[int], levels: int, axes: Sequence[int] = (2,)) -> list[int]:
    """The longest side of an image of `shape` (C, H, W) at each level of a network that halves it in between.

    Args:
        shape: of the data, channels first.
        levels: of the network.
        axes: how many sides there may be.

    Raises:
        ValueError: no levels, a `shape` with another number of sides, or sides that cannot be halved that often.
    """
    check_sizes("convolutional network", multipliers=levels)
    factor, sides = 2 ** (levels - 1), tuple(shape[1:])
    if len(sides) not in axes or min(shape) < 1:
        raise ValueError(f"a convolutional network needs data of shape (C, H, W), got {tuple(shape)}")
    if any(side % factor for side in sides):
        need = f"{'height and width' if len(sides) == 2 else 'sides'} that are multiples of {factor}"
        got = f"got {'x'.join(map(str, sides))}{': network=mlp is for vectors' if len(sides) == 1 else ''}"
        raise ValueError(
            f"a network with {levels} multipliers halves the image {levels - 1} times and needs {need}, {got}"
        )
    return [max(sides) >> level for level in range(levels)]


class TimeEmbedding(nn.Module):
    """Sinusoids of the time label through a two-layer perceptron: [B] -> [B, features], without autocast.

    Raises:
        ValueError: `channels`, the number of sinusoids, is odd or below 4.
    """

    def __init__(self, channels: int, features: int) -> None:
        super().__init__()
        if channels < 4 or channels % 2:
            raise ValueError(f"the width of a network must be an even number of at least 4, got {channels}")
        self.channels = channels
        self.dense0 = dense(channels, features)
        self.dense1 = dense(features, features)

    def forward(self, label: Tensor) -> Tensor:
        """The embedding [B, features] of labels [B]."""
        with full_precision(label):
            return self.dense1(F.silu(self.dense0(sinusoids(label, self.channels).to(self.dense0.weight.dtype))))


class ClassEmbedding(nn.Module):
    """Adds a learned vector per class, and one for "no class", to the time embedding: [B, features] -> the same.

    Where classes come with covariates, the number of a class is that of (class, level, level, ...), the last counted
    fastest; a perceptron of sinusoids makes a smooth curve of the levels of each covariate, on which few levels, those
    of words too, are as far apart as in a table. Combinations that were not trained on are sums as well. Ours
    (tests/diffusion/test_conditions.py).

    Args:
        num_classes: of all combinations.
        features: of the embedding.
        covariate_levels: levels of each covariate.

    Raises:
        ValueError: `num_classes` is below 1, or not a multiple of the product of the levels.
    """

    def __init__(self, num_classes: int, features: int, covariate_levels: Sequence[int] | None = None) -> None:
        super().__init__()
        ensure(num_classes >= 1, f"num_classes must be at least 1, not {num_classes}")
        self.null, self.levels = num_classes, tuple(covariate_levels or ())
        alone, rest = divmod(num_classes, math.prod(self.levels))
        if rest or min(self.levels, default=1) < 1:
            raise ValueError(f"{num_classes} classes are not combinations with covariates of {self.levels} levels")
        self.table = nn.Embedding(alone + 1, features)
        nn.init.normal_(self.table.weight, std=0.1)
        self.curves = nn.ModuleList(TimeEmbedding(_CURVE, features) for _ in self.levels)

    def forward(self, embedding: Tensor, classes: Tensor | None) -> Tensor:
        """The embedding [B, features] of times plus that of classes, int64 [B]; None is "no class".

        Ours, see the class.
        """
        if classes is None:
            classes = torch.full((len(embedding),), self.null, device=embedding.device)
        told = (classes < self.null)[:, None]
        for curve, levels in zip(reversed(self.curves), reversed(self.levels), strict=True):
            label = 1000.0 * (classes % levels) / max(1, levels - 1)
            embedding = embedding + torch.where(told, curve(label), 0.0).to(embedding.dtype)
            classes = classes // levels
        return embedding + self.table(classes).to(embedding.dtype)


class Attention(nn.Module):
    """Single-head self-attention over all pixels, with a rescaled residual: [B, C, H, W] -> the same; any `axes`.

    As in NCSN++ [Song 2021, appendix H].

    The projections are 1x1 convolutions. A reference that keeps them as matrices applied from the right
    (NIN layers, `W[in, out]`) maps as `conv.weight = W.T[:, :, None, None]`.
    """

    def __init__(self, channels: int, axes: int = 2) -> None:
        super().__init__()
        self.norm = group_norm(channels)
        self.query = conv1x1(channels, channels, 0.1, axes)
        self.key = conv1x1(channels, channels, 0.1, axes)
        self.value = conv1x1(channels, channels, 0.1, axes)
        self.out = conv1x1(channels, channels, NEAR_ZERO, axes)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> the same: (x + W softmax(q k / sqrt(C)) v) / sqrt(2) [Vaswani 2017, eq. 1], see the class."""
        h = self.norm(x)
        maps = (project(h).flatten(2).transpose(1, 2) for project in (self.query, self.key, self.value))
        query, key, value = (one.contiguous().unsqueeze(1) for one in maps)  # free in channels_last memory
        h = F.scaled_dot_product_attention(query, key, value)
        return rescaled_sum(x, self.out(h.squeeze(1).transpose(1, 2).unflatten(2, x.shape[2:])))
