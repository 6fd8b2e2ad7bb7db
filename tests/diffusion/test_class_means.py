"""Means of classes, from which samples of a class start."""

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


def test_class_means_are_shrunk_means_of_their_images():
    counts = torch.tensor([[1, 2], [3, 4], [9, 0], [5, 5]], dtype=torch.uint8)
    labels = torch.tensor([0, 0, 1, 3])
    mean = torch.tensor([4.0, 2.0])
    means = class_means(counts, labels, 4, mean)
    assert means.tolist() == [
        [pytest.approx(8 / 3), pytest.approx(8 / 3)],
        [6.5, 1.0],
        [4.0, 2.0],
        [4.5, 3.5],
    ]
    data = CountData("toy", counts, counts, 9, labels, labels)
    tensors = CountDiffusion().tensors(data)
    assert tensors["class_mean"].shape == (4, 2) and torch.equal(
        tensors["data_mean"], mean_image(counts)
    )
    assert set(CountDiffusion().tensors(CountData("toy", counts, counts, 9))) == {
        "data_mean",
        "concentration",
        "gain",
    }


def test_unseen_combinations_of_covariates_get_the_product_of_their_factors():
    """Two kinds and three batches, without kind 1 of batch 2.

    A network of zeros starts at the product.
    """
    generator = torch.Generator().manual_seed(0)
    kinds, batches = (1 + 9 * torch.rand(n, 4, generator=generator) for n in (2, 3))
    counts = []
    labels = []
    for kind, dose, batch in itertools.product(range(2), range(2), range(3)):
        if (kind, batch) != (1, 2):
            counts += [(100 * kinds[kind] * batches[batch]).round()] * (400 + 100 * kind * dose)
            labels += [(kind * 2 + dose) * 3 + batch] * (400 + 100 * kind * dose)
    x = torch.stack(counts).int()
    combinations = torch.tensor(labels)
    covariates = {"dose": (0.0, 1.0), "batch": ("a", "b", "c")}
    data = CountData(
        "toy",
        x,
        x,
        20_000,
        combinations,
        combinations,
        class_names=("k", "l"),
        covariates=covariates,
    )
    statistics = CountDiffusion().tensors(data)
    expected = (100 * kinds[:, None, None] * batches).expand(2, 2, 3, 4).flatten(0, 2)
    torch.testing.assert_close(statistics["class_mean"], expected, rtol=0.01, atol=0)

    body = ResidualMLP(shape=(4,), width=8, depth=1, num_classes=12, covariate_levels=[2, 3])
    body.head.weight.data.zero_()
    network = CountNetwork(body, CountInputs((4,)))
    elements = estimate_elements(x, statistics["data_mean"])
    set_elements(network, elements, class_log_ratios(data.facts, statistics))
    model = BlackoutDiffusion(
        network, GammaHead(elements), PureDeath(20_000), statistics["data_mean"]
    )
    start = model(torch.zeros(12, 4, dtype=torch.int32), torch.tensor(40.0), torch.arange(12)).mean
    torch.testing.assert_close(start, statistics["class_mean"], rtol=1e-3, atol=0)
    inputs = network.inputs(
        statistics["class_mean"].int(), torch.tensor([1e-9]), network.class_log_ratios[:12]
    )
    assert float(inputs.abs().max()) < 0.1  # the body receives the class mean as 0


