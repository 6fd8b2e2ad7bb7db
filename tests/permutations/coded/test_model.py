"""Models of codes.

Normalised distributions and their samples, causality, aligned items, observed digits.
"""

import inspect
import itertools
import math

import numpy as np
import pytest
import torch

from benchmarks.permutation_codes import partitions, perfect_mass, product_mass
from blackout import protocols
from blackout.networks import TokenEncoder
from blackout.permutations import all_permutations
from blackout.permutations.coded import (
    CodeModel,
    CodeScorer,
    CodeTransformer,
    PermutationData,
    cycles,
)
from blackout.permutations.coded.decoding import Passes, balanced_blocks
from blackout.permutations.coded.draw import CodeDraw, build_draw
from blackout.permutations.coded.likelihood import code_log_prob, exact_mixture, mixture_nll
from blackout.permutations.coded.losses import autoregressive_loss
from blackout.permutations.coded.report import exact_distribution
from blackout.permutations.coded.scores import PermutationScores
from blackout.permutations.codes import CODES
from blackout.permutations.group import is_permutation
from blackout.permutations.metrics import kl_bits
from blackout.verification.draws import p_value

UNCONSTRAINED_CODES = ["lehmer", "fisher_yates", "insertion"]


def make_model(
    code, n=4, objective="masked", passes=Passes(), tokens=None, context="fused", seed=0
):
    """Return a model with large random weights."""
    torch.manual_seed(seed)
    encoder = None if tokens is None else TokenEncoder(tokens, 8)
    causal = objective == "autoregressive"
    network = CodeTransformer(
        n, encoder=encoder, causal=causal, context=context, width=16, depth=2, heads=2
    )
    for weight in network.parameters():
        torch.nn.init.normal_(weight, std=0.6)
    model = CodeModel(network, code, objective, passes).eval()
    model.config = {
        "data": {
            "num_items": n,
            **({} if tokens is None else {"num_tokens": tokens, "item_shape": []}),
        }
    }
    return model


@pytest.mark.parametrize("code", UNCONSTRAINED_CODES)
def test_probabilities_sum_to_one_for_every_partition(code):
    model = make_model(code)
    points = all_permutations(4)
    codes = model.encode(points)
    for passes in range(1, 5):
        with torch.no_grad():
            log_probs = [
                code_log_prob(model.denoiser({}), codes, partition, model.support)
                for partition in partitions(4, passes)
            ]
            for random_order, expected in (
                (True, torch.stack(log_probs).exp().mean(0)),
                (False, log_probs[0].exp()),
            ):
                probabilities = exact_mixture(
                    model.denoiser({}), codes, model.support, passes, random_order=random_order
                )
                assert torch.allclose(probabilities, expected.double(), atol=1e-6)
        assert torch.stack(log_probs).exp().sum(1).tolist() == pytest.approx(
            [1] * len(log_probs), abs=1e-5
        )


@pytest.mark.parametrize(
    "code, passes, order",
    [
        ("lehmer", 1, "random"),
        ("fisher_yates", 2, "random"),
        ("insertion", 3, "left_to_right"),
        ("lehmer", 2, "confidence"),
    ],
)
def test_samples_follow_the_distribution_and_report_their_probability(code, passes, order):
    model = make_model(code)
    points = all_permutations(4)
    draw = CodeDraw(model, Passes(passes, order))
    ((_, samples),) = draw.batches(torch.arange(20_000), seed=1, batch_size=20_000)
    assert bool(is_permutation(samples["samples"]).all())
    counts = (samples["samples"].unsqueeze(1) == points).all(-1).sum(0)
    # the order depends on earlier digits: samples report their own probabilities
    if order == "confidence":
        probabilities = torch.zeros(24, dtype=torch.float64)
        ranks = (samples["samples"].unsqueeze(1) == points).all(-1).int().argmax(1)
        probabilities[ranks] = samples["log_prob"].double().exp()
        assert float(probabilities.sum()) == pytest.approx(1, abs=0.01)
        probabilities = probabilities / probabilities.sum()
    else:
        with torch.no_grad():
            probabilities = exact_mixture(
                model.denoiser({}),
                model.encode(points),
                model.support,
                passes,
                random_order=order == "random",
            )
    assert p_value(counts.numpy(), probabilities.numpy()) > 1e-4
    if order == "left_to_right":
        with torch.no_grad():
            log_probs = code_log_prob(
                model.denoiser({}), samples["code"], balanced_blocks(4, passes), model.support
            )
        assert torch.allclose(log_probs, samples["log_prob"], atol=1e-5)


