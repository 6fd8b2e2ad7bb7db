"""Inputs scaled by every element's mean and dispersion, and the networks for them."""

from __future__ import annotations

import math

import pytest
import torch

from blackout.config.descriptions import complete_description
from blackout.diffusion import GammaHead, PureDeath, poisson_loss
from blackout.diffusion.data_stats import estimate_elements
from blackout.networks import (
    CountInputs,
    CountNetwork,
    Elements,
    ResidualMLP,
    SequenceConvolution,
    body_for,
    set_elements,
)
from blackout.networks.elements import estimate_concentration
from blackout.networks.mlp import ElementCurves

T = torch.tensor(0.7, dtype=torch.float64)


def test_moments_estimate_concentration_and_gain() -> None:
    torch.manual_seed(0)
    means = torch.tensor([2.0, 20.0, 200.0])
    gain = torch.distributions.Gamma(torch.tensor(4.0), torch.tensor(4.0)).sample((40_000, 1))
    rates = torch.distributions.Gamma(torch.tensor(2.0), torch.tensor(2.0)).sample((40_000, 3))
    elements = estimate_elements(torch.poisson(means * gain * rates).long(), means)
    # 1 + 1/r = (1 + 1/4)(1 + 1/2), and the gain's 1/R = 1/4
    assert elements.gain.item() == pytest.approx(4.0, rel=0.06)
    assert torch.allclose(elements.concentration, torch.full((3,), 1 / 0.875), rtol=0.06)
    assert torch.allclose(elements.conditional_concentration, torch.full((3,), 2.0), rtol=0.06)


@pytest.mark.parametrize("num_zero", [0, 2])
def test_a_single_nonzero_element_has_no_gain(num_zero: int) -> None:
    """The estimate must not be 0 / 0: the dispersion belongs to the element alone."""
    x = torch.poisson(torch.full((2000, 1), 3.0), generator=torch.Generator().manual_seed(0)).long()
    counts = torch.cat([x, torch.zeros(2000, num_zero).long()], 1)
    elements = estimate_elements(counts, torch.full((1 + num_zero,), 3.0))
    assert elements.gain.item() == 1e4
    assert float(elements.conditional_concentration[0]) > 50


def test_inputs_of_the_largest_counts_are_finite() -> None:
    """At x = 0 and m = 10^8, float32 rounds (x - m) / (r + m) to -1, where log1p is -inf."""
    inputs = CountInputs([1])
    inputs.set_elements(Elements(torch.tensor([1e8]), torch.tensor([0.3]), torch.tensor(1e4)))
    z = inputs(torch.tensor([[0], [3], [2**31 - 1]]), torch.zeros(3).double())
    r = 0.3
    x = torch.tensor([[0.0], [3.0], [2.0**31]]).double()
    m = 1e8
    expected = torch.log((r + x) / (r + m)) * math.sqrt(r * (r + m) / (1 + m))
    assert torch.allclose(z.double(), expected, rtol=1e-5)


def test_counts_without_dispersion_are_poisson() -> None:
    mean = torch.tensor([5.0, 5.0], dtype=torch.float64)
    assert estimate_concentration(mean, torch.tensor([5.0, 0.0], dtype=torch.float64)).tolist() == [
        60_000.0,
        60_000.0,
    ]


def test_a_network_of_zeros_predicts_the_posterior_mean_of_a_negative_binomial_count() -> None:
    """Against sums over X_0 of P(X_0) Binomial(X_t; X_0, q)."""
    r = 1.7
    mean = 6.0
    elements = Elements(torch.tensor([mean]), torch.tensor([r]), torch.tensor(1e4))
    xt = torch.arange(9)[:, None]
    y = GammaHead(elements)(torch.zeros(9, 1, 1), xt, T).mean.flatten()
    x0 = torch.arange(400, dtype=torch.float64)
    q = torch.exp(-T)
    conditional = (1 + 1e-4) / (1 / r - 1e-4)
    p = torch.tensor(mean / (conditional + mean), dtype=torch.float64)
    log_prior = torch.lgamma(x0 + conditional) + x0 * torch.log(p) - torch.lgamma(x0 + 1)
    for k in range(9):
        possible = x0 >= k
        missing = (x0 - k).clamp(min=0)
        log_weight = (
            log_prior + torch.lgamma(x0 + 1) - torch.lgamma(missing + 1) + missing * torch.log1p(-q)
        )
        weight = torch.where(possible, torch.exp(log_weight - log_weight[possible].max()), 0.0)
        exact = float((weight * (x0 - k)).sum() / weight.sum())
        assert float(y[k]) == pytest.approx(exact, rel=2e-3)  # the gain has a small effect


