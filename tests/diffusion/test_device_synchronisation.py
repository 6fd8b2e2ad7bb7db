"""Neither training nor sampling waits for the device.

They run on fake tensors, on which every read of a value fails.
"""

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
from blackout.diffusion.schedule import Schedule
from blackout.errors import UserError
from blackout.networks import CountNetwork, ResidualMLP, StandardisedInputs, UNet
from blackout.random import SampleStreams, torch_draws
from blackout.training.lightning_module import TrainingModule
from blackout.training.step_callbacks import NonFiniteGuard
from tests.devices import Watch

SHAPE = (1, 8, 8)
DEATH = PureDeath(16)
IMMIGRATION = BirthDeath(16, 5.0)
UNIFORM = Uniform(16)
ABSORBING = Absorbing(16)
COUNT = ScaledHead(5.0)
PAIR = BirthDeathHead(5.0)
MIXTURE = LogisticMixtureHead(COUNT, 16, 5.0, 3.0)
STEPS = [
    (DEATH, COUNT, BinomialBridge()),
    (DEATH, COUNT, BinomialBridge(nearest_rounding)),
    (DEATH, COUNT, PoissonLeap()),
    (DEATH, COUNT, Trapezoidal()),
    (DEATH, COUNT, TauLeap()),
    (DEATH, MIXTURE, PosteriorBridge()),
    (DEATH, MIXTURE, PosteriorTrapezoidal()),
    (IMMIGRATION, PAIR, BirthDeathBridge()),
    (IMMIGRATION, PAIR, TauLeap()),
    (UNIFORM, LevelHead(UNIFORM, 16), LevelBridge()),
    (ABSORBING, LevelHead(ABSORBING, 16), TauLeap()),
]
CORRECTORS = [ThinAndBridge(), LevelCorrector()]


@pytest.fixture(autouse=True)
def _short_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the loops of fixed length; their kernels do not depend on the length."""
    for name in ("SEARCH_LIMIT", "MAX_ATTEMPTS"):
        monkeypatch.setattr(torch_draws, name, 2)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("process", "head", "kernel", "corrector", "last_step"),
    [
        *((*step, None, last_step) for step in STEPS for last_step in (False, True)),
        # correctors do not run at the last step
        *((*STEPS[0], corrector, False) for corrector in CORRECTORS),
    ],
)
def test_sampling_steps_do_not_wait_for_the_device(
    process: Any, head: Any, kernel: Any, corrector: Any, last_step: bool
) -> None:
    with fake_cuda(), torch.no_grad():
        raw = torch.zeros(2, head.outputs, *SHAPE)

        def plain(xt: Tensor, t: Tensor) -> Prediction:
            return head(raw, xt, t)

        guided = GuidedDenoiser(plain, plain, Guidance(2.0), 16)
        denoiser = CountingDenoiser(guided if kernel == PoissonLeap() else plain)
        xt = torch.zeros(2, *SHAPE, dtype=torch.uint8)
        streams = SampleStreams(0, torch.arange(2))
        s, t = (
            torch.tensor(time, dtype=torch.float64, device="cpu")
            for time in (0.0 if last_step else 0.3, 0.4)
        )
        for step in (1, 0):  # the first may fill caches
            with Watch() if step == 0 else torch.no_grad():
                xs = kernel(ReverseStep(denoiser, process, xt, s, t, streams.step(step)))
                if corrector is not None:
                    xs = corrector(
                        kernel, ReverseStep(denoiser, process, xs, s, t, streams.step(step))
                    )
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
def test_training_steps_do_not_wait_for_the_device(
    process: Any, head: Any, loss: Loss, settings: dict[str, Any]
) -> None:
    """Noising, network, loss, logging, backward, guard, clipping, optimiser and average."""
    schedule = Schedule(**settings)
    guard = NonFiniteGuard(".")
    trainer: Any = SimpleNamespace(log_every_n_steps=50, precision="32-true", precision_plugin=None)
    # Lightning reads every value of the progress bar
    module: Any = SimpleNamespace(trainer=trainer, log=lambda name, value, prog_bar: float(value))
    outer_model = BlackoutDiffusion(nn.Identity(), head, process, torch.ones(SHAPE), schedule, loss)
    # outside, since a Lightning module cannot be built from fake tensors
    training = TrainingModule(outer_model)
    training._trainer = trainer
    with fake_cuda(gradients=True):
        network = CountNetwork(
            UNet(SHAPE, head.outputs, channels=8, multipliers=[1]), StandardisedInputs(5.0, 3.0)
        )
        model = BlackoutDiffusion(
            network, head, process, torch.ones(SHAPE), schedule, loss, ema_decay=0.9
        )
        training.model = model
        model.log = partial(TrainingModule.log_scalar, module)
        optimizer = torch.optim.Adam(network.parameters(), fused=True)
        batch = {
            "x0": torch.zeros(4, *SHAPE, dtype=torch.uint8),
            "position": torch.arange(4),
            "batch_size": 4,
        }
        for trainer.global_step in range(2):
            with Watch(refuses=trainer.global_step == 1) as watch:  # the first step fills caches
                optimizer.zero_grad()
                training_loss = model.training_step({**batch, "batch_number": trainer.global_step})
                guard.on_before_backward(trainer, module, training_loss)
                training_loss.backward()
                training.on_after_backward()
                guard.on_before_optimizer_step(trainer, training)
                training.configure_gradient_clipping(optimizer, 1.0)
                optimizer.step()
                model.ema.update(network, trainer.global_step)
    assert watch.kernels["convolution_backward"] > 3


def test_times_are_copied_to_the_device_once() -> None:
    schedule = Schedule()
    uncached = Schedule()
    with fake_cuda():
        for is_second in (False, True):
            with Watch(refuses=is_second):
                schedule.intervals(torch.zeros(4, dtype=torch.float64))
        with pytest.raises(AssertionError, match="_to_copy between"), Watch():
            uncached.intervals(torch.zeros(4, dtype=torch.float64))


def test_processes_reduce_the_loss_only_when_it_is_logged() -> None:
    logged: list[Any] = []
    reduced: list[int] = []
    trainer = SimpleNamespace(log_every_n_steps=5, global_step=0)
    trainer.strategy = SimpleNamespace(
        reduce=lambda x, reduce_op: reduced.append(trainer.global_step) or x
    )
    module: Any = SimpleNamespace(trainer=trainer)
    module._log_in_this_step = lambda name, value, prog_bar: logged.append(value)
    for trainer.global_step in range(10):
        TrainingModule.log_scalar(module, "train/loss", torch.ones(()))
    assert reduced == [4, 9] and len(logged) == 2


@pytest.mark.parametrize(
    ("process", "head", "kernel"),
    [case for case in STEPS if not isinstance(case[2], PosteriorTrapezoidal)],
)
def test_a_network_with_non_finite_outputs_is_refused(process: Any, head: Any, kernel: Any) -> None:
    network = CountNetwork(
        ResidualMLP(SHAPE, head.outputs, width=8, depth=1), StandardisedInputs(5.0, 3.0)
    )
    torch.nn.init.constant_(network.body.head.bias, torch.nan)
    model = BlackoutDiffusion(network, head, process, torch.ones(SHAPE))
    with pytest.raises(UserError, match="not finite"):
        model.sample(2, sampler=Sampler(kernel, num_steps=3))
