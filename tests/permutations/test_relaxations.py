"""Relaxed permutations against the sorts and sums that they approximate."""

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

    # only rows and columns are scaled: cross-ratios of entries are kept
    def cross_ratio(log):
        return log[:, 0, 0] + log[:, 1, 1] - log[:, 0, 1] - log[:, 1, 0]

    assert torch.allclose(cross_ratio(sinkhorn(scores, 7)), cross_ratio(scores))


def test_columns_sum_more_nearly_to_one_with_every_iteration():
    torch.manual_seed(4)
    scores = 2 * torch.randn(20, 5, 5, dtype=torch.float64)
    sums = [sinkhorn(scores, iterations).exp().sum(-2) for iterations in range(12)]
    errors = torch.stack([(column - 1).abs().sum(-1) for column in sums])
    assert bool((errors[1:] <= errors[:-1] + 1e-12).all()) and float(errors[-1].max()) < 0.1


@pytest.mark.parametrize("temperature", [1e-3, 0.1, 10.0])
def test_the_largest_entry_of_neural_sort_is_right_at_any_temperature(temperature):
    values = torch.randn(50, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    assert torch.equal(neural_sort(values, temperature).argmax(-1), values.argsort(-1))


def test_gumbel_sinkhorn_at_low_temperature_samples_orders():
    """For two items, the order depends on a difference of sums of two Gumbel numbers."""
    scores = torch.tensor([[1.0, 0.0], [0.0, 0.5]], dtype=torch.float64).expand(20_000, 2, 2)
    streams = SampleStreams(3, torch.arange(len(scores)))
    matrices = gumbel_sinkhorn(scores, 1e-3, 20, streams.step(0)).exp()
    noise = -(
        -torch.rand(
            4, 200_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
        ).log()
    ).log()
    identity_share = (1.5 + noise[0] + noise[1] > noise[2] + noise[3]).double().mean()
    assert float(matrices[:, 0, 0].mean()) == pytest.approx(float(identity_share), abs=0.015)
    assert torch.allclose(matrices.sum(-1), torch.ones(20_000, 2, dtype=torch.float64))


@pytest.mark.parametrize("sort", [soft_sort, neural_sort])
def test_relaxed_sorts_match_the_formulas_of_their_papers(sort):
    """Loops over places and items; NeuralSort sorts in falling order, this package rising."""
    torch.manual_seed(1)
    values = torch.randn(2, 5, dtype=torch.float64)
    tau = 0.7
    expected = torch.empty(2, 5, 5, dtype=torch.float64)
    for b, v in enumerate(values):
        for i in range(5):
            for j in range(5):
                negated = -v
                neural_sort_score = (5 + 1 - 2 * (i + 1)) * negated[j] - (
                    negated[j] - negated
                ).abs().sum()
                expected[b, i, j] = (
                    -(v.sort().values[i] - v[j]).abs() if sort is soft_sort else neural_sort_score
                )
    matrix = sort(values, tau)
    assert torch.allclose(matrix, (expected / tau).softmax(-1))
    assert torch.equal(matrix.argmax(-1), values.argsort(-1))
    sorted_values = sort(values, 1e-4) @ values.unsqueeze(-1)
    assert torch.allclose(sorted_values.squeeze(-1), values.sort(-1).values, atol=1e-6)


@pytest.mark.parametrize("layout", ["odd_even", "bitonic"])
@pytest.mark.parametrize("n", [1, 2, 3, 5, 6, 8])
def test_sorting_networks_sort_every_list_of_zeros_and_ones(n, layout):
    """By the zero-one principle (Knuth), they then sort every list."""
    lists = (torch.arange(2**n).unsqueeze(1) >> torch.arange(n)) % 2
    for lower, upper in comparators(n, layout):
        assert len({*lower, *upper}) == 2 * len(lower)
        a = lists[:, lower].clone()
        b = lists[:, upper].clone()
        lists[:, lower] = torch.minimum(a, b)
        lists[:, upper] = torch.maximum(a, b)
    assert bool((lists[:, 1:] >= lists[:, :-1]).all())


@pytest.mark.parametrize("error_free", [False, True])
@pytest.mark.parametrize("layout", ["odd_even", "bitonic"])
def test_steep_comparators_give_the_permutation_matrix(layout, error_free):
    values = all_permutations(5).double()
    matrix = relaxed_sort(values, 1e7, layout, error_free=error_free)
    assert torch.allclose(
        matrix @ values.unsqueeze(-1),
        torch.arange(5.0, dtype=torch.float64).unsqueeze(-1),
        atol=1e-4,
    )
    soft = relaxed_sort(values, 2.0, layout, error_free=error_free)
    for axis in (-1, -2):
        assert torch.allclose(soft.sum(axis), torch.ones_like(soft.sum(axis)))


def test_one_comparator_matches_its_formula():
    values = torch.tensor([0.3, 0.1], dtype=torch.float64, requires_grad=True)
    stay_weight = 0.5 + torch.atan(torch.tensor(2.0 * (0.1 - 0.3), dtype=torch.float64)) / torch.pi
    matrix = relaxed_sort(values, 2.0)
    assert torch.allclose(
        matrix,
        torch.stack(
            [
                torch.stack([stay_weight, 1 - stay_weight]),
                torch.stack([1 - stay_weight, stay_weight]),
            ]
        ),
    )
    gradients = [
        torch.autograd.grad(relaxed_sort(values, 2.0, error_free=error_free)[0, 0], values)[0]
        for error_free in (False, True)
    ]
    expected = 2 / (torch.pi * (1 + 0.4**2))
    assert all(
        torch.allclose(g, torch.tensor([-expected, expected], dtype=torch.float64))
        for g in gradients
    )


@pytest.mark.parametrize("n", [1, 2, 5])
def test_permanents_and_their_gradients_match_sums_over_orders(n):
    torch.manual_seed(n)
    scores = (20 * torch.randn(3, n, n, dtype=torch.float64)).requires_grad_()
    orders = all_permutations(n)
    order_scores = scores[:, torch.arange(n), orders].sum(-1)  # [3, n!]
    permanents = log_permanent(scores)
    assert torch.allclose(permanents, order_scores.logsumexp(1), rtol=1e-12)
    places = torch.nn.functional.one_hot(orders, n).double()
    marginals = torch.einsum("bk,kpi->bpi", order_scores.softmax(1), places)
    assert torch.allclose(torch.autograd.grad(permanents.sum(), scores)[0], marginals, atol=1e-10)


def test_permanents_without_a_matching_and_with_twelve_equal_weights():
    assert float(log_permanent(torch.tensor([[0.0, 0.0], [-math.inf, -math.inf]]))) == -math.inf
    log_factorial = log_permanent(torch.zeros(12, 12, dtype=torch.float64))
    assert float(log_factorial) == pytest.approx(math.lgamma(13), rel=1e-14)


@pytest.mark.parametrize(
    "call",
    [
        lambda: soft_sort(torch.zeros(3), 0.0),
        lambda: neural_sort(torch.zeros(3), -1.0),
        lambda: relaxed_sort(torch.zeros(3), math.inf),
        lambda: relaxed_sort(torch.zeros(3), 1.0, "bubble"),
        lambda: gumbel_sinkhorn(torch.zeros(3, 3), 0.0, 5),
        lambda: sinkhorn(torch.zeros(3, 3), -1),
        lambda: log_permanent(torch.zeros(2, 3)),
        lambda: log_permanent(torch.zeros(21, 21)),
    ],
)
def test_invalid_arguments_are_refused(call):
    with pytest.raises(ValueError):
        call()
