"""Composition, inverses, distances."""

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
def test_too_few_or_too_many_are_refused(n):
    with pytest.raises(ValueError, match=f"1 to 10, not {n}"):
        all_permutations(n)


def test_composition_acts_by_gather():
    perms, x = all_permutations(4), torch.randn(4)
    p, q = perms[:, None], perms[None, :]
    both = compose(p, q)
    assert torch.equal(x[both], x[perms][:, None].expand(24, 24, 4).gather(-1, q.expand(24, 24, 4)))
    assert torch.equal(compose(perms, inverse(perms)), torch.arange(4).expand(24, 4))
    assert torch.equal(inverse(perms), perms.argsort(dim=-1))


@pytest.mark.parametrize("n", range(1, 6))
def test_kendall_distance_is_the_number_of_opposite_pairs(n):
    perms = all_permutations(n)
    p, q = perms[:, None], perms[None, :]
    i, j = torch.triu_indices(n, n, 1)
    opposite = ((p[..., i] - p[..., j]) * (q[..., i] - q[..., j]) < 0).sum(-1)
    assert torch.equal(kendall_distance(p, q), opposite)
    assert torch.equal(kendall_distance(perms), kendall_distance(inverse(perms)))


def test_kendall_distance_agrees_with_scipy_on_long_lists():
    torch.manual_seed(0)
    p, q = torch.rand(5, 52).argsort(), torch.rand(5, 52).argsort()
    tau = 1 - 4 * kendall_distance(p, q) / (52 * 51)
    assert tau.tolist() == pytest.approx([stats.kendalltau(a, b).statistic for a, b in zip(p, q, strict=True)])


@pytest.mark.parametrize(("swapped", "tau"), [("neighbours in a list of 52", 0.949), ("ranks", 0.998)])
def test_one_neighbour_out_of_order_looks_worse_on_lists(swapped, tau):
    """Kendall's tau of index lists after swapping two neighbouring *places* of a random list, against that of ranks."""
    torch.manual_seed(0)
    order = torch.rand(2000, 52).argsort()
    wrong = order.clone()
    wrong[:, [10, 11]] = order[:, [11, 10]]
    lists = swapped.startswith("neighbours")
    distance = kendall_distance(order, wrong) if lists else kendall_distance(inverse(order), inverse(wrong))
    found = float((1 - 4 * distance / (52 * 51)).mean())
    assert found == pytest.approx(tau, abs=0.003)


def test_cycles_descents_and_validity():
    def cycles(p):
        seen, found = set(), 0
        for start in range(len(p)):
            found += start not in seen
            while start not in seen:
                seen.add(start)
                start = p[start]
        return found

    for n in range(1, 7):
        perms = all_permutations(n)
        assert num_cycles(perms).tolist() == [cycles(p) for p in perms.tolist()]
        assert descents(perms).tolist() == [sum(b < a for a, b in itertools.pairwise(p)) for p in perms.tolist()]
        assert bool(is_permutation(perms).all())
    wrong = torch.tensor([[0, 0, 1], [0, 1, 3], [-1, 0, 1], [2, 1, 0]])
    assert is_permutation(wrong).tolist() == [False, False, False, True]
    assert lexicographic_rank(torch.tensor([[2, 1, 0]])).tolist() == [5]
