"""Neither training nor sampling waits for the device: on fake tensors whatever asks for a value fails."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.devices import CUDA, fake_cuda
from blackout.diffusion.correctors import LevelCorrector, ThinAndBridge
from blackout.diffusion.guidance import Guidance, GuidedDenoiser
from blackout.diffusion.heads import BirthDeathHead, LevelHead, LogisticMixtureHead, ScaledHead
from blackout.diffusion.kernels import (
    BinomialBridge,
    BirthDeathBridge,
    LevelBridge,
    PoissonLeap,
    PosteriorBridge,
    PosteriorTrapezoidal,
    ReverseStep,
    TauLeap,
    Trapezoidal,
    nearest_rounding,
)
from blackout.diffusion.losses import BirthDeathLoss, CountLoss, CrossEntropy, Loss
from blackout.diffusion.model import BlackoutDiffusion
from blackout.diffusion.predictions import Prediction
from blackout.diffusion.processes import Absorbing, BirthDeath, PureDeath, Uniform
from blackout.diffusion.sampler import Sampler
from blackout.diffusion.sampling import CountingDenoiser
from blackout.diffusion.schedules import Schedule
from blackout.errors import UserError
from blackout.networks import CountNetwork, ResidualMLP, StandardisedInputs, UNet
from blackout.random import SampleStreams, torch_draws
from blackout.training.lightning_module import NonFiniteGuard, TrainingModule
from tests.devices import Watch

SHAPE = (1, 8, 8)
DEATH, IMMIGRATION, UNIFORM, ABSORBING = PureDeath(16), BirthDeath(16, 5.0), Uniform(16), Absorbing(16)
COUNT, PAIR = ScaledHead(5.0), BirthDeathHead(5.0)
MIXTURE = LogisticMixtureHead(COUNT, 16, 5.0, 3.0)
STEPS = [
    (DEATH, COUNT, BinomialBridge()), (DEATH, COUNT, BinomialBridge(nearest_rounding)), (DEATH, COUNT, PoissonLeap()),
    (DEATH, COUNT, Trapezoidal()), (DEATH, COUNT, TauLeap()),
    (DEATH, MIXTURE, PosteriorBridge()), (DEATH, MIXTURE, PosteriorTrapezoidal()),
    (IMMIGRATION, PAIR, BirthDeathBridge()), (IMMIGRATION, PAIR, TauLeap()),
    (UNIFORM, LevelHead(UNIFORM, 16), LevelBridge()), (ABSORBING, LevelHead(ABSORBING, 16), TauLeap()),
]  # fmt: skip
CORRECTORS = [ThinAndBridge(), LevelCorrector()]


@pytest.fixture(autouse=True)
def _few_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the loops of fixed length: which ones are there does not depend on how long they are."""
    for name in ("SEARCH_LIMIT", "MAX_ATTEMPTS"):
        monkeypatch.setattr(torch_draws, name, 2)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("process", "head", "kernel", "corrector", "last"),
    [
        *((*step, None, last) for step in STEPS for last in (False, True)),
        *((*STEPS[0], corrector, False) for corrector in CORRECTORS),  # of which there are none at the end
    ],
)
def test_no_sampling_step_waits(process: Any, head: Any, kernel: Any, corrector: Any, last: bool) -> None:
    with fake_cuda(), torch.no_grad():
        raw = torch.zeros(2, head.outputs, *SHAPE)

        def plain(xt: Tensor, t: Tensor) -> Prediction:
            return head(raw, xt, t)

        guided = GuidedDenoiser(plain, plain, Guidance(2.0), 16)
        denoiser = CountingDenoiser(guided if kernel == PoissonLeap() else plain)
        xt = torch.zeros(2, *SHAPE, dtype=torch.uint8)
        streams = SampleStreams(0, torch.arange(2))
        s, t = (torch.tensor(time, dtype=torch.float64, device="cpu") for time in (0.0 if last else 0.3, 0.4))
        for step in (1, 0):  # the first may fill caches
            with Watch() if step == 0 else torch.no_grad():
                xs = kernel(ReverseStep(denoiser, process, xt, s, t, streams.step(step)))
                if corrector is not None:
                    xs = corrector(kernel, ReverseStep(denoiser, process, xs, s, t, streams.step(step)))
        assert xs.device == CUDA and xs.dtype == xt.dtype and xs.shape == xt.shape


