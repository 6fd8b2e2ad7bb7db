"""What networks take most time for on a CPU, compiled by numba: convolutions of side 3, and norms with SiLU.

The convolutions have a quarter of the multiplications, by Winograd's F(4x4, 3x3) [Lavin 2016]. The 4x4 pixels of an
output tile come of 36 products of sums, instead of 144 products: the transforms of patches, filters and tiles are
compiled, and between them are 36 matrix products over the channels. At the points 0, +-1/sqrt(2), +-sqrt(2) and
infinity rounding errors are about twice those of PyTorch's convolution (ours: the best of eleven pairs; the law: values
and gradients against double precision).

A group norm [Wu 2018, eq. 1], what modulates it, SiLU and dropout are one pass over an image, which stays in the
processor's cache meanwhile (ours; the law: the same).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from blackout.random.numba_draws import cached_njit

_POINTS = np.sqrt([0, 0.5, 0.5, 2, 2]) * [0, 1, -1, 1, -1]
_PIXELS = 4096
"""At a time, whose sums stay in the processor's cache."""


def _powers(number: int) -> Any:
    """1, p, p^2, ... of the points, and the highest power at infinity: [6, number] [Lavin 2016]."""
    return np.concatenate([np.vander(_POINTS, number, increasing=True), np.eye(number)[-1:]])


def _square(matrix: Any) -> Any:
    """[6, 6] with zeros below and at the right."""
    return np.pad(matrix, [(0, 6 - side) for side in matrix.shape]).astype(np.float32, order="C")


_OF_FILTER = torch.from_numpy(np.kron(_powers(3), _powers(3))).float()
_OF_PATCH, _TO_PATCH = _square(np.linalg.inv(_powers(6)).T), _square(np.linalg.inv(_powers(6)))
_OF_TILE, _TO_TILE = _square(_powers(4)), _square(_powers(4).T)


_IN_LINE: dict[str, Any] = {"fastmath": {"contract"}, "forceinline": True}


@cached_njit("void(f4[:, ::1], intp, f4[::1], uintp, uintp, f4[::1], uintp, uintp, uintp, boolean)", **_IN_LINE)
def _mix(matrix: Any, rows: int, x: Any, at: int, step: int, y: Any, to: int, apart: int, size: int, add: bool) -> None:
    """Of six stretches [size] of `x`, `step` apart, the sums by the first rows of the matrix [6, 6], `apart` in `y`.

    Of `_transform`.
    """
    at1, at2, at3 = at + step, at + step + step, at + step + step + step
    at4, at5 = at3 + step, at3 + step + step
    for row in range(rows):
        w0, w1, w2, w3, w4, w5 = matrix[row]
        for k in range(size):
            total = w0 * x[at + k] + w1 * x[at1 + k] + w2 * x[at2 + k]
            total += w3 * x[at3 + k] + w4 * x[at4 + k] + w5 * x[at5 + k]
            y[to + k] = y[to + k] + total if add else total
        to += apart


@cached_njit("void(f4[::1], UniTuple(intp, 4), f4[:, ::1], intp, f4[::1])")
def _transform(images: Any, shape: Any, matrix: Any, side: int, sums: Any) -> None:
    """Between images [N, H + 2, W + 2, C] and [36, tiles, C] of their squares [6, 6], which begin 4 apart.

    Without a `side`, to matrix @ square @ matrix.T; else add that of the 36 sums, its first rows and columns.

    The transforms of [Lavin 2016], one side after the other.
    """
    number, height, width, channels = shape
    line, tiles, tile = width * channels, sums.size // (36 * channels), 0
    mixed = np.empty(6 * line, np.float32)
    for top in range(0, number * height, height):
        for corner in range(top * line, (top + height - 2) * line, 4 * line):
            mixed[:] = 0
            if not side:
                _mix(matrix, 6, images, corner, line, mixed, 0, line, line, False)
            for left in range(0, line - 2 * channels, 4 * channels):
                for a in range(6):
                    at, to, apart = (6 * a * tiles + tile) * channels, a * line + left, tiles * channels
                    if side:
                        _mix(matrix, side, sums, at, apart, mixed, to, channels, channels, True)
                    else:
                        _mix(matrix, 6, mixed, to, channels, sums, at, apart, channels, False)
                tile += 1
            if side:
                _mix(matrix, side, mixed, 0, line, images, corner, line, line, True)