@pytest.mark.parametrize("code", UNCONSTRAINED_CODES)
@pytest.mark.parametrize("passes", [1, 3, 7])
def test_samples_are_permutations_for_any_weights(code, passes):
    model = make_model(code, n=7, passes=Passes(passes))
    assert bool(is_permutation(model.sample(3000)).all())


def test_inline_digits_may_repeat_values():
    draw = CodeDraw(make_model("inline", n=6), Passes(6, "random"))
    ((_, samples),) = draw.batches(torch.arange(1000), seed=0)
    assert torch.equal(samples["valid"], is_permutation(samples["samples"]))
    assert float(samples["valid"].double().mean()) < 0.2


@pytest.mark.parametrize("passes", range(1, 5))
def test_the_mixture_over_orders_is_exact_and_below_the_mean_over_orders(passes):
    model = make_model("lehmer")
    codes = CODES["lehmer"].encode(all_permutations(4))
    denoiser = model.denoiser({})
    with torch.no_grad():
        log_probs = torch.stack(
            [
                code_log_prob(denoiser, codes, partition, model.support)
                for partition in partitions(4, passes)
            ]
        )
        nats = mixture_nll(denoiser, codes, model.support, passes)
        probabilities = exact_mixture(denoiser, codes, model.support, passes)
    assert torch.allclose(nats, -probabilities.log(), atol=1e-6)
    assert torch.allclose(nats, -log_probs.double().exp().mean(0).log(), atol=1e-5)
    assert bool((nats <= -log_probs.double().mean(0) + 1e-5).all())


def test_the_mixture_over_orders_uses_the_context_of_every_sample():
    model = make_model("insertion", n=5, tokens=9)
    x = all_permutations(5)[[3, 50]]
    items = torch.tensor([[3, 8, 1, 0, 5], [0, 2, 4, 6, 8]])
    with torch.no_grad():
        nats = model.nll(model.denoiser({"items": items}), model.encode(x), None)
        separate = [
            exact_mixture(
                model.denoiser({"items": items[k : k + 1]}),
                model.encode(x[k : k + 1]),
                model.support,
                5,
            )
            for k in range(2)
        ]
    assert torch.allclose(nats, -torch.cat(separate).log(), atol=1e-5)


@pytest.mark.parametrize("code", UNCONSTRAINED_CODES)
@pytest.mark.parametrize(
    "order, passes",
    [
        ("random", 1),
        ("random", 3),
        ("random", 5),
        ("left_to_right", 2),
        ("confidence", 1),
        ("confidence", 2),
        ("confidence", 5),
    ],
)
def test_scores_are_those_of_the_distribution_of_samples(code, order, passes):
    """exp(log p) sums to 1 for any weights, and samples follow it."""
    model = make_model(code, n=5, passes=Passes(passes, order))
    points = all_permutations(5)
    with torch.no_grad():
        probabilities = (-model.nll(model.denoiser({}), model.encode(points), None)).exp()
    assert (
        float(probabilities.sum()) == pytest.approx(1, abs=1e-5)
        and model.likelihood_kind() == "exact"
    )
    samples = model.sample(20_000, seed=2)
    counts = torch.bincount((samples * 5 ** torch.arange(5)).sum(1), minlength=5**5)
    counts = counts[(points * 5 ** torch.arange(5)).sum(1)]
    assert p_value(counts.numpy(), probabilities.numpy()) > 1e-4