def test_with_a_gain_the_posterior_mean_is_that_of_brighter_elements() -> None:
    """In a sample with gain 2, mean missing counts where X_t is k agree within four errors."""
    torch.manual_seed(0)
    concentration = 1.5
    mean = 3.0
    q = torch.exp(-T)
    elements = Elements(
        torch.full((20_000,), mean),
        torch.full((20_000,), 1 / ((1 + 1 / concentration) * (1 + 1 / 4) - 1)),
        torch.tensor(4.0),
    )
    x0 = torch.poisson(
        torch.distributions.Gamma(concentration, concentration / (2 * mean)).sample((1, 20_000))
    )
    xt = torch.binomial(x0, q.float().expand(x0.shape))
    y = GammaHead(elements)(torch.zeros(1, 1, 20_000), xt.long(), T).mean
    for k in (0, 2, 6):
        missing = (x0 - xt)[xt == k]
        assert (
            abs(float(missing.mean() - y[xt == k].mean()))
            < 4 * float(missing.std()) / len(missing) ** 0.5
        )


def test_every_element_has_its_scale() -> None:
    elements = Elements(
        torch.tensor([0.01, 1.0, 3000.0]), torch.tensor([0.05, 0.5, 50.0]), torch.tensor(10.0)
    )
    network = CountNetwork(torch.nn.Identity(), CountInputs([3]))
    set_elements(network, elements)
    x = torch.stack([torch.poisson(elements.mean) for _ in range(50)]).long()
    z = network.inputs(x, T.expand(50))
    assert z.shape == (50, 3) and bool(torch.isfinite(z).all()) and float(z.abs().max()) < 20
    lower, upper = (network.inputs(torch.full((1, 3), k), T.expand(1)) for k in (0, 1))
    assert bool((upper > lower).all())
    with pytest.raises(ValueError, match=r"must have the shape \[3\], not \[2\]"):
        network.inputs.set_elements(Elements(torch.ones(2), torch.ones(2), torch.ones(())))


def test_the_head_has_no_bounds_and_keeps_small_means_in_the_logarithm() -> None:
    elements = Elements(torch.ones(1), torch.ones(1), torch.ones(()))
    prediction = GammaHead(elements)(
        torch.tensor([[[-80.0]], [[50.0]]]), torch.zeros(2, 1).int(), T
    )
    assert float(prediction.log_mean[0]) < -79 and float(prediction.mean[1]) > 15
    loss = poisson_loss(prediction, torch.tensor([[0], [3]]))
    assert bool(torch.isfinite(loss).all())


@pytest.mark.parametrize(
    ("shape", "ordered", "own"),
    [
        ([5], False, True),
        ([64], True, False),
        ([1, 8, 8], False, False),
    ],
)
def test_pixels_and_bins_are_predicted_from_the_gain_and_their_neighbours(
    shape: list[int], ordered: bool, own: bool
) -> None:
    head = {"base": {"_target_": "blackout.diffusion.GammaHead", "elementwise_posterior": None}}
    assert (
        complete_description(head, {"shape": shape, "ordered": ordered}, "head")["base"][
            "elementwise_posterior"
        ]
        is own
    )
    elements = Elements(torch.full((2,), 3.0), torch.full((2,), 0.5), torch.tensor(8.0))
    y = GammaHead(elements, own)(torch.zeros(2, 1, 2), torch.tensor([[6, 0], [3, 3]]), T).mean
    assert (float(y[0, 0]) > 2 * float(y[0, 1])) is own and float(y[1, 0]) == pytest.approx(
        float(y[1, 1])
    )


