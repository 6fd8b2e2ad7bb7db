"""Distributions over codes.

Normalisation, samples, fixed digits, losses, and exact tables of what sampling in blocks costs.
"""

import math

import pytest
import torch

from benchmarks.permutation_codes import product_distribution, product_mass
from blackout.permutations import all_permutations, kendall_distance
from blackout.permutations.coded.decoding import balanced_blocks
from blackout.permutations.coded.likelihood import code_log_prob
from blackout.permutations.coded.losses import any_order_loss, autoregressive_loss
from blackout.permutations.codes import FisherYates, Inline, Insertion, Lehmer
from blackout.permutations.group import is_permutation
from blackout.random import SampleStreams
from tests.permutations.sampling_checks import assert_samples_follow, draw_codes

UNCONSTRAINED_CODES = [Lehmer, FisherYates, Insertion]
PARTITIONS = [balanced_blocks(4, k) for k in (1, 2, 3, 4)] + [
    balanced_blocks(4, 2, torch.tensor([2, 0, 3, 1]))
]


class Network(torch.nn.Module):
    """Random weights: logits that depend on all revealed digits."""

    def __init__(self, n, seed=0, dtype=torch.float64):
        super().__init__()
        torch.manual_seed(seed)
        self.n = n
        self.body = torch.nn.Sequential(
            torch.nn.Linear(n * (n + 1), 32, dtype=dtype),
            torch.nn.Tanh(),
            torch.nn.Linear(32, n * n, dtype=dtype),
        )
        self.scale = 4.0
        self.dtype = dtype

    def forward(self, codes):
        one_hot = torch.nn.functional.one_hot(codes, self.n + 1).flatten(1).to(self.dtype)
        return self.scale * self.body(one_hot).view(-1, self.n, self.n)


def cycles(n):
    """Return all cyclic permutations of n elements."""
    digits = torch.cartesian_prod(
        *[torch.arange(1, n - i) for i in range(n - 1)], torch.zeros(1, dtype=torch.int64)
    )
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


@pytest.mark.parametrize("code", UNCONSTRAINED_CODES)
@pytest.mark.parametrize("blocks", PARTITIONS, ids=range(len(PARTITIONS)))
def test_any_network_defines_a_distribution_over_permutations(code, blocks):
    digits = code.encode(all_permutations(4))
    with torch.no_grad():
        probabilities = code_log_prob(Network(4), digits, blocks, code.support(4)).exp()
    assert float(probabilities.sum()) == pytest.approx(1, abs=1e-10)
    codes = draw_codes(
        Network(4), 4, 20_000, blocks, code.support(4), generator=torch.Generator().manual_seed(0)
    )
    assert_samples_follow(code.decode(codes), probabilities)


@pytest.mark.parametrize("code", UNCONSTRAINED_CODES)
@pytest.mark.parametrize("passes", [1, 2, 5, 9])
def test_all_samples_are_permutations_for_any_weights(code, passes):
    for seed in range(3):
        network = Network(9, seed, torch.float32)
        network.scale = 30.0
        order = torch.rand(500, 9, generator=torch.Generator().manual_seed(seed)).argsort()
        codes = draw_codes(network, 9, 500, balanced_blocks(9, passes, order), code.support(9))
        assert bool(is_permutation(code.decode(codes)).all())


def test_inline_is_not_a_distribution_over_permutations():
    perms = all_permutations(4)
    network = Network(4)
    with torch.no_grad():
        support = Inline.support(4)
        log_p = [code_log_prob(network, perms, balanced_blocks(4, k), support) for k in (1, 4)]
        mass = [float(log_probs.exp().sum()) for log_probs in log_p]
    assert mass[0] < 0.5 and mass[1] < 0.5
    generator = torch.Generator().manual_seed(0)
    codes = draw_codes(
        network, 4, 20_000, balanced_blocks(4, 1), Inline.support(4), generator=generator
    )
    assert float(is_permutation(codes).double().mean()) == pytest.approx(mass[0], abs=0.02)


def test_given_digits_are_kept():
    condition = torch.tensor([0, 1, 5, 5, 5])
    codes = draw_codes(Network(5), 5, 300, balanced_blocks(5, 2), Insertion.support(5), condition)
    assert bool((codes[:, :2] == condition[:2]).all()) and len(codes.unique(dim=0)) > 10
    orders = Insertion.decode(codes)
    assert torch.equal(orders[orders < 2].view(-1, 2), torch.tensor([0, 1]).expand(300, 2))
    partial = Lehmer.encode(all_permutations(5)[:60])
    partial[:, 2:4] = 5
    codes = draw_codes(Network(5), 5, 60, balanced_blocks(5, 5), Lehmer.support(5), partial)
    assert torch.equal(codes.masked_fill(partial == 5, 5), partial)


