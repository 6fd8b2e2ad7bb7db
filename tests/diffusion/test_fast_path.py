"""Reduced precision and memory formats change results only by rounding, and leak no memory."""

import resource

import pytest
import torch

from blackout.diffusion.heads import ScaledHead, SoftplusHead
from blackout.diffusion.kernels import PoissonLeap
from blackout.diffusion.losses import CountLoss
from blackout.diffusion.model import BlackoutDiffusion
from blackout.diffusion.processes import PureDeath
from blackout.diffusion.sampler import Sampler
from blackout.diffusion.time_grids import fisher_times
from blackout.networks import CountNetwork, NCSNpp, PaperInputs, ResidualMLP, StandardisedInputs
from blackout.random import SampleStreams


@pytest.fixture(scope="module")
def networks():
    """The same network twice: in the default and in channels_last memory format."""
    pair = []
    for channels_last in (False, True):
        torch.manual_seed(0)
        body = NCSNpp(
            (3, 16, 16),
            channels=16,
            multipliers=(1, 2),
            blocks_per_level=1,
            attention_resolutions=(8,),
        )
        with torch.no_grad():
            for parameter in body.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.03)
        pair.append(CountNetwork(body, PaperInputs(255), channels_last).eval())
    return pair


def losses(network, bfloat16):
    """Return the weighted loss of 32 images over the schedule, and the gradient of its mean."""
    torch.manual_seed(1)
    x0 = torch.randint(0, 256, (32, 3, 16, 16), dtype=torch.uint8)
    times = fisher_times(1000)[1 + torch.arange(32) * 31]
    xt = PureDeath(255).sample(x0, times, SampleStreams(0, torch.arange(32)).step(0))
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        loss = CountLoss(scale=1000)(
            SoftplusHead()(network(xt, times), xt, times), x0.int() - xt.int(), times / 2, times
        )
    network.zero_grad()
    loss.mean().backward()
    assert loss.dtype == torch.float32
    return loss.detach().flatten(1).mean(1), torch.cat(
        [p.grad.flatten() for p in network.parameters()]
    )


def test_losses_and_gradients_agree_in_every_precision_and_format(networks):
    default_network, channels_last_network = networks
    reference, gradient = losses(default_network, bfloat16=False)
    for network, bfloat16, tolerance in (
        (channels_last_network, False, 1e-4),
        (default_network, True, 0.03),
        (channels_last_network, True, 0.03),
    ):
        loss, other_gradient = losses(network, bfloat16)
        assert torch.allclose(
            loss, reference, rtol=tolerance, atol=tolerance * float(reference.abs().mean())
        )
        assert float((other_gradient - gradient).norm() / gradient.norm()) < 2 * tolerance


def test_kernels_accept_predictions_in_any_memory_format(networks):
    module = BlackoutDiffusion(
        networks[1], SoftplusHead(), PureDeath(255), torch.full((3, 16, 16), 50.0)
    )
    for kernel in (PoissonLeap(), Sampler().kernel):
        assert module.sample(2, sampler=Sampler(kernel=kernel, num_steps=3)).shape == (2, 3, 16, 16)


def make_mlp():
    """Return a small model with an MLP."""
    torch.manual_seed(0)
    network = CountNetwork(ResidualMLP((1, 8, 8), width=8, depth=1), StandardisedInputs(8.0, 3.0))
    return BlackoutDiffusion(network, ScaledHead(8.0), PureDeath(16), torch.full((1, 8, 8), 8.0))


def test_bfloat16_sampling_uses_autocast_and_keeps_the_mean():
    module = make_mlp()
    autocast_enabled = []
    module.network.register_forward_pre_hook(
        lambda *_: autocast_enabled.append(torch.is_autocast_enabled("cpu"))
    )
    samples = {
        bfloat16: module.sample(200, sampler=Sampler(num_steps=20, bfloat16=bfloat16))
        for bfloat16 in (False, True)
    }
    assert autocast_enabled == [False] * 39 + [True] * 39
    means = [float(counts.double().mean()) for counts in samples.values()]
    assert means[0] > 1 and abs(means[0] - means[1]) < 0.05


@pytest.mark.deep
def test_sampling_does_not_leak_memory():
    module = make_mlp()
    sampler = Sampler(num_steps=500)
    module.sample(4, sampler=sampler)
    peak_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for seed in range(2):
        module.sample(4, seed, sampler=sampler)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_before < 5 * 1024
