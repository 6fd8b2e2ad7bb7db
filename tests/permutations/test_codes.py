"""Codes: bijections onto their supports, and the meaning of their digits, on all of S_n."""

import itertools
import math

import pytest
import torch

from blackout.permutations import all_permutations, compose, inverse, kendall_distance
from blackout.permutations.codes import FisherYates, Inline, Insertion, Lehmer
from blackout.permutations.group import num_cycles

UNCONSTRAINED_CODES = [Lehmer, FisherYates, Insertion]
CODES = [*UNCONSTRAINED_CODES, Inline]


def all_digits(code, n):
    """Return every choice of digits within the support."""
    return torch.tensor(
        list(itertools.product(*[torch.nonzero(row).flatten().tolist() for row in code.support(n)]))
    )


def lehmer(c):
    """Decode a Lehmer code, step by step."""
    remaining = list(range(len(c)))
    return [remaining.pop(i) for i in c]


def insertion(c):
    """Decode an insertion code, step by step."""
    order = []
    for k, v in enumerate(c):
        order.insert(v, k)
    return order


def fisher_yates(c):
    """Decode a Fisher-Yates code, step by step."""
    deck = list(range(len(c)))
    for i, f in enumerate(c):
        deck[i], deck[i + f] = deck[i + f], deck[i]
    return deck


PROCEDURES = {Lehmer: lehmer, Insertion: insertion, FisherYates: fisher_yates, Inline: list}


@pytest.mark.parametrize("n", range(1, 8))
@pytest.mark.parametrize("code", CODES)
def test_decoding_inverts_encoding(code, n):
    perms = all_permutations(n)
    digits = code.encode(perms)
    assert digits.dtype == torch.int64 and torch.equal(code.decode(digits), perms)
    assert bool(code.support(n)[torch.arange(n), digits].all())
    assert len(digits.unique(dim=0)) == math.factorial(n)


@pytest.mark.parametrize("n", range(1, 7))
@pytest.mark.parametrize("code", UNCONSTRAINED_CODES)
def test_every_choice_of_digits_is_a_different_permutation(code, n):
    digits = all_digits(code, n)
    perms = code.decode(digits)
    assert len(digits) == math.factorial(n) == len(perms.unique(dim=0))
    assert torch.equal(code.encode(perms), digits)
    assert perms.tolist() == [PROCEDURES[code](c) for c in digits.tolist()]


@pytest.mark.parametrize("code", CODES)
def test_batch_shapes_are_kept(code):
    order = torch.tensor([3, 1, 0, 2])
    digits = code.encode(order)
    assert digits.shape == (4,) and torch.equal(code.decode(digits), order)
    assert torch.equal(code.encode(order[None]), digits[None]) and torch.equal(
        code.decode(digits[None]), order[None]
    )
    assert torch.equal(code.encode(order.expand(2, 3, 4)), digits.expand(2, 3, 4))
    assert torch.equal(code.decode(digits.expand(2, 3, 4).to(torch.int32)), order.expand(2, 3, 4))
    assert code.encode(order.expand(0, 4)).shape == code.decode(digits.expand(0, 4)).shape == (0, 4)
    assert digits.tolist() != order.tolist() or code is Inline


@pytest.mark.parametrize("n", [255, 256, 257, 300])
@pytest.mark.parametrize("code", CODES)
def test_long_lists_are_encoded_and_decoded(code, n):
    perms = torch.rand(3, n, generator=torch.Generator().manual_seed(0)).argsort()
    perms = torch.cat([perms, torch.arange(n)[None], torch.arange(n).flip(0)[None]])
    assert torch.equal(code.decode(code.encode(perms)), perms)
    assert code.encode(perms[:1]).tolist() == [code.encode(perms)[0].tolist()]
    assert PROCEDURES[code](code.encode(perms[0]).tolist()) == perms[0].tolist()


