"""Composition, inverses and distances of permutations."""

import itertools

import pytest
import torch
from scipy import stats

from blackout.permutations import all_permutations, compose, inverse, kendall_distance
from blackout.permutations.group import descents, is_permutation, lexicographic_rank, num_cycles


@pytest.mark.parametrize("n", range(1, 7))
def test_all_permutations_are_those_of_itertools(n):
    assert all_permutations(n).tolist() == [list(p) for p in itertools.permutations(range(n))]
    assert all_permutations(n).dtype == torch.int64


@pytest.mark.parametrize("n", [0, 11])
def test_too_few_or_too_many_items_are_refused(n):
    with pytest.raises(ValueError, match=f"1 to 10, not {n}"):
        all_permutations(n)


def test_composition_acts_by_gather():
    perms = all_permutations(4)
    x = torch.randn(4)
    p = perms[:, None]
    q = perms[None, :]
    composed = compose(p, q)
    assert torch.equal(
        x[composed], x[perms][:, None].expand(24, 24, 4).gather(-1, q.expand(24, 24, 4))
    )
    assert torch.equal(compose(perms, inverse(perms)), torch.arange(4).expand(24, 4))
    assert torch.equal(inverse(perms), perms.argsort(dim=-1))


@pytest.mark.parametrize("n", range(1, 6))
def test_kendall_distance_is_the_number_of_opposite_pairs(n):
    perms = all_permutations(n)
    p = perms[:, None]
    q = perms[None, :]
    i, j = torch.triu_indices(n, n, 1)
    opposite = ((p[..., i] - p[..., j]) * (q[..., i] - q[..., j]) < 0).sum(-1)
    assert torch.equal(kendall_distance(p, q), opposite)
    assert torch.equal(kendall_distance(perms), kendall_distance(inverse(perms)))


def test_kendall_distance_agrees_with_scipy_on_long_lists():
    torch.manual_seed(0)
    p = torch.rand(5, 52).argsort()
    q = torch.rand(5, 52).argsort()
    tau = 1 - 4 * kendall_distance(p, q) / (52 * 51)
    assert tau.tolist() == pytest.approx(
        [stats.kendalltau(a, b).statistic for a, b in zip(p, q, strict=True)]
    )


@pytest.mark.parametrize(
    ("swapped", "tau"), [("neighbours in a list of 52", 0.949), ("ranks", 0.998)]
)
def test_swapping_neighbours_lowers_kendalls_tau_more_on_lists_than_on_ranks(swapped, tau):
    """Swaps two neighbouring places of random index lists."""
    torch.manual_seed(0)
    order = torch.rand(2000, 52).argsort()
    changed = order.clone()
    changed[:, [10, 11]] = order[:, [11, 10]]
    on_lists = swapped.startswith("neighbours")
    distance = (
        kendall_distance(order, changed)
        if on_lists
        else kendall_distance(inverse(order), inverse(changed))
    )
    mean_tau = float((1 - 4 * distance / (52 * 51)).mean())
    assert mean_tau == pytest.approx(tau, abs=0.003)


def test_cycles_descents_and_validity_of_all_permutations():
    def cycles(p):
        visited = set()
        num_cycles_found = 0
        for start in range(len(p)):
            num_cycles_found += start not in visited
            while start not in visited:
                visited.add(start)
                start = p[start]
        return num_cycles_found

    for n in range(1, 7):
        perms = all_permutations(n)
        assert num_cycles(perms).tolist() == [cycles(p) for p in perms.tolist()]
        assert descents(perms).tolist() == [
            sum(b < a for a, b in itertools.pairwise(p)) for p in perms.tolist()
        ]
        assert bool(is_permutation(perms).all())
    candidates = torch.tensor([[0, 0, 1], [0, 1, 3], [-1, 0, 1], [2, 1, 0]])
    assert is_permutation(candidates).tolist() == [False, False, False, True]
    assert lexicographic_rank(torch.tensor([[2, 1, 0]])).tolist() == [5]
