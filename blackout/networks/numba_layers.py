"""The layers that take most time on a CPU, compiled by numba: 3x3 convolutions and group norms.

`WinogradConvolution` equals `torch.nn.functional.conv2d`, and `FusedGroupNorm` equals a group norm
followed by `modulate`, SiLU and dropout; tests/networks/test_layers.py compares values and
gradients with double precision. `blackout.networks.layers` chooses between them
(`compiled_kernels`).

Convolutions use Winograd's F(4x4, 3x3), which needs a quarter of the multiplications: 36 products
instead of 144 for an output tile of 4x4 pixels. The transforms of patches, filters and tiles are
compiled; between them are 36 matrix products over the channels. With the interpolation points
0, ±1/√2, ±√2 and infinity, rounding errors are about twice those of PyTorch's convolution. These
points were the best of eleven pairs.

The fused group norm reads and writes an image while it is in the processor's cache.

References: Wu and He 2018, eq. 1; Lavin and Gray 2016.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from blackout.random.numba_draws import cached_njit

# Contraction to fused multiply-adds is the only relaxation of IEEE arithmetic that is allowed
INLINE_OPTIONS: dict[str, Any] = {"fastmath": {"contract"}, "forceinline": True}

# --- Winograd's convolution

PATCH_SIDE = 6  # pixels along a side of an input patch: an output tile and a margin of 1
TILE_SIDE = 4  # pixels along a side of an output tile
FILTER_SIDE = 3
NUM_PRODUCTS = PATCH_SIDE**2  # multiplications per tile and pair of channels
BATCH_PIXELS = 4096  # pixels that are transformed at a time, so that they stay in the cache
INTERPOLATION_POINTS = np.sqrt([0, 0.5, 0.5, 2, 2]) * [0, 1, -1, 1, -1]


def _interpolation_matrix(num_powers: int) -> Any:
    """Return the powers 1, p, p^2, ... of the points, and the highest at infinity, [6, powers]."""
    powers = np.vander(INTERPOLATION_POINTS, num_powers, increasing=True)
    return np.concatenate([powers, np.eye(num_powers)[-1:]])


def _pad_to_square(matrix: Any) -> Any:
    """Return a float32 matrix [6, 6] with zeros below and to the right."""
    padding = [(0, PATCH_SIDE - side) for side in matrix.shape]
    return np.pad(matrix, padding).astype(np.float32, order="C")


_FILTER_POWERS = _interpolation_matrix(FILTER_SIDE)
_TILE_POWERS = _interpolation_matrix(TILE_SIDE)
_INVERSE_POWERS = np.linalg.inv(_interpolation_matrix(PATCH_SIDE))

# Transforms M of squares S, by M S M.T; those of the backward pass are the transposes
FILTER_TRANSFORM = torch.from_numpy(np.kron(_FILTER_POWERS, _FILTER_POWERS)).float()  # [36, 9]
PATCH_TRANSFORM = _pad_to_square(_INVERSE_POWERS.T)
PATCH_TRANSFORM_TRANSPOSED = _pad_to_square(_INVERSE_POWERS)
TILE_TRANSFORM_TRANSPOSED = _pad_to_square(_TILE_POWERS)
TILE_TRANSFORM = _pad_to_square(_TILE_POWERS.T)


@cached_njit(
    "void(f4[:, ::1], intp, f4[::1], uintp, uintp, f4[::1], uintp, uintp, uintp, boolean)",
    **INLINE_OPTIONS,
)
def _combine_rows(  # noqa: PLR0913 - compiled by numba, which takes no dataclass
    matrix: Any,
    num_rows: int,
    source: Any,
    start: int,
    step: int,
    target: Any,
    target_start: int,
    target_step: int,
    length: int,
    add: bool,
) -> None:
    """Write or add linear combinations of six rows of a flat array to rows of another.

    Args:
        matrix: coefficients, [6, 6], of which the first `num_rows` rows are used.
        num_rows: number of combinations.
        source: six rows of `length`, which begin `step` apart.
        start: of the first of them.
        step: see `source`.
        target: rows for the combinations, which begin `target_step` apart.
        target_start: of the first of them.
        target_step: see `target`.
        length: of a row.
        add: whether to add to the target instead of overwriting it.
    """
    start1 = start + step
    start2 = start1 + step
    start3 = start2 + step
    start4 = start3 + step
    start5 = start4 + step
    for row in range(num_rows):
        w0, w1, w2, w3, w4, w5 = matrix[row]
        for k in range(length):
            total = w0 * source[start + k] + w1 * source[start1 + k] + w2 * source[start2 + k]
            total += w3 * source[start3 + k] + w4 * source[start4 + k] + w5 * source[start5 + k]
            target[target_start + k] = target[target_start + k] + total if add else total
        target_start += target_step


@cached_njit("void(f4[::1], UniTuple(intp, 4), f4[:, ::1], f4[::1])")
def _transform_patches(images: Any, shape: Any, matrix: Any, products: Any) -> None:
    """Write M S M.T of the patches S of images, overlapping squares that begin 4 pixels apart.

    Args:
        images: [N, H + 2, W + 2, C], flat.
        shape: of the images.
        matrix: M, [6, 6].
        products: [36, tiles, C], flat; overwritten.
    """
    number, height, width, channels = shape
    line = width * channels
    num_tiles = products.size // (36 * channels)
    tile = 0
    combined = np.empty(6 * line, np.float32)  # M S for all patches of a row
    for top in range(0, number * height, height):
        for corner in range(top * line, (top + height - 2) * line, 4 * line):
            _combine_rows(matrix, 6, images, corner, line, combined, 0, line, line, False)
            for left in range(0, line - 2 * channels, 4 * channels):
                for a in range(6):
                    start = a * line + left
                    target_start = (6 * a * num_tiles + tile) * channels
                    target_step = num_tiles * channels
                    _combine_rows(
                        matrix,
                        6,
                        combined,
                        start,
                        channels,
                        products,
                        target_start,
                        target_step,
                        channels,
                        False,
                    )
                tile += 1


@cached_njit("void(f4[::1], UniTuple(intp, 4), f4[:, ::1], intp, f4[::1])")
def _add_tiles(images: Any, shape: Any, matrix: Any, side: int, products: Any) -> None:
    """Add M P M.T of the products P to squares of images that begin 4 pixels apart.

    Args:
        images: [N, H + 2, W + 2, C], flat; added to.
        shape: of the images.
        matrix: M, [6, 6], of which the first `side` rows are used.
        side: of the squares.
        products: [36, tiles, C], flat.
    """
    number, height, width, channels = shape
    line = width * channels
    num_tiles = products.size // (36 * channels)
    tile = 0
    combined = np.empty(6 * line, np.float32)  # P M.T for all tiles of a row
    for top in range(0, number * height, height):
        for corner in range(top * line, (top + height - 2) * line, 4 * line):
            combined[:] = 0
            for left in range(0, line - 2 * channels, 4 * channels):
                for a in range(6):
                    start = (6 * a * num_tiles + tile) * channels
                    step = num_tiles * channels
                    target_start = a * line + left
                    _combine_rows(
                        matrix,
                        side,
                        products,
                        start,
                        step,
                        combined,
                        target_start,
                        channels,
                        channels,
                        True,
                    )
                tile += 1
            _combine_rows(matrix, side, combined, 0, line, images, corner, line, line, True)


def _gather(x: Tensor, margins: tuple[int, int], matrix: Any) -> Tensor:
    """Transform the patches of images [N, C, H, W] with margins; returns [36, N H W / 16, C]."""
    num_tiles = x[:, 0].numel() // TILE_SIDE**2
    products = x.new_empty(NUM_PRODUCTS, num_tiles, x.shape[1])
    pixels = F.pad(x, margins * 2).permute(0, 2, 3, 1)
    flat_products = products.view(-1).numpy()
    _transform_patches(pixels.reshape(-1).numpy(), tuple(pixels.shape), matrix, flat_products)
    return products


def _scatter(products: Tensor, template: Tensor, matrix: Any, side: int) -> Tensor:
    """Transform products [36, tiles, C] to images [N, C, H + 2, W + 2], N, H, W of `template`.

    Squares of `side` pixels begin 4 pixels apart; they are added where they overlap.
    """
    number, _, height, width = template.shape
    out = products.new_zeros(number, height + 2, width + 2, products.shape[2])
    _add_tiles(out.view(-1).numpy(), tuple(out.shape), matrix, side, products.view(-1).numpy())
    return out.permute(0, 3, 1, 2)


def _transform_filters(weight: Tensor) -> Tensor:
    """Transform filters [K, C, 3, 3]; returns [36, K, C]."""
    filters = weight.permute(2, 3, 0, 1).reshape(FILTER_SIDE**2, -1)
    return (FILTER_TRANSFORM @ filters).view(NUM_PRODUCTS, *weight.shape[:2])


def _transform_filters_back(products: Tensor) -> Tensor:
    """Apply the transposed transform to [36, K, C]; returns [K, C, 3, 3]."""
    filters = FILTER_TRANSFORM.T @ products.view(NUM_PRODUCTS, -1)
    return filters.view(FILTER_SIDE, FILTER_SIDE, *products.shape[1:]).permute(2, 3, 0, 1)


class WinogradConvolution(torch.autograd.Function):
    """3x3 convolution with padding 1 by Winograd's F(4x4, 3x3), with its gradients.

    References: Lavin and Gray 2016; checked in tests/networks/test_layers.py.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Convolve float32 images.

        Args:
            ctx: of autograd.
            x: [N, C, H, W] in channels_last memory; H and W are multiples of 4.
            weight: [K, C, 3, 3].
            bias: [K].

        Returns:
            [N, K, H, W].
        """
        ctx.save_for_backward(x, weight)
        filters = _transform_filters(weight)
        outputs = []
        for images in x.split(_images_at_a_time(x)):
            products = _gather(images, (1, 1), PATCH_TRANSFORM) @ filters.mT
            y = _scatter(products, images, TILE_TRANSFORM, TILE_SIDE)
            outputs.append(y[:, :, :-2, :-2] + bias[:, None, None])
        return torch.cat(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, y_grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of x, weight and bias for that of the output, [N, K, H, W]."""
        x, weight = ctx.saved_tensors
        filters = _transform_filters(weight)
        filters_grad = weight.new_zeros(NUM_PRODUCTS, *weight.shape[:2])
        x_grads = []
        split = _images_at_a_time(x)
        for images, images_grad in zip(x.split(split), y_grad.split(split), strict=True):
            products_grad = _gather(images_grad, (0, 2), TILE_TRANSFORM_TRANSPOSED)
            x_grad = _scatter(
                products_grad @ filters, images, PATCH_TRANSFORM_TRANSPOSED, PATCH_SIDE
            )
            x_grads.append(x_grad[:, :, 1:-1, 1:-1])
            if ctx.needs_input_grad[1]:
                filters_grad.baddbmm_(products_grad.mT, _gather(images, (1, 1), PATCH_TRANSFORM))
        weight_grad = _transform_filters_back(filters_grad)
        return torch.cat(x_grads), weight_grad, y_grad.sum((0, 2, 3))


