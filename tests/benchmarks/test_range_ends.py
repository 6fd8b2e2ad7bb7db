"""The known distribution of benchmarks.range_ends is exact, and its commands run."""

import itertools
import json

import pytest
import torch

from benchmarks import range_ends
from benchmarks.range_ends import Ends, ImageMixture, describe_command
from blackout.diffusion.processes import PureDeath

HISTOGRAM = torch.tensor([0.5, 0.2, 0.1, 0.2], dtype=torch.float64)
IMAGES = torch.tensor([[[0, 3]], [[2, 1]], [[3, 3]]])


def enumerate_states(mixture):
    """Return all images of two pixels, and their probabilities."""
    states = torch.tensor(list(itertools.product(range(4), repeat=2)))
    densities = mixture.conditional[mixture.images[:, None], states[None]].prod(2)
    return states, densities.mean(0)


def test_the_denoiser_of_the_mixture_is_bayes_rule():
    mixture = ImageMixture(IMAGES, HISTOGRAM)
    states, probability = enumerate_states(mixture)
    assert float(probability.sum()) == pytest.approx(1)
    process = PureDeath(3)
    t = torch.tensor(0.4, dtype=torch.float64)
    for x in ([0, 0], [1, 0], [2, 3]):
        xt = torch.tensor(x)
        likelihood = process._log_pmf(states, xt.expand_as(states), t).exp().prod(1)
        posterior = likelihood * probability / (likelihood @ probability)
        missing = posterior @ (states - xt).double()
        prediction = mixture(xt.view(1, 1, 2), t)
        torch.testing.assert_close(prediction.expected.flatten(), missing)


def test_histogram_mean_likelihood_and_ends_are_those_of_the_enumerated_distribution():
    mixture = ImageMixture(IMAGES, HISTOGRAM)
    states, probability = enumerate_states(mixture)
    mean = probability @ states.double()
    torch.testing.assert_close(mixture.mean().flatten(), mean)
    for level in range(4):
        share = float(probability @ (states == level).double().mean(1))
        assert float(mixture.histogram()[level]) == pytest.approx(share)
    nats = -torch.log(probability) / 2
    for state, value in zip(states, nats, strict=True):
        assert mixture.negative_log_likelihood(state.view(1, 1, 2)) == pytest.approx(float(value))
    deviation = states.double() - mean
    covariance = (probability[:, None] * deviation).T @ deviation
    ends = mixture.ends()
    assert ends.total_dispersion == pytest.approx(float(covariance.sum() / mean.sum()))
    excess = (covariance - torch.diag(mean)) / torch.sqrt(mean[:, None] * mean)
    assert ends.covariance_excess == pytest.approx(float(torch.linalg.norm(excess)))


def test_shares_are_those_of_the_bands():
    histogram = torch.zeros(256, dtype=torch.float64)
    histogram[[0, 1, 10, 11, 249, 250, 254, 255]] = torch.arange(1.0, 9.0).double()
    assert Ends(255).shares(histogram) == {"zero": 1, "low": 5, "high": 13, "max": 8}


def test_the_recorded_command_names_no_path():
    words = ["test", "--data", "/somewhere", "--models", "first=/a/run", "--seed", "3"]
    assert describe_command(words) == (
        "python -m benchmarks.range_ends test --data data --models first=<run> --seed 3"
    )


@pytest.mark.deep
def test_the_exact_table_is_written(tmp_path, capsys):
    file = tmp_path / "range_ends.json"
    range_ends.main(["exact", "--quick", "--json", str(file)])
    results = json.loads(file.read_text(encoding="utf-8"))
    assert results["exact"]["rows"][0]["sampler"] == "exact draws"
    assert range_ends.table(results, "exact") in capsys.readouterr().out
