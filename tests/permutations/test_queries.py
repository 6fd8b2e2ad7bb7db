"""Answers about orders against enumeration: conditions in words, marginals, draws under them, default decoding."""

from dataclasses import replace

import pytest
import torch

from benchmarks.permutation_laws import laws
from blackout.errors import UserError
from blackout.permutations import all_permutations, inverse
from blackout.permutations.coded.draw import CodeDraw
from blackout.permutations.coded.model import CODES, CodeModel, CodeTransformer, Passes
from blackout.permutations.coded.report import exact_distribution as exact_distribution_of_codes
from blackout.permutations.group import is_permutation, lexicographic_rank
from blackout.permutations.queries import Condition, summarise_orders
from blackout.permutations.shuffle import Best
from blackout.permutations.shuffle.decoding import exact_distribution, is_certified, sample_orders
from blackout.random import SampleStreams
from tests.permutations.test_shuffle import CHAINS, denoiser
from tests.verification.permutation_claims import point

TEXTS = (
    "A before C, D first",
    "0 after 1, 2 last, 3 before 1",
    "B at 2, A after D",
    "C before B, A before D",
    "A before C and D first",
)


@pytest.mark.parametrize("text", TEXTS)
def test_conditions_mean_what_they_say(text):
    given = Condition.read(text, 4)
    for order in all_permutations(4).tolist():
        place, right = order.index, True
        for clause in text.replace(" and ", ", ").split(", "):
            i, word, *more = clause.split()
            i = int(i) if i.isdigit() else "ABCD".index(i)
            other = int(more[0]) if more and more[0].isdigit() else "ABCD".index(more[0]) if more else 0
            right &= {"before": place(i) < place(other), "after": place(i) > place(other), "first": place(i) == 0,
                      "last": place(i) == 3, "at": place(i) == other}[word]  # fmt: skip
        assert bool(given.is_fulfilled(torch.tensor(order))) == right
    assert bool(given.is_fulfilled(all_permutations(4)).any())


@pytest.mark.parametrize("text, word", [
    ("A before B, B before A", "no order fulfils"), ("A first, B first", "no order fulfils"),
    ("A before B, B first", "no order fulfils"), ("A at 1, B at 2, C before B, D before C", "no order fulfils"),
    ("A beside B", "is not understood"), ("E first", "there is no item 'E'"), ("A at 7", "no order fulfils"),
])  # fmt: skip
def test_what_cannot_be_is_refused_in_words(text, word):
    with pytest.raises(UserError, match=word):
        Condition.read(text, 4)
    assert Condition.read("tea before milk", 2, ("milk", "tea")).before.tolist() == [[1, 0]]
    # what names mean is not guessed: numbers and letters are items only where none is called so
    assert Condition.read("0 before B", 2, ("Roe, Ann", "Doe")).before.tolist() == [[0, 1]]
    assert Condition.read("1 before 2", 2, ("2", "1")).before.tolist() == [[1, 0]]
    for names, one in ((("1", "2"), "0"), (("B", "C"), "A"), (("tea", "tea"), "tea")):
        with pytest.raises(UserError, match=f"2 items are called 'tea'|there is no item '{one}'"):
            Condition.read(f"{one} first", 2, names)


@pytest.mark.parametrize("name", CHAINS)
def test_default_decoding_and_marginals_are_exact_of_five_items(name):
    reverse, process = CHAINS[name]
    one = denoiser(5, reverse, 2)
    exact = laws(one, process.times, point(5))[-1]
    orders, log_probs = exact_distribution(one, process.times)
    assert torch.allclose(log_probs.exp(), exact, atol=1e-6)
    found, own = Best()(one, process.times, SampleStreams(0, torch.arange(2)))
    assert torch.allclose(exact.gather(1, lexicographic_rank(found[:, :1])), exact.amax(1, keepdim=True), atol=1e-6)
    assert bool(is_certified(own).all())
    told = summarise_orders(orders, log_probs, 3)
    every = all_permutations(5)
    places = torch.stack([(exact[:, :, None] * (every == item)).sum(1) for item in range(5)], -1)
    assert torch.allclose(told["places"], places, atol=1e-6)
    before = exact @ (inverse(every)[:, 1] < inverse(every)[:, 4]).double()
    assert torch.allclose(told["pairs"][:, 1, 4], before, atol=1e-6)
    assert torch.allclose(told["top_log_prob"][:, 2].exp(), exact.sort(1).values[:, -3], atol=1e-6)


@pytest.mark.deep
@pytest.mark.parametrize("name", CHAINS)
def test_default_decoding_is_optimal_in_eighteen_chains_of_each_law(name):
    """Eighteen networks: rows of one `denoiser` are one chain, told again."""
    reverse, process = CHAINS[name]
    for seed in range(18):
        one = denoiser(5, reverse, seed=seed)
        exact = laws(one, process.times, point(5))[-1]
        found, own = Best()(one, process.times, SampleStreams(0, torch.arange(1)))
        reached = exact.gather(1, lexicographic_rank(found[:, :1]))
        assert torch.allclose(reached, exact.amax(1, keepdim=True), atol=1e-6), seed
        assert bool(is_certified(own).all()), seed


def test_draws_of_an_answer_follow_the_chain():
    reverse, process = CHAINS["gpl"]
    one, given = denoiser(4, reverse), Condition.read("B before C", 4)
    p = laws(one, process.times, point(4))[-1, 0] * given.is_fulfilled(all_permutations(4))
    orders = sample_orders(one, process.times, torch.Generator().manual_seed(0))
    told = summarise_orders(orders, torch.zeros(orders.shape[:2]), 1, given)
    assert float(told["given_log_prob"].exp()) == pytest.approx(float(p.sum()), abs=0.04)
    first = float((p * (all_permutations(4)[:, 0] == 1)).sum() / p.sum())
    assert float(told["places"][0, 0, 1]) == pytest.approx(first, abs=0.04)


@pytest.mark.parametrize("code", CODES)
def test_conditions_and_answers_are_those_of_the_law(code):
    """Of every code: samples that fulfil it, the likeliest orders and marginals of an untrained model of four items."""
    torch.manual_seed(0)
    model = CodeModel(CodeTransformer(4, width=8, depth=1, heads=2), code, "masked", Passes(2), None)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    given = Condition.read("A before C, D first", 4)
    draw = CodeDraw(model.eval(), model.passes, top=3, requirement=given)
    points, log_p = exact_distribution_of_codes(model, {}, 2)
    p = log_p.softmax(0) * given.is_fulfilled(points)  # inline digits may be no permutation: among those that are
    told = draw.about(0)
    assert float(told["given_log_prob"].exp()) == pytest.approx(float(p.sum()), abs=1e-6)
    assert told["top"].tolist() == points[p.argsort(descending=True)[:3]].tolist()
    places = torch.stack([((points == item) * p[:, None]).sum(0) for item in range(4)], -1) / p.sum()
    assert torch.allclose(told["places"], places, atol=1e-6)
    for one in (draw, replace(draw, passes=Passes(2, "confidence"))):  # by the law under it, and until it is fulfilled
        ((_, samples),) = one.batches(torch.arange(600 if one is draw else 100), 0)
        x = samples["samples"]
        assert bool(given.is_fulfilled(x).all()) and bool(is_permutation(x).all())
        ((_, again),) = one.batches(torch.tensor([7, 21]), 0)
        assert torch.equal(again["samples"], x[[7, 21]])
        if one is draw:
            assert float((x[:, 1] == 0).double().mean()) == pytest.approx(float(places[1, 0]), abs=0.08)