def test_the_head_has_the_canonical_link_of_the_poisson_loss() -> None:
    """d/df (y - N log y) = y - N: where a bias has converged, totals are predicted without one."""
    elements = Elements(torch.tensor([2.0]), torch.tensor([1.5]), torch.tensor(10.0))
    f = torch.linspace(-6, 2.9, 9)[:, None, None].requires_grad_()
    missing = torch.arange(9)[:, None]
    prediction = GammaHead(elements)(f, torch.arange(9).flip(0)[:, None], T)
    (slope,) = torch.autograd.grad(poisson_loss(prediction, missing).sum(), f)
    torch.testing.assert_close(
        slope[:, 0], (prediction.mean - missing).detach(), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    ("shape", "levels", "kind"),
    [
        ((7,), None, "ResidualMLP"),
        ((16,), 5, "SequenceConvolution"),
        ((1, 8, 8), None, "UNet"),
        ((2, 5, 6), None, "UNet"),
        ((3, 32, 32), None, "UNet"),
    ],
)
def test_a_body_fits_the_data(shape: tuple[int, ...], levels: int | None, kind: str) -> None:
    body = body_for(shape, outputs=2, levels=levels, num_classes=3)
    assert type(body).__name__ == kind
    raw = body(torch.zeros(2, *shape), torch.tensor([0.0, 900.0]), torch.tensor([0, 2]))
    assert raw.shape == (2, 2 * shape[0], *shape[1:])


def test_elements_are_distinguished_and_depend_on_each_other() -> None:
    torch.manual_seed(0)
    for body in (
        ResidualMLP((4,), width=8, depth=1, knots=9),
        SequenceConvolution((4,), levels=6, width=8, depth=2),
    ):
        with torch.no_grad():
            for parameter in body.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.3)
        x = torch.zeros(1, 4)
        moved = x.clone()
        moved[0, 1] = 3
        reads_counts = isinstance(body, ResidualMLP)
        before = body(x, torch.ones(1), **({"counts": x} if reads_counts else {}))
        after = body(moved, torch.ones(1), **({"counts": moved} if reads_counts else {}))
        change = (after - before)[0]
        assert bool((change.abs() > 1e-5).all()) and len(set(change.tolist())) == 4


def test_the_curve_of_an_element_interpolates_between_knots() -> None:
    """Curves are linear in log2(1 + count) between knots at 0, 1, 3, 7, and constant beyond."""
    curves = ElementCurves(2, 1, knots=4)
    with torch.no_grad():
        for parameter in curves.parameters():
            parameter.zero_()
        curves.individual.bias.copy_(torch.tensor([5.0, -1.0, 2.0, 4.0, 0.0, 0.0, 0.0, 1.0]))
        curves.shared.bias.copy_(torch.tensor([0.0, 1.0, 0.0, 0.0]))
    raw = curves(
        torch.tensor([[0, 0], [1, 1], [3, 3], [7, 7], [9000, 9000]], dtype=torch.int32),
        torch.ones(5),
    )
    assert raw.tolist() == [[5, 0], [0, 1], [2, 0], [4, 1], [4, 1]]
    between = math.log2(3) - 1
    assert curves(torch.tensor([[2, 2]]), torch.ones(1))[0].tolist() == pytest.approx(
        [2 * between, 1 - between]
    )


def test_the_sequence_network_refuses_images() -> None:
    with pytest.raises(ValueError, match="sequences"):
        SequenceConvolution((1, 8, 8))
    with pytest.raises(ValueError, match="odd kernel"):
        SequenceConvolution((8,), kernel=2)


def test_the_process_is_exact_for_a_negative_binomial_element() -> None:
    """Mean and share of zeros of samples with the exact head agree within four standard errors."""
    from blackout.diffusion.model import BlackoutDiffusion
    from blackout.diffusion.sampler import Sampler

    elements = Elements(torch.tensor([3.0]), torch.tensor([0.8]), torch.tensor(1e4))
    network = CountNetwork(ResidualMLP((1,), width=8, depth=1, knots=9), CountInputs([1]))
    set_elements(network, elements)
    sampler = Sampler(batch_size=4000)
    model = BlackoutDiffusion(
        network, GammaHead(elements), PureDeath(200), elements.mean, sampler=sampler
    ).eval()
    samples = model.sample(4000, seed=1).double()
    std = (3 + 9 / 0.8) ** 0.5
    assert abs(float(samples.mean()) - 3) < 4 * std / 4000**0.5
    zeros = (0.8 / 3.8) ** 0.8
    assert (
        abs(float((samples == 0).double().mean()) - zeros) < 4 * (zeros * (1 - zeros) / 4000) ** 0.5
    )