def _images_at_a_time(x: Tensor) -> int:
    return max(1, BATCH_PIXELS // x[0, 0].numel())


# --- Group norm, modulation, SiLU and dropout in one pass

LOG_2 = np.float32(math.log(2))
EXP_COEFFICIENTS = tuple(np.float32(1 / math.factorial(power)) for power in range(8))  # Taylor's
MAX_EXPONENT = 87  # e^88 overflows float32
# Adding and subtracting 1.5 * 2^23 rounds to whole numbers: floats of that size have no fraction
ROUNDING_SHIFT = 12_582_912
EXPONENT_BIAS = 127  # of float32
MANTISSA_BITS = 23


@cached_njit("f4(f4)", **INLINE_OPTIONS)
def _sigmoid(x: Any) -> Any:
    """Return 1 / (1 + e^-x) of a scalar to a relative error of about 1e-7.

    It computes e^-x = 2^k e^r with a whole number k and |r| at most log(2) / 2.
    """
    y = min(max(-x, np.float32(-MAX_EXPONENT)), np.float32(MAX_EXPONENT))
    k = (y / LOG_2 + np.float32(ROUNDING_SHIFT)) - np.float32(ROUNDING_SHIFT)
    r = y - k * LOG_2
    # The bits of the float 2^k
    power = np.int32((np.int32(k) + np.int32(EXPONENT_BIAS)) << np.int32(MANTISSA_BITS))
    series = EXP_COEFFICIENTS[7]
    for n in (6, 5, 4, 3, 2, 1, 0):
        series = series * r + EXP_COEFFICIENTS[n]
    return np.float32(1) / (np.float32(1) + series * power.view(np.float32))


@cached_njit("void(f4[::1], intp, f4)", **INLINE_OPTIONS)
def _average_groups(sums: Any, group_size: int, weight: Any) -> None:
    """Replace sums of channels [C] by `weight` times the total of their group, in place."""
    for first in range(0, sums.size, group_size):
        sums[first : first + group_size] = sums[first : first + group_size].sum() * weight


_IMAGES = "f4[:, :, ::1]"
_CHANNELS = "f4[:, ::1]"
_OPTIONS = "i2[:, :, ::1], f4, f4, intp, boolean"


@cached_njit(f"void({_IMAGES}, {_CHANNELS}, {_CHANNELS}, {_OPTIONS}, f4, {_IMAGES}, {_IMAGES})")
def _norm_silu_dropout(  # noqa: PLR0913 - compiled by numba, which takes no dataclass
    x: Any,
    factor: Any,
    shift: Any,
    bits: Any,
    threshold: Any,
    keep_scale: Any,
    group_size: int,
    silu: bool,
    eps: Any,
    moments: Any,
    out: Any,
) -> None:
    """Compute y = normalised * factor + shift, then optionally y sigmoid(y) and dropout.

    Args:
        x: [N, pixels, C].
        factor: [N, C].
        shift: [N, C].
        bits: random int16 [N, pixels, C], or [0, pixels, C] for no dropout.
        threshold: elements with lower bits are dropped.
        keep_scale: factor of the others.
        group_size: channels per group.
        silu: whether to apply SiLU.
        eps: added to variances.
        moments: zeros [N, 2, C]; overwritten by means and 1 / standard deviations of the groups.
        out: [N, pixels, C]; overwritten.
    """
    number, pixels, channels = x.shape
    weight = np.float32(1 / (pixels * group_size))
    for n in range(number):
        mean = moments[n, 0]
        rate = moments[n, 1]
        for p in range(pixels):
            for c in range(channels):
                mean[c] += x[n, p, c]
        _average_groups(mean, group_size, weight)
        for p in range(pixels):
            for c in range(channels):
                rate[c] += (x[n, p, c] - mean[c]) * (x[n, p, c] - mean[c])
        _average_groups(rate, group_size, weight)
        for c in range(channels):
            rate[c] = np.float32(1) / np.sqrt(rate[c] + eps)
        for p in range(pixels):
            for c in range(channels):
                y = (x[n, p, c] - mean[c]) * rate[c] * factor[n, c] + shift[n, c]
                out[n, p, c] = y * _sigmoid(y) if silu else y
            if len(bits):
                for c in range(channels):
                    out[n, p, c] *= keep_scale if bits[n, p, c] >= threshold else np.float32(0)


_BACKWARD_ARRAYS = ", ".join([_IMAGES] * 3 + [_CHANNELS] * 2)


@cached_njit(f"void({_IMAGES}, {_CHANNELS}, {_CHANNELS}, {_OPTIONS}, {_BACKWARD_ARRAYS})")
def _norm_silu_dropout_backward(  # noqa: PLR0913 - compiled by numba, which takes no dataclass
    x: Any,
    factor: Any,
    shift: Any,
    bits: Any,
    threshold: Any,
    keep_scale: Any,
    group_size: int,
    silu: bool,
    moments: Any,
    out_grad: Any,
    x_grad: Any,
    factor_grad: Any,
    shift_grad: Any,
) -> None:
    """Compute the gradients of `_norm_silu_dropout`.

    Args:
        x: as in the forward pass.
        factor: as in the forward pass.
        shift: as in the forward pass.
        bits: as in the forward pass.
        threshold: as in the forward pass.
        keep_scale: as in the forward pass.
        group_size: as in the forward pass.
        silu: as in the forward pass.
        moments: those that the forward pass wrote, [N, 2, C].
        out_grad: [N, pixels, C].
        x_grad: [N, pixels, C]; overwritten.
        factor_grad: zeros [N, C]; overwritten.
        shift_grad: zeros [N, C]; overwritten.
    """
    number, pixels, channels = x.shape
    weight = np.float32(1 / (pixels * group_size))
    for n in range(number):
        mean = moments[n, 0]
        rate = moments[n, 1]
        for p in range(pixels):
            for c in range(channels):
                x_grad[n, p, c] = out_grad[n, p, c]
            if len(bits):
                for c in range(channels):
                    x_grad[n, p, c] *= keep_scale if bits[n, p, c] >= threshold else np.float32(0)
            for c in range(channels):
                normalised = (x[n, p, c] - mean[c]) * rate[c]
                y = normalised * factor[n, c] + shift[n, c]
                sigmoid = _sigmoid(y)
                slope = sigmoid * (np.float32(1) + y * (np.float32(1) - sigmoid))
                x_grad[n, p, c] *= slope if silu else np.float32(1)
                shift_grad[n, c] += x_grad[n, p, c]
                factor_grad[n, c] += x_grad[n, p, c] * normalised
        # Gradients through mean and standard deviation of the groups
        mean_grad = factor[n] * shift_grad[n]
        std_grad = factor[n] * factor_grad[n]
        _average_groups(mean_grad, group_size, weight)
        _average_groups(std_grad, group_size, weight)
        for p in range(pixels):
            for c in range(channels):
                normalised = (x[n, p, c] - mean[c]) * rate[c]
                direct = factor[n, c] * x_grad[n, p, c]
                x_grad[n, p, c] = rate[c] * (direct - mean_grad[c] - normalised * std_grad[c])


class NormOptions(NamedTuple):
    """Settings of a `FusedGroupNorm`."""

    num_groups: int
    eps: float  # added to variances
    silu: bool  # whether SiLU follows
    threshold: int = 0  # elements whose random bits are lower are dropped
    keep_scale: float = 1.0  # factor of the others


class FusedGroupNorm(torch.autograd.Function):
    """Group norm, modulation, optionally SiLU, and dropout, with their gradients.

    References: Wu and He 2018, eq. 1; checked in tests/networks/test_layers.py.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        film: Tensor | None,
        bits: Tensor,
        options: NormOptions,
    ) -> Tensor:
        """Normalise float32 images.

        Args:
            ctx: of autograd.
            x: [N, C, H, W] in channels_last memory.
            weight: of the norm, [C].
            bias: of the norm, [C].
            film: scale and shift that follow the norm, [N, 2 C], or None.
            bits: random int16 in the order of x's memory, [N H W C]; empty for no dropout.
            options: see `NormOptions`.

        Returns:
            [N, C, H, W].
        """
        factor = weight.expand(len(x), -1)
        shift = bias.expand(len(x), -1)
        if film is not None:
            film_scale, film_shift = film.chunk(2, dim=1)
            factor = factor * (1 + film_scale)
            shift = torch.addcmul(film_shift, shift, 1 + film_scale)

        images = _as_rows(x)
        saved = (images, factor.contiguous(), shift.contiguous(), bits.view(-1, *images.shape[1:]))
        group_size = x.shape[1] // options.num_groups
        ctx.kernel_options = (options.threshold, options.keep_scale, group_size, options.silu)
        moments = x.new_zeros(len(x), 2, x.shape[1])
        out = torch.empty_like(x)
        ctx.save_for_backward(weight, bias, film, *saved, moments)
        _norm_silu_dropout(
            *_to_numpy(*saved), *ctx.kernel_options, options.eps, *_to_numpy(moments, _as_rows(out))
        )
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, out_grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, weight, bias and film for that of the output."""
        weight, bias, film, images, factor, shift, bits, moments = ctx.saved_tensors
        factor_grad = torch.zeros_like(factor)
        shift_grad = torch.zeros_like(shift)
        out_grad = out_grad.contiguous(memory_format=torch.channels_last)
        x_grad = torch.empty_like(out_grad)
        grads = (_as_rows(out_grad), _as_rows(x_grad), factor_grad, shift_grad)
        _norm_silu_dropout_backward(
            *_to_numpy(images, factor, shift, bits),
            *ctx.kernel_options,
            *_to_numpy(moments, *grads),
        )
        film_grad = None
        if film is not None:
            film_scale = 1 + film.chunk(2, dim=1)[0]
            film_grad = torch.cat([factor_grad * weight + shift_grad * bias, shift_grad], 1)
            factor_grad = factor_grad * film_scale
            shift_grad = shift_grad * film_scale
        return x_grad, factor_grad.sum(0), shift_grad.sum(0), film_grad, None, None


def _as_rows(x: Tensor) -> Tensor:
    """Return [N, C, H, W] as [N, H W, C], a view in channels_last memory."""
    return x.permute(0, 2, 3, 1).reshape(len(x), -1, x.shape[1])


def _to_numpy(*tensors: Tensor) -> list[Any]:
    return [tensor.detach().numpy() for tensor in tensors]