@pytest.mark.parametrize("n", range(1, 8))
def test_digits_count_inversions_and_cycles(n):
    perms = all_permutations(n)
    places = torch.arange(n)
    inversions = kendall_distance(perms)
    assert torch.equal(Lehmer.encode(perms).sum(-1), inversions)
    inverses = inverse(perms)  # its left Lehmer digits count the larger values before
    left_lehmer = (inverses.unsqueeze(-2) > inverses.unsqueeze(-1)).tril(-1).sum(-1)
    assert torch.equal(left_lehmer.sum(-1), inversions)
    assert torch.equal(n * (n - 1) // 2 - Insertion.encode(perms).sum(-1), inversions)
    assert torch.equal(Insertion.encode(perms), places - left_lehmer)
    fisher_yates_digits = FisherYates.encode(perms)
    assert torch.equal((fisher_yates_digits == 0).sum(-1), num_cycles(perms))
    single = (fisher_yates_digits[:, :-1] > 0).all(-1)
    assert int(single.sum()) == math.factorial(n - 1) and torch.equal(
        single, num_cycles(perms) == 1
    )


def test_codes_of_published_examples():
    assert Lehmer.encode(torch.tensor([3, 5, 4, 1, 2]) - 1).tolist() == [2, 3, 2, 0, 0]
    assert (
        "".join("WOLF"[i] for i in FisherYates.decode(torch.tensor([3, 1, 0, 0])).tolist())
        == "FLOW"
    )
    assert (Insertion.decode(torch.tensor([0, 0, 1, 3, 2])) + 1).tolist() == [2, 3, 5, 1, 4]
    digits = torch.tensor([[0, 1, 2, v] for v in range(4)])
    orders = Insertion.decode(digits, reference=torch.tensor([2, 1, 4, 3]) - 1) + 1
    assert orders.tolist() == [[3, 2, 1, 4], [2, 3, 1, 4], [2, 1, 3, 4], [2, 1, 4, 3]]


@pytest.mark.parametrize("code", CODES)
def test_codes_relative_to_a_reference(code):
    perms = all_permutations(5)
    reference = torch.tensor([4, 0, 3, 1, 2])
    orders = code.decode(code.encode(perms), reference)
    assert torch.equal(orders, compose(reference.expand(120, 5), perms))
    assert torch.equal(code.encode(orders, reference), code.encode(perms))
    assert torch.equal(code.encode(orders, perms), code.encode(compose(inverse(perms), orders)))


def test_the_first_insertion_digits_encode_the_order_of_the_first_items():
    perms = all_permutations(5)
    digits = Insertion.encode(perms)
    for r in range(1, 6):
        first_items = perms[perms < r].view(-1, r)
        assert torch.equal(Insertion.decode(digits[:, :r]), first_items)


def test_changing_a_lehmer_digit_by_d_moves_d_plus_one_items():
    """A transposition, in contrast, may change digits a lot."""
    digits = all_digits(Lehmer, 5)
    n = 5
    perms = Lehmer.decode(digits)
    changes = set()
    for i, row in enumerate(digits.tolist()):
        for place in range(n - 1):
            for value in range(row[place] + 1, n - place):
                changed = torch.tensor([*row[:place], value, *row[place + 1 :]])
                changes.add((value - row[place], int((Lehmer.decode(changed) != perms[i]).sum())))
    assert changes == {(d, d + 1) for d in range(1, n)}
    distances = []
    for i, j in itertools.combinations(range(n), 2):
        swapped = perms.clone()
        swapped[:, [i, j]] = perms[:, [j, i]]
        distances += (Lehmer.encode(swapped) - digits).abs().sum(-1).tolist()
    assert {d: distances.count(d) for d in set(distances)} == {1: 652, 3: 344, 5: 156, 7: 48}


@pytest.mark.parametrize("code", UNCONSTRAINED_CODES)
@pytest.mark.parametrize("value", [-1, 4, 1 << 20])
def test_digits_outside_their_support_are_refused(code, value):
    with pytest.raises(
        ValueError, match=rf"digit 2 of a {code.__name__} code must be 0..\d, not {value}"
    ):
        code.decode(torch.tensor([[0, 0, 0, 0], [0, 0, value, 0]]))


def test_invalid_permutations_and_types_are_refused():
    for code in CODES:
        with pytest.raises(ValueError, match=r"only permutations of 0\.\.2"):
            code.encode(torch.tensor([[0, 1, 2], [0, 1, 1]]))
        with pytest.raises(ValueError, match="must be integers"):
            code.decode(torch.zeros(3))
    assert Inline.decode(torch.tensor([0, 0, 2])).tolist() == [0, 0, 2]
