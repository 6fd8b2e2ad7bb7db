"""The learning rate at every step, averages of weights, and what dropout is drawn from."""

import math
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from blackout.networks.dropout import Dropout
from blackout.training.lightning_module import TrainingModule
from blackout.training.optimization import EMA, Optimization, ema_decay
from blackout.training.step_callbacks import NonFiniteGuard


def test_the_rate_rises_in_a_line_and_falls_as_a_cosine():
    warm = Optimization(warmup_steps=4)
    optimization = Optimization(warmup_steps=4, decay_steps=10)
    assert [warm.lr_factor(step) for step in (0, 1, 3, 4, 1000)] == [0.25, 0.5, 1, 1, 1]
    for step in range(12):
        cosine = (1 + math.cos(math.pi * min(1, step / 10))) / 2
        assert optimization.lr_factor(step) == pytest.approx(
            warm.lr_factor(step) * cosine, abs=1e-15
        )
    assert Optimization().lr_factor(0) == 1 and optimization.lr_factor(10) == 0
    noam = Optimization(warmup_steps=4, noam=True)
    assert [noam.lr_factor(step) for step in (0, 3, 15)] == [0.25, 1, 0.5]


def test_the_rate_moves_with_every_step_of_the_optimiser():
    configuration = Optimization(lr=0.5, warmup_steps=2).configure([nn.Parameter(torch.zeros(1))])
    scheduler = configuration["lr_scheduler"]
    optimizer = configuration["optimizer"]
    assert scheduler["interval"] == "step" and optimizer.param_groups[0]["lr"] == 0.25
    optimizer.step()
    scheduler["scheduler"].step()
    assert optimizer.param_groups[0]["lr"] == 0.5


@pytest.mark.parametrize("name", ["lr", "params"])
def test_a_factory_with_parameters_or_a_rate_is_refused(name):
    with pytest.raises(ValueError, match=f"factory.{name} cannot be given"):
        Optimization(factory=partial(torch.optim.Adam, **{name: 1.0}))


def test_an_average_warms_up_and_copies_buffers():
    network = nn.BatchNorm1d(2)
    average = EMA(network, decay=0.5)
    weight = network.weight.detach().clone()
    for number in range(20):
        with torch.no_grad():
            network.weight.fill_(number)
        network(torch.full((3, 2), float(number)) + torch.arange(3)[:, None])
        average.update(network, number)
        decay = min(0.5, (1 + number) / (10 + number))
        weight = decay * weight + (1 - decay) * number
        assert torch.allclose(average.module.weight, weight)
        assert torch.equal(average.module.running_mean, network.running_mean)
    assert network.training and not average.train().module.training
    with pytest.raises(ValueError, match="ema_decay"):
        EMA(network, 1.0)


def test_dropout_is_a_function_of_the_seed_and_the_batch_whatever_the_process():
    def dropout_seed(seed, batch, rank):
        trainer = SimpleNamespace(world_size=2)
        cpu = torch.device("cpu")
        model = SimpleNamespace(seed=seed, network=nn.Identity())
        module = SimpleNamespace(trainer=trainer, model=model, global_rank=rank, device=cpu)
        with torch.random.fork_rng():
            TrainingModule.on_train_batch_start(module, {"batch_number": batch}, 0)
            return float(torch.rand(()))

    cases = [(seed, batch) for seed in (0, 1) for batch in (0, 7)]
    assert len({dropout_seed(*case, 0) for case in cases}) == len(cases) and dropout_seed(
        1, 7, 0
    ) == dropout_seed(1, 7, 1)


def test_a_users_dropout_layer_is_not_replaced():
    network = nn.Sequential(nn.Dropout(0.5), Dropout(0.5))
    module = SimpleNamespace(
        trainer=SimpleNamespace(world_size=2),
        model=SimpleNamespace(seed=0, network=network),
        global_rank=1,
        device=torch.device("cpu"),
    )
    with torch.random.fork_rng():
        TrainingModule.on_train_batch_start(module, {"batch_number": 0, "position": range(4)}, 0)
    assert type(network[0]) is nn.Dropout and not hasattr(network[0], "shard")
    assert network[1].shard == (1, 2, 4)


@pytest.mark.parametrize("accumulated, batch", [(None, 64), (1, 64), (2, 32)])
def test_a_half_life_is_in_images_of_all_micro_batches(accumulated, batch):
    config = {
        "ema_half_life": 128,
        "batch_size": batch,
        "trainer": {"accumulate_grad_batches": accumulated},
    }
    assert ema_decay(config) == pytest.approx(0.5**0.5, rel=1e-15)


def test_a_step_is_left_out_for_any_of_its_micro_batches():
    decisions = []
    strategy = SimpleNamespace(reduce_boolean_decision=lambda bad, all: decisions.append(bad))
    trainer = SimpleNamespace(precision="16-mixed", global_step=0, strategy=strategy)
    guard = NonFiniteGuard(".", "skip")
    module = TrainingModule.__new__(TrainingModule)
    for losses in ((math.inf, 1.0), (1.0, math.nan), (1.0, 1.0)):
        for loss in losses:
            guard.on_before_backward(trainer, module, torch.tensor(loss))
        guard.on_before_optimizer_step(trainer, module)
    assert decisions == [True, True, False]
