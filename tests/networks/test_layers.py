from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blackout.networks.dropout import Dropout
from blackout.networks.layers import (
    NEAR_ZERO,
    Attention,
    TimeEmbedding,
    conv3x3,
    dense,
    group_norm,
    modulate,
    sides_per_level,
    sinusoids,
)
from blackout.networks.ncsnpp import FIRDownsample, FIRFilter, FIRUpsample
from blackout.networks.numba_layers import WinogradConvolution
from tests.networks import reference_ncsnpp as reference

Resampler = Callable[[Tensor], Tensor]
RESAMPLERS: list[tuple[FIRFilter, Resampler, tuple[int, int]]] = [
    (FIRFilter(), lambda x: reference.fir(x, 2, 2), (7, 9)),
    (FIRDownsample(), reference.fir_down, (3, 4)),
    (FIRUpsample(), reference.fir_up, (12, 16)),
]


def test_winograd_convolution_equals_conv2d() -> None:
    """Errors are below float32's machine epsilon, relative to the sum of the terms' magnitudes.

    The errors of PyTorch's convolution depend on the order of its sums, and so on the processor.
    """
    layer = conv3x3(128, 160).to(memory_format=torch.channels_last)
    torch.nn.init.normal_(layer.bias)
    # eight images and one more
    x = 3 + torch.randn(9, 128, 24, 20).to(memory_format=torch.channels_last)
    direction = torch.randn(9, 160, 24, 20)

    def with_gradients(
        convolve: Callable[[Tensor, Tensor, Tensor], Tensor], *tensors: Tensor
    ) -> list[Tensor]:
        inputs = [tensor.detach().requires_grad_() for tensor in tensors[:3]]
        y = convolve(*inputs)
        return [y.detach(), *torch.autograd.grad(y, inputs, tensors[3])]

    plain = partial(F.conv2d, padding=1)
    tensors = x, layer.weight.detach(), layer.bias.detach(), direction
    exact = with_gradients(plain, *(tensor.double() for tensor in tensors))
    magnitudes = with_gradients(plain, *(tensor.double().abs() for tensor in tensors))
    by_winograd = with_gradients(WinogradConvolution.apply, *tensors)
    for values, expected, magnitude in zip(by_winograd, exact, magnitudes, strict=True):
        assert values.shape == expected.shape
        error = ((values - expected) / magnitude).square().mean().sqrt()
        assert float(error) < torch.finfo(torch.float32).eps
    assert torch.equal(layer(x), WinogradConvolution.apply(x, layer.weight, layer.bias))
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16


def test_fused_norm_with_probabilities_0_and_1_leaves_the_generator_alone() -> None:
    norm = group_norm(24)
    x = torch.randn(128, 24, 4, 8).to(memory_format=torch.channels_last)
    assert not norm.activate(x, None, Dropout(1.0)).any()
    state = torch.get_rng_state()
    for dropout in (Dropout(0.3).eval(), Dropout(0.0)):
        assert torch.equal(norm.activate(x, None, dropout), norm.activate(x))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("probability", [0.0, 0.3])
