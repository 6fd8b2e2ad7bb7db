"""Distributions over codes: sums, draws, clamped digits, losses, and exact tables of what blocks cost."""

import math

import pytest
import torch

from benchmarks.permutation_codes import product_law, product_mass
from blackout.permutations import all_permutations, kendall_distance
from blackout.permutations.coded.model import (
    any_order_loss,
    autoregressive_loss,
    balanced_blocks,
    code_log_prob,
)
from blackout.permutations.codes import FisherYates, Inline, Insertion, Lehmer
from blackout.permutations.group import is_permutation
from blackout.random import SampleStreams
from tests.permutations.enumeration import assert_draws, draw_codes

FREE = [Lehmer, FisherYates, Insertion]
PARTITIONS = [balanced_blocks(4, k) for k in (1, 2, 3, 4)] + [balanced_blocks(4, 2, torch.tensor([2, 0, 3, 1]))]


class Network(torch.nn.Module):
    """Random weights: logits that depend on everything shown."""

    def __init__(self, n, seed=0, dtype=torch.float64):
        super().__init__()
        torch.manual_seed(seed)
        self.n = n
        self.body = torch.nn.Sequential(
            torch.nn.Linear(n * (n + 1), 32, dtype=dtype), torch.nn.Tanh(), torch.nn.Linear(32, n * n, dtype=dtype)
        )
        self.scale, self.dtype = 4.0, dtype

    def forward(self, codes):
        shown = torch.nn.functional.one_hot(codes, self.n + 1).flatten(1).to(self.dtype)
        return self.scale * self.body(shown).view(-1, self.n, self.n)


def cycles(n):
    """All single cycles of n elements."""
    digits = torch.cartesian_prod(*[torch.arange(1, n - i) for i in range(n - 1)], torch.zeros(1, dtype=torch.int64))
    return FisherYates.decode(digits)


def test_blocks_are_balanced():
    blocks = balanced_blocks(10, 4)
    assert [len(b) for b in blocks] == [3, 3, 2, 2] and torch.cat(blocks).tolist() == list(
        range(10)
    )
    order = torch.rand(5, 7).argsort()
    assert torch.equal(torch.cat(balanced_blocks(7, 3, order), -1), order)
    for passes in (0, 8):
        with pytest.raises(ValueError, match=f"must be 1..7, not {passes}"):
            balanced_blocks(7, passes)
    with pytest.raises(ValueError, match="must have 7 digits, not 5"):
        balanced_blocks(7, 2, torch.arange(5))


@pytest.mark.parametrize("code", FREE)
@pytest.mark.parametrize("blocks", PARTITIONS, ids=range(len(PARTITIONS)))
def test_any_network_is_a_distribution_over_permutations(code, blocks):
    digits = code.encode(all_permutations(4))
    with torch.no_grad():
        law = code_log_prob(Network(4), digits, blocks, code.support(4)).exp()
    assert float(law.sum()) == pytest.approx(1, abs=1e-10)
    drawn = draw_codes(Network(4), 4, 20_000, blocks, code.support(4), generator=torch.Generator().manual_seed(0))
    assert_draws(code.decode(drawn), law)


@pytest.mark.parametrize("code", FREE)
@pytest.mark.parametrize("passes", [1, 2, 5, 9])
def test_all_draws_are_permutations_whatever_the_weights(code, passes):
    for seed in range(3):
        network = Network(9, seed, torch.float32)
        network.scale = 30.0
        order = torch.rand(500, 9, generator=torch.Generator().manual_seed(seed)).argsort()
        drawn = draw_codes(network, 9, 500, balanced_blocks(9, passes, order), code.support(9))
        assert bool(is_permutation(code.decode(drawn)).all())


def test_inline_is_not_a_distribution_over_permutations():
    perms, network = all_permutations(4), Network(4)
    with torch.no_grad():
        support = Inline.support(4)
        log_p = [code_log_prob(network, perms, balanced_blocks(4, k), support) for k in (1, 4)]
        mass = [float(each.exp().sum()) for each in log_p]
    assert mass[0] < 0.5 and mass[1] < 0.5
    generator = torch.Generator().manual_seed(0)
    drawn = draw_codes(network, 4, 20_000, balanced_blocks(4, 1), Inline.support(4), generator=generator)
    assert float(is_permutation(drawn).double().mean()) == pytest.approx(mass[0], abs=0.02)


def test_given_digits_stay():
    given = torch.tensor([0, 1, 5, 5, 5])
    drawn = draw_codes(Network(5), 5, 300, balanced_blocks(5, 2), Insertion.support(5), given)
    assert bool((drawn[:, :2] == given[:2]).all()) and len(drawn.unique(dim=0)) > 10
    orders = Insertion.decode(drawn)
    assert torch.equal(orders[orders < 2].view(-1, 2), torch.tensor([0, 1]).expand(300, 2))
    each = Lehmer.encode(all_permutations(5)[:60])
    each[:, 2:4] = 5
    drawn = draw_codes(Network(5), 5, 60, balanced_blocks(5, 5), Lehmer.support(5), each)
    assert torch.equal(drawn.masked_fill(each == 5, 5), each)


