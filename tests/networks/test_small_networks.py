from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

from blackout.networks import CountNetwork, LevelInputs, ResidualMLP, Transformer, UNet
from blackout.networks.automatic import body_and_inputs
from blackout.networks.transformer import apply_rotary, rotary_angles
from tests.networks.test_ncsnpp import randomise, run

Make = Callable[..., nn.Module]
NETWORKS: list[tuple[Make, tuple[int, ...]]] = [
    (partial(UNet, channels=16), (1, 8, 8)),
    (
        partial(
            UNet, channels=8, multipliers=(1, 2, 3), blocks_per_level=2, attention_resolutions=(7,)
        ),
        (3, 28, 28),
    ),
    (partial(UNet, channels=8, multipliers=(2,)), (2, 5, 3)),
    (partial(UNet, channels=8, fold=2), (2, 16)),
    (
        partial(UNet, channels=8, attention_resolutions=(4,), dense_blocks=1, dense_width=32),
        (1, 4, 8, 4),
    ),
    (partial(UNet, channels=8), (16,)),
    (partial(ResidualMLP, width=32), (50,)),
    (partial(ResidualMLP, width=16, depth=1), (2, 4, 4)),
    (partial(Transformer, width=16, depth=2, heads=2), (12,)),
    (partial(Transformer, width=16, depth=1, heads=2, patch=2), (2, 8, 6)),
]


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize(("make", "shape"), NETWORKS)
def test_shapes_and_initial_outputs_near_zero(
    make: Make, shape: tuple[int, ...], outputs: int
) -> None:
    torch.manual_seed(0)
    network = make(shape, outputs)
    raw = network(10 * torch.randn(2, *shape), torch.tensor([0.0, 999.0]))
    assert raw.shape == (2, outputs * shape[0], *shape[1:])
    assert 0 < raw.abs().max() < 1e-4
    raw.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())


@pytest.mark.parametrize(("make", "shape"), NETWORKS)
def test_depends_on_data_and_time_but_not_on_the_batch(make: Make, shape: tuple[int, ...]) -> None:
    network = make(shape).double().eval()
    x = torch.randn(3, *shape)
    randomise(network)
    raw = run(network, x)
    assert raw.std() > 0.1
    torch.testing.assert_close(raw[1:2], run(network, x[1:2]))
    assert not torch.allclose(raw, network(x, torch.full((3,), 101.0)))


@pytest.mark.parametrize(("make", "shape"), NETWORKS)
def test_dropout_state_dict_and_autocast(make: Make, shape: tuple[int, ...]) -> None:
    network = make(shape, dropout=0.2)
    x = torch.randn(2, *shape)
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
        (lambda: UNet((1, 9, 9)), "multiples of 2, not 9x9"),
        (lambda: UNet((9,)), "multiples of 2, not 9"),
        (lambda: UNet((1, 8, 8), fold=3), "multiples of fold=3"),
        (lambda: UNet((1, 2, 2, 2, 2)), "needs data of shape"),
        (lambda: UNet((1, 8, 8), multipliers=()), "at least 1"),
        (lambda: UNet((1, 8, 8), channels=9), "even number"),
        (lambda: ResidualMLP((4,), depth=0), "at least 1"),
        (lambda: ResidualMLP((4,), width=9), "even number"),
        (lambda: Transformer((1, 9, 9), patch=2), "multiples of patch=2, not 9x9"),
        (lambda: Transformer((1, 8, 8), width=24), "multiple of 16, not 24"),
    ],
)
def test_impossible_networks_are_refused(make: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("knots", [0, 5])
def test_a_perceptron_evaluates_a_shared_time_once(knots: int) -> None:
    network = ResidualMLP((6,), outputs=2, width=16, depth=2, knots=knots).eval()
    randomise(network)
    embedded: list[int] = []
    network.time.register_forward_hook(lambda module, inputs, output: embedded.append(len(output)))
    counts = torch.arange(24).view(4, 6)
    x = counts / 24
    times = torch.tensor([30.0, 30.0, 30.0, 400.0])
    different = network(x, times, counts=counts)
    shared = network(x[:3], times[:3], counts=counts[:3])
    assert embedded == [4, 1]
    torch.testing.assert_close(shared, different[:3], rtol=1e-4, atol=1e-4)
    assert float((different[3] - different[2]).detach().abs().max()) > 1e-2


def test_rotary_products_depend_on_the_difference_of_positions_only() -> None:
    """Products of rotated features depend on the positions only through their difference."""
    grid = (5, 4)
    size = 8
    angles = rotary_angles(grid, size).double()
    q, k = torch.randn(2, size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    product = (
        apply_rotary(q.expand(20, -1), angles) @ apply_rotary(k.expand(20, -1), angles).T
    ).view(*grid, *grid)
    torch.testing.assert_close(product[1:, 1:, 1:, 1:], product[:-1, :-1, :-1, :-1])
    same_position = product.diagonal(dim1=0, dim2=2).diagonal(dim1=0, dim2=1)
    torch.testing.assert_close(same_position, (q @ k).expand(5, 4))
    moved = torch.stack(
        [product[0, 0, 0, j] for j in range(4)] + [product[0, 0, i, 0] for i in range(1, 5)]
    )
    assert torch.pdist(moved[:, None]).min() > 1e-6  # and no two differences look alike


def test_embedding_the_states_of_a_patch_equals_a_linear_map() -> None:
    """The embedding of a patch is the sum of a vector for each element and state.

    Where the vector is the state times a vector of the element, the body equals that of numbers.
    """
    numbers = Transformer((1, 4, 4), width=16, depth=1, heads=2, patch=2).double().eval()
    randomise(numbers)
    states = Transformer((1, 4, 4), width=16, depth=1, heads=2, patch=2, levels=3).double().eval()
    states.load_state_dict(numbers.state_dict() | {"stem.weight": states.stem.weight}, strict=False)
    levels = torch.arange(3).double()
    table = levels[None, :, None] * numbers.stem.weight.T[:, None] + numbers.stem.bias / 4
    states.stem.weight.data = table.reshape(12, 16)
    x = torch.randint(3, (2, 1, 4, 4), generator=torch.Generator().manual_seed(0)).double()
    torch.testing.assert_close(run(states, x), run(numbers, x))


def test_a_transformer_embeds_unordered_levels() -> None:
    description = {"_target_": "blackout.networks.Transformer", "width": 32}
    inputs = {"_target_": "blackout.networks.LevelInputs"}
    completed = body_and_inputs(
        {"body": description, "inputs": inputs}, {"shape": [9], "max_count": 3}
    )
    assert completed["body"] == {**description, "levels": 5} and completed["inputs"][
        "_target_"
    ].endswith("StateInputs")
    assert (
        body_and_inputs(
            {"body": description, "inputs": inputs}, {"shape": [1, 8, 8], "max_count": 16}
        )
        == {}
    )
    network = CountNetwork(Transformer((1, 8, 8), 17, width=16, depth=1, heads=2), LevelInputs(16))
    assert network(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), torch.tensor(1.0)).shape == (
        2,
        17,
        1,
        8,
        8,
    )
