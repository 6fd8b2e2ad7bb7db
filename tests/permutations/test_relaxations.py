"""Relaxed permutations against the sorts and sums they stand for."""

import math

import pytest
import torch

from blackout.permutations import all_permutations
from blackout.permutations.relaxations import (
    comparators,
    gumbel_sinkhorn,
    log_permanent,
    neural_sort,
    relaxed_sort,
    sinkhorn,
    soft_sort,
)
from blackout.random import SampleStreams


def test_sinkhorn_makes_rows_and_columns_sum_to_one():
    torch.manual_seed(0)
    scores = 3 * torch.randn(5, 6, 6, dtype=torch.float64)
    matrix = sinkhorn(scores, 200).exp()
    assert torch.allclose(matrix.sum(-1), torch.ones(5, 6, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(matrix.sum(-2), torch.ones(5, 6, dtype=torch.float64), atol=1e-6)
    # rows and columns are scaled, no more: cross-ratios of entries stay
    cross = lambda log: log[:, 0, 0] + log[:, 1, 1] - log[:, 0, 1] - log[:, 1, 0]  # noqa: E731
    assert torch.allclose(cross(sinkhorn(scores, 7)), cross(scores))


def test_cold_gumbel_sinkhorn_chooses_the_gumbel_max_of_two_orders():
    """Of two items the cold matrix is an order; which one depends on a difference of sums of two Gumbel numbers."""
    scores = torch.tensor([[1.0, 0.0], [0.0, 0.5]], dtype=torch.float64).expand(20_000, 2, 2)
    streams = SampleStreams(3, torch.arange(len(scores)))
    drawn = gumbel_sinkhorn(scores, 1e-3, 20, streams.step(0)).exp()
    noise = -(-torch.rand(4, 200_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).log()).log()
    stays = (1.5 + noise[0] + noise[1] > noise[2] + noise[3]).double().mean()
    assert float(drawn[:, 0, 0].mean()) == pytest.approx(float(stays), abs=0.015)
    assert torch.allclose(drawn.sum(-1), torch.ones(20_000, 2, dtype=torch.float64))


@pytest.mark.parametrize("sort", [soft_sort, neural_sort])
def test_relaxed_sorts_are_those_of_their_papers(sort):
    """By loops over places and items; NeuralSort's numbers fall, ours rise."""
    torch.manual_seed(1)
    values, tau = torch.randn(2, 5, dtype=torch.float64), 0.7
    expected = torch.empty(2, 5, 5, dtype=torch.float64)
    for b, v in enumerate(values):
        for i in range(5):
            for j in range(5):
                fall = -v
                of_place = (5 + 1 - 2 * (i + 1)) * fall[j] - (fall[j] - fall).abs().sum()
                expected[b, i, j] = -(v.sort().values[i] - v[j]).abs() if sort is soft_sort else of_place
    found = sort(values, tau)
    assert torch.allclose(found, (expected / tau).softmax(-1))
    assert torch.equal(found.argmax(-1), values.argsort(-1))
    cold = sort(values, 1e-4) @ values.unsqueeze(-1)
    assert torch.allclose(cold.squeeze(-1), values.sort(-1).values, atol=1e-6)


@pytest.mark.parametrize("layout", ["odd_even", "bitonic"])
@pytest.mark.parametrize("n", [1, 2, 3, 5, 6, 8])
def test_networks_sort_every_list_of_zeros_and_ones(n, layout):
    """The zero-one principle (Knuth): then they sort every list."""
    lists = (torch.arange(2**n).unsqueeze(1) >> torch.arange(n)) % 2
    for lower, upper in comparators(n, layout):
        assert len({*lower, *upper}) == 2 * len(lower)
        a, b = lists[:, lower].clone(), lists[:, upper].clone()
        lists[:, lower], lists[:, upper] = torch.minimum(a, b), torch.maximum(a, b)
    assert bool((lists[:, 1:] >= lists[:, :-1]).all())


@pytest.mark.parametrize("error_free", [False, True])
@pytest.mark.parametrize("layout", ["odd_even", "bitonic"])
def test_steep_comparators_give_the_matrix_of_the_sort(layout, error_free):
    values = all_permutations(5).double()
    matrix = relaxed_sort(values, 1e7, layout, error_free)
    assert torch.allclose(
        matrix @ values.unsqueeze(-1), torch.arange(5.0, dtype=torch.float64).unsqueeze(-1), atol=1e-4
    )
    soft = relaxed_sort(values, 2.0, layout, error_free)
    for axis in (-1, -2):
        assert torch.allclose(soft.sum(axis), torch.ones_like(soft.sum(axis)))


def test_one_comparator_by_hand():
    values = torch.tensor([0.3, 0.1], dtype=torch.float64, requires_grad=True)
    stays = 0.5 + torch.atan(torch.tensor(2.0 * (0.1 - 0.3), dtype=torch.float64)) / torch.pi
    matrix = relaxed_sort(values, 2.0)
    assert torch.allclose(matrix, torch.stack([torch.stack([stays, 1 - stays]), torch.stack([1 - stays, stays])]))
    gradients = [
        torch.autograd.grad(relaxed_sort(values, 2.0, error_free=free)[0, 0], values)[0] for free in (False, True)
    ]
    expected = 2 / (torch.pi * (1 + 0.4**2))
    assert all(torch.allclose(g, torch.tensor([-expected, expected], dtype=torch.float64)) for g in gradients)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_permanents_and_their_gradients_are_sums_over_orders(n):
    torch.manual_seed(n)
    scores = (20 * torch.randn(3, n, n, dtype=torch.float64)).requires_grad_()
    orders = all_permutations(n)
    each = scores[:, torch.arange(n), orders].sum(-1)  # [3, n!]
    found = log_permanent(scores)
    assert torch.allclose(found, each.logsumexp(1), rtol=1e-12)
    places = torch.nn.functional.one_hot(orders, n).double()
    marginals = torch.einsum("bk,kpi->bpi", each.softmax(1), places)
    assert torch.allclose(torch.autograd.grad(found.sum(), scores)[0], marginals, atol=1e-10)


def test_permanents_without_a_matching_and_of_twelve_equal_weights():
    assert float(log_permanent(torch.tensor([[0.0, 0.0], [-math.inf, -math.inf]]))) == -math.inf
    twelve = log_permanent(torch.zeros(12, 12, dtype=torch.float64))
    assert float(twelve) == pytest.approx(math.lgamma(13), rel=1e-14)


@pytest.mark.parametrize("call", [
    lambda: soft_sort(torch.zeros(3), 0.0), lambda: neural_sort(torch.zeros(3), -1.0),
    lambda: relaxed_sort(torch.zeros(3), math.inf), lambda: relaxed_sort(torch.zeros(3), 1.0, "bubble"),
    lambda: gumbel_sinkhorn(torch.zeros(3, 3), 0.0, 5), lambda: sinkhorn(torch.zeros(3, 3), -1),
    lambda: log_permanent(torch.zeros(2, 3)), lambda: log_permanent(torch.zeros(21, 21)),
])  # fmt: skip
def test_bad_arguments_are_refused(call):
    with pytest.raises(ValueError):
        call()