def _gathered(x: Tensor, margins: tuple[int, int], matrix: Any) -> Tensor:
    """[N, C, H, W] -> [36, N H W / 16, C]: squares of patches, transformed [Lavin 2016]."""
    out, pixels = x.new_empty(36, x[:, 0].numel() // 16, x.shape[1]), F.pad(x, margins * 2).permute(0, 2, 3, 1)
    _transform(pixels.reshape(-1).numpy(), tuple(pixels.shape), matrix, 0, out.view(-1).numpy())
    return out


def _scattered(sums: Tensor, like: Tensor, matrix: Any, side: int) -> Tensor:
    """[36, tiles, C] -> [N, C, H + 2, W + 2], of images of the size of `like`: transformed back and added
    [Lavin 2016].
    """
    out = sums.new_zeros(len(like), like.shape[2] + 2, like.shape[3] + 2, sums.shape[2])
    _transform(out.view(-1).numpy(), tuple(out.shape), matrix, side, sums.view(-1).numpy())
    return out.permute(0, 3, 1, 2)


def _filters(weight: Tensor) -> Tensor:
    """[K, C, 3, 3] -> [36, K, C]: the transform of filters [Lavin 2016]."""
    return (_OF_FILTER @ weight.permute(2, 3, 0, 1).reshape(9, -1)).view(36, *weight.shape[:2])


class Winograd(torch.autograd.Function):
    """The convolution of x [N, C, H, W], float32 in channels_last with sides that are multiples of 4.

    F(4x4, 3x3) of [Lavin 2016], and its gradients (tests/networks/test_layers.py).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """With weight [K, C, 3, 3] and bias [K]: [N, K, H, W] [Lavin 2016]."""
        ctx.save_for_backward(x, weight)
        filters, y = _filters(weight), []
        for part in x.split(max(1, _PIXELS // x[0, 0].numel())):
            sums = _gathered(part, (1, 1), _OF_PATCH) @ filters.mT
            y.append(_scattered(sums, part, _TO_TILE, 4)[:, :, :-2, :-2] + bias[:, None, None])
        return torch.cat(y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of y [N, K, H, W], to those of x [N, C, H, W], weight [K, C, 3, 3] and bias [K]: the transforms of
        [Lavin 2016] transposed.
        """
        x, weight = ctx.saved_tensors
        filters, of_x, of_filters = _filters(weight), [], weight.new_zeros(36, *weight.shape[:2])
        most = max(1, _PIXELS // x[0, 0].numel())
        for part, given in zip(x.split(most), gradient.split(most), strict=True):
            tiles = _gathered(given, (0, 2), _OF_TILE)
            of_x.append(_scattered(tiles @ filters, part, _TO_PATCH, 6)[:, :, 1:-1, 1:-1])
            if ctx.needs_input_grad[1]:
                of_filters.baddbmm_(tiles.mT, _gathered(part, (1, 1), _OF_PATCH))
        of_weight = (_OF_FILTER.T @ of_filters.view(36, -1)).view(3, 3, *weight.shape[:2]).permute(2, 3, 0, 1)
        return torch.cat(of_x), of_weight, gradient.sum((0, 2, 3))


_LOG2 = np.float32(math.log(2))
_TAYLOR = tuple(np.float32(1 / math.factorial(power)) for power in range(8))


@cached_njit("f4(f4)", **_IN_LINE)
def _sigmoid(x: Any) -> Any:
    """1 / (1 + e^-x), where e^-x = 2^k e^r with |r| at most log(2) / 2: to some 1e-7 of 1, a scalar of a scalar.

    Ours (tests/networks/test_layers.py).
    """
    y = min(max(-x, np.float32(-87)), np.float32(87))
    k = (y / _LOG2 + np.float32(12582912)) - np.float32(12582912)  # rounded: halves have no room beside 1.5 * 2^23
    r, power, series = y - k * _LOG2, np.int32((np.int32(k) + np.int32(127)) << np.int32(23)), _TAYLOR[7]
    for n in (6, 5, 4, 3, 2, 1, 0):
        series = series * r + _TAYLOR[n]
    return _TAYLOR[0] / (_TAYLOR[0] + series * power.view(np.float32))


@cached_njit("void(f4[::1], intp, f4)", **_IN_LINE)
def _shared(sums: Any, each: int, share: Any) -> None:
    """In place of the sums [C] of a group's channels, so many next to each other, the `share` of their total."""
    for first in range(0, sums.size, each):
        sums[first : first + each] = sums[first : first + each].sum() * share


_ROWS, _MATRIX = "f4[:, :, ::1]", "f4[:, ::1]"


@cached_njit(f"void({_ROWS}, {_MATRIX}, {_MATRIX}, i2[:, :, ::1], f4, f4, intp, boolean, f4, {_ROWS}, {_ROWS})")
def _active(
    x: Any, factor: Any, shift: Any, bits: Any, dropped: Any, kept: Any, each: int, silu: bool, eps: Any,
    moments: Any, out: Any,
) -> None:  # fmt: skip
    """Write `out` [N, P, C] and, into zeros [N, 2, C], the groups' means and 1 / deviations.

    [Wu 2018, eq. 1], then y = normal * factor + shift [N, C] and SiLU, y sigmoid(y), of x [N, P, C].
    """
    number, pixels, channels = x.shape
    share = np.float32(1 / (pixels * each))
    for n in range(number):
        mean, rate = moments[n, 0], moments[n, 1]
        for p in range(pixels):
            for c in range(channels):
                mean[c] += x[n, p, c]
        _shared(mean, each, share)
        for p in range(pixels):
            for c in range(channels):
                rate[c] += (x[n, p, c] - mean[c]) * (x[n, p, c] - mean[c])
        _shared(rate, each, share)
        for c in range(channels):
            rate[c] = _TAYLOR[0] / np.sqrt(rate[c] + eps)
        for p in range(pixels):
            for c in range(channels):
                y = (x[n, p, c] - mean[c]) * rate[c] * factor[n, c] + shift[n, c]
                out[n, p, c] = y * _sigmoid(y) if silu else y
            if len(bits):
                for c in range(channels):
                    out[n, p, c] *= kept if bits[n, p, c] >= dropped else np.float32(0)


_OF_BACK = _ROWS, _MATRIX, _MATRIX, "i2[:, :, ::1]", "f4, f4, intp, boolean", *[_ROWS] * 3, *[_MATRIX] * 2


@cached_njit(f"void({', '.join(_OF_BACK)})")
def _active_back(
    x: Any, factor: Any, shift: Any, bits: Any, dropped: Any, kept: Any, each: int, silu: bool, moments: Any,
    of_out: Any, of_x: Any, of_factor: Any, of_shift: Any,
) -> None:  # fmt: skip
    """Of the gradient of `out`, those of x and, into zeros, of factor and shift.

    Of [Wu 2018, eq. 1] as `_active` has it, by the chain rule: [N, P, C] of x, [N, C] of factor and shift.
    """
    number, pixels, channels = x.shape
    share = np.float32(1 / (pixels * each))
    for n in range(number):
        mean, rate = moments[n, 0], moments[n, 1]
        for p in range(pixels):
            for c in range(channels):
                of_x[n, p, c] = of_out[n, p, c]
            if len(bits):
                for c in range(channels):
                    of_x[n, p, c] *= kept if bits[n, p, c] >= dropped else np.float32(0)
            for c in range(channels):
                normal = (x[n, p, c] - mean[c]) * rate[c]
                y = normal * factor[n, c] + shift[n, c]
                slope = _sigmoid(y)
                of_x[n, p, c] *= slope * (_TAYLOR[0] + y * (_TAYLOR[0] - slope)) if silu else _TAYLOR[0]
                of_shift[n, c] += of_x[n, p, c]
                of_factor[n, c] += of_x[n, p, c] * normal
        lift, tilt = factor[n] * of_shift[n], factor[n] * of_factor[n]
        _shared(lift, each, share)
        _shared(tilt, each, share)
        for p in range(pixels):
            for c in range(channels):
                normal = (x[n, p, c] - mean[c]) * rate[c]
                of_x[n, p, c] = rate[c] * (factor[n, c] * of_x[n, p, c] - lift[c] - normal * tilt[c])


def _rows(x: Tensor) -> Tensor:
    """[N, C, H, W] -> [N, H W, C], a view in channels_last."""
    return x.permute(0, 2, 3, 1).reshape(len(x), -1, x.shape[1])


class Normed(torch.autograd.Function):
    """Group norms of x [N, C, H, W], float32 in channels_last, modulated by film [N, 2 C] or None; then SiLU or not.

    [Wu 2018, eq. 1] (tests/networks/test_layers.py).

    With int16 bits in the order of x's memory, or none, and how many of 65,536 are dropped.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, film: Tensor | None, groups: int, eps: float, bits: Tensor,
        dropped: int, silu: bool,
    ) -> Tensor:  # fmt: skip
        """With so many groups and this addend of variances: [N, C, H, W]. factor = weight (1 + scale), see
        `_active`.
        """
        moments, out, parts = x.new_zeros(len(x), 2, x.shape[1]), torch.empty_like(x), (weight, bias, film)
        factor, shift = weight.expand(len(x), -1), bias.expand(len(x), -1)
        if film is not None:
            scale, extra = film.chunk(2, dim=1)
            factor, shift = factor * (1 + scale), torch.addcmul(extra, shift, 1 + scale)
        rows = (_rows(x), factor.contiguous(), shift.contiguous(), bits.view(-1, *_rows(x).shape[1:]))
        ctx.rest = dropped - 32768, 65536 / max(1, 65536 - dropped), x.shape[1] // groups, silu
        ctx.save_for_backward(*parts, *rows, moments)
        _active(*_arrays(rows), *ctx.rest, eps, *_arrays((moments, _rows(out))))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Of the output [N, C, H, W], to those of x, weight [C], bias [C] and film [N, 2 C]: see `_active_back`."""
        weight, bias, film, *rows, moments = ctx.saved_tensors
        of_factor, of_shift, of_film = torch.zeros_like(rows[1]), torch.zeros_like(rows[2]), None
        of_out = gradient.contiguous(memory_format=torch.channels_last)
        of_x = torch.empty_like(of_out)
        _active_back(*_arrays(rows), *ctx.rest, *_arrays((moments, _rows(of_out), _rows(of_x), of_factor, of_shift)))
        if film is not None:
            scale, of_film = 1 + film.chunk(2, dim=1)[0], torch.cat([of_factor * weight + of_shift * bias, of_shift], 1)
            of_factor, of_shift = of_factor * scale, of_shift * scale
        return of_x, of_factor.sum(0), of_shift.sum(0), of_film, None, None, None, None, None


def _arrays(tensors: Iterable[Tensor]) -> list[Any]:
    return [one.detach().numpy() for one in tensors]