@pytest.mark.parametrize(
    ("process", "head", "loss", "settings"),
    [
        (DEATH, COUNT, CountLoss(), {}),
        (DEATH, COUNT, CountLoss(), {"continuous": True}),
        (IMMIGRATION, PAIR, BirthDeathLoss(), {}),
        (UNIFORM, LevelHead(UNIFORM, 16), CrossEntropy(), {}),
    ],
)
def test_no_training_step_waits(process: Any, head: Any, loss: Loss, settings: dict[str, Any]) -> None:
    """Draw, network, loss, logging, backward, guard, clipping, optimiser and average."""
    schedule, guard = Schedule(**settings), NonFiniteGuard(".")
    trainer: Any = SimpleNamespace(log_every_n_steps=50, precision="32-true", precision_plugin=None)
    # Lightning reads what it is given for the progress bar
    module: Any = SimpleNamespace(trainer=trainer, log=lambda name, value, prog_bar: float(value))
    made = BlackoutDiffusion(nn.Identity(), head, process, torch.ones(SHAPE), schedule, loss)
    training = TrainingModule(made)  # outside: Lightning's module cannot be made of fake tensors
    training._trainer = trainer
    with fake_cuda(gradients=True):
        network = CountNetwork(UNet(SHAPE, head.outputs, channels=8, multipliers=[1]), StandardisedInputs(5.0, 3.0))
        model = BlackoutDiffusion(network, head, process, torch.ones(SHAPE), schedule, loss, ema_decay=0.9)
        training.model = model
        model.log = partial(TrainingModule.log_scalar, module)
        optimizer = torch.optim.Adam(network.parameters(), fused=True)
        batch = {"x0": torch.zeros(4, *SHAPE, dtype=torch.uint8), "position": torch.arange(4), "batch_size": 4}
        for trainer.global_step in range(2):
            with Watch(refuses=trainer.global_step == 1) as watch:  # the first step fills caches
                optimizer.zero_grad()
                found = model.training_step({**batch, "batch_number": trainer.global_step})
                guard.on_before_backward(trainer, module, found)
                found.backward()
                training.on_after_backward()
                guard.on_before_optimizer_step(trainer, training)
                training.configure_gradient_clipping(optimizer, 1.0)
                optimizer.step()
                model.ema.update(network, trainer.global_step)
    assert watch.kernels["convolution_backward"] > 3


def test_times_go_to_the_device_once() -> None:
    schedule, other = Schedule(), Schedule()
    with fake_cuda():
        for again in (False, True):
            with Watch(refuses=again):
                schedule.intervals(torch.zeros(4, dtype=torch.float64))
        with pytest.raises(AssertionError, match="_to_copy between"), Watch():
            other.intervals(torch.zeros(4, dtype=torch.float64))


def test_processes_exchange_the_loss_as_often_as_it_is_logged() -> None:
    logged: list[Any] = []
    reduced: list[int] = []
    trainer = SimpleNamespace(log_every_n_steps=5, global_step=0)
    trainer.strategy = SimpleNamespace(reduce=lambda x, reduce_op: reduced.append(trainer.global_step) or x)
    module: Any = SimpleNamespace(trainer=trainer)
    module._log_in_this_step = lambda name, value, prog_bar: logged.append(value)
    for trainer.global_step in range(10):
        TrainingModule.log_scalar(module, "train/loss", torch.ones(()))
    assert reduced == [4, 9] and len(logged) == 2


@pytest.mark.parametrize(
    ("process", "head", "kernel"), [case for case in STEPS if not isinstance(case[2], PosteriorTrapezoidal)]
)
def test_a_network_that_gives_no_numbers_is_refused(process: Any, head: Any, kernel: Any) -> None:
    network = CountNetwork(ResidualMLP(SHAPE, head.outputs, width=8, depth=1), StandardisedInputs(5.0, 3.0))
    torch.nn.init.constant_(network.body.head.bias, torch.nan)
    model = BlackoutDiffusion(network, head, process, torch.ones(SHAPE))
    with pytest.raises(UserError, match="not finite"):
        model.sample(2, sampler=Sampler(kernel, num_steps=3))
