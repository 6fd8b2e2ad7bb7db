"""Draws of counts and categories are exact: chi-square tests with fixed seeds."""

import pytest
import torch
from scipy import stats
from torch import Tensor

from blackout.random import (
    RandomSource,
    SampleStreams,
    bernoulli,
    binomial,
    binomial_table,
    compiled_draws,
    poisson,
    torch_draws,
)
from tests.random.chi_square import assert_distribution

NUM_DRAWS = 100_000
SHAPE = (NUM_DRAWS // 100, 100)
ALL_N = [0, 1, 20, 255, 65535]
PROBABILITIES = [0.0, 1e-7, 1e-3, 0.04, 0.3, 0.5, 0.7, 0.999, 1 - 1e-7, 1.0]
RATES = [0.0, 1e-6, 0.3, 3.7, 9.99, 10.0, 47.0, 1234.5]


def random_source(kind: str, seed: int) -> RandomSource:
    if kind == "generator":
        return torch.Generator().manual_seed(seed)
    return SampleStreams(seed, torch.arange(SHAPE[0])).step(0)


@pytest.mark.parametrize("kind", ["generator", "streams"])
@pytest.mark.parametrize("n", ALL_N)
@pytest.mark.parametrize("p", PROBABILITIES)
def test_binomial_counts_have_their_distribution(kind: str, n: int, p: float) -> None:
    counts = torch.full(SHAPE, n, dtype=torch.int32)
    draws = binomial(counts, torch.tensor(p, dtype=torch.float64), random_source(kind, n + 1))
    assert draws.dtype == counts.dtype
    assert int(draws.min()) >= 0
    assert int(draws.max()) <= n
    if n == 0 or p in (0.0, 1.0):
        assert torch.equal(draws, counts * int(p))
    else:
        assert_distribution(draws, stats.binom(n, p))


@pytest.mark.parametrize("kind", ["generator", "streams"])
@pytest.mark.parametrize("rate", RATES)
def test_poisson_counts_have_their_distribution(kind: str, rate: float) -> None:
    draws = poisson(torch.full(SHAPE, rate), random_source(kind, 5))
    assert torch.equal(draws, draws.round())
    if rate:
        assert_distribution(draws, stats.poisson(rate))
    else:
        assert not draws.any()


@pytest.mark.parametrize("kind", ["generator", "streams"])
def test_bernoulli_draws_have_their_mean(kind: str) -> None:
    draws = bernoulli(torch.full(SHAPE, 0.3, dtype=torch.float64), random_source(kind, 1))
    standard_error = (0.3 * 0.7 / NUM_DRAWS) ** 0.5
    assert float(draws.double().mean()) == pytest.approx(0.3, abs=5 * standard_error)


def test_elements_with_other_parameters_do_not_matter() -> None:
    n = torch.tensor(ALL_N * 40, dtype=torch.int32).expand(8, 200)
    p = torch.linspace(0, 1, 200).double().expand(8, 200)
    mixed = binomial(n, p, SampleStreams(3, torch.arange(8)).step(0))
    for column in (3, 57, 141, 199):
        single_n = torch.zeros_like(n)
        single_n[:, column] = n[:, column]
        single = binomial(single_n, p, SampleStreams(3, torch.arange(8)).step(0))
        assert torch.equal(single[:, column], mixed[:, column])


def test_complement_keeps_rare_failures_exact() -> None:
    """In float64, 1 - p would be wrong by a thousandth for failures of probability 1e-9."""
    n = torch.full((1000, 1000), 65535, dtype=torch.int32)
    t = torch.tensor(1e-9).double()
    source = SampleStreams(0, torch.arange(1000)).step(0)
    draws = binomial(n, torch.exp(-t), source, complement=-torch.expm1(-t))
    num_failures = int((n - draws).sum())
    expected = 65.5  # 10^6 elements of 65535 units
    assert abs(num_failures - expected) < 5 * expected**0.5


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_rates_must_be_finite(value: float) -> None:
    rates = torch.tensor([[3.0, 50.0, value]], dtype=torch.float64)
    with pytest.raises(ValueError, match="not finite"):
        poisson(rates, SampleStreams(0, torch.arange(1)).step(0))


def test_loops_of_fixed_length_draw_the_same(monkeypatch) -> None:
    """On an accelerator no loop depends on values."""
    n = torch.tensor([0, 1, 20, 255, 4000, 65535] * 100, dtype=torch.int32).expand(8, 600)
    p = torch.linspace(0, 1, 600, dtype=torch.float64).expand(8, 600)
    rate = torch.cat([torch.logspace(-8, 6, 599), torch.zeros(1)]).double().expand(8, 600)
    uint8_n = n[:, :100].clamp(max=255).to(torch.uint8)
    sample_p = torch.tensor([0, 1e-4, 0.01, 0.039, 0.041, 0.5, 0.97, 1]).double()[:, None]

    def draw_counts() -> list[Tensor]:
        source = SampleStreams(3, torch.arange(8)).step(0)
        return [
            binomial(n, p, source),
            poisson(rate, source),
            binomial(uint8_n, sample_p, source),
            binomial(uint8_n, sample_p[2, 0], source),
            binomial(uint8_n, sample_p[5, 0], source),
        ]

    expected = draw_counts()
    for module in (binomial_table, torch_draws):
        monkeypatch.setattr(module, "can_read_values", lambda x: False)
    monkeypatch.setattr(compiled_draws, "load", lambda device: None)
    monkeypatch.setattr(binomial_table, "DEVICE_SAMPLES", 3)
    assert all(map(torch.equal, expected, draw_counts()))
