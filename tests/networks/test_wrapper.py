from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from blackout.diffusion.processes import BirthDeath
from blackout.networks import (
    ArcsineInputs,
    BirthDeathInputs,
    CountNetwork,
    LevelInputs,
    NCSNpp,
    PaperInputs,
    ResidualMLP,
    StandardisedInputs,
    UNet,
    time_index,
)

STEPS = 1000
L = math.log(math.expm1(15.0))


def paper_times() -> Tensor:
    u = L * (1 - 2 * torch.arange(STEPS, dtype=torch.float64) / (STEPS - 1))
    return nn.functional.softplus(-u)


def test_levels_fill_the_range_and_the_mask_is_outside() -> None:
    states = torch.arange(6, dtype=torch.uint8)[None]
    assert LevelInputs(4)(states, torch.ones(1)).tolist() == [[-1.0, -0.5, 0.0, 0.5, 1.0, -2.0]]


class Probe(nn.Module):
    """Body that returns its input and stores the time index."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor, time_index: Tensor) -> Tensor:
        self.time_index = time_index
        return x


def test_time_index_counts_the_steps_of_the_paper() -> None:
    torch.testing.assert_close(
        time_index(paper_times()), torch.arange(STEPS).double(), atol=1e-6, rtol=0
    )


def test_time_index_is_finite_far_outside_the_grid() -> None:
    index = time_index(torch.tensor([1e-300, 1e-12, 40.0, 1e4], dtype=torch.float64))
    assert index.isfinite().all() and (index.diff() > 0).all()
    assert time_index(torch.tensor(math.log(2), dtype=torch.float64)).item() == pytest.approx(
        (STEPS - 1) / 2
    )


@pytest.mark.parametrize("max_count", [1, 255, 65535])
def test_paper_inputs(max_count: int) -> None:
    x = torch.tensor([[[[0, 1, max_count]]]], dtype=torch.int32)
    t = torch.tensor([0.3], dtype=torch.float64)
    expected = [x_ - max_count / 2 * math.exp(-0.3) for x_ in (0, 1, max_count)]
    assert PaperInputs(max_count)(x, t).flatten().tolist() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("t", [3.1e-7, 0.7, 15.0])
@pytest.mark.parametrize("values", [(0, 10), (3, 7), (500, 65535)])
def test_standardised_inputs_have_mean_zero_and_variance_one(
    t: float, values: tuple[int, int]
) -> None:
    """Thinned two-valued counts: given X0, E[X] = q X0 and E[X^2] = q (1 - q) X0 + q^2 X0^2."""
    x0 = torch.tensor(values, dtype=torch.float64)
    q = math.exp(-t)
    decay = -math.expm1(-t)
    first = (q * x0).mean().item()
    second = (q * decay * x0 + q**2 * x0**2).mean().item()
    inputs = StandardisedInputs(x0.mean().item(), x0.std(correction=0).item())
    ends = (
        inputs(torch.tensor([[0], [65535]]), torch.tensor([t, t], dtype=torch.float64))
        .double()
        .flatten()
    )
    slope = (ends[1] - ends[0]).item() / 65535
    offset = ends[0].item()
    assert slope * first + offset == pytest.approx(0, abs=1e-4)
    assert slope**2 * (second - first**2) == pytest.approx(1, rel=1e-4)


@pytest.mark.parametrize("t", [1e-6, 0.4, 9.0])
def test_inputs_of_immigration_and_death_are_standardised_at_every_time(t: float) -> None:
    p0 = torch.tensor([0.2, 0.1, 0.1, 0.3, 0.1, 0, 0, 0, 0.1, 0.1]).double()
    x0 = torch.arange(10)
    mean = float(p0 @ x0.double())
    std = float((p0 @ x0.double().square() - mean**2).sqrt())
    p = p0 @ BirthDeath(9, mean).pmf(x0, torch.tensor(t))
    z = BirthDeathInputs(mean, std)(torch.arange(len(p))[:, None], torch.tensor(t).expand(len(p)))[
        :, 0
    ].double()
    assert float(p @ z) == pytest.approx(0, abs=1e-5) and float(p @ z.square()) == pytest.approx(
        1, rel=1e-4
    )


@pytest.mark.parametrize("t", [1e-6, 0.4, 3.0, 9.0])
@pytest.mark.parametrize("q0", [0.03, 0.5, 0.97])
def test_arcsine_inputs_of_binomial_counts_are_of_order_one_and_equally_noisy(
    t: float, q0: float
) -> None:
    x = torch.arange(256)
    p = q0 * math.exp(-t)
    log_pmf = torch.distributions.Binomial(255, torch.tensor(p).double()).log_prob(x.double())
    inputs = ArcsineInputs(255 * q0, 255)
    z = inputs(x[:, None], torch.full((256,), t, dtype=torch.float64))[:, 0].double()
    pmf = log_pmf.exp()
    mean_square = float(pmf @ z.square())
    assert mean_square < math.pi**2 / 4
    if 255 * p > 1:
        assert mean_square > 0.7
    angle_variance = float(pmf @ z.square() - (pmf @ z) ** 2) * (p + 0.25 / 255)
    if 255 * p * (1 - p) > 20:  # then the variance of the angle is 1 / 4M
        assert angle_variance * 4 * 255 == pytest.approx(1, rel=0.1)


def test_standardised_inputs_of_black_data_are_zero() -> None:
    t = torch.tensor([1e-9, 1.0, 1e4], dtype=torch.float64)
    assert not StandardisedInputs(0.0, 0.0)(torch.zeros(3, 4, dtype=torch.uint8), t).any()
    assert StandardisedInputs(5.0, 0.0)(torch.zeros(3, 4, dtype=torch.uint8), t).isfinite().all()


def test_invalid_scales_are_refused() -> None:
    with pytest.raises(ValueError, match="max_count"):
        PaperInputs(0)
    with pytest.raises(ValueError, match="max_count"):
        ArcsineInputs(1.0, 0)
    with pytest.raises(ValueError, match="mean"):
        ArcsineInputs(-1.0, 255)
    for mean, std in ((-1.0, 1.0), (1.0, math.nan), (math.inf, 1.0)):
        with pytest.raises(ValueError, match="mean and std"):
            StandardisedInputs(mean, std)


@pytest.mark.parametrize(
    "inputs",
    [PaperInputs(65535), StandardisedInputs(20000.0, 9000.0), ArcsineInputs(20000.0, 65535)],
)
def test_half_precision_degrades_neither_scaling_nor_time_index(
    inputs: PaperInputs | StandardisedInputs | ArcsineInputs,
) -> None:
    xt = torch.randint(0, 65536, (6, 2, 3, 3), generator=torch.Generator().manual_seed(0))
    t = paper_times()[[0, 1, 499, 500, 998, 999]]
    probe = Probe()
    expected = CountNetwork(probe, inputs)(xt, t)
    half = CountNetwork(probe, inputs).to(torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(half(xt, t), expected)
    torch.testing.assert_close(
        probe.time_index, torch.tensor([0.0, 1, 499, 500, 998, 999]), atol=1e-4, rtol=0
    )


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        (NCSNpp((2, 8, 8), 3, channels=8, blocks_per_level=1), (2, 8, 8)),
        (UNet((2, 8, 8), 3, channels=8), (2, 8, 8)),
        (ResidualMLP((5,), 3, width=8), (5,)),
        (ResidualMLP((2, 4, 4), 3, width=8), (2, 4, 4)),
    ],
)
def test_scalar_time_equals_repeated_time(body: nn.Module, shape: tuple[int, ...]) -> None:
    network = CountNetwork(body, StandardisedInputs(3.0, 2.0)).eval()
    xt = torch.randint(0, 9, (4, *shape), dtype=torch.uint8)
    t = torch.tensor(0.9, dtype=torch.float64)
    with torch.no_grad():
        raw = network(xt, t)
        assert raw.shape == (4, 3, *shape) and raw.dtype == torch.float32
        assert torch.equal(raw, network(xt, t.expand(4)))
        with torch.autocast("cpu", torch.bfloat16):
            assert network(xt, t).dtype == torch.float32
        assert network.to(torch.bfloat16)(xt, t).dtype == torch.float32


def test_output_groups_keep_their_order() -> None:
    class Numbered(nn.Module):
        def forward(self, x: Tensor, time_index: Tensor) -> Tensor:
            return torch.arange(6.0).reshape(1, 6, 1, 1).expand(len(x), 6, *x.shape[2:])

    raw = CountNetwork(Numbered(), PaperInputs(255))(
        torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.tensor(1.0)
    )
    assert raw[0, :, :, 0, 0].tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("shape", [(3,), (1, 4), (4, 1, 1, 1)])
def test_times_of_a_wrong_shape_are_refused(shape: tuple[int, ...]) -> None:
    network = CountNetwork(Probe(), PaperInputs(255))
    with pytest.raises(ValueError, match=r"scalar or \[4\]"):
        network(torch.zeros(4, 2, dtype=torch.uint8), torch.ones(shape))
