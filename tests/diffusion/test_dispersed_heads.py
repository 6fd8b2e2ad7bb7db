"""The logistic-mixture head: its distribution, loss, samples and limits."""

import numpy as np
import pytest
import torch
from scipy import stats

from blackout.diffusion.heads import LogisticMixture, LogisticMixtureHead, ScaledHead
from blackout.diffusion.losses import count_loss, poisson_loss
from blackout.random import SampleStreams
from blackout.verification.draws import p_value

MIXTURE = LogisticMixtureHead(ScaledHead(5.0), max_count=20, mean=5.0, std=4.0, components=3)


@pytest.mark.parametrize("head, outputs", [(MIXTURE, 10)])
@pytest.mark.parametrize("f", [-200.0, 0.0, 200.0])
@pytest.mark.parametrize("t", [1e-7, 0.5, 14.0])
def test_losses_and_gradients_are_finite_and_the_mean_is_that_of_the_base_head(head, outputs, f, t):
    raw = torch.full((2, outputs, 3, 4), f, requires_grad=True)
    xt = torch.tensor([0, 5, 20], dtype=torch.uint8).view(1, 3, 1).expand(2, 3, 4)
    time = torch.tensor([t, t]).double()
    prediction = head(raw, xt, time)
    assert head.outputs == outputs
    plain = ScaledHead(5.0)(raw, xt, time)
    assert torch.equal(prediction.mean, plain.mean) and torch.equal(
        prediction.log_mean, plain.log_mean
    )
    target = torch.tensor([3, 15, 0]).view(1, 3, 1).expand(2, 3, 4)
    loss = count_loss(prediction, target)
    assert (
        loss.shape == (2, 3, 4) and loss.dtype == torch.float32 and bool(torch.isfinite(loss).all())
    )
    loss.sum().backward()
    assert raw.grad is not None and bool(torch.isfinite(raw.grad).all())


def test_the_mean_is_trained_independently_of_the_mixture():
    raw = torch.randn(
        4, MIXTURE.outputs, 6, generator=torch.Generator().manual_seed(0)
    ).requires_grad_()
    xt = torch.randint(0, 9, (4, 6), dtype=torch.uint8)
    t = torch.full((4,), 0.7).double()
    target = torch.randint(0, 9, (4, 6))
    count_loss(MIXTURE(raw, xt, t), target).sum().backward()
    mixture_gradient = raw.grad[:, 0].clone()
    raw.grad = None
    poisson_loss(ScaledHead(5.0)(raw, xt, t), target).sum().backward()
    assert torch.allclose(mixture_gradient, raw.grad[:, 0], atol=1e-6)


@pytest.mark.parametrize("headroom", [0, 1, 5, 20])
def test_the_mixture_is_normalised_and_samples_follow_it(headroom):
    n = 30_000
    mixture = LogisticMixture(
        torch.log(torch.tensor([0.2, 0.5, 0.3])).view(1, 3, 1).expand(n, 3, 1),
        torch.tensor([-1.0, 2.2, 17.0]).view(1, 3, 1).expand(n, 3, 1),
        torch.log(torch.tensor([0.6, 0.3, 4.0])).view(1, 3, 1).expand(n, 3, 1),
        torch.full((n, 1), headroom),
    )
    pmf = np.array(
        [float(mixture.log_prob(torch.full((n, 1), k))[0].exp()) for k in range(headroom + 1)]
    )
    assert pmf.sum() == pytest.approx(1.0, abs=1e-5)
    samples = mixture.sample(SampleStreams(0, torch.arange(n)).step(1))
    assert (
        samples.dtype == torch.int64 and int(samples.min()) >= 0 and int(samples.max()) <= headroom
    )
    counts = np.bincount(samples.flatten().numpy(), minlength=headroom + 1)
    assert p_value(counts, pmf / pmf.sum()) > 1e-4
    counts = np.bincount(
        mixture.sample(torch.Generator().manual_seed(1)).flatten(), minlength=headroom + 1
    )
    assert p_value(counts, pmf / pmf.sum()) > 1e-4


@pytest.mark.parametrize("t", [0.3, 1.0, 9.0])
@pytest.mark.parametrize("xt", [0, 4])
def test_the_default_scale_is_that_of_a_negative_binomial_count(t, xt):
    """Enumeration of a count of mean 5 and deviation 8, given its survivors and the right mean."""
    mean = 5.0
    variance = 64.0
    x0 = np.arange(xt, 900)
    r = mean**2 / (variance - mean)
    weight = stats.nbinom.pmf(x0, r, r / (r + mean)) * stats.binom.pmf(xt, x0, np.exp(-t))
    weight /= weight.sum()
    y = weight @ (x0 - xt)
    deviation = np.sqrt(weight @ (x0 - xt - y) ** 2)
    head = LogisticMixtureHead(ScaledHead(mean), 900, mean, variance**0.5, 1)
    raw = torch.zeros(1, 4, 1)
    raw[:, 0] = float(np.log(np.expm1(y / mean / (1 - np.exp(-t)))))
    mixture = head(raw, torch.full((1, 1), xt), torch.tensor(t).double()).distribution
    assert float(mixture.location) == pytest.approx(y, rel=1e-5)
    assert float(mixture.log_scale.exp()) / (np.log(2) + 0.02) == pytest.approx(deviation, rel=1e-4)


def test_counts_beyond_single_precision_have_distinct_probabilities():
    """One logistic of scale 3 near 300,000,000, where float32 has only every 32nd integer."""
    location = 300_000_000.0
    mixture = LogisticMixture(
        torch.zeros(1, 1, 80),
        torch.full((1, 1, 80), location),
        torch.full((1, 1, 80), np.log(3.0)),
        torch.full((1, 80), 2**31 - 1),
    )
    n = torch.arange(80)[None] + int(location) - 40
    centred = n.double().numpy() - location
    exact = stats.logistic.cdf((centred + 0.5) / 3) - stats.logistic.cdf((centred - 0.5) / 3)
    assert np.abs(mixture.log_prob(n).exp().numpy() / exact - 1).max() < 1e-4


@pytest.mark.deep
def test_the_mixture_learns_a_bimodal_distribution():
    target = torch.from_numpy(
        np.random.default_rng(0).choice([2, 3, 14], size=(400, 1), p=[0.3, 0.3, 0.4])
    )
    weights = torch.zeros(1, MIXTURE.outputs, 1, requires_grad=True)
    optimizer = torch.optim.Adam([weights], lr=0.05)
    xt = torch.zeros(400, 1, dtype=torch.uint8)
    t = torch.tensor(1.0).double()
    for _ in range(500):
        prediction = MIXTURE(weights.expand(400, MIXTURE.outputs, 1), xt, t)
        optimizer.zero_grad()
        count_loss(prediction, target).mean().backward()
        optimizer.step()
    entropy = float(-(torch.tensor([0.3, 0.3, 0.4]) * torch.tensor([0.3, 0.3, 0.4]).log()).sum())
    nll = float(-prediction.distribution.log_prob(target).mean())
    assert nll < entropy + 0.05


@pytest.mark.parametrize("values", [{"components": 0}, {"mean": 0.0}, {"std": -1.0}])
def test_invalid_mixtures_are_refused(values):
    with pytest.raises(ValueError):
        LogisticMixtureHead(
            **{"base": ScaledHead(1.0), "max_count": 5, "mean": 1.0, "std": 1.0, **values}
        )
