"""Sampling never waits for the device: on fake tensors whatever asks for a value fails."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from blackout.diffusion.correctors import BirthDeath as BirthDeathCorrector
from blackout.diffusion.correctors import ThinAndBridge
from blackout.diffusion.counting import CountingDenoiser
from blackout.diffusion.guidance import GuidedDenoiser
from blackout.diffusion.heads import BirthDeathHead, LevelHead, LogisticMixtureHead, ScaledHead, VarianceHead
from blackout.diffusion.kernels import (
    BinomialBridge,
    BirthDeathBridge,
    LevelBridge,
    PanjerLeap,
    PoissonLeap,
    PosteriorBridge,
    PosteriorTrapezoidal,
    TauLeap,
    Trapezoidal,
    nearest_rounding,
)
from blackout.diffusion.module import BlackoutDiffusion
from blackout.diffusion.predictions import Prediction
from blackout.diffusion.processes import Absorbing, BirthDeath, PureDeath, Uniform
from blackout.diffusion.samplers import Sampler
from blackout.errors import UserError
from blackout.networks import CountNetwork, ResidualMLP, StandardisedInputs
from blackout.random import SampleStreams, counts, gamma
from tests.devices import CUDA, Watch, fake_cuda

SHAPE = (1, 8, 8)
DEATH, IMMIGRATION, UNIFORM, ABSORBING = PureDeath(16), BirthDeath(16, 5.0), Uniform(16), Absorbing(16)
COUNT, PAIR = ScaledHead(5.0), BirthDeathHead(5.0)
MIXTURE = LogisticMixtureHead(COUNT, 16, 5.0, 3.0)
STEPS = [
    (DEATH, COUNT, BinomialBridge()), (DEATH, COUNT, BinomialBridge(nearest_rounding)), (DEATH, COUNT, PoissonLeap()),
    (DEATH, COUNT, Trapezoidal()), (DEATH, VarianceHead(COUNT), PanjerLeap()), (DEATH, COUNT, TauLeap()),
    (DEATH, MIXTURE, PosteriorBridge()), (DEATH, MIXTURE, PosteriorTrapezoidal()),
    (IMMIGRATION, PAIR, BirthDeathBridge()), (IMMIGRATION, PAIR, TauLeap()),
    (UNIFORM, LevelHead(UNIFORM, 16), LevelBridge()), (ABSORBING, LevelHead(ABSORBING, 16), TauLeap()),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _few_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the loops of fixed length: which ones are there does not depend on how long they are."""
    for module, name in (
        (counts, "_SEARCH_LIMIT"),
        (counts, "_ATTEMPTS"),
        (sys.modules[gamma.__module__], "_ATTEMPTS"),
    ):
        monkeypatch.setattr(module, name, 2)


@pytest.mark.parametrize(
    ("process", "head", "kernel"), [case for case in STEPS if case[1:] not in ((COUNT, TauLeap()), (PAIR, TauLeap()))]
)
@pytest.mark.parametrize("corrector", [None, ThinAndBridge(), BirthDeathCorrector()])
@pytest.mark.parametrize("last", [False, True])
def test_no_sampling_step_waits(process: Any, head: Any, kernel: Any, corrector: Any, last: bool) -> None:
    if (corrector, last) != (None, False) and not (
        process is DEATH and isinstance(kernel, BinomialBridge | PoissonLeap)
    ):
        pytest.skip("one combination is enough")
    with fake_cuda(), torch.no_grad():
        raw = torch.zeros(2, head.outputs, *SHAPE)

        def plain(xt: Tensor, t: Tensor) -> Prediction:
            return head(raw, xt, t)

        denoiser = CountingDenoiser(GuidedDenoiser(plain, plain, 2.0, 16) if kernel == PoissonLeap() else plain)
        xt = torch.zeros(2, *SHAPE, dtype=torch.uint8)
        streams = SampleStreams(0, torch.arange(2))
        s, t = (torch.tensor(time, dtype=torch.float64, device="cpu") for time in (0.0 if last else 0.3, 0.4))
        for step in (1, 0):  # the first may fill caches
            with Watch() if step == 0 else torch.no_grad():
                xs = kernel(denoiser, process, xt, s, t, streams.at(step))
                if corrector is not None and not last:
                    xs = corrector(kernel, denoiser, process, xs, s, t, streams.at(step))
        assert xs.device == CUDA and xs.dtype == xt.dtype and xs.shape == xt.shape


@pytest.mark.parametrize(
    ("process", "head", "kernel"), [case for case in STEPS if not isinstance(case[2], PosteriorTrapezoidal)]
)
def test_a_network_that_gives_no_numbers_is_refused(process: Any, head: Any, kernel: Any) -> None:
    network = CountNetwork(ResidualMLP(SHAPE, head.outputs, width=8, depth=1), StandardisedInputs(5.0, 3.0))
    torch.nn.init.constant_(network.body.head.bias, torch.nan)
    model = BlackoutDiffusion(network, head, process, torch.ones(SHAPE))
    with pytest.raises(UserError, match="not finite"):
        model.sample(2, sampler=Sampler(kernel, num_steps=3))
