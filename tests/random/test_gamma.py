import numpy as np
import pytest
import torch
from scipy import stats

from blackout.random import SampleStreams, gamma, negative_binomial

N = 40_000


def sources():
    return SampleStreams(0, torch.arange(N)).at(1), torch.Generator().manual_seed(0)


@pytest.mark.parametrize("shape", [0.03, 0.4, 1.0, 2.5, 300.0])
def test_gamma_draws_follow_the_gamma_law(shape):
    for source in sources():
        drawn = gamma(torch.full((N, 1), shape).double(), source).flatten().numpy()
        assert stats.kstest(drawn[drawn > 0], stats.gamma(shape).cdf).pvalue > 1e-4


@pytest.mark.parametrize("size, mean", [(0.3, 2.0), (4.0, 0.2), (7.5, 60.0)])
def test_negative_binomial_draws_follow_their_law(size, mean):
    for source in sources():
        drawn = negative_binomial(torch.full((N, 1), size).double(), torch.full((N, 1), mean).double(), source)
        law = stats.nbinom(size, size / (size + mean))
        top = int(law.ppf(1 - 20 / N))
        observed = np.bincount(drawn.flatten().long().clamp(max=top).numpy(), minlength=top + 1)
        expected = N * np.append(law.pmf(np.arange(top)), law.sf(top - 1))
        rare = expected < 5
        observed, expected = (np.append(x[~rare], x[rare].sum()) for x in (observed, expected))
        keep = expected > 0
        assert stats.chisquare(observed[keep], expected[keep] * N / expected[keep].sum()).pvalue > 1e-4


def test_a_sample_draws_the_same_alone():
    shape = torch.tensor([[0.2, 5.0, 80.0]]).double().expand(10, 3)
    together = gamma(shape, SampleStreams(3, torch.arange(10)).at(2))
    alone = gamma(shape[:2], SampleStreams(3, torch.tensor([7, 4])).at(2))
    assert torch.equal(alone, together[[7, 4]]) and len(together.unique()) == 30
