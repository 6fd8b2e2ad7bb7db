"""Likelihoods and gradients are of what was seen, whatever stands in the place of what was not."""

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
SEEN = torch.rand(X0.shape, generator=GENERATOR) < 0.6


def model(max_count: int) -> BlackoutDiffusion:
    torch.manual_seed(0)
    elements = estimate_elements(X0, X0.float().mean(0))
    network = CountNetwork(ResidualMLP((6,), width=16, depth=1, knots=9), CountInputs((6,)))
    set_elements(network, elements)
    loss = CountLoss(weighting="likelihood")
    made = BlackoutDiffusion(network, GammaHead(elements), PureDeath(max_count), elements.mean, loss=loss)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    made.log = lambda *_: None
    return made


def of(x0: torch.Tensor, seen: torch.Tensor) -> dict[str, object]:
    numbers = torch.arange(len(x0))
    return {"x0": x0, "observed": seen, "position": numbers, "index": numbers, "batch_number": 3, "batch_size": len(x0)}


@pytest.mark.parametrize("max_count", [200, 900, 6000])
def test_what_is_missing_has_no_part_in_bounds(max_count: int) -> None:
    trained = model(max_count)
    nothing = torch.zeros_like(SEEN)
    denoiser, mean, share = mask_missing_entries(nothing, trained.denoiser(), trained.mean, trained.mean)
    v = (torch.arange(64).double() + 0.5) / 64

    def bound(of: Denoiser, x0: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        streams = SampleStreams(0, torch.arange(64)).step(0)
        return likelihood_bound(of, trained.process, x0, v, streams, mean=start)

    nats = bound(denoiser, X0 * 0, mean)
    assert float(nats.abs().max()) < 1e-9 and float(share.max()) == pytest.approx(1 / 6)  # type: ignore[union-attr]
    everything = torch.ones_like(SEEN)
    kept, mean, _ = mask_missing_entries(everything, trained.denoiser(), trained.mean, trained.mean)
    assert torch.allclose(bound(kept, X0, mean), bound(trained.denoiser(), X0, trained.mean))


def test_gradients_are_of_what_was_seen() -> None:
    grads = []
    for x0 in (X0 * SEEN, torch.where(SEEN, X0, 0)):
        trained = model(200)
        trained.training_step(of(x0, SEEN)).backward()
        grads.append([p.grad.clone() for p in trained.parameters() if p.grad is not None])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))
    trained = model(200)
    trained.training_step(of(X0, torch.zeros_like(SEEN))).backward()
    assert all(float(p.grad.abs().max()) == 0 for p in trained.parameters() if p.grad is not None)


def test_training_with_missing_entries_finds_the_means() -> None:
    whole = CountData("x", X0, X0, 200)
    assert set(whole.batch("train", torch.arange(2))) == {"x0"}
    trained = model(200)
    losses = [float(trained.training_step(of(X0 * SEEN, SEEN)).detach()) for _ in range(2)]
    assert losses[0] == losses[1]