def test_above_seven_items_one_order_per_sample_gives_a_bound():
    """The mean over orders is above -log p, which the mean of p over many orders estimates."""
    model = make_model("insertion", n=8)
    codes = model.encode(torch.tensor([[3, 1, 4, 0, 5, 2, 7, 6]])).expand(4000, -1)
    with torch.no_grad():
        nats = model.nll(model.denoiser({}), codes, torch.Generator().manual_seed(0))
    assert model.likelihood_kind() == "upper bound" and len(nats.unique()) > 100
    assert float(nats.mean()) > float(-(-nats).exp().mean().log())
    assert (
        model.likelihood_kind(Passes(1, "random"))
        == model.likelihood_kind(Passes(3, "left_to_right"))
        == "exact"
    )
    # several inline codes decode to the same permutation
    assert make_model("inline", n=5, tokens=9).likelihood_kind() == "upper bound"


def test_default_passes_are_those_of_the_likelihood():
    assert Passes().resolve(6, "masked") == Passes(6, "random")
    assert Passes().resolve(6, "autoregressive") == Passes(6, "left_to_right")
    draw = build_draw(make_model("lehmer", n=6), {})
    assert (draw.nfe, draw.description["nll_bits"]) == (6, "exact")
    greedy = build_draw(make_model("lehmer", n=6), {"sampler": {"greedy": True}, "passes": 2})
    assert greedy.description["nll_bits"] == "exact of draws without greedy"


def test_an_autoregressive_model_is_causal_and_exact():
    model = make_model("lehmer", n=5, objective="autoregressive", tokens=9)
    context = {"items": torch.tensor([[3, 8, 1, 0, 5]])}
    codes = CODES["lehmer"].encode(all_permutations(5)[::9])
    denoiser = model.denoiser(context)
    with torch.no_grad():
        logits = denoiser(codes)
        for i in range(5):
            hidden = codes.clone()
            hidden[:, i:] = 5
            assert torch.allclose(denoiser(hidden)[:, : i + 1], logits[:, : i + 1], atol=1e-5)
        by_digits = code_log_prob(denoiser, codes, balanced_blocks(5, 5), model.support)
        assert torch.allclose(
            -autoregressive_loss(denoiser, codes, model.support), by_digits, atol=1e-4
        )
        other_logits = model.denoiser({"items": torch.tensor([[3, 8, 1, 0, 6]])})(codes)
    # the first digit depends on the last item
    assert not torch.allclose(other_logits[:, 0], logits[:, 0])
    _, log_p = exact_distribution(model, context, 5)
    assert float(log_p.exp().sum()) == pytest.approx(1, abs=1e-5)
    with pytest.raises(ValueError, match="passes=5 order=left_to_right"):
        Passes(2).resolve(5, "autoregressive")


@pytest.mark.parametrize("context", ["fused", "prefix"])
@pytest.mark.parametrize("code", [*UNCONSTRAINED_CODES, "inline"])
def test_digits_are_aligned_with_items_for_fused_contexts(code, context):
    model = make_model(code, n=5, tokens=9, context=context)
    x = all_permutations(5)
    assert model.aligned == (context == "fused")
    assert torch.equal(model.decode(model.encode(x)), x)
    if model.aligned and code == "inline":
        positions = torch.arange(5)
        # the digit of item x[i] is i
        assert torch.equal(model.encode(x).gather(1, x), positions.expand_as(x))
        repaired = model.decode(torch.tensor([[2, 2, 0, 4, 4]]))
        assert repaired.tolist() == [[2, 0, 1, 3, 4]]


def test_a_network_with_items_predicts_logits_of_every_digit():
    model = make_model("insertion", n=5, tokens=9)
    context = {"items": torch.tensor([[3, 8, 1, 0, 5]])}
    with torch.no_grad():
        masked = model.network(torch.full((1, 5), 5), context)
    assert masked.shape == (1, 5, 5)


@pytest.mark.parametrize("order", ["random", "left_to_right", "confidence"])
def test_a_sample_depends_on_seed_and_index_only(order):
    model = make_model("fisher_yates", n=6, passes=Passes(3, order))
    samples = model.sample(40, seed=3)
    draw = build_draw(model, {})
    ((_, rows),) = draw.batches(torch.tensor([17, 5]), seed=3)
    assert torch.equal(rows["samples"], samples[[17, 5]])
    assert not torch.equal(model.sample(40, seed=4), samples)


