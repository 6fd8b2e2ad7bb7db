"""Binomial draws from tables: exact, and equal alone, in any batch and on every path."""

import pytest
import torch
from scipy import stats
from torch import Tensor

from blackout.diffusion.time_grids import fisher_times
from blackout.random import SampleStreams, binomial, binomial_table
from tests.random.chi_square import assert_distribution

PROBABILITIES = [1e-7, 1e-3, 0.0399, 0.0401, 0.3, 0.5, 0.9, 1 - 1e-7]


def random_counts(num_samples: int, num_elements: int = 3072) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    shape = (num_samples, num_elements)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("n", [0, 1, 16, 20, 255])
@pytest.mark.parametrize("is_shared", [True, False])
def test_counts_have_the_binomial_distribution(n: int, is_shared: bool) -> None:
    for probability in PROBABILITIES:
        p = torch.tensor(probability, dtype=torch.float64)
        same_counts = torch.full((40, 5000), n, dtype=torch.uint8)
        other_counts = random_counts(40, 5000)  # larger counts in the batch enlarge the tables
        draws = binomial(
            torch.cat([same_counts, other_counts]),
            p if is_shared else p.expand(80, 1),
            SampleStreams(n, torch.arange(80)).step(0),
        )[:40]
        if n:
            assert_distribution(draws, stats.binom(n, probability))
        else:
            assert not draws.any()


def test_a_sample_draws_the_same_in_any_batch() -> None:
    n = random_counts(30)
    p = torch.exp(-fisher_times(30)[1:])
    batch = binomial(n, p[:, None], SampleStreams(1, torch.arange(30)).step(4))
    for k in (0, 14, 15, 29):
        index = torch.tensor([k])
        streams = SampleStreams(1, index)
        assert torch.equal(binomial(n[index], p[index, None], streams.step(4)), batch[index])
        assert torch.equal(binomial(n[index], p[k], streams.step(4)), batch[index])

    order = torch.randperm(30, generator=torch.Generator().manual_seed(0))
    shuffled = binomial(n[order], p[order, None], SampleStreams(1, order).step(4))
    assert torch.equal(shuffled, batch[order])


@pytest.mark.parametrize("digits", [binomial_table.UNDIVIDED, binomial_table.BASE_16])
def test_tables_are_binomial_distribution_functions(digits) -> None:
    p = torch.tensor([0.0, 1e-9, 0.01, 0.5], dtype=torch.float64)
    tables = binomial_table.binomial_tables(p, 255, digits)
    for (shift, mask), table in zip(digits, tables, strict=True):
        n = torch.arange(mask + 1)[:, None] << shift
        k = torch.arange(table.shape[-1])
        exact = torch.from_numpy(stats.binom.cdf(k, n, p[:, None, None].numpy()))
        assert torch.allclose(table, exact, rtol=0, atol=1e-12)
        assert float((1 - exact[..., -1]).max()) < 1e-16


def test_complete_tables_of_digits_are_exact_for_every_probability(monkeypatch) -> None:
    """Accelerators use tables whose length does not depend on the probabilities."""
    monkeypatch.setattr(binomial_table, "_num_columns", lambda p, n: n + 1)
    p = torch.tensor([0.2, 0.003], dtype=torch.float64)
    digits = binomial_table.BASE_16
    tables = binomial_table.binomial_tables(p, 255, digits)
    assert [table.shape for table in tables] == [(2, 16, 241), (2, 16, 16)]

    n = torch.full((2, 100_000), 77, dtype=torch.uint8)
    flipped = torch.zeros(2, dtype=torch.bool)
    draw = SampleStreams(2, torch.arange(2)).step(0).next_draw()
    draws = binomial_table.look_up(draw, n, flipped, digits, tables)
    for k in range(2):
        assert_distribution(draws[k], stats.binom(77, float(p[k])))


def test_a_generator_determines_the_draws() -> None:
    n = random_counts(4)
    p = torch.tensor(0.3, dtype=torch.float64)
    first = binomial(n, p, torch.Generator().manual_seed(3))
    repeated = binomial(n, p, torch.Generator().manual_seed(3))
    other_draws = binomial(n, p, torch.Generator().manual_seed(4))
    assert torch.equal(first, repeated)
    assert not torch.equal(first, other_draws)


def test_draws_do_not_depend_on_the_memory_layout() -> None:
    n = random_counts(64, 96)
    transposed = n.T.contiguous().T
    for p in (torch.tensor(0.01), torch.tensor(0.3), torch.full((64, 1), 0.3)):
        draws = binomial(n, p.double(), SampleStreams(0, torch.arange(64)).step(0))
        other_draws = binomial(transposed, p.double(), SampleStreams(0, torch.arange(64)).step(0))
        assert torch.equal(draws, other_draws)
