from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

from blackout.networks import ResidualMLP, UNet
from tests.networks.test_ncsnpp import randomise, run

Make = Callable[..., nn.Module]
NETWORKS: list[tuple[Make, tuple[int, ...]]] = [
    (partial(UNet, channels=16), (1, 8, 8)),
    (
        partial(UNet, channels=8, multipliers=(1, 2, 3), blocks_per_level=2, attention_resolutions=(7,)),
        (3, 28, 28),
    ),
    (partial(UNet, channels=8, multipliers=(2,)), (2, 5, 3)),
    (partial(UNet, channels=8, fold=2), (2, 16)),
    (partial(UNet, channels=8, attention_resolutions=(4,), dense_blocks=1, dense_width=32), (1, 4, 8, 4)),
    (partial(UNet, channels=8), (16,)),
    (partial(ResidualMLP, width=32), (50,)),
    (partial(ResidualMLP, width=16, depth=1), (2, 4, 4)),
]


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize(("make", "shape"), NETWORKS)
def test_shapes_and_silent_start(make: Make, shape: tuple[int, ...], outputs: int) -> None:
    torch.manual_seed(0)
    network = make(shape, outputs)
    raw = network(10 * torch.randn(2, *shape), torch.tensor([0.0, 999.0]))
    assert raw.shape == (2, outputs * shape[0], *shape[1:])
    assert 0 < raw.abs().max() < 1e-4
    raw.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())


@pytest.mark.parametrize(("make", "shape"), NETWORKS)
def test_depends_on_data_and_time_but_not_on_the_batch(make: Make, shape: tuple[int, ...]) -> None:
    network, x = make(shape).double().eval(), torch.randn(3, *shape)
    randomise(network)
    raw = run(network, x)
    assert raw.std() > 0.1
    torch.testing.assert_close(raw[1:2], run(network, x[1:2]))
    assert not torch.allclose(raw, network(x, torch.full((3,), 101.0)))


@pytest.mark.parametrize(("make", "shape"), NETWORKS)
def test_dropout_state_dict_and_autocast(make: Make, shape: tuple[int, ...]) -> None:
    network, x = make(shape, dropout=0.2), torch.randn(2, *shape)
    randomise(network)
    assert not torch.equal(run(network, x), run(network, x))
    network.eval()
    copy = make(shape).eval()
    copy.load_state_dict(network.state_dict())
    assert torch.equal(run(network, x), run(copy, x))
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(run(network, x), run(copy, x))
        assert run(network, x).dtype == torch.float32


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: UNet((1, 9, 9)), "multiples of 2, got 9x9"),
        (lambda: UNet((9,)), "multiples of 2, got 9"),
        (lambda: UNet((1, 8, 8), fold=3), "multiples of fold=3"),
        (lambda: UNet((1, 2, 2, 2, 2)), "needs data of shape"),
        (lambda: UNet((1, 8, 8), multipliers=()), "at least 1"),
        (lambda: UNet((1, 8, 8), channels=9), "even number"),
        (lambda: ResidualMLP((4,), depth=0), "at least 1"),
        (lambda: ResidualMLP((4,), width=9), "even number"),
    ],
)
def test_impossible_networks_are_refused(make: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
