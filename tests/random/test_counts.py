"""Exactness in law of the count draws: chi-square against scipy's pmfs, fixed seeds."""

import numpy as np
import pytest
import torch
from scipy import stats

from blackout.random import (
    SampleStreams,
    bernoulli,
    binomial,
    categorical,
    counts,
    poisson,
)

DRAWS = 100_000


def source(kind, seed):
    if kind == "generator":
        return torch.Generator().manual_seed(seed)
    return SampleStreams(seed, torch.arange(DRAWS // 100)).at(0)


def assert_law(drawn, law):
    """Chi-square over cells of at least 20 expected draws, tails lumped."""
    values = drawn.flatten().numpy().astype(np.int64)
    low, high = int(law.ppf(1e-12)), int(law.ppf(1 - 1e-12)) + 1
    assert low - 1 <= values.min() and values.max() <= high + 1
    edges, mass, cells = [], 0.0, []
    for k in range(low, high + 1):
        mass += law.pmf(k)
        if mass * len(values) >= 20:
            edges.append(k)
            cells.append(mass)
            mass = 0.0
    if len(cells) < 2:
        assert abs(values.mean() - law.mean()) < 6 * law.std() / len(values) ** 0.5 + 1e-12
        return
    cells[-1] += 1 - sum(cells)
    observed = np.bincount(np.searchsorted(edges[:-1], values), minlength=len(cells))
    assert stats.chisquare(observed, np.array(cells) * len(values)).pvalue > 1e-4


@pytest.mark.parametrize("kind", ["generator", "streams"])
@pytest.mark.parametrize("n", [0, 1, 20, 255, 65535])
@pytest.mark.parametrize("p", [0.0, 1e-7, 1e-3, 0.04, 0.3, 0.5, 0.7, 0.999, 1 - 1e-7, 1.0])
def test_binomial_law(kind, n, p):
    counts = torch.full((DRAWS // 100, 100), n, dtype=torch.int32)
    drawn = binomial(counts, torch.tensor(p, dtype=torch.float64), source(kind, n + 1))
    assert drawn.dtype == counts.dtype and int(drawn.min()) >= 0 and int(drawn.max()) <= n
    if n == 0 or p in (0.0, 1.0):
        assert torch.equal(drawn, counts * int(p))
    else:
        assert_law(drawn, stats.binom(n, p))


@pytest.mark.parametrize("kind", ["generator", "streams"])
@pytest.mark.parametrize("rate", [0.0, 1e-6, 0.3, 3.7, 9.99, 10.0, 47.0, 1234.5])
def test_poisson_law(kind, rate):
    drawn = poisson(torch.full((DRAWS // 100, 100), rate), source(kind, 5))
    assert torch.equal(drawn, drawn.round())
    if rate:
        assert_law(drawn, stats.poisson(rate))
    else:
        assert not drawn.any()


@pytest.mark.parametrize("kind", ["generator", "streams"])
def test_bernoulli_law(kind):
    drawn = bernoulli(torch.full((DRAWS // 100, 100), 0.3, dtype=torch.float64), source(kind, 1))
    assert float(drawn.double().mean()) == pytest.approx(0.3, abs=5 * (0.21 / DRAWS) ** 0.5)


@pytest.mark.parametrize("kind", ["generator", "streams"])
def test_categorical_law(kind):
    """Of weights that need no sum of 1, without the impossible; a search in rows of sums draws the same."""
    weights = torch.tensor([2.0, 0.0, 5.0, 0.3, 0.7, 0.0], dtype=torch.float64)
    drawn = categorical(weights.expand(DRAWS // 100, 100, 6), source(kind, 2))
    observed, possible = np.bincount(drawn.flatten().numpy(), minlength=6), weights.numpy() > 0
    assert drawn.dtype == torch.int64 and not observed[~possible].any()
    assert stats.chisquare(observed[possible], DRAWS * weights.numpy()[possible] / 8).pvalue > 1e-4
    sums = counts.cumulative(torch.stack([weights, weights.flip(0)]))
    chance = torch.Generator().manual_seed(3)
    rows, u = torch.randint(2, (DRAWS,), generator=chance), torch.rand(DRAWS, generator=chance, dtype=torch.float64)
    assert torch.equal(counts.invert_rows(sums, rows, u), (sums[rows] <= u[:, None]).sum(1))


def test_mixed_parameters_do_not_disturb_each_other():
    """A batch of all kinds of (n, p) draws what each element draws in a batch of its own kind."""
    n = torch.tensor([0, 1, 20, 255, 65535] * 40, dtype=torch.int32).expand(8, 200)
    p = torch.linspace(0, 1, 200).double().expand(8, 200)
    mixed = binomial(n, p, SampleStreams(3, torch.arange(8)).at(0))
    for column in (3, 57, 141, 199):
        only = torch.zeros_like(n)
        only[:, column] = n[:, column]
        assert torch.equal(binomial(only, p, SampleStreams(3, torch.arange(8)).at(0))[:, column], mixed[:, column])


def test_complement_keeps_rare_failures_exact():
    """q = 1 - 1e-13.

    Failures of 65535 units are Poisson(6.6e-9) each; 1 - p in float64 would be wrong by a thousandth.
    """
    n = torch.full((1000, 1000), 65535, dtype=torch.int32)
    t = torch.tensor(1e-9).double()
    drawn = binomial(n, torch.exp(-t), SampleStreams(0, torch.arange(1000)).at(0), complement=-torch.expm1(-t))
    lost = int((n - drawn).sum())
    assert abs(lost - 65.5) < 5 * 65.5**0.5


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_is_refused_rather_than_tried_for_ever(value):
    bad = torch.tensor([[3.0, 50.0, value]], dtype=torch.float64)
    with pytest.raises(ValueError, match="not finite"):
        poisson(bad, SampleStreams(0, torch.arange(1)).at(0))


def test_draws_of_fixed_length_are_the_same_bits(monkeypatch):
    """What an accelerator does, where nobody looks at what was drawn so far."""
    p = torch.linspace(0, 1, 600, dtype=torch.float64).expand(8, 600)
    n = torch.tensor([0, 1, 20, 255, 4000, 65535] * 100, dtype=torch.int32).expand(8, 600)
    rate = torch.cat([torch.logspace(-8, 6, 599), torch.zeros(1)]).double().expand(8, 600)
    few, chance = (
        n[:, :100].clamp(max=255).to(torch.uint8),
        torch.tensor([0, 1e-4, 0.01, 0.039, 0.041, 0.5, 0.97, 1]).double()[:, None],
    )

    def drawn():
        source = SampleStreams(3, torch.arange(8)).at(0)
        return [
            binomial(n, p, source), poisson(rate, source), binomial(few, chance, source),
            binomial(few, chance[2, 0], source), binomial(few, chance[5, 0], source),
        ]  # fmt: skip

    looking = drawn()
    monkeypatch.setattr(counts, "can_look", lambda x: False)
    monkeypatch.setattr(counts, "_kernels", lambda device: None)
    monkeypatch.setattr(counts, "_TOGETHER", 3)
    assert all(map(torch.equal, looking, drawn()))
