"""Training for fixed CPU seconds, or a number of steps, with one loop for every generator."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from blackout.data import CountData
from blackout.training.data_module import TrainLoader
from blackout.training.optimization import EMA

WARMUP_SHARE = 0.05  # of the budget, during which the learning rate rises
EMA_DECAY = 0.999  # of the averaged weights per step
MAX_GRADIENT_NORM = 1.0


class Generator(ABC):
    """A generative model of counts that is trained by a loss and sampled by a network.

    Args:
        network: the weights to train.
        ema: their average, from which samples are drawn; None to make one.
    """

    def __init__(self, network: nn.Module, ema: EMA | None = None) -> None:
        self.network = network
        self.ema = EMA(network, EMA_DECAY) if ema is None else ema

    @abstractmethod
    def loss(self, batch: Mapping[str, Any]) -> Tensor:
        """Return the loss of a batch, a scalar."""

    @abstractmethod
    def sample(
        self, num_samples: int, evaluations: int, seed: int, sampler: str | None = None
    ) -> Tensor:
        """Draw counts [num_samples, *shape] with so many network evaluations per sample.

        Args:
            num_samples: number of samples.
            evaluations: of the network, at most, for each sample.
            seed: of the samples.
            sampler: its name where a model has several; None for the default.
        """


@dataclass(frozen=True)
class Budget:
    """Length and rate of a training.

    Args:
        seconds: CPU seconds (`time.process_time`) of the loop.
        lr: peak learning rate of Adam.
        betas: of Adam.
        batch_size: samples per step.
        steps: number of steps in place of the seconds, whose work depends on the machine and on
            what else it does; None for the seconds.
    """

    seconds: float
    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    batch_size: int = 128
    steps: int | None = None


def lr_factor(progress: float) -> float:
    """Return the learning rate over its peak: a linear rise, then half a cosine.

    Args:
        progress: share of the budget that is spent, in [0, 1].
    """
    warmup = min(1.0, progress / WARMUP_SHARE)
    return warmup * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))


def train(generator: Generator, data: CountData, budget: Budget, seed: int) -> int:
    """Train until the budget is spent, and return the number of steps.

    Args:
        generator: whose `network` and `ema` are changed.
        data: of whose training split batches are made.
        budget: when to stop.
        seed: of the order of the data, and of PyTorch's random numbers.
    """
    torch.manual_seed(seed)
    parameters = list(generator.network.parameters())
    optimizer = torch.optim.Adam(parameters, budget.lr, budget.betas, fused=True)
    generator.network.train()
    start = time.process_time()
    for step, batch in enumerate(TrainLoader(data, budget.batch_size, seed)):
        if budget.steps is None:
            progress = (time.process_time() - start) / budget.seconds
        else:
            progress = step / budget.steps
        if progress >= 1:
            break
        optimizer.param_groups[0]["lr"] = budget.lr * lr_factor(progress)
        loss = generator.loss(batch)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, MAX_GRADIENT_NORM)
        optimizer.step()
        generator.ema.update(generator.network, step)
    generator.network.eval()
    return step
