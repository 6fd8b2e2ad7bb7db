"""Queries about orders against enumeration.

Conditions in words, marginals, samples under conditions, and default decoding.
"""

from dataclasses import replace

import pytest
import torch

from benchmarks.permutation_distributions import exact_marginals
from blackout.errors import UserError
from blackout.permutations import all_permutations, inverse
from blackout.permutations.coded.decoding import Passes
from blackout.permutations.coded.draw import CodeDraw
from blackout.permutations.coded.model import CodeModel
from blackout.permutations.coded.network import CodeTransformer
from blackout.permutations.coded.report import exact_distribution as exact_distribution_of_codes
from blackout.permutations.codes import CODES
from blackout.permutations.group import is_permutation, lexicographic_rank
from blackout.permutations.queries import Condition, summarise_orders
from blackout.permutations.shuffle import Best
from blackout.permutations.shuffle.decoding import exact_distribution, is_certified, sample_orders
from blackout.random import SampleStreams
from tests.permutations.test_shuffle_diffusion import CHAINS, denoiser
from tests.verification.permutation_claims import point

TEXTS = (
    "A before C, D first",
    "0 after 1, 2 last, 3 before 1",
    "B at 2, A after D",
    "C before B, A before D",
    "A before C and D first",
)


def item_number(name):
    """Return the number of an item, which has a letter or a number as its name."""
    return int(name) if name.isdigit() else "ABCD".index(name)


@pytest.mark.parametrize("text", TEXTS)
def test_conditions_in_words_select_the_right_orders(text):
    condition = Condition.read(text, 4)
    for order in all_permutations(4).tolist():
        position = order.index
        expected = True
        for clause in text.replace(" and ", ", ").split(", "):
            name, word, *arguments = clause.split()
            item = item_number(name)
            argument = item_number(arguments[0]) if arguments else 0
            expected &= {
                "before": position(item) < position(argument),
                "after": position(item) > position(argument),
                "first": position(item) == 0,
                "last": position(item) == 3,
                "at": position(item) == argument,
            }[word]
        assert bool(condition.is_fulfilled(torch.tensor(order))) == expected
    assert bool(condition.is_fulfilled(all_permutations(4)).any())


@pytest.mark.parametrize(
    "text, word",
    [
        ("A before B, B before A", "no order fulfils"),
        ("A first, B first", "no order fulfils"),
        ("A before B, B first", "no order fulfils"),
        ("A at 1, B at 2, C before B, D before C", "no order fulfils"),
        ("A beside B", "is not understood"),
        ("E first", "there is no item 'E'"),
        ("A at 7", "no order fulfils"),
    ],
)
def test_impossible_conditions_are_refused(text, word):
    with pytest.raises(UserError, match=word):
        Condition.read(text, 4)
    assert Condition.read("tea before milk", 2, ("milk", "tea")).before.tolist() == [[1, 0]]
    # numbers and letters denote items only if no item has that name
    assert Condition.read("0 before B", 2, ("Roe, Ann", "Doe")).before.tolist() == [[0, 1]]
    assert Condition.read("1 before 2", 2, ("2", "1")).before.tolist() == [[1, 0]]
    for names, unknown in ((("1", "2"), "0"), (("B", "C"), "A"), (("tea", "tea"), "tea")):
        with pytest.raises(
            UserError, match=f"2 items are called 'tea'|there is no item '{unknown}'"
        ):
            Condition.read(f"{unknown} first", 2, names)


