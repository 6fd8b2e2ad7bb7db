"""Independent NCSN++, one function of a list of parameters, which shares no code with the package.

Filters are sums of shifted copies, attention is an explicit softmax, and groups are reshaped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import conv2d, pad

FIR = [1 / 8, 3 / 8, 3 / 8, 1 / 8]


def fir(x: Tensor, before: int, after: int, gain: float = 1.0) -> Tensor:
    """Pad both sides of both axes with zeros, then sum the sixteen shifted and weighted copies."""
    x = pad(x, (before, after, before, after))
    rows = x.shape[2] - 3
    columns = x.shape[3] - 3
    shifted = [
        FIR[i] * FIR[j] * x[:, :, i : i + rows, j : j + columns] for i in range(4) for j in range(4)
    ]
    return gain * torch.stack(shifted).sum(0)


def fir_down(x: Tensor) -> Tensor:
    return fir(x, 1, 1)[:, :, ::2, ::2]


def fir_up(x: Tensor) -> Tensor:
    batch, channels, rows, columns = x.shape
    spread = x.new_zeros(batch, channels, 2 * rows, 2 * columns)
    spread[:, :, ::2, ::2] = x
    return fir(spread, 2, 1, gain=4.0)


def swish(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


def embed(label: Tensor, channels: int) -> Tensor:
    half = channels // 2
    frequencies = [10000.0 ** (-j / (half - 1)) for j in range(half)]
    angles = torch.stack([label * frequency for frequency in frequencies], dim=1)
    return torch.cat([torch.sin(angles), torch.cos(angles)], dim=1)


def ncsnpp(
    parameters: Iterable[Tensor],
    x: Tensor,
    label: Tensor,
    channels: int,
    multipliers: Sequence[int],
    blocks: int,
    attention_at: Sequence[int],
) -> Tensor:
    """Apply NCSN++ to images x [B, C, H, W] at labels [B], using the parameters in order."""
    remaining = iter(parameters)
    take = remaining.__next__
    root = math.sqrt(2.0)

    def linear(v: Tensor) -> Tensor:
        weight = take()
        bias = take()
        return torch.einsum("bi,oi->bo", v, weight) + bias

    def conv(v: Tensor, padding: int, stride: int = 1) -> Tensor:
        weight = take()
        bias = take()
        return conv2d(v, weight, stride=stride, padding=padding) + bias[None, :, None, None]

    def norm(v: Tensor) -> Tensor:
        weight = take()
        bias = take()
        grouped = v.reshape(len(v), min(v.shape[1] // 4, 32), -1)
        centred = grouped - grouped.mean(2, keepdim=True)
        scaled = centred / torch.sqrt((centred**2).mean(2, keepdim=True) + 1e-6)
        return scaled.reshape(v.shape) * weight[:, None, None] + bias[:, None, None]

    def residual(v: Tensor, out: int, resample: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        h = swish(norm(v))
        if resample is not None:
            h = resample(h)
            v = resample(v)
        h = conv(h, 1) + linear(swish(temb))[:, :, None, None]
        h = conv(swish(norm(h)), 1)
        if resample is not None or v.shape[1] != out:
            v = conv(v, 0)
        return (v + h) / root

    def attention(v: Tensor) -> Tensor:
        h = norm(v)
        q = conv(h, 0)
        k = conv(h, 0)
        value = conv(h, 0)
        scores = torch.einsum("bchw,bcij->bhwij", q, k) / math.sqrt(v.shape[1])
        weights = torch.softmax(scores.flatten(3), dim=3).reshape(scores.shape)
        return (v + conv(torch.einsum("bhwij,bcij->bchw", weights, value), 0)) / root

    temb = linear(embed(label, channels))
    temb = linear(swish(temb))
    pyramid = x
    skips = [conv(x, 1)]
    for level, multiplier in enumerate(multipliers):
        for _ in range(blocks):
            h = residual(skips[-1], channels * multiplier)
            skips.append(attention(h) if h.shape[-1] in attention_at else h)
        if level < len(multipliers) - 1:
            h = residual(skips[-1], channels * multiplier, fir_down)
            pyramid = (conv(fir(pyramid, 2, 2), 0, stride=2) + h) / root
            skips.append(pyramid)

    width = channels * multipliers[-1]
    h = residual(attention(residual(skips[-1], width)), width)
    for level in reversed(range(len(multipliers))):
        width = channels * multipliers[level]
        for _ in range(blocks + 1):
            h = residual(torch.cat([h, skips.pop()], dim=1), width)
        if h.shape[-1] in attention_at:
            h = attention(h)
        if level > 0:
            h = residual(h, width, fir_up)
    h = conv(swish(norm(h)), 1)
    assert not skips and next(remaining, None) is None, "parameters or skip connections left over"
    return h
