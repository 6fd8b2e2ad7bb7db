from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from blackout.networks import NCSNpp
from tests.networks.reference_ncsnpp import ncsnpp

EXACT: dict[str, Any] = {
    "multipliers": (1, 2, 2, 2),
    "blocks_per_level": 4,
    "attention_resolutions": (16,),
}
SMALL: dict[str, Any] = {
    "multipliers": (1, 2),
    "blocks_per_level": 1,
    "attention_resolutions": (8,),
}

ODD: dict[str, Any] = {
    "multipliers": (1, 2, 3),
    "blocks_per_level": 2,
    "attention_resolutions": (12, 3),
}


def randomise(network: nn.Module, seed: int = 0) -> None:
    """Give every parameter a value of ordinary size, so that every layer has an effect."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in network.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        with torch.no_grad():
            if parameter.dim() > 1:
                parameter.copy_(noise / math.sqrt(parameter[0].numel()))
            else:
                parameter.add_(0.3 * noise)


def count(shape: tuple[int, ...]) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in NCSNpp(shape).parameters())


@pytest.mark.deep
def test_parameter_counts_of_the_published_networks() -> None:
    assert count((3, 32, 32)) == count((3, 64, 64)) == 62_693_251
    assert count((1, 32, 32)) == 62_686_337


def test_modules_come_in_the_order_of_the_reference() -> None:
    with torch.device("meta"):
        shapes = [tuple(parameter.shape) for parameter in NCSNpp().parameters()]
    weights = [shape for shape in shapes if len(shape) > 1]
    assert weights[:5] == [(512, 128), (512, 512), (128, 3, 3, 3), (128, 128, 3, 3), (128, 512)]
    pyramid = [index for index, shape in enumerate(weights) if shape[:2] == (128, 3)][1]
    assert weights[pyramid - 1] == (128, 128, 1, 1) and weights[pyramid + 1] == (256, 128, 3, 3)
    assert weights[-1] == (3, 128, 3, 3) and shapes[-4:-2] == [(128,), (128,)]


@pytest.mark.parametrize(
    ("shape", "channels", "outputs", "dtype", "levels"),
    [
        ((3, 32, 32), 16, 1, torch.float64, EXACT),
        ((3, 16, 16), 16, 1, torch.float32, SMALL),
        ((2, 8, 16), 8, 2, torch.float32, SMALL),
        ((1, 12, 12), 16, 1, torch.float32, ODD),
    ],
)
def test_agrees_with_an_independent_implementation(
    shape: tuple[int, ...], channels: int, outputs: int, dtype: torch.dtype, levels: dict[str, Any]
) -> None:
    network = NCSNpp(shape, outputs, channels, **levels).eval()
    randomise(network)
    network.to(dtype)
    x = torch.randn(2, *shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    label = torch.tensor([0.0, 12.75], dtype=dtype)
    with torch.no_grad():
        raw = network(x, label)
        expected = ncsnpp(network.parameters(), x, label, channels, *levels.values())
    assert raw.shape == (2, outputs * shape[0], *shape[1:]) and expected.std() > 0.1
    torch.testing.assert_close(raw, expected, atol=1e-5, rtol=1e-5)


def test_initial_output_is_almost_zero_and_trainable() -> None:
    torch.manual_seed(0)
    network = NCSNpp((3, 16, 16), channels=32, **SMALL)
    raw = network(100 * torch.randn(4, 3, 16, 16), torch.tensor([0.0, 1.0, 500.0, 999.0]))
    assert 0 < raw.abs().max() < 1e-4
    raw.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())


@pytest.mark.parametrize("side", [8, 16, 32, 64])
@pytest.mark.parametrize("outputs", [1, 2])
def test_output_shapes(side: int, outputs: int) -> None:
    network = NCSNpp((3, side, side), outputs, channels=8, blocks_per_level=1)
    with torch.no_grad():
        assert network(torch.zeros(2, 3, side, side), torch.zeros(2)).shape == (
            2,
            3 * outputs,
            side,
            side,
        )


def run(network: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return network(x, torch.full((len(x),), 100.0))


def test_dropout_acts_in_training_only() -> None:
    network = NCSNpp((1, 8, 8), channels=8, **SMALL)
    x = torch.randn(2, 1, 8, 8)
    randomise(network)
    assert not torch.equal(run(network, x), run(network, x))
    network.eval()
    assert torch.equal(run(network, x), run(network, x))


def test_examples_do_not_depend_on_each_other() -> None:
    network = NCSNpp((1, 8, 8), channels=8, **SMALL).double().eval()
    x = torch.randn(3, 1, 8, 8)
    randomise(network)
    torch.testing.assert_close(run(network, x)[1:2], run(network, x[1:2]))


def test_state_dict_round_trip() -> None:
    first, second = (NCSNpp((1, 8, 8), channels=8, **SMALL).eval() for _ in range(2))
    randomise(first)
    second.load_state_dict(first.state_dict())
    x = torch.randn(2, 1, 8, 8)
    assert torch.equal(run(first, x), run(second, x))
    assert set(first.state_dict()) == {name for name, _ in first.named_parameters()}


def test_bfloat16_autocast_and_channels_last_stay_close() -> None:
    network = NCSNpp((3, 16, 16), channels=16, **SMALL).eval()
    x = torch.randn(2, 3, 16, 16)
    randomise(network)
    exact = run(network, x)
    with torch.autocast("cpu", torch.bfloat16):
        half = run(network, x)
    assert half.dtype == torch.float32 and not torch.equal(half, exact)
    torch.testing.assert_close(half, exact, atol=0.15, rtol=0.05)
    network.to(memory_format=torch.channels_last)
    torch.testing.assert_close(run(network, x), exact, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shape": (1, 28, 28)}, "multiples of 8"),
        ({"shape": (64,)}, "needs data of shape"),
        ({"outputs": 0}, "at least 1"),
        ({"multipliers": ()}, "at least 1"),
        ({"blocks_per_level": 0}, "at least 1"),
        ({"channels": 5}, "even number"),
        ({"channels": 4, "dropout": 1.5}, "dropout"),
    ],
)
def test_impossible_networks_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NCSNpp(**arguments)


def test_data_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"made for data of shape \(1, 8, 8\), not \(1, 16, 16\)"):
        run(NCSNpp((1, 8, 8), channels=8, **SMALL), torch.zeros(1, 1, 16, 16))
