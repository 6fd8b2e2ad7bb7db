"""Optimiser, learning-rate schedule and the average of the weights (EMA), in optimiser steps."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import get_ema_multi_avg_fn

from blackout.errors import UserError, ensure


class EMA(nn.Module):
    """The average of the weights, by which models are validated, exported and sampled; always in eval mode.

    The decay ramps up as min(decay, (1 + n) / (10 + n)) over updates n, as in the code of [Song 2021] on which the
    paper's experiments are built, so that the random initial weights are forgotten early. PyTorch's `AveragedModel` and
    Lightning's `EMAWeightAveraging` copy the weights at the first update and count updates on the device; here the
    average is a part of the model, and its count is the number of the step, so that nothing waits for the device.

    Args:
        network: what to average; copied.
        decay: final decay per update, in [0, 1).

    Raises:
        ValueError: decay outside [0, 1).
    """

    def __init__(self, network: nn.Module, decay: float = 0.9999) -> None:
        super().__init__()
        ensure(0 <= decay < 1, f"ema_decay must be in [0, 1), not {decay}")
        self.decay = decay
        self.module = copy.deepcopy(network).requires_grad_(False).eval()
        self._averages: list[Tensor] = []
        self._weights: list[Tensor] = []
        self._owners: list[tuple[nn.Module, nn.Module]] = []  # of buffers

    def train(self, mode: bool = True) -> EMA:
        """Stays in eval mode whatever the parent module does."""
        return super().train(False)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the averaged network returns."""
        return self.module(*args, **kwargs)

    @torch.no_grad()
    def update(self, network: nn.Module, updates: int) -> None:
        """Move towards `network` as in the class: average += (1 - decay) (weight - average), of every shape;
        `updates` is how many came before (not kept on a device, so nothing waits for it).
        """
        if not self._weights or self._weights[0] is not next(network.parameters()):  # walking takes as long as moving
            self._averages, self._weights = list(self.module.parameters()), list(network.parameters())
            both = zip(self.module.modules(), network.modules(), strict=True)
            self._owners = [pair for pair in both if next(pair[1].buffers(recurse=False), None) is not None]
        decay = min(self.decay, (1 + updates) / (10 + updates))
        get_ema_multi_avg_fn(decay)(self._averages, self._weights, None)
        for average, its in self._owners:
            for name, buffer in its.named_buffers(recurse=False):
                average.get_buffer(name).copy_(buffer)


def ema_decay(config: Mapping[str, Any]) -> float | None:
    """The decay of the averaged weights per optimiser step: `ema_decay`, or from `ema_half_life` in images.

    2^(-images of a step / half-life). Ours (tests/training/test_optimization.py).

    Returns:
        A number; None for no average: a decay of 0 or null.

    Raises:
        UserError: a half-life that is not positive.
    """
    half_life = config["ema_half_life"]
    if half_life is None:
        return float(config["ema_decay"]) if config["ema_decay"] else None
    if isinstance(half_life, bool) or not isinstance(half_life, int | float) or not half_life > 0:
        raise UserError(f"ema_half_life must be a positive number of images, or null, not {half_life!r}")
    images = config["batch_size"] * (config["trainer"].get("accumulate_grad_batches") or 1)
    return float(0.5 ** (images / half_life))


@dataclass(frozen=True)
class Optimization:
    """Optimiser, with a linear warm-up and a cosine decay [Loshchilov 2017, eq. 5] of the learning rate.

    Args:
        lr: peak learning rate.
        factory: (parameters, lr=...) -> optimiser; the paper's is plain Adam [Kingma 2015, Algorithm 1];
            `adamw` decays weights apart [Loshchilov 2019, Algorithm 2].
        warmup_steps: linear warm-up; 0 for none.
        decay_steps: cosine decay to zero, reached at this step; None keeps lr constant.
        noam: after the warm-up the rate falls with the square root of the step [Vaswani 2017, eq. 3].

    Raises:
        ValueError: lr not positive, steps negative, both decays, or a factory with parameters or a rate of its own.
    """

    lr: float = 2e-4
    factory: Callable[..., Optimizer] = Adam
    warmup_steps: int = 0
    decay_steps: int | None = None
    noam: bool = False

    def __post_init__(self) -> None:
        ensure(self.lr > 0, f"lr must be positive, not {self.lr}")
        ensure(self.warmup_steps >= 0, f"warmup_steps must not be negative, not {self.warmup_steps}")
        if self.decay_steps is not None and self.decay_steps < 1:
            raise ValueError(f"decay_steps must be positive or null, not {self.decay_steps}")
        if self.noam and (self.decay_steps is not None or not self.warmup_steps):
            raise ValueError("noam=true needs warmup_steps, and decay_steps=null")
        if named := getattr(self.factory, "keywords", {}).keys() & {"params", "lr"}:
            raise ValueError(
                f"factory.{min(named)} cannot be given: parameters are the model's, the rate is optimizer.lr"
            )

    def factor(self, step: int) -> float:
        """The learning rate at an optimiser step (0-based), relative to lr: a float.

        [Loshchilov 2017, eq. 5] or [Vaswani 2017, eq. 3], see the class.
        """
        warm = min(1.0, (step + 1) / self.warmup_steps) if self.warmup_steps else 1.0
        if self.noam:
            return min(warm, math.sqrt(self.warmup_steps / (step + 1)))
        if self.decay_steps is None:
            return warm
        return warm * (1 + math.cos(math.pi * min(1.0, step / self.decay_steps))) / 2

    def configure(self, parameters: Any, fused: bool = False) -> dict[str, Any]:
        """What Lightning's `configure_optimizers` returns; `fused` for PyTorch's compiled step of Adam."""
        given = getattr(self.factory, "keywords", {})  # torch takes no whole numbers as betas, as in [0, 0.99]
        betas = given.get("betas") or ()
        numbers = isinstance(betas, list | tuple) and all(isinstance(beta, int | float) for beta in betas)
        ensure(numbers, f"betas must be a list of numbers, such as [0.9, 0.999], not {betas}")
        more: dict[str, Any] = {"betas": tuple(map(float, betas))} if betas else {}
        if fused and getattr(self.factory, "func", self.factory) in (Adam, AdamW):
            more = {"fused": not given.get("foreach"), **given, **more}
        optimizer = self.factory(parameters, lr=self.lr, **more)
        scheduler = {"scheduler": LambdaLR(optimizer, self.factor), "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


def sgd(
    parameters: Any,
    lr: float,
    momentum: float = 0.9,
    nesterov: bool = True,
    weight_decay: float = 0.0,
    betas: Sequence[float] = (),
) -> SGD:
    """Stochastic gradient descent; `betas`, which recipes give for Adam, are not used."""
    return SGD(parameters, lr=lr, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay)