def test_observed_digits_are_kept_and_need_no_pass():
    model = make_model("insertion", n=6)
    source = cycles(6, train_share=0.5)
    model.source = lambda: source
    observed = model.encode(source.test["x"][torch.arange(30) % len(source.test["x"])])
    for order, passes in itertools.product(("random", "confidence", "left_to_right"), (1, 2, 6)):
        draw = build_draw(model, {"condition": 3, "passes": passes, "order": order})
        assert draw.nfe == min(passes, 3)
        ((_, samples),) = draw.batches(torch.arange(30), seed=0)
        assert torch.equal(samples["code"][:, :3], observed[:, :3])
        assert bool((samples["code"] < 6).all()) and bool(is_permutation(samples["samples"]).all())
    # in an insertion code, the relative order of the first items is kept
    place = samples["samples"].argsort(1)[:, :3]
    assert torch.equal(
        place.argsort(1), source.test["x"][torch.arange(30)].argsort(1)[:, :3].argsort(1)
    )


@pytest.mark.parametrize("objective", ["masked", "autoregressive"])
def test_sharpness_is_chosen_on_validation_permutations(objective):
    """An overconfident model of uniform orders becomes uniform, within a budget of evaluations.

    Test permutations have no influence.
    """
    model = make_model("insertion", n=5, objective=objective)
    x = all_permutations(5)
    likeliest = model.sample(200, seed=0)  # test samples on which the original sharpness is best
    source = PermutationData(
        "all",
        lambda index, _: {"x": x[index]},
        {"x": likeliest},
        train_size=len(x),
        validation={"x": x},
    )
    model.source = lambda: source
    model.calibrate(len(x))
    assert model.sharpness == 1

    def mean_nats() -> float:
        with torch.no_grad():
            return float(model.nll(model.denoiser({}), model.encode(x), None).mean())

    before = mean_nats()
    model.calibrate(10**6)
    assert model.sharpness == 0 and before > math.log(120) + 0.1
    assert mean_nats() == pytest.approx(math.log(120), abs=1e-5)


def test_without_validation_permutations_sharpness_keeps_its_setting():
    model = make_model("insertion", n=4)
    x = all_permutations(4)
    model.source = lambda: PermutationData(
        "all", lambda index, _: {"x": x[index]}, {"x": x}, train_size=len(x)
    )
    model.calibrate(10**6)
    assert model.sharpness == 1
    model.sharpness_setting = 0.7
    model.calibrate(0)
    assert model.sharpness == 0.7


def test_the_perfect_mass_is_averaged_over_random_orders():
    """With one pass all orders agree; more passes than one need the average."""
    lehmer = CODES["lehmer"].encode(cycles(6, train_share=1.0).members)
    one_pass = product_mass(lehmer, balanced_blocks(6, 1))
    assert perfect_mass(lehmer, 1) == pytest.approx(one_pass)
    assert perfect_mass(lehmer, 2) == pytest.approx(0.5104, abs=5e-5)
    assert perfect_mass(lehmer, 3) == pytest.approx(0.7033, abs=5e-5)


def test_the_divergence_of_a_distribution_from_itself_is_zero():
    model = make_model("lehmer", n=5)
    _, log_q = exact_distribution(model, {}, 2)
    assert kl_bits(log_q, log_q) == pytest.approx(0, abs=1e-9)
    uniform = torch.full_like(log_q, -np.log(120))
    assert kl_bits(uniform, log_q) > 0.1


@pytest.mark.parametrize(
    ("component", "protocol"),
    [
        (PermutationData, protocols.Source),
        (CodeDraw, protocols.Draw),
        (CodeScorer, protocols.Scorer),
        (PermutationScores, protocols.Scores),
    ],
)
def test_methods_have_the_parameters_of_their_protocol(component, protocol):
    for name, method in inspect.getmembers(protocol, inspect.isfunction):
        if not name.startswith("_"):
            required = list(inspect.signature(method).parameters)
            assert (
                list(inspect.signature(getattr(component, name)).parameters)[: len(required)]
                == required
            ), name
