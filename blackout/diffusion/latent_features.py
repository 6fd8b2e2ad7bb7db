"""Representations of counts by a trained network."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from blackout.diffusion.model import BlackoutDiffusion
from blackout.errors import ensure
from blackout.networks import ResidualMLP


def has_latent_features(model: BlackoutDiffusion) -> bool:
    """Return whether the network of a model is an MLP, which has a latent representation."""
    return any(isinstance(part, ResidualMLP) for part in model.averaged.modules())


@torch.no_grad()
def latent_features(model: BlackoutDiffusion, counts: Tensor) -> Tensor:
    """Return the features of an MLP before its last layer, in which similar samples are close.

    The network is evaluated at the time at which half of the units are left, with expected counts.

    References: this project; checked in tests/cli/test_configs.py.

    Args:
        model: of vectors, whose network is an MLP.
        counts: integers [n, *shape].

    Returns:
        float32 [n, width] on the CPU.

    Raises:
        ValueError: another network, or counts of another shape.
    """
    norms = [part.norm for part in model.averaged.modules() if isinstance(part, ResidualMLP)]
    ensure(
        norms, "latent features need a model whose network is an MLP, as those of vectors of counts"
    )
    counts = torch.as_tensor(counts, device=model.device)
    shape = list(model.shape)
    ensure(
        counts.shape[1:] == model.shape, f"counts must be [n, *{shape}], not {list(counts.shape)}"
    )
    features: list[Tensor] = []

    def keep(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        features.append(output.float().cpu())

    half_life = torch.tensor(math.log(2)).double()
    with norms[0].register_forward_hook(keep), model.sampler.evaluating(model.averaged):
        model.denoiser()(counts / 2, half_life)
    return features[0]
