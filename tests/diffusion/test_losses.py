"""Losses and heads: weights, minima, gradients and numerical limits."""

import math

import pytest
import torch

from blackout.diffusion.heads import (
    BirthDeathHead,
    BoundedHead,
    LevelHead,
    ScaledHead,
    SoftplusHead,
    log_softplus,
)
from blackout.diffusion.losses import (
    BirthDeathLoss,
    CountLoss,
    CrossEntropy,
    RateLoss,
    StepLoss,
    poisson_loss,
)
from blackout.diffusion.predictions import CountPrediction
from blackout.diffusion.processes import BirthDeath, PureDeath, Uniform
from blackout.diffusion.survival import step_fraction
from blackout.diffusion.time_grids import fisher_times
from blackout.random import SampleStreams


def loss_weights(times: torch.Tensor, kind: str, weighting: str = "paper") -> torch.Tensor:
    """Return the weights of the count loss on a grid."""
    return CountLoss(kind, weighting=weighting).weights(times[:-1], times[1:])


def test_the_paper_weights_have_their_published_sums_and_ratio():
    t = fisher_times()
    finite = loss_weights(t, "finite_time")
    instantaneous = loss_weights(t, "instantaneous")
    assert finite.dtype == torch.float64 and finite.shape == (1000,)
    assert float(finite.sum()) == pytest.approx(1 - math.exp(-15), rel=1e-12)
    assert float(instantaneous.sum()) == pytest.approx(0.9925, abs=5e-5)
    ratio = instantaneous / finite
    assert float(ratio[0]) == pytest.approx(1.0, abs=1e-6) and float(ratio[-1]) == pytest.approx(
        0.985, abs=5e-4
    )
    assert float(ratio.min()) > 0.985 and float(ratio.max()) < 1
    assert float(finite[0]) == pytest.approx(3.06e-7, rel=1e-3) and int(finite.argmax()) in (
        499,
        500,
    )


def test_likelihood_weights_are_the_step_fractions():
    t = fisher_times()
    assert torch.allclose(
        loss_weights(t, "finite_time", "likelihood"), step_fraction(t[:-1], t[1:]), rtol=1e-12
    )
    rate = loss_weights(t, "instantaneous", "likelihood")
    assert torch.allclose(rate, t.diff() / torch.expm1(t[1:]), rtol=1e-12)
    # the geometric mean of the likelihood weights and a constant weight per e-fold of q
    growth = loss_weights(t, "instantaneous", "growth")
    assert torch.allclose(growth.square(), rate * t.diff() / -torch.expm1(-t[1:]), rtol=1e-12)


@pytest.mark.parametrize(
    "kind, weighting, scale",
    [("poisson", "paper", 1.0), ("finite_time", "mle", 1.0), ("finite_time", "paper", 0.0)],
)
def test_invalid_losses_are_refused(kind, weighting, scale):
    with pytest.raises(ValueError):
        CountLoss(kind, weighting=weighting, scale=scale)