def test_fused_norm_equals_norm_modulation_silu_and_dropout(probability: float) -> None:
    """Compared with double precision, errors are at most twice those of the plain layers."""
    norm = group_norm(24)
    dropout = Dropout(probability)
    x = 3 + torch.randn(128, 24, 4, 8).to(memory_format=torch.channels_last)
    film = torch.randn(128, 48)
    for parameter in norm.parameters():
        torch.nn.init.normal_(parameter)

    def plain(layer: nn.Module, x: Tensor, film: Tensor) -> Tensor:
        return dropout(F.silu(modulate(layer(x), film)))

    def with_gradients(dtype: torch.dtype, fused: bool) -> list[Tensor]:
        inputs = [tensor.detach().to(dtype).requires_grad_() for tensor in (x, film)]
        layer = norm.to(dtype)
        y = layer.activate(*inputs, dropout) if fused else plain(layer, *inputs)
        loss = (y * torch.cos(y.detach())).sum()
        return [y.detach(), *torch.autograd.grad(loss, [*inputs, *layer.parameters()])]

    results = []
    for dtype, fused in ((torch.float32, True), (torch.float64, False), (torch.float32, False)):
        torch.manual_seed(0)
        results.append(with_gradients(dtype, fused))
    for fast, exact, slow in zip(*results, strict=True):
        assert fast.shape == exact.shape
        assert (fast - exact).square().mean() < 4 * (slow - exact).square().mean()


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("module", "naive", "size"), RESAMPLERS)
def test_fir_equals_explicit_convolution(
    module: FIRFilter, naive: Resampler, size: tuple[int, int], channels_last: bool
) -> None:
    x = torch.randn(2, 5, 6, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    if channels_last:
        x = x.to(memory_format=torch.channels_last)
    assert module(x).shape == (2, 5, *size)
    torch.testing.assert_close(module(x), naive(x), atol=1e-12, rtol=0)


@pytest.mark.parametrize(("module", "naive", "size"), RESAMPLERS)
def test_fir_keeps_constants_inside(
    module: FIRFilter, naive: Resampler, size: tuple[int, int]
) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        inside = module(torch.full((1, 3, 16, 16), 7.0, dtype=dtype))[..., 2:-2, 2:-2]
        assert (inside == 7).all()


def test_fir_has_no_parameters_and_no_state() -> None:
    assert not list(FIRUpsample().parameters()) and not FIRUpsample().state_dict()


def test_sinusoids_at_integer_and_real_labels() -> None:
    label = torch.tensor([0.0, 0.5, 17.0, 998.75, 999.0], dtype=torch.float64)
    features = sinusoids(label, 128)
    assert features.dtype == torch.float32
    torch.testing.assert_close(features.double(), reference.embed(label, 128), atol=2e-4, rtol=0)
    assert features[0].tolist() == 64 * [0.0] + 64 * [1.0]


def test_time_embedding_ignores_autocast() -> None:
    embedding = TimeEmbedding(16, 32)
    label = torch.tensor([3.0, 700.0])
    with torch.autocast("cpu", torch.bfloat16):
        inside = embedding(label)
    assert inside.dtype == torch.float32 and torch.equal(inside, embedding(label))


def test_attention_mixes_all_pixels_and_is_near_zero_at_first() -> None:
    attention = Attention(8)
    x = torch.randn(2, 8, 4, 6)
    torch.testing.assert_close(attention(x), x / math.sqrt(2), atol=1e-4, rtol=0)
    torch.nn.init.normal_(attention.out.weight)
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(attention(x)[0, 0, 0, 0], x)
    assert gradient[0].any(0).all() and not gradient[1].any()


def test_attention_scale_is_that_of_a_plain_softmax() -> None:
    attention = Attention(8).double()
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(3, 8, 2, 2, dtype=torch.float64)
    h = F.group_norm(x, 2, attention.norm.weight, attention.norm.bias, eps=1e-6).flatten(2)

    def project(layer: torch.nn.Conv2d, v: Tensor) -> Tensor:
        projected: Tensor = layer(v[..., None])
        return projected[..., 0]

    weights = (project(attention.query, h).mT @ project(attention.key, h) / math.sqrt(8)).softmax(2)
    mixed = project(attention.out, project(attention.value, h) @ weights.mT)
    torch.testing.assert_close(attention(x), (x + mixed.reshape(x.shape)) / math.sqrt(2))


@pytest.mark.parametrize(
    ("channels", "groups"), [(128, 32), (384, 32), (48, 12), (6, 1), (3, 1), (10, 2), (144, 24)]
)
def test_group_norm_groups_divide_the_channels(channels: int, groups: int) -> None:
    norm = group_norm(channels)
    assert (norm.num_groups, norm.eps) == (groups, 1e-6)


@pytest.mark.parametrize("scale", [1.0, 0.1, NEAR_ZERO])
def test_initial_weights_are_uniform_with_the_variance_of_the_mean_fan(scale: float) -> None:
    torch.manual_seed(0)
    for layer, fans in ((conv3x3(40, 80, scale), (360, 720)), (dense(200, 300, scale), (200, 300))):
        expected = scale / (sum(fans) / 2)
        assert layer.weight.double().var().item() == pytest.approx(expected, rel=0.03)
        assert layer.weight.abs().max().item() == pytest.approx(math.sqrt(3 * expected), rel=1e-2)
        assert layer.bias is not None and not layer.bias.any()


def test_sides_per_level() -> None:
    assert sides_per_level((3, 32, 16), 4) == [32, 16, 8, 4]
    with pytest.raises(ValueError, match=r"multiples of 8, not 28x28"):
        sides_per_level((1, 28, 28), 4)
    with pytest.raises(ValueError, match=r"\(C, H, W\), not \(64,\)"):
        sides_per_level((64,), 1)
    with pytest.raises(ValueError, match="even number"):
        TimeEmbedding(7, 8)


@pytest.mark.parametrize(
    "size, gradient", [((2, 32, 4, 4), True), ((2, 32, 4, 4), False), ((1, 32, 32, 32), False)]
)
@pytest.mark.parametrize("channels", [32, 128])
def test_group_norm_of_bfloat16_is_that_of_float64(
    size: tuple[int, ...], gradient: bool, channels: int
) -> None:
    norm = group_norm(channels)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2.0)
        norm.bias.uniform_(-1.0, 1.0)
    x = 3 + torch.randn(size[0], channels, *size[2:]).to(
        torch.bfloat16, memory_format=torch.channels_last
    )
    with torch.set_grad_enabled(gradient):
        y = norm(x)
    exact = F.group_norm(
        x.double(), norm.num_groups, norm.weight.double(), norm.bias.double(), norm.eps
    )
    assert y.dtype == torch.bfloat16 and y.is_contiguous(memory_format=torch.channels_last)
    assert torch.allclose(y.double(), exact, rtol=2**-8, atol=2**-7)
