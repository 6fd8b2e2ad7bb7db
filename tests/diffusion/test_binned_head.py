"""BinnedHead: the exact posterior mean of a count that is distributed over bins."""

import math

import pytest
import torch

from blackout.data import CountData
from blackout.diffusion import BinnedHead, CountDiffusion, CountLoss
from blackout.diffusion.heads.binned import max_entropy_log_probs
from blackout.diffusion.survival import time_of_logit
from tests.cli.test_configs import composed


def exact_missing_count(prior, x, t):
    """Return E[N | X_t = x] of a count with distribution `prior` [levels], by Bayes' rule."""
    n = torch.arange(len(prior), dtype=torch.float64)
    missing = n - x.double()[:, None]
    log_ways = torch.lgamma(n + 1) - torch.lgamma(missing.clamp(min=0) + 1)
    log_joint = log_ways + missing * torch.log(-torch.expm1(-t)) + prior.log()
    posterior = torch.softmax(torch.where(missing >= 0, log_joint, -math.inf), 1)
    return (posterior * missing).sum(1)


def every_count(head):
    return torch.arange(head.max_count + 1)[None]


@pytest.mark.parametrize("max_count", [1, 16, 255])
@pytest.mark.parametrize("logit", [-9.1, -2.3, 0.01, 4.7, 9.9, 20.0])
def test_predictions_are_the_posterior_means_of_the_mixture_of_bins(max_count, logit):
    """At times between the nodes of the tables, for every state, with a network's logits."""
    head = BinnedHead(0.3 * max_count, max_count)
    t = time_of_logit(torch.tensor(logit, dtype=torch.float64))
    logits = torch.randn(head.outputs, generator=torch.Generator().manual_seed(0)).double()
    prior = torch.exp(logits) @ head.bins * head.log_prior.exp()
    x = every_count(head)
    raw = logits.float()[None, :, None].expand(1, -1, max_count + 1)
    expected = exact_missing_count(prior / prior.sum(), x[0], t)
    prediction = head(raw, x, t)
    torch.testing.assert_close(prediction.mean[0].double(), expected, rtol=0.01, atol=1e-12)
    torch.testing.assert_close(prediction.expected[0], expected, rtol=0.01, atol=1e-12)


@pytest.mark.parametrize("mean", [0.02, 1.0])
@pytest.mark.parametrize("logit", [-2.3, 4.7])
def test_elements_far_above_the_mean_of_sparse_data_have_the_posterior_mean(mean, logit):
    head = BinnedHead(mean, 255)
    assert head.outputs == BinnedHead(100.0, 255).outputs
    t = time_of_logit(torch.tensor(logit, dtype=torch.float64))
    n = torch.arange(256).double()
    log_prior = max_entropy_log_probs(mean, 255)
    x = torch.tensor([[0, 2, 20, 100, 200, 254]])
    log_joint = log_prior + torch.distributions.Binomial(n, torch.exp(-t)).log_prob(
        torch.minimum(x[0].double()[:, None], n)
    )
    missing = n - x[0][:, None]
    posterior = torch.softmax(torch.where(missing >= 0, log_joint, -math.inf), 1)
    expected = (posterior * missing).sum(1)
    y = head(torch.zeros(1, head.outputs, 6), x, t).mean[0]
    torch.testing.assert_close(y.double(), expected, rtol=0.01, atol=0)


def test_a_scalar_time_of_another_device_is_moved_to_that_of_the_states(monkeypatch):
    """The sampler's times stay on the host."""
    head = BinnedHead(5.0, 16)
    devices = []
    tables_on = BinnedHead._tables_on

    def record_device(self, device):
        devices.append(device.type)
        return tables_on(self, device)

    monkeypatch.setattr(BinnedHead, "_tables_on", record_device)
    xt = torch.zeros(2, 3, dtype=torch.uint8, device="meta")
    head(torch.zeros(2, head.outputs, 3, device="meta"), xt, torch.tensor(0.5).double())
    assert devices == ["meta"]


def test_a_network_of_zeros_has_the_maximum_entropy_distribution():
    head = BinnedHead(33.0, 255)
    late = time_of_logit(torch.tensor(-12.0, dtype=torch.float64))
    prediction = head(torch.zeros(1, head.outputs, 1), torch.zeros(1, 1, dtype=torch.long), late)
    assert float(prediction.mean) == pytest.approx(33.0, rel=0.01)


@pytest.mark.parametrize("mean", [0.01, 33.0, 127.5, 200.0, 254.9])
def test_the_maximum_entropy_distribution_has_the_mean_and_is_exponential(mean):
    p = max_entropy_log_probs(mean, 255).exp()
    assert float(p @ torch.arange(256.0).double()) == pytest.approx(mean, rel=1e-6)
    ratios = p[1:4] / p[:3]
    torch.testing.assert_close(ratios, ratios[:1].expand(3), rtol=1e-6, atol=0)


def test_the_ends_of_the_range_have_bins_of_their_own():
    bins = BinnedHead(33.0, 255).bins
    assert (bins > 0).sum(0).eq(1).all()
    assert (bins[0] > 0).sum() == 1 and bins[0, 0] > 0
    assert (bins[-1] > 0).sum() == 1 and bins[-1, 255] > 0


def test_rows_of_a_batch_have_their_own_times_and_any_shape():
    head = BinnedHead(5.0, 16)
    generator = torch.Generator().manual_seed(0)
    xt = torch.randint(0, 17, (3, 2, 4, 5), generator=generator)
    raw = torch.randn(3, head.outputs, 2, 4, 5, generator=generator)
    t = torch.tensor([0.1, 1.0, 5.0]).double()
    together = head(raw, xt, t).mean
    assert together.shape == xt.shape
    for row in range(3):
        alone = head(raw[row : row + 1], xt[row : row + 1], t[row])
        torch.testing.assert_close(alone.mean[0], together[row])


@pytest.mark.parametrize("f", [-300.0, 0.0, 300.0])
@pytest.mark.parametrize("time", [1e-9, 0.7, 40.0])
def test_losses_and_gradients_are_finite_and_means_possible_at_the_extremes(f, time):
    head = BinnedHead(33.0, 255)
    xt = every_count(head)
    raw = torch.zeros(1, head.outputs, 256)
    raw[:, 3] = f
    raw.requires_grad_()
    t = torch.tensor([time]).double()
    prediction = head(raw, xt, t)
    assert (prediction.mean >= 0).all() and (prediction.mean <= (255 - xt) * 1.001).all()
    CountLoss(weighting="likelihood")(prediction, 255 - xt, t / 2, t).sum().backward()
    assert raw.grad is not None and raw.grad.isfinite().all()


@pytest.mark.parametrize(
    "arguments, message",
    [((0.0, 255), "mean count"), ((5.0, 255, 1), "intervals"), ((5.0, 2000), "1,023")],
)
def test_what_cannot_be_binned_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        BinnedHead(*arguments)


def test_the_default_sampler_of_counts_uses_the_mean():
    """The head has many outputs, but no distribution that a posterior bridge could draw from."""
    config = composed("dataset=counts", "dataset.path=x", "head=binned")
    counts = torch.arange(120).remainder(11).view(20, 6).to(torch.uint8)
    data = CountData("toy", counts[:16], counts[16:], 10)
    parts = CountDiffusion().describe_parts(config, data)
    assert "PosteriorBridge" not in str(parts["sampler"]) and parts["sampler"]["num_steps"] == 50
