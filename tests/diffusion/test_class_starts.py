"""Samples of a class start where that class's samples end."""

import itertools

import pytest
import torch

from blackout import BlackoutDiffusion
from blackout.data import CountData
from blackout.diffusion.data_stats import (
    class_log_ratios,
    class_means,
    estimate_elements,
    mean_image,
    shrink_class_means,
)
from blackout.diffusion.family import CountDiffusion
from blackout.diffusion.guidance import Guidance, GuidedDenoiser, start_mean
from blackout.diffusion.heads import GammaHead, ScaledHead
from blackout.diffusion.predictions import CountPrediction
from blackout.diffusion.processes import PureDeath
from blackout.diffusion.sampler import Sampler
from blackout.networks import (
    CountInputs,
    CountNetwork,
    ResidualMLP,
    StandardisedInputs,
    set_elements,
)

MEAN = torch.tensor([2.0, 8.0])
CLASSES = torch.tensor([[1.0, 4.0], [3.0, 32.0], [2.0, 8.0]])


def test_the_means_of_classes_are_those_of_their_images():
    counts = torch.tensor([[1, 2], [3, 4], [9, 0], [5, 5]], dtype=torch.uint8)
    labels, mean = torch.tensor([0, 0, 1, 3]), torch.tensor([4.0, 2.0])
    found = class_means(counts, labels, 4, mean)
    assert found.tolist() == [[pytest.approx(8 / 3), pytest.approx(8 / 3)], [6.5, 1.0], [4.0, 2.0], [4.5, 3.5]]
    data = CountData("toy", counts, counts, 9, labels, labels)
    tensors = CountDiffusion().tensors(data)
    assert tensors["class_mean"].shape == (4, 2) and torch.equal(tensors["mean"], mean_image(counts))
    assert set(CountDiffusion().tensors(CountData("toy", counts, counts, 9))) == {"mean", "concentration", "gain"}


def test_combinations_of_words_that_were_never_seen_have_the_product_of_their_factors():
    """Of two kinds and three batches kind 1 of batch 2 is missing; a network of zeros starts there."""
    generator = torch.Generator().manual_seed(0)
    kinds, batches = (1 + 9 * torch.rand(n, 4, generator=generator) for n in (2, 3))
    counts, labels = [], []
    for kind, dose, batch in itertools.product(range(2), range(2), range(3)):
        if (kind, batch) != (1, 2):
            counts += [(100 * kinds[kind] * batches[batch]).round()] * (400 + 100 * kind * dose)
            labels += [(kind * 2 + dose) * 3 + batch] * (400 + 100 * kind * dose)
    x, of = torch.stack(counts).int(), torch.tensor(labels)
    covariates = {"dose": (0.0, 1.0), "batch": ("a", "b", "c")}
    data = CountData("toy", x, x, 20_000, of, of, class_names=("k", "l"), covariates=covariates)
    known = CountDiffusion().tensors(data)
    expected = (100 * kinds[:, None, None] * batches).expand(2, 2, 3, 4).flatten(0, 2)
    torch.testing.assert_close(known["class_mean"], expected, rtol=0.01, atol=0)

    body = ResidualMLP(shape=(4,), width=8, depth=1, num_classes=12, covariate_levels=[2, 3])
    body.head.weight.data.zero_()
    network, elements = CountNetwork(body, CountInputs((4,))), estimate_elements(x, known["mean"])
    set_elements(network, elements, class_log_ratios(data.facts, known))
    model = BlackoutDiffusion(network, GammaHead(elements), PureDeath(20_000), known["mean"])
    dark = model(torch.zeros(12, 4, dtype=torch.int32), torch.tensor(40.0), torch.arange(12)).mean
    torch.testing.assert_close(dark, known["class_mean"], rtol=1e-3, atol=0)
    alike = network.inputs(known["class_mean"].int(), torch.tensor([1e-9]), network.class_log_ratios[:12])
    assert float(alike.abs().max()) < 0.1  # means of combinations are 0 for the body


@pytest.mark.parametrize(("share", "most"), [(0.4, 0.7), (1.0, 1.05)])
def test_means_of_classes_that_share_most_elements_come_nearer_to_the_truth(share, most):
    """Squared errors of logarithms beside those of plain means; where nothing is shared they stay as they are."""
    generator = torch.Generator().manual_seed(0)
    sizes, r = torch.tensor([60, 100, 200] * 4), torch.full((400,), 2.0)
    beside = torch.randn(12, 400, generator=generator) * (torch.rand(12, 400, generator=generator) < share)
    truth = torch.exp(1 + torch.randn(400, generator=generator) + beside)
    error = torch.sqrt((1 / truth + 1 / r) / sizes[:, None])
    plain = truth * torch.exp(error * torch.randn(12, 400, generator=generator))
    found, before = (torch.log(x / truth).square().mean() for x in (shrink_class_means(plain, sizes, r), plain))
    assert float(found) < most * float(before)
    torch.testing.assert_close(shrink_class_means(plain, sizes * 10**9, r), plain)
    plain[0, 0] = 1e-4  # hardly ever seen in 60 samples: no error of theirs
    assert float(shrink_class_means(plain, sizes, r)[0, 0]) < 2e-4


