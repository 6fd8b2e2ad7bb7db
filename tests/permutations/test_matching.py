"""Matchings of items with places against enumeration."""

import numpy as np
import pytest
import torch
from torch import Size

from blackout.permutations import all_permutations
from blackout.permutations.distributions import Matching
from blackout.permutations.group import is_permutation
from blackout.random import SampleStreams


@pytest.mark.parametrize("n", [1, 2, 4])
def test_the_best_assignments_are_those_of_the_sorted_list(n):
    torch.manual_seed(n)
    law, every = Matching(2 * torch.randn(3, n, n, dtype=torch.float64)), all_permutations(n)
    log_p = law.log_prob(every.unsqueeze(1))  # [n!, 3]
    most, which = log_p.sort(dim=0, descending=True)
    orders, log_probs = law.top(len(every) + 5)
    assert torch.equal(orders, every[which.T]) and torch.allclose(log_probs, most.T)
    assert torch.equal(law.mode, orders[:, 0]) and law.top(2)[0].shape == (3, min(2, len(every)), n)
    assert bool((log_p.exp().sum(0) <= 1 + 1e-12).all())


def test_probabilities_are_those_of_independent_places():
    torch.manual_seed(0)
    scores = torch.randn(4, 4, dtype=torch.float64)
    rows = scores.softmax(-1)
    order = torch.tensor([2, 0, 3, 1])
    direct = rows[0, 2] * rows[1, 0] * rows[2, 3] * rows[3, 1]
    assert float(Matching(scores).log_prob(order).exp()) == pytest.approx(float(direct), rel=1e-12)


def test_the_best_assignment_of_many_items_comes_first_and_others_are_whole_and_different():
    torch.manual_seed(1)
    law = Matching(3 * torch.randn(2, 12, 12, dtype=torch.float64))
    orders, log_probs = law.top(40)
    assert orders.shape == (2, 40, 12) and bool(is_permutation(orders).all())
    assert all(len(one.unique(dim=0)) == 40 for one in orders)
    assert torch.equal(orders[:, 0], law.mode) and bool((log_probs.diff(dim=1) <= 0).all())
    assert torch.allclose(law.log_prob(orders.transpose(0, 1)).T, log_probs)


def test_draws_are_assignments_and_belong_to_their_streams():
    torch.manual_seed(0)
    law = Matching(torch.randn(3, 5, 5), iterations=3)
    drawn = law.sample(Size([4]), SampleStreams(0, torch.arange(3)).step(0))
    assert drawn.shape == (4, 3, 5) and is_permutation(drawn).all()
    alone = Matching(law.scores[2:], 3).sample(Size([4]), SampleStreams(0, torch.tensor([2])).step(0))
    assert torch.equal(alone[:, 0], drawn[:, 2])
    # two items: the order is that of the larger sum of noisy scores, a difference of four Gumbel numbers
    gaps = Matching(torch.tensor([[3.0, 0.0], [0.0, 3.0]])).sample(Size([20_000]), torch.Generator().manual_seed(0))
    rng = np.random.default_rng(0)
    noise = rng.gumbel(size=(200_000, 4))
    expected = (6 + noise[:, 0] + noise[:, 1] - noise[:, 2] - noise[:, 3] > 0).mean()
    assert float((gaps[:, 0] == 0).float().mean()) == pytest.approx(expected, abs=0.004)


def test_bad_arguments():
    for bad in (lambda: Matching(torch.zeros(3, 4)), lambda: Matching(torch.zeros(3, 3), -1)):
        with pytest.raises(ValueError):
            bad()
    with pytest.raises(ValueError):
        Matching(torch.zeros(3, 3)).top(0)