@pytest.mark.parametrize("name", CHAINS)
def test_default_decoding_and_marginals_are_exact_for_five_items(name):
    reverse, process = CHAINS[name]
    chain = denoiser(5, reverse, 2)
    exact = exact_marginals(chain, process.times, point(5))[-1]
    orders, log_probs = exact_distribution(chain, process.times)
    assert torch.allclose(log_probs.exp(), exact, atol=1e-6)
    best, best_log_probs = Best()(chain, process.times, SampleStreams(0, torch.arange(2)))
    assert torch.allclose(
        exact.gather(1, lexicographic_rank(best[:, :1])), exact.amax(1, keepdim=True), atol=1e-6
    )
    assert bool(is_certified(best_log_probs).all())
    summary = summarise_orders(orders, log_probs, 3)
    permutations = all_permutations(5)
    places = torch.stack(
        [(exact[:, :, None] * (permutations == item)).sum(1) for item in range(5)], -1
    )
    assert torch.allclose(summary["places"], places, atol=1e-6)
    before = exact @ (inverse(permutations)[:, 1] < inverse(permutations)[:, 4]).double()
    assert torch.allclose(summary["pairs"][:, 1, 4], before, atol=1e-6)
    assert torch.allclose(
        summary["top_log_prob"][:, 2].exp(), exact.sort(1).values[:, -3], atol=1e-6
    )


@pytest.mark.deep
@pytest.mark.parametrize("name", CHAINS)
def test_default_decoding_is_optimal_in_eighteen_random_chains(name):
    """Eighteen networks, since the rows of one `denoiser` are copies of the same chain."""
    reverse, process = CHAINS[name]
    for seed in range(18):
        chain = denoiser(5, reverse, seed=seed)
        exact = exact_marginals(chain, process.times, point(5))[-1]
        best, best_log_probs = Best()(chain, process.times, SampleStreams(0, torch.arange(1)))
        best_probability = exact.gather(1, lexicographic_rank(best[:, :1]))
        assert torch.allclose(best_probability, exact.amax(1, keepdim=True), atol=1e-6), seed
        assert bool(is_certified(best_log_probs).all()), seed


def test_conditional_summaries_of_samples_match_the_chain():
    reverse, process = CHAINS["gpl"]
    chain = denoiser(4, reverse)
    condition = Condition.read("B before C", 4)
    p = exact_marginals(chain, process.times, point(4))[-1, 0] * condition.is_fulfilled(
        all_permutations(4)
    )
    orders = sample_orders(chain, process.times, torch.Generator().manual_seed(0))
    summary = summarise_orders(orders, torch.zeros(orders.shape[:2]), 1, condition)
    assert float(summary["condition_log_prob"].exp()) == pytest.approx(float(p.sum()), abs=0.04)
    first = float((p * (all_permutations(4)[:, 0] == 1)).sum() / p.sum())
    assert float(summary["places"][0, 0, 1]) == pytest.approx(first, abs=0.04)


@pytest.mark.parametrize("code", CODES)
def test_conditional_samples_and_marginals_of_codes_are_exact(code):
    """Samples, most probable orders and marginals of an untrained model of four items."""
    torch.manual_seed(0)
    model = CodeModel(
        CodeTransformer(4, width=8, depth=1, heads=2), code, "masked", Passes(2), None
    )
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    condition = Condition.read("A before C, D first", 4)
    draw = CodeDraw(model.eval(), model.passes, top=3, requirement=condition)
    points, log_p = exact_distribution_of_codes(model, {}, 2)
    # inline digits may be no permutation; probabilities are among those that are
    p = log_p.softmax(0) * condition.is_fulfilled(points)
    summary = draw.metadata(0)
    assert float(summary["condition_log_prob"].exp()) == pytest.approx(float(p.sum()), abs=1e-6)
    assert summary["top"].tolist() == points[p.argsort(descending=True)[:3]].tolist()
    places = (
        torch.stack([((points == item) * p[:, None]).sum(0) for item in range(4)], -1) / p.sum()
    )
    assert torch.allclose(summary["places"], places, atol=1e-6)
    # sampled from the conditional distribution, and by rejection
    for sampler in (draw, replace(draw, passes=Passes(2, "confidence"))):
        ((_, samples),) = sampler.batches(torch.arange(600 if sampler is draw else 100), 0)
        x = samples["samples"]
        assert bool(condition.is_fulfilled(x).all()) and bool(is_permutation(x).all())
        ((_, repeated),) = sampler.batches(torch.tensor([7, 21]), 0)
        assert torch.equal(repeated["samples"], x[[7, 21]])
        if sampler is draw:
            assert float((x[:, 1] == 0).double().mean()) == pytest.approx(
                float(places[1, 0]), abs=0.08
            )
