"""Draws from tables: exact in law for p per sample, the same alone and in any batch, and on every route."""

import pytest
import torch
from scipy import stats

from blackout.diffusion.schedules import fisher_times
from blackout.random import SampleStreams, binomial
from blackout.random import counts as draws
from tests.random.test_counts import assert_law

PROBABILITIES = [1e-7, 1e-3, 0.0399, 0.0401, 0.3, 0.5, 0.9, 1 - 1e-7]


def counts(samples, elements=3072, seed=0):
    return torch.randint(0, 256, (samples, elements), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("n", [0, 1, 16, 20, 255])
@pytest.mark.parametrize("shared", [True, False])
def test_law(n, shared):
    for p in PROBABILITIES:
        probability = torch.tensor(p, dtype=torch.float64)
        x = torch.full((40, 5000), n, dtype=torch.uint8)
        other = counts(40, 5000)  # other counts in the batch enlarge the tables
        drawn = binomial(
            torch.cat([x, other]),
            probability if shared else probability.expand(80, 1),
            SampleStreams(n, torch.arange(80)).at(0),
        )[:40]
        if n:
            assert_law(drawn, stats.binom(n, p))
        else:
            assert not drawn.any()


def test_a_sample_draws_the_same_whatever_is_in_its_batch():
    x, p = counts(30), torch.exp(-fisher_times(30)[1:])
    together = binomial(x, p[:, None], SampleStreams(1, torch.arange(30)).at(4))
    for k in (0, 14, 15, 29):
        index = torch.tensor([k])
        assert torch.equal(binomial(x[index], p[index, None], SampleStreams(1, index).at(4)), together[index])
        assert torch.equal(binomial(x[index], p[k], SampleStreams(1, index).at(4)), together[index])
    shuffle = torch.randperm(30, generator=torch.Generator().manual_seed(0))
    shuffled = binomial(x[shuffle], p[shuffle, None], SampleStreams(1, shuffle).at(4))
    assert torch.equal(shuffled, together[shuffle])


@pytest.mark.parametrize("digits", [draws._WHOLE, draws._DIVIDED])
def test_tables_are_binomial_distribution_functions(digits):
    p = torch.tensor([0.0, 1e-9, 0.01, 0.5], dtype=torch.float64)
    for (shift, mask), table in zip(digits, draws._tables(p, 255, digits), strict=True):
        n = torch.arange(mask + 1)[:, None] << shift
        k = torch.arange(table.shape[-1])
        exact = torch.from_numpy(stats.binom.cdf(k, n, p[:, None, None].numpy()))
        assert torch.allclose(table, exact, rtol=0, atol=1e-12)
        assert float((1 - exact[..., -1]).max()) < 1e-16


def test_whole_tables_divided_at_every_probability_have_the_law(monkeypatch):
    """What accelerators use: no length that depends on the probabilities or on numbers drawn."""
    monkeypatch.setattr(draws, "_columns", lambda p, largest: largest + 1)
    p = torch.tensor([0.2, 0.003], dtype=torch.float64)
    tables = draws._tables(p, 255, draws._DIVIDED)
    assert [table.shape for table in tables] == [(2, 16, 241), (2, 16, 16)]
    n = torch.full((2, 100_000), 77, dtype=torch.uint8)
    draw = SampleStreams(2, torch.arange(2)).at(0).next_draw()
    drawn = draws._look_up(draw, n, torch.zeros(2, dtype=torch.bool), draws._DIVIDED, tables)
    for k in range(2):
        assert_law(drawn[k], stats.binom(77, float(p[k])))


def test_a_generator_decides_the_draws():
    x, p = counts(4), torch.tensor(0.3, dtype=torch.float64)
    first, again, other = (binomial(x, p, torch.Generator().manual_seed(seed)) for seed in (3, 3, 4))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_counts_in_any_memory_layout_are_drawn_alike():
    n = counts(64, 96)
    for p in (torch.tensor(0.01).double(), torch.tensor(0.3).double(), torch.full((64, 1), 0.3).double()):
        drawn = [binomial(x, p, SampleStreams(0, torch.arange(64)).at(0)) for x in (n, n.T.contiguous().T)]
        assert torch.equal(*drawn)