def test_greedy_takes_the_most_probable():
    network = Network(5)
    drawn = draw_codes(network, 5, 3, balanced_blocks(5, 1), Lehmer.support(5), greedy=True)
    logits = network(torch.full((1, 5), 5)).masked_fill(~Lehmer.support(5), -torch.inf)
    assert torch.equal(drawn, logits.argmax(-1).expand(3, 5))


def test_samples_from_streams_do_not_depend_on_their_batch():
    def draw(indices):
        source = SampleStreams(0, torch.tensor(indices)).step(0)
        return draw_codes(Network(6), 6, len(indices), balanced_blocks(6, 3), Lehmer.support(6), generator=source)

    assert torch.equal(draw([4, 1]), draw(list(range(8)))[[4, 1]])


@pytest.mark.parametrize("n", [3, 4])
def test_the_masked_loss_is_the_mean_over_orders(n):
    """Its expectation, every number and choice of masked digits enumerated by draws, against all n! orders."""
    network, code = Network(n), Insertion
    digits = code.encode(all_permutations(n))[[1]]
    with torch.no_grad():
        exact = torch.stack(
            [-code_log_prob(network, digits, balanced_blocks(n, n, o), code.support(n)) for o in all_permutations(n)]
        )
        many = digits.expand(200_000, n)
        drawn = any_order_loss(network, many, code.support(n), torch.Generator().manual_seed(0))
    assert float(drawn.mean()) == pytest.approx(float(exact.mean()), abs=5 * float(drawn.std()) / 200_000**0.5)


def test_the_autoregressive_loss_is_n_passes_from_the_left():
    class Causal(Network):
        def forward(self, codes):
            shown = [codes.clone().index_fill_(1, torch.arange(i, self.n), self.n) for i in range(self.n)]
            return torch.stack([super(Causal, self).forward(s)[:, i] for i, s in enumerate(shown)], 1)

    network, digits = Causal(4), Lehmer.encode(all_permutations(4))
    with torch.no_grad():
        passes = code_log_prob(network, digits, balanced_blocks(4, 4), Lehmer.support(4))
        at_once = autoregressive_loss(network, digits, Lehmer.support(4))
    assert torch.allclose(at_once, -passes, atol=1e-12)


def test_losses_have_gradients_and_ignore_forbidden_logits():
    network = Network(4, dtype=torch.float32)
    digits = Lehmer.encode(all_permutations(4))
    (
        any_order_loss(network, digits, Lehmer.support(4)) + autoregressive_loss(network, digits, Lehmer.support(4))
    ).mean().backward()
    gradient = network.body[2].bias.grad.view(4, 4)
    assert bool(gradient.isfinite().all()) and not gradient[~Lehmer.support(4)].any() and bool(gradient[0].any())


