"""Matchings of items with places, against enumeration."""

import numpy as np
import pytest
import torch
from torch import Size

from blackout.permutations import all_permutations
from blackout.permutations.distributions import Matching
from blackout.permutations.group import is_permutation
from blackout.random import SampleStreams


@pytest.mark.parametrize("n", [1, 2, 4])
def test_the_top_assignments_are_the_sorted_enumeration(n):
    torch.manual_seed(n)
    matching = Matching(2 * torch.randn(3, n, n, dtype=torch.float64))
    permutations = all_permutations(n)
    log_p = matching.log_prob(permutations.unsqueeze(1))  # [n!, 3]
    sorted_log_p, ranks = log_p.sort(dim=0, descending=True)
    orders, log_probs = matching.top(len(permutations) + 5)
    assert torch.equal(orders, permutations[ranks.T]) and torch.allclose(log_probs, sorted_log_p.T)
    assert torch.equal(matching.mode, orders[:, 0]) and matching.top(2)[0].shape == (
        3,
        min(2, len(permutations)),
        n,
    )
    assert bool((log_p.exp().sum(0) <= 1 + 1e-12).all())


def test_probabilities_are_products_over_places():
    torch.manual_seed(0)
    scores = torch.randn(4, 4, dtype=torch.float64)
    rows = scores.softmax(-1)
    order = torch.tensor([2, 0, 3, 1])
    direct = rows[0, 2] * rows[1, 0] * rows[2, 3] * rows[3, 1]
    assert float(Matching(scores).log_prob(order).exp()) == pytest.approx(float(direct), rel=1e-12)


def test_the_top_assignments_of_many_items_are_distinct_permutations():
    torch.manual_seed(1)
    matching = Matching(3 * torch.randn(2, 12, 12, dtype=torch.float64))
    orders, log_probs = matching.top(40)
    assert orders.shape == (2, 40, 12) and bool(is_permutation(orders).all())
    assert all(len(assignments.unique(dim=0)) == 40 for assignments in orders)
    assert torch.equal(orders[:, 0], matching.mode) and bool((log_probs.diff(dim=1) <= 0).all())
    assert torch.allclose(matching.log_prob(orders.transpose(0, 1)).T, log_probs)


def test_samples_are_assignments_and_depend_on_their_streams_only():
    torch.manual_seed(0)
    matching = Matching(torch.randn(3, 5, 5), iterations=3)
    samples = matching.sample(Size([4]), SampleStreams(0, torch.arange(3)).step(0))
    assert samples.shape == (4, 3, 5) and is_permutation(samples).all()
    same_sample = Matching(matching.scores[2:], 3).sample(
        Size([4]), SampleStreams(0, torch.tensor([2])).step(0)
    )
    assert torch.equal(same_sample[:, 0], samples[:, 2])
    # with two items, the order depends on a difference of sums of two Gumbel numbers
    pairs = Matching(torch.tensor([[3.0, 0.0], [0.0, 3.0]])).sample(
        Size([20_000]), torch.Generator().manual_seed(0)
    )
    rng = np.random.default_rng(0)
    noise = rng.gumbel(size=(200_000, 4))
    expected = (6 + noise[:, 0] + noise[:, 1] - noise[:, 2] - noise[:, 3] > 0).mean()
    assert float((pairs[:, 0] == 0).float().mean()) == pytest.approx(expected, abs=0.004)


def test_invalid_arguments_are_refused():
    for make_matching in (
        lambda: Matching(torch.zeros(3, 4)),
        lambda: Matching(torch.zeros(3, 3), -1),
    ):
        with pytest.raises(ValueError):
            make_matching()
    with pytest.raises(ValueError):
        Matching(torch.zeros(3, 3)).top(0)