@pytest.mark.parametrize(("share", "max_ratio"), [(0.4, 0.7), (1.0, 1.05)])
def test_shrinkage_brings_similar_class_means_closer_to_the_truth(share, max_ratio):
    """Squared errors of logarithms compared with plain means; unrelated classes stay unchanged."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.tensor([60, 100, 200] * 4)
    r = torch.full((400,), 2.0)
    class_effects = torch.randn(12, 400, generator=generator) * (
        torch.rand(12, 400, generator=generator) < share
    )
    truth = torch.exp(1 + torch.randn(400, generator=generator) + class_effects)
    error = torch.sqrt((1 / truth + 1 / r) / sizes[:, None])
    plain = truth * torch.exp(error * torch.randn(12, 400, generator=generator))
    shrunk_error, plain_error = (
        torch.log(x / truth).square().mean() for x in (shrink_class_means(plain, sizes, r), plain)
    )
    assert float(shrunk_error) < max_ratio * float(plain_error)
    torch.testing.assert_close(shrink_class_means(plain, sizes * 10**9, r), plain)
    plain[0, 0] = 1e-4  # nearly absent from 60 samples, which is not a sampling error
    assert float(shrink_class_means(plain, sizes, r)[0, 0]) < 2e-4


@pytest.mark.parametrize("samples_per_class", [1, 3, 10])
def test_shrinkage_of_few_samples_keeps_the_marker_elements_of_a_class(samples_per_class):
    """In each class 20 elements are a hundred times as frequent as in the others."""
    generator = torch.Generator().manual_seed(0)
    marked = torch.zeros(10, 200, dtype=torch.bool)
    marked[torch.arange(200) // 20, torch.arange(200)] = True
    truth = 5.0 * 100.0 ** marked.double()
    labels = torch.arange(10).repeat_interleave(samples_per_class)
    counts = torch.poisson(truth[labels], generator=generator).int()
    statistics = CountDiffusion().tensors(CountData("toy", counts, counts, 1000, labels, labels))
    shrunk, unshrunk = (
        torch.log(statistics[name] / truth) for name in ("class_mean", "plain_mean")
    )
    assert float((shrunk - unshrunk)[marked].abs().max()) < 0.1
    assert float(shrunk[~marked].square().mean()) < 1.01 * float(unshrunk[~marked].square().mean())


def test_a_network_trained_on_plain_means_predicts_the_shrunk_means():
    generator = torch.Generator().manual_seed(0)
    rates = 5 * torch.exp(0.1 * torch.randn(3, 6, generator=generator))
    labels = torch.arange(120) % 3
    counts = torch.poisson(rates[labels], generator=generator).int()
    statistics = CountDiffusion().tensors(CountData("toy", counts, counts, 50, labels, labels))
    body = ResidualMLP(shape=(6,), width=8, depth=1, num_classes=3)
    network = CountNetwork(body, CountInputs((6,)))
    elements = estimate_elements(counts, statistics["data_mean"])
    ratio = torch.cat([statistics["plain_mean"] / statistics["class_mean"], torch.ones(1, 6)])
    set_elements(network, elements, training_log_ratios=torch.log(ratio))
    predictions = [
        network.train(mode)(torch.zeros(4, 6).int(), torch.tensor(40.0), torch.arange(4))
        for mode in (True, False)
    ]
    torch.testing.assert_close(torch.exp(predictions[0] - predictions[1])[:, 0], ratio)
    assert float(torch.log(ratio).abs().max()) > 0.01


@pytest.mark.parametrize("scale", [0.0, 0.5, 1.0, 2.5])
def test_guided_samples_start_at_the_guided_mean(scale):
    """At the final time y is E[X_0], and y(x | c) is E[X_0 | c]."""
    classes = torch.tensor([1, 0])

    def blind(mean):
        return lambda xt, t: CountPrediction(mean.expand(xt.shape), mean.log().expand(xt.shape))

    denoiser = GuidedDenoiser(blind(CLASSES[classes]), blind(MEAN), Guidance(scale), 100)
    expected = denoiser(torch.zeros(2, 2, dtype=torch.uint8), torch.tensor(30.0)).mean
    torch.testing.assert_close(
        start_mean(MEAN, CLASSES, classes, scale, 100).expand(2, 2), expected
    )


def test_without_classes_or_their_means_samples_start_from_the_mean():
    classes = torch.tensor([1])
    assert start_mean(MEAN, CLASSES, None) is MEAN and start_mean(MEAN, None, classes, 3.0) is MEAN
    assert Guidance(3.0).scale_at(15.0) == 3.0 and Guidance(3.0, [-2.0, 5.0]).scale_at(15.0) == 1.0
    assert float(start_mean(MEAN, CLASSES, classes, 6.0, 100.0).max()) == 100.0


def test_a_model_starts_every_sample_at_its_class_mean():
    torch.manual_seed(0)
    body = ResidualMLP(shape=(2,), width=8, depth=1, num_classes=3)
    network = CountNetwork(body, StandardisedInputs(2.0, 1.4))
    parts = {"sampler": Sampler(num_steps=2), "data_mean": MEAN}
    model = BlackoutDiffusion(
        network, ScaledHead(2.0), PureDeath(200), class_mean=CLASSES, **parts
    ).eval()
    for scale in (1.0, 2.0):
        sampler = Sampler(
            num_steps=1, grid=lambda n: torch.tensor([0.0, 0.01]).double(), guidance=Guidance(scale)
        )
        starts = []
        model.sample(
            12_000,
            sampler=sampler,
            callback=lambda k, x, _, starts=starts: starts.append(x.double()) if k == 1 else None,
            classes=torch.arange(3).repeat_interleave(4000),
        )
        start_means = torch.cat(starts)[:12_000].view(3, 4000, 2).mean(1)
        expected = MEAN ** (1 - scale) * CLASSES**scale * 0.99005
        torch.testing.assert_close(start_means, expected.double(), rtol=0.05, atol=0.05)