@pytest.mark.parametrize("each", [1, 3, 10])
def test_few_samples_of_a_class_keep_what_marks_it(each):
    """Each class has 20 elements a hundred times the others': errors of logarithms there and elsewhere."""
    generator = torch.Generator().manual_seed(0)
    marked = torch.zeros(10, 200, dtype=torch.bool)
    marked[torch.arange(200) // 20, torch.arange(200)] = True
    truth = 5.0 * 100.0 ** marked.double()
    labels = torch.arange(10).repeat_interleave(each)
    counts = torch.poisson(truth[labels], generator=generator).int()
    known = CountDiffusion().tensors(CountData("toy", counts, counts, 1000, labels, labels))
    found, plain = (torch.log(known[name] / truth) for name in ("class_mean", "plain_mean"))
    assert float((found - plain)[marked].abs().max()) < 0.1
    assert float(found[~marked].square().mean()) < 1.01 * float(plain[~marked].square().mean())


def test_a_network_that_learns_the_plain_means_says_those_that_are_drawn_together():
    generator = torch.Generator().manual_seed(0)
    rates = 5 * torch.exp(0.1 * torch.randn(3, 6, generator=generator))
    labels = torch.arange(120) % 3
    counts = torch.poisson(rates[labels], generator=generator).int()
    known = CountDiffusion().tensors(CountData("toy", counts, counts, 50, labels, labels))
    body = ResidualMLP(shape=(6,), width=8, depth=1, num_classes=3)
    network, elements = CountNetwork(body, CountInputs((6,))), estimate_elements(counts, known["mean"])
    ratio = torch.cat([known["plain_mean"] / known["class_mean"], torch.ones(1, 6)])
    set_elements(network, elements, training_log_ratios=torch.log(ratio))
    dark = [network.train(mode)(torch.zeros(4, 6).int(), torch.tensor(40.0), torch.arange(4)) for mode in (True, False)]
    torch.testing.assert_close(torch.exp(dark[0] - dark[1])[:, 0], ratio)
    assert float(torch.log(ratio).abs().max()) > 0.01


@pytest.mark.parametrize("scale", [0.0, 0.5, 1.0, 2.5])
def test_guided_samples_start_from_what_is_guided_to_where_nothing_is_known(scale):
    """At the dark end y is E[X_0], and y(x | c) E[X_0 | c]."""
    classes = torch.tensor([1, 0])

    def blind(mean):
        return lambda xt, t: CountPrediction(mean.expand(xt.shape), mean.log().expand(xt.shape))

    denoiser = GuidedDenoiser(blind(CLASSES[classes]), blind(MEAN), Guidance(scale), 100)
    expected = denoiser(torch.zeros(2, 2, dtype=torch.uint8), torch.tensor(30.0)).mean
    torch.testing.assert_close(start_mean(MEAN, CLASSES, classes, scale, 100).expand(2, 2), expected)


def test_without_classes_or_their_means_samples_start_from_the_average():
    classes = torch.tensor([1])
    assert start_mean(MEAN, CLASSES, None) is MEAN and start_mean(MEAN, None, classes, 3.0) is MEAN
    assert Guidance(3.0).scale_at(15.0) == 3.0 and Guidance(3.0, [-2.0, 5.0]).scale_at(15.0) == 1.0
    assert float(start_mean(MEAN, CLASSES, classes, 6.0, 100.0).max()) == 100.0


def test_a_model_starts_every_sample_from_its_class():
    torch.manual_seed(0)
    body = ResidualMLP(shape=(2,), width=8, depth=1, num_classes=3)
    network = CountNetwork(body, StandardisedInputs(2.0, 1.4))
    parts = {"sampler": Sampler(num_steps=2), "mean": MEAN}
    model = BlackoutDiffusion(network, ScaledHead(2.0), PureDeath(200), class_mean=CLASSES, **parts).eval()
    for scale in (1.0, 2.0):
        sampler = Sampler(num_steps=1, grid=lambda n: torch.tensor([0.0, 0.01]).double(), guidance=Guidance(scale))
        starts = []
        model.sample(
            12_000,
            sampler=sampler,
            callback=lambda k, x, _, starts=starts: starts.append(x.double()) if k == 1 else None,
            classes=torch.arange(3).repeat_interleave(4000),
        )
        found = torch.cat(starts)[:12_000].view(3, 4000, 2).mean(1)
        expected = MEAN ** (1 - scale) * CLASSES**scale * 0.99005
        torch.testing.assert_close(found, expected.double(), rtol=0.05, atol=0.05)