def test_greedy_sampling_takes_the_most_probable_digits():
    network = Network(5)
    codes = draw_codes(network, 5, 3, balanced_blocks(5, 1), Lehmer.support(5), greedy=True)
    logits = network(torch.full((1, 5), 5)).masked_fill(~Lehmer.support(5), -torch.inf)
    assert torch.equal(codes, logits.argmax(-1).expand(3, 5))


def test_samples_from_streams_do_not_depend_on_their_batch():
    def draw(indices):
        source = SampleStreams(0, torch.tensor(indices)).step(0)
        return draw_codes(
            Network(6), 6, len(indices), balanced_blocks(6, 3), Lehmer.support(6), generator=source
        )

    assert torch.equal(draw([4, 1]), draw(list(range(8)))[[4, 1]])


@pytest.mark.parametrize("n", [3, 4])
def test_the_masked_loss_is_the_mean_over_orders_in_expectation(n):
    """Samples of the number and choice of masked digits, against all n! orders."""
    network = Network(n)
    code = Insertion
    digits = code.encode(all_permutations(n))[[1]]
    with torch.no_grad():
        exact = torch.stack(
            [
                -code_log_prob(network, digits, balanced_blocks(n, n, order), code.support(n))
                for order in all_permutations(n)
            ]
        )
        copies = digits.expand(200_000, n)
        losses = any_order_loss(network, copies, code.support(n), torch.Generator().manual_seed(0))
    assert float(losses.mean()) == pytest.approx(
        float(exact.mean()), abs=5 * float(losses.std()) / 200_000**0.5
    )


def test_the_autoregressive_loss_equals_n_passes_from_the_left():
    class Causal(Network):
        def forward(self, codes):
            prefixes = [
                codes.clone().index_fill_(1, torch.arange(i, self.n), self.n) for i in range(self.n)
            ]
            return torch.stack(
                [super(Causal, self).forward(prefix)[:, i] for i, prefix in enumerate(prefixes)], 1
            )

    network = Causal(4)
    digits = Lehmer.encode(all_permutations(4))
    with torch.no_grad():
        log_probs = code_log_prob(network, digits, balanced_blocks(4, 4), Lehmer.support(4))
        loss = autoregressive_loss(network, digits, Lehmer.support(4))
    assert torch.allclose(loss, -log_probs, atol=1e-12)


def test_losses_have_gradients_and_ignore_forbidden_logits():
    network = Network(4, dtype=torch.float32)
    digits = Lehmer.encode(all_permutations(4))
    (
        any_order_loss(network, digits, Lehmer.support(4))
        + autoregressive_loss(network, digits, Lehmer.support(4))
    ).mean().backward()
    gradient = network.body[2].bias.grad.view(4, 4)
    assert (
        bool(gradient.isfinite().all())
        and not gradient[~Lehmer.support(4)].any()
        and bool(gradient[0].any())
    )


