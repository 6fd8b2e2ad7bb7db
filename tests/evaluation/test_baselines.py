"""Baselines fitted to training data: maximum likelihood against SciPy, and the Gaussian copula."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from blackout.evaluation import baseline_bits, copula_samples
from blackout.evaluation.baselines import histogram_bits, negative_binomial


def sample_counts(number: int, seed: int) -> torch.Tensor:
    """Sample counts of six elements with a common factor."""
    generator = np.random.default_rng(seed)
    rate = generator.gamma(2.0, 1.0, (number, 1)) * np.array([0.3, 1.0, 2.0, 4.0, 8.0, 16.0])
    return torch.from_numpy(generator.poisson(rate))


TRAIN = sample_counts(1000, seed=0)
TEST = sample_counts(800, seed=1)


def test_baselines_are_maximum_likelihood_fits() -> None:
    bits = baseline_bits(TRAIN, TEST)
    nats = stats.poisson(TRAIN.double().mean(0).numpy()).logpmf(TEST.numpy())
    assert bits["poisson"].numpy() == pytest.approx(-np.mean(nats, 1) / np.log(2), rel=2e-2)
    assert bits["negative_binomial"].mean() < bits["poisson"].mean() - 0.3
    generator = np.random.default_rng(2)
    zero_inflated = np.where(
        generator.random((2000, 2)) < 0.5, 0, generator.poisson(9.0, (2000, 2))
    )
    zeros = baseline_bits(
        torch.from_numpy(zero_inflated[:1000]), torch.from_numpy(zero_inflated[1000:])
    )
    zeros = {name: float(values.mean()) for name, values in zeros.items()}
    truth = 0.5 * stats.poisson(9).pmf(zero_inflated[1000:]) + 0.5 * (zero_inflated[1000:] == 0)
    assert zeros["zero_inflated"] == pytest.approx(-np.log2(truth).mean(), abs=0.02)
    assert zeros["negative_binomial"] > zeros["zero_inflated"] + 0.2


def test_histograms_add_one_count_to_every_cell() -> None:
    train = torch.tensor([[0, 1], [0, 2], [3, 2]])
    test = torch.tensor([[0, 2], [1, 0]])
    bits = histogram_bits(train, test, 3)
    expected = [-(np.log2(3 / 7) + np.log2(3 / 7)) / 2, -(np.log2(1 / 7) + np.log2(1 / 7)) / 2]
    assert bits.tolist() == pytest.approx(expected)


def test_negative_binomial_probabilities_match_scipy() -> None:
    x = np.arange(300.0)
    assert np.allclose(
        negative_binomial(x, 7.0, 0.3), stats.nbinom(0.3, 0.3 / 7.3).logpmf(x), rtol=1e-12
    )


def test_a_copula_keeps_marginal_distributions_and_rank_correlations() -> None:
    """Kolmogorov-Smirnov tests at 1 in 1,000 over six elements; correlations to four standard
    errors."""
    train = TRAIN
    samples = copula_samples(train, 1500, seed=1)
    assert samples.dtype == train.dtype and torch.equal(
        samples, copula_samples(train, 1500, seed=1)
    )
    for k in range(6):
        assert set(samples[:, k].tolist()) <= set(train[:, k].tolist())
        assert stats.ks_2samp(samples[:, k], train[:, k]).pvalue > 1e-3 / 6
    # large counts have few ties, whose random order weakens correlations
    large_counts = torch.poisson(train.double() * 50).long()
    sample_correlations, data_correlations = (
        stats.spearmanr(x.numpy()[:, 2:]).statistic
        for x in (copula_samples(large_counts, 1500), large_counts)
    )
    assert np.abs(sample_correlations - data_correlations).max() < 4 / np.sqrt(1000)
    images = train[:, :4].view(-1, 1, 2, 2).to(torch.uint8)
    assert (
        copula_samples(images, 3).shape == (3, 1, 2, 2)
        and copula_samples(images, 3).dtype == torch.uint8
    )
