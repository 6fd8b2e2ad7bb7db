"""Optimiser and learning-rate schedule, in optimiser steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from blackout.errors import ensure


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
        """The learning rate at an optimiser step (0-based), relative to lr."""
        warm = min(1.0, (step + 1) / self.warmup_steps) if self.warmup_steps else 1.0
        if self.noam:
            return min(warm, math.sqrt(self.warmup_steps / (step + 1)))
        if self.decay_steps is None:
            return warm
        return warm * (1 + math.cos(math.pi * min(1.0, step / self.decay_steps))) / 2

    def configure(self, parameters: Any) -> dict[str, Any]:
        """What Lightning's `configure_optimizers` returns."""
        betas = getattr(self.factory, "keywords", {}).get("betas")  # torch takes no whole numbers, as in [0, 0.99]
        optimizer = self.factory(parameters, lr=self.lr, **({"betas": tuple(map(float, betas))} if betas else {}))
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