@pytest.mark.parametrize(
    ("n", "lehmer_share", "inline_share", "valid_share"),
    [
        (4, 0.3889, 0.0741, 0.1111),
        (5, 0.3038, 0.0234, 0.0430),
        (6, 0.2431, 0.00768, 0.0170),
        (7, 0.2044, 0.00257, 0.00662),
    ],
)
def test_perfect_networks_reach_the_published_shares_of_cycles(
    n, lehmer_share, inline_share, valid_share
):
    data = cycles(n)
    for code, share in (
        (Lehmer, lehmer_share),
        (Insertion, lehmer_share),
        (FisherYates, 1.0),
        (Inline, inline_share),
    ):
        digits = code.encode(data)
        assert product_mass(digits, balanced_blocks(n, 1)) == pytest.approx(share, rel=3e-3)
        assert product_mass(digits, balanced_blocks(n, n)) == pytest.approx(1)
    assert product_mass(data, balanced_blocks(n, 1), all_permutations(n)) == pytest.approx(
        valid_share, rel=3e-3
    )
    derangements = sum((-1) ** k * math.factorial(n) // math.factorial(k) for k in range(n + 1))
    assert product_mass(data, balanced_blocks(n, 1), all_permutations(n)) == pytest.approx(
        derangements / (n - 1) ** n
    )


@pytest.mark.parametrize(("n", "bits"), [(4, 4.044), (5, 6.410), (6, 9.043), (7, 11.884)])
def test_one_pass_on_cycles_costs_the_known_bits(n, bits):
    probabilities = product_distribution(Lehmer.encode(cycles(n)), balanced_blocks(n, 1))
    assert float(-probabilities.log2().mean()) == pytest.approx(bits, abs=1e-3)
    probabilities = product_distribution(FisherYates.encode(cycles(n)), balanced_blocks(n, 1))
    assert float(-probabilities.log2().mean()) == pytest.approx(math.log2(math.factorial(n - 1)))


@pytest.mark.deep
def test_shares_of_cycles_of_ten_items():
    """One pass of Lehmer, and blocks of two and five of Lehmer, insertion and inline codes."""
    data = cycles(10)
    assert product_mass(Lehmer.encode(data), balanced_blocks(10, 1)) == pytest.approx(
        0.1372, abs=5e-5
    )
    assert product_mass(data, balanced_blocks(10, 1)) == pytest.approx(0.000104, rel=5e-3)
    assert product_mass(Lehmer.encode(data), balanced_blocks(10, 2)) == pytest.approx(
        0.226, abs=5e-4
    )
    assert product_mass(Insertion.encode(data), balanced_blocks(10, 2)) == pytest.approx(
        0.169, abs=5e-4
    )
    assert product_mass(data, balanced_blocks(10, 2)) == pytest.approx(0.0060, abs=5e-5)


def test_the_share_of_inline_codes_has_a_closed_form():
    for sizes in ([2, 3], [1, 2, 2], [5], [1, 1, 3]):
        blocks = list(torch.tensor([3, 0, 4, 1, 2]).split(sizes))
        num_remaining = [5 - sum(sizes[:i]) for i in range(len(sizes))]
        expected = 24 / math.prod(
            max(1, m - 1) ** s for m, s in zip(num_remaining, sizes, strict=True)
        )
        assert product_mass(cycles(5), blocks) == pytest.approx(expected)
    # n = 10, five blocks of two
    assert math.factorial(9) / (9 * 7 * 5 * 3 * 1) ** 2 == pytest.approx(0.4063, abs=5e-5)


@pytest.mark.parametrize(
    ("n", "passes", "mass"), [(5, 2, 0.5611), (5, 3, 0.8556), (6, 2, 0.5104), (6, 3, 0.7033)]
)
def test_the_mean_share_over_orders_on_cycles(n, passes, mass):
    """The mean over all unordered blocks.

    Blocks are (2, 3) and (2, 2, 1) for n = 5, and of equal size for n = 6.
    """
    sizes = {(5, 2): [2, 3], (5, 3): [2, 2, 1]}.get((n, passes), [n // passes] * passes)
    digits = Lehmer.encode(cycles(n))
    distinct_blocks = {}
    for order in all_permutations(n):
        blocks = order.split(sizes)
        distinct_blocks[tuple(frozenset(b.tolist()) for b in blocks)] = blocks
    masses = [product_mass(digits, blocks) for blocks in distinct_blocks.values()]
    assert sum(masses) / len(masses) == pytest.approx(mass, abs=5e-5)


def test_product_mass_is_the_product_of_conditionals():
    """Compared with conditionals counted one by one, for any data, weights and points."""
    generator = torch.Generator().manual_seed(0)
    data = torch.randint(0, 3, (12, 4), generator=generator).unique(dim=0)
    weights = torch.rand(len(data), generator=generator, dtype=torch.float64)
    weights /= weights.sum()
    points = torch.cartesian_prod(*[torch.arange(3)] * 4)
    blocks = [torch.tensor([2, 0]), torch.tensor([1]), torch.tensor([3])]

    def direct(point):
        probability = 1.0
        matching = torch.ones(len(data), dtype=torch.bool)
        for block in blocks:
            mass = weights[matching].sum()
            if mass == 0:
                return 0.0
            for j in block:
                probability *= float(weights[matching & (data[:, j] == point[j])].sum() / mass)
            matching = matching & (data[:, block] == point[block]).all(-1)
        return probability

    probabilities = product_distribution(data, blocks, points, weights)
    assert probabilities.tolist() == pytest.approx([direct(p) for p in points]) and float(
        probabilities.sum()
    ) == pytest.approx(1)


@pytest.mark.parametrize(("n", "phi", "bits"), [(4, 0.3, 0.154), (5, 0.7, 0.109)])
def test_one_pass_of_the_wrong_code_cannot_represent_mallows(n, phi, bits):
    perms = all_permutations(n)
    probabilities = phi ** kendall_distance(perms).double()
    probabilities /= probabilities.sum()
    for code, min_bits in ((FisherYates, bits), (Lehmer, 0.0)):
        fitted = product_distribution(
            code.encode(perms), balanced_blocks(n, 1), weights=probabilities
        )
        assert float((probabilities * (probabilities / fitted).log2()).sum()) == pytest.approx(
            min_bits, abs=5e-4
        )


def test_the_capacity_of_inline_codes_exceeds_the_printed_bound():
    """Four orders of two blocks carry 2 bits, although concentrated supports give only log2 3."""
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