@pytest.mark.parametrize(
    ("n", "lehmer", "inline", "valid"),
    [
        (4, 0.3889, 0.0741, 0.1111),
        (5, 0.3038, 0.0234, 0.0430),
        (6, 0.2431, 0.00768, 0.0170),
        (7, 0.2044, 0.00257, 0.00662),
    ],
)
def test_one_pass_on_cycles(n, lehmer, inline, valid):
    data = cycles(n)
    for code, mass in ((Lehmer, lehmer), (Insertion, lehmer), (FisherYates, 1.0), (Inline, inline)):
        digits = code.encode(data)
        assert product_mass(digits, balanced_blocks(n, 1)) == pytest.approx(mass, rel=3e-3)
        assert product_mass(digits, balanced_blocks(n, n)) == pytest.approx(1)
    assert product_mass(data, balanced_blocks(n, 1), all_permutations(n)) == pytest.approx(valid, rel=3e-3)
    derangements = sum((-1) ** k * math.factorial(n) // math.factorial(k) for k in range(n + 1))
    assert product_mass(data, balanced_blocks(n, 1), all_permutations(n)) == pytest.approx(derangements / (n - 1) ** n)


@pytest.mark.parametrize(("n", "bits"), [(4, 4.044), (5, 6.410), (6, 9.043), (7, 11.884)])
def test_bits_of_one_pass_on_cycles(n, bits):
    law = product_law(Lehmer.encode(cycles(n)), balanced_blocks(n, 1))
    assert float(-law.log2().mean()) == pytest.approx(bits, abs=1e-3)
    law = product_law(FisherYates.encode(cycles(n)), balanced_blocks(n, 1))
    assert float(-law.log2().mean()) == pytest.approx(math.log2(math.factorial(n - 1)))


@pytest.mark.deep
def test_ten_cycles():
    """n = 10: one pass of Lehmer, and blocks of two and five of Lehmer, insertion and inline."""
    data = cycles(10)
    assert product_mass(Lehmer.encode(data), balanced_blocks(10, 1)) == pytest.approx(0.1372, abs=5e-5)
    assert product_mass(data, balanced_blocks(10, 1)) == pytest.approx(0.000104, rel=5e-3)
    assert product_mass(Lehmer.encode(data), balanced_blocks(10, 2)) == pytest.approx(0.226, abs=5e-4)
    assert product_mass(Insertion.encode(data), balanced_blocks(10, 2)) == pytest.approx(0.169, abs=5e-4)
    assert product_mass(data, balanced_blocks(10, 2)) == pytest.approx(0.0060, abs=5e-5)


def test_inline_mass_has_a_closed_form():
    for sizes in ([2, 3], [1, 2, 2], [5], [1, 1, 3]):
        blocks = list(torch.tensor([3, 0, 4, 1, 2]).split(sizes))
        left = [5 - sum(sizes[:i]) for i in range(len(sizes))]
        expected = 24 / math.prod(max(1, m - 1) ** s for m, s in zip(left, sizes, strict=True))
        assert product_mass(cycles(5), blocks) == pytest.approx(expected)
    assert math.factorial(9) / (9 * 7 * 5 * 3 * 1) ** 2 == pytest.approx(0.4063, abs=5e-5)  # n = 10, five blocks of two


@pytest.mark.parametrize(("n", "passes", "mass"), [(5, 2, 0.5611), (5, 3, 0.8556), (6, 2, 0.5104), (6, 3, 0.7033)])
def test_the_mean_over_orders_on_cycles(n, passes, mass):
    """Exactly over all unordered blocks; n = 5 in blocks of (2, 3) and (2, 2, 1), n = 6 of equal ones."""
    sizes = {(5, 2): [2, 3], (5, 3): [2, 2, 1]}.get((n, passes), [n // passes] * passes)
    digits, found = Lehmer.encode(cycles(n)), {}
    for order in all_permutations(n):
        blocks = order.split(sizes)
        found[tuple(frozenset(b.tolist()) for b in blocks)] = blocks
    masses = [product_mass(digits, blocks) for blocks in found.values()]
    assert sum(masses) / len(masses) == pytest.approx(mass, abs=5e-5)


def test_product_mass_is_the_product_of_conditionals():
    """Against conditionals counted one by one, for any data, weights and points."""
    generator = torch.Generator().manual_seed(0)
    data = torch.randint(0, 3, (12, 4), generator=generator).unique(dim=0)
    weights = torch.rand(len(data), generator=generator, dtype=torch.float64)
    weights /= weights.sum()
    points = torch.cartesian_prod(*[torch.arange(3)] * 4)
    blocks = [torch.tensor([2, 0]), torch.tensor([1]), torch.tensor([3])]

    def direct(point):
        probability, seen = 1.0, torch.ones(len(data), dtype=torch.bool)
        for block in blocks:
            mass = weights[seen].sum()
            if mass == 0:
                return 0.0
            for j in block:
                probability *= float(weights[seen & (data[:, j] == point[j])].sum() / mass)
            seen = seen & (data[:, block] == point[block]).all(-1)
        return probability

    law = product_law(data, blocks, points, weights)
    assert law.tolist() == pytest.approx([direct(p) for p in points]) and float(law.sum()) == pytest.approx(1)


@pytest.mark.parametrize(("n", "phi", "bits"), [(4, 0.3, 0.154), (5, 0.7, 0.109)])
def test_the_wrong_code_cannot_say_mallows_in_one_pass(n, phi, bits):
    perms = all_permutations(n)
    law = phi ** kendall_distance(perms).double()
    law /= law.sum()
    for code, floor in ((FisherYates, bits), (Lehmer, 0.0)):
        fitted = product_law(code.encode(perms), balanced_blocks(n, 1), weights=law)
        assert float((law * (law / fitted).log2()).sum()) == pytest.approx(floor, abs=5e-4)


def test_capacity_of_inline_exceeds_the_printed_bound():
    """Four orders of two blocks carry 2 bits; concentrated supports would give log2 3."""
    data = torch.tensor([[a, b, 3 - b + 2, 1 - a] for a in (0, 1) for b in (2, 3)])
    assert product_mass(data, list(torch.tensor([0, 1, 2, 3]).split(2))) == pytest.approx(1)
    assert bool(is_permutation(data).all()) and math.log2(len(data)) == 2 > math.log2(3)

    def capacity(n, sizes):
        total = 0.0
        for i, s in enumerate(sizes):
            q, r = divmod(n - sum(sizes[:i]), s)
            total += (s - r) * math.log2(q) + r * math.log2(q + 1)
        return total

    assert capacity(4, [2, 2]) == 2 and capacity(10, [2] * 5) == pytest.approx(13.81, abs=5e-3)
    assert capacity(6, [6]) == 0 and capacity(6, [1] * 6) == pytest.approx(math.log2(720))