@pytest.mark.parametrize(
    "loss, process, head",
    [
        (CountLoss, PureDeath(4), ScaledHead(2.0)),
        (BirthDeathLoss, BirthDeath(4, 2.0), BirthDeathHead(2.0)),
        *(
            (loss, Uniform(4), LevelHead(Uniform(4), 4))
            for loss in (CrossEntropy, StepLoss, RateLoss)
        ),
    ],
)
def test_a_scale_multiplies_every_loss(loss, process, head):
    x0 = torch.randint(0, 5, (3, 6), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    s = torch.tensor([0.2, 0.5, 1.0]).double()
    t = torch.tensor([0.4, 0.9, 1.7]).double()
    xt, target = process.observe(x0, t, SampleStreams(0, torch.arange(3)).step(0))
    prediction = head(
        torch.randn(3, head.outputs, 6, generator=torch.Generator().manual_seed(1)), xt, t
    )
    unscaled = loss()(prediction, target, s, t)
    assert unscaled.shape == x0.shape and torch.allclose(
        loss(scale=3.0)(prediction, target, s, t), 3 * unscaled
    )
    if loss is StepLoss:
        extra = loss(cross_entropy=0.25)(prediction, target, s, t) - unscaled
        assert torch.allclose(extra, 0.25 * CrossEntropy()(prediction, target, s, t), atol=1e-6)


def test_the_loss_is_minimal_at_the_mean_of_the_target():
    target = torch.tensor([0, 1, 5, 5, 9])
    y = torch.linspace(0.05, 12, 2000)[:, None]
    mean_loss = poisson_loss(CountPrediction(y, y.log()), target.expand(2000, 5)).mean(1)
    assert float(y[mean_loss.argmin()]) == pytest.approx(4.0, abs=0.01)


def test_the_target_of_section_2_6_as_printed_is_biased():
    """Training on X_0 - X_{t_{k-1}} learns thinned counts, too few by a factor 1 - r.

    References: Santos et al. 2023, section 2.6.
    """
    process = PureDeath(20)
    s = torch.tensor(0.5).double()
    t = torch.tensor(1.5).double()
    generator = torch.Generator().manual_seed(0)
    x0 = torch.full((200_000,), 20, dtype=torch.uint8)
    xt = process.sample(x0, t, generator)
    xs = process.bridge(x0, xt, s, t, generator)
    correct_mean = (x0.int() - xt.int()).double().mean()
    printed_mean = (x0.int() - xs.int()).double().mean()
    assert float(printed_mean / correct_mean) == pytest.approx(
        float(1 - step_fraction(s, t)), rel=0.01
    )
    assert abs(float(printed_mean / correct_mean) - 1) > 0.3


@pytest.mark.parametrize("f", [-3.0, 0.0, 2.0, 50.0])
def test_gradient_is_sigmoid_times_one_minus_the_ratio(f):
    raw = torch.full((1, 1, 1), f, requires_grad=True)
    prediction = SoftplusHead()(raw, torch.zeros(1, 1), torch.tensor(1.0))
    poisson_loss(prediction, torch.tensor([[3]])).sum().backward()
    y = math.log1p(math.exp(f))
    assert raw.grad is not None
    assert float(raw.grad) == pytest.approx(1 / (1 + math.exp(-f)) * (1 - 3 / y), rel=1e-5)


@pytest.mark.parametrize("head", [SoftplusHead(), ScaledHead(5.0), BoundedHead(5.0, 255)])
@pytest.mark.parametrize("f", [-300.0, -200.0, -104.0, -15.0, 0.0, 300.0])
@pytest.mark.parametrize("target", [0, 7])
def test_losses_and_gradients_are_finite_at_the_extremes(head, f, target):
    raw = torch.full((1, 1, 4), f, requires_grad=True)
    prediction = head(raw, torch.zeros(1, 4, dtype=torch.uint8), torch.tensor([1e-7]).double())
    loss = CountLoss(weighting="likelihood")(
        prediction,
        torch.full((1, 4), target),
        torch.tensor([0.5e-7]).double(),
        torch.tensor([1e-7]).double(),
    )
    loss.sum().backward()
    assert raw.grad is not None
    assert (
        loss.dtype == torch.float32
        and torch.isfinite(loss).all()
        and torch.isfinite(raw.grad).all()
    )


def test_log_softplus_matches_float64_everywhere():
    f = torch.linspace(-60, 60, 2401)
    exact = torch.log(torch.log1p(torch.exp(f.double())))
    assert torch.allclose(log_softplus(f).double(), exact, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("head", [SoftplusHead(), ScaledHead(5.0), BoundedHead(5.0, 255)])
def test_heads_predict_a_mean_and_its_logarithm(head):
    raw = torch.linspace(-10, 10, 64).view(2, 1, 32)
    xt = torch.randint(
        0, 200, (2, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    prediction = head(raw, xt, torch.tensor([0.01, 3.0]).double())
    assert prediction.mean.shape == (2, 32)
    assert torch.allclose(prediction.mean.log(), prediction.log_mean, atol=1e-5)


def test_a_bounded_head_predicts_no_more_than_what_can_be_missing():
    raw = torch.linspace(-20, 300, 256).view(1, 1, 256).requires_grad_()
    xt = torch.arange(256, dtype=torch.uint8)[None]
    prediction = BoundedHead(33.0, 255)(raw, xt, torch.tensor(0.7).double())
    headroom = 255 - xt.double()
    rounding = 1 + 1e-6  # of a float32 logarithm
    assert (prediction.mean <= headroom).all() and (
        prediction.expected <= rounding * headroom
    ).all()
    assert prediction.mean[0, -1] == 0 and prediction.expected[0, -1] == 0
    CountLoss()(
        prediction, torch.zeros_like(xt), torch.tensor(0.6).double(), torch.tensor(0.7).double()
    ).sum().backward()
    assert raw.grad is not None and raw.grad.isfinite().all()


@pytest.mark.parametrize("f", [-80.0, -9.0, 0.0, 4.0, 90.0])
def test_a_bounded_head_is_the_expected_number_of_filled_slots(f):
    """Poisson(s) births that fall into h slots at random fill h (1 - e^(-s / h)) of them."""
    t = torch.tensor(0.3, dtype=torch.float64)
    xt = torch.tensor([[0, 100, 200, 250, 254]], dtype=torch.uint8)
    raw = torch.full((1, 1, 5), f)
    unbounded = ScaledHead(33.0)(raw, xt, t).expected
    headroom = 255 - xt.double()
    exact = -headroom * torch.expm1(-unbounded / headroom)
    prediction = BoundedHead(33.0, 255)(raw, xt, t)
    torch.testing.assert_close(prediction.expected, exact, rtol=2e-5, atol=0)
    torch.testing.assert_close(prediction.mean.double(), exact, rtol=1e-5, atol=1e-37)


def test_losses_stay_in_float32_under_autocast():
    raw = torch.randn(2, 1, 3, 4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        prediction = ScaledHead(3.0)(
            raw.bfloat16(),
            torch.zeros(2, 3, 4, 4, dtype=torch.uint8),
            torch.tensor([0.3, 2.0]).double(),
        )
        s = torch.tensor([0.2, 1.9]).double()
        t = torch.tensor([0.3, 2.0]).double()
        loss = CountLoss()(prediction, torch.ones(2, 3, 4, 4), s, t)
    assert prediction.mean.dtype == loss.dtype == torch.float32
