"""Likelihoods and gradients depend on observed entries only."""

from __future__ import annotations

import pytest
import torch

from blackout.data import CountData
from blackout.diffusion import BlackoutDiffusion, CountLoss, GammaHead, PureDeath
from blackout.diffusion.data_stats import estimate_elements
from blackout.diffusion.likelihood import likelihood_bound
from blackout.diffusion.missing_entries import mask_missing_entries
from blackout.diffusion.predictions import Denoiser
from blackout.networks import CountInputs, CountNetwork, ResidualMLP, set_elements
from blackout.random import SampleStreams

GENERATOR = torch.Generator().manual_seed(0)
X0 = torch.poisson(torch.rand(64, 6, generator=GENERATOR) * 9, generator=GENERATOR).int()
OBSERVED = torch.rand(X0.shape, generator=GENERATOR) < 0.6


def make_model(max_count: int) -> BlackoutDiffusion:
    """Return a model with random weights."""
    torch.manual_seed(0)
    elements = estimate_elements(X0, X0.float().mean(0))
    network = CountNetwork(ResidualMLP((6,), width=16, depth=1, knots=9), CountInputs((6,)))
    set_elements(network, elements)
    loss = CountLoss(weighting="likelihood")
    model = BlackoutDiffusion(
        network, GammaHead(elements), PureDeath(max_count), elements.mean, loss=loss
    )
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.log = lambda *_: None
    return model


def make_batch(x0: torch.Tensor, observed: torch.Tensor) -> dict[str, object]:
    """Return a batch for `training_step`."""
    indices = torch.arange(len(x0))
    return {
        "x0": x0,
        "observed": observed,
        "position": indices,
        "index": indices,
        "batch_number": 3,
        "batch_size": len(x0),
    }


@pytest.mark.parametrize("max_count", [200, 900, 6000])
def test_missing_entries_do_not_affect_bounds(max_count: int) -> None:
    model = make_model(max_count)
    none_observed = torch.zeros_like(OBSERVED)
    denoiser, start_mean, share = mask_missing_entries(
        none_observed, model.denoiser(), model.data_mean, model.data_mean
    )
    v = (torch.arange(64).double() + 0.5) / 64

    def bound(denoiser: Denoiser, x0: torch.Tensor, data_mean: torch.Tensor) -> torch.Tensor:
        streams = SampleStreams(0, torch.arange(64)).step(0)
        return likelihood_bound(denoiser, model.process, x0, v, streams, data_mean=data_mean)

    nats = bound(denoiser, X0 * 0, start_mean)
    assert float(nats.abs().max()) < 1e-9 and float(share.max()) == pytest.approx(1 / 6)  # type: ignore[union-attr]
    all_observed = torch.ones_like(OBSERVED)
    masked_denoiser, start_mean, _ = mask_missing_entries(
        all_observed, model.denoiser(), model.data_mean, model.data_mean
    )
    assert torch.allclose(
        bound(masked_denoiser, X0, start_mean), bound(model.denoiser(), X0, model.data_mean)
    )


def test_missing_entries_do_not_affect_gradients() -> None:
    grads = []
    for x0 in (X0, X0 * OBSERVED, torch.where(OBSERVED, X0, 200 - X0)):
        model = make_model(200)
        model.training_step(make_batch(x0, OBSERVED)).backward()
        grads.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for gradient in grads[1:]:
        assert all(torch.equal(a, b) for a, b in zip(grads[0], gradient, strict=True))
    model = make_model(200)
    model.training_step(make_batch(X0, torch.zeros_like(OBSERVED))).backward()
    assert all(float(p.grad.abs().max()) == 0 for p in model.parameters() if p.grad is not None)


def test_training_steps_with_missing_entries_are_deterministic() -> None:
    complete = CountData("x", X0, X0, 200)
    assert set(complete.batch("train", torch.arange(2))) == {"x0"}
    model = make_model(200)
    losses = [
        float(model.training_step(make_batch(X0 * OBSERVED, OBSERVED)).detach()) for _ in range(2)
    ]
    assert losses[0] == losses[1]
