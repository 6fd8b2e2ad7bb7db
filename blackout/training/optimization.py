"""Optimiser, learning-rate schedule and the average of the weights (EMA), in optimiser steps."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import get_ema_multi_avg_fn

from blackout.errors import UserError, ensure
from blackout.networks.layers import compiled_kernels

_MANY, _LATE = 8_192, 100
"""Weights, and steps that were taken, from which on a compiled step is worth loading numba."""
_OTHERS = "weight_decay", "amsgrad", "maximize", "differentiable", "capturable"
"""Ways of Adam that the compiled step does not know."""


class OnePassAdam(Adam):
    """PyTorch's Adam, whose step on a CPU is one pass over the weights with clipping and the average.

    Its state is Adam's. Elsewhere, and where a weight lacks its gradient, PyTorch's own step follows a pass that clips,
    and the average is left to be moved (ours; the law: what the three passes give).
    """

    scale = 1.0
    """Of the gradients of the next step."""
    average: tuple[Mapping[Tensor, Tensor], float] | None = None
    """Of every weight, and which part of the way to it goes; None once it has gone."""

    def step(self, closure: Any = None) -> Any:
        """Let the closure find gradients; then take the step."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        if not self._in_one_pass():
            gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
            if gradients and self.scale != 1:  # a step that is skipped has none
                torch._foreach_mul_(gradients, self.scale)
            super().step()
        self.scale = 1.0
        return loss

    @torch.no_grad()
    def _in_one_pass(self) -> bool:
        weights = [weight for group in self.param_groups for weight in group["params"]]
        averages, towards = self.average or (dict(zip(weights, weights, strict=True)), 0.0)
        state = self.state.get(weights[0], {})  # to ask the state itself would make one
        taken = state.get("step", 0) if weights[0].is_cpu and torch.get_num_threads() <= 2 else 0
        if taken < _LATE or sum(map(torch.numel, weights)) < _MANY or averages.keys() != set(weights):
            return False
        places = [self._places(group, averages) for group in self.param_groups]
        if any(one is None for one in places) or (kernels := compiled_kernels()) is None:
            return False
        for group, own in zip(self.param_groups, places, strict=True):
            kernels.adam(own, float(group["lr"]), *map(float, group["betas"]), group["eps"], self.scale, towards)
        self.average = None
        return True

    def _places(self, group: dict[str, Any], averages: Mapping[Tensor, Tensor]) -> Any:
        """Where the tensors of a group are, for `cpu_kernels.adam`; None where it cannot go through them together."""
        kinds: list[list[Tensor]] = [[] for _ in range(5)]
        weights, gradients, means, squares, steps = kinds
        self._init_group(group, weights, gradients, means, squares, [], steps)
        kinds.insert(4, [averages[weight] for weight in weights])
        every, strides = [one for kind in kinds for one in kind], list(map(Tensor.stride, weights))
        plain = not any(group[other] for other in _OTHERS) and len(weights) == len(group["params"])
        plain &= {type(one) for one in every} <= {Tensor, Parameter} and {one.dtype for one in every} == {torch.float32}
        plain &= group["betas"][1] >= 0.5  # with less, a square far below the last would drown in rounding
        dense = all(one.is_contiguous() or one.is_contiguous(memory_format=torch.channels_last) for one in weights)
        alike = all(list(map(Tensor.stride, kind)) == strides for kind in kinds[1:5])
        if not (plain and dense and alike and all(one.is_cpu for one in every)):
            return None
        return np.array([list(map(torch.numel, weights)), *(list(map(Tensor.data_ptr, one)) for one in kinds)]).T.copy()


class EMA(nn.Module):
    """The average of the weights, by which models are validated, exported and sampled; always in eval mode.

    The decay ramps up as min(decay, (1 + n) / (10 + n)) over updates n, as in the code of [Song 2021] on which the
    paper's experiments are built, so that the random initial weights are forgotten early.

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
        self._pairs: dict[Tensor, Tensor] = {}
        self._owners: list[tuple[nn.Module, nn.Module]] = []  # of buffers

    def train(self, mode: bool = True) -> EMA:
        """Stays in eval mode whatever the parent module does."""
        return super().train(False)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the averaged network returns."""
        return self.module(*args, **kwargs)

    def pairs(self, network: nn.Module) -> dict[Tensor, Tensor]:
        """The average of each of the network's parameters."""
        if not self._pairs or next(iter(self._pairs)) is not next(network.parameters()):
            # walking takes as long as moving
            self._pairs = dict(zip(network.parameters(), self.module.parameters(), strict=True))
            both = zip(self.module.modules(), network.modules(), strict=True)
            self._owners = [pair for pair in both if pair[1]._buffers]
        return self._pairs

    def towards(self, updates: int) -> float:
        """Which part of the way to the network an update goes, after so many others."""
        return 1 - min(self.decay, (1 + updates) / (10 + updates))

    @torch.no_grad()
    def update(self, network: nn.Module, updates: int, moved: bool = False) -> None:
        """Move towards `network`, unless the step of the optimiser has `moved` what is not a buffer.

        `updates` is how many came before (given, not kept on a device, so nothing has to wait for it).
        """
        pairs = self.pairs(network)
        if not moved:
            get_ema_multi_avg_fn(1 - self.towards(updates))(list(pairs.values()), list(pairs), None)
        for average, its in self._owners:
            for name, buffer in its.named_buffers(recurse=False):
                average.get_buffer(name).copy_(buffer)


def ema_decay(config: Mapping[str, Any]) -> float | None:
    """The decay of the averaged weights per optimiser step: `ema_decay`, or from `ema_half_life` in images.

    Returns:
        None for no average: a decay of 0 or null.

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
        factory = self.factory
        if getattr(factory, "func", factory) is Adam:
            factory = partial(OnePassAdam, **getattr(factory, "keywords", {}))
        optimizer = factory(parameters, lr=self.lr, **({"betas": tuple(map(float, betas))} if betas else {}))
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
