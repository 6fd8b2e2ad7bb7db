"""Optimiser, learning-rate schedule and exponential moving average of the weights."""

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
    """Exponential moving average of the weights, which is validated, exported and sampled.

    The decay ramps up as min(decay, (1 + n) / (10 + n)) over updates n, so that the random initial
    weights are forgotten early. The module is always in eval mode.

    PyTorch's `AveragedModel` and Lightning's `EMAWeightAveraging` copy the weights at the first
    update and count updates on the device. Here the average is part of the model, and the count is
    the number of the step, so that nothing waits for the device.

    Args:
        network: the network to average, which is copied.
        decay: final decay per update, in [0, 1).

    Raises:
        ValueError: `decay` is outside [0, 1).

    Example:
        >>> network = nn.Linear(1, 1, bias=False)
        >>> ema = EMA(network, decay=0.9)
        >>> _ = nn.init.zeros_(ema.module.weight), nn.init.ones_(network.weight)
        >>> ema.update(network, num_updates=0)  # decay 1 / 10
        >>> round(ema.module.weight.item(), 4)
        0.9

    References: Song et al. 2021, the authors' code, on which Santos et al. 2023 is built.
    """

    def __init__(self, network: nn.Module, decay: float = 0.9999) -> None:
        super().__init__()
        ensure(0 <= decay < 1, f"ema_decay must be in [0, 1), not {decay}")
        self.decay = decay
        self.module = copy.deepcopy(network).requires_grad_(False).eval()
        # Found at the first update; walking through the modules takes as long as an update.
        self._averages: list[Tensor] = []
        self._weights: list[Tensor] = []
        self._buffer_owners: list[tuple[nn.Module, nn.Module]] = []  # (averaged, trained) modules

    def train(self, mode: bool = True) -> EMA:
        """Stay in eval mode, whatever the parent module does."""
        return super().train(False)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Apply the averaged network."""
        return self.module(*args, **kwargs)

    @torch.no_grad()
    def update(self, network: nn.Module, num_updates: int) -> None:
        """Move the averages by (1 - decay) (weights - averages), and copy the buffers.

        Args:
            network: whose weights are averaged.
            num_updates: number of updates before this one.
        """
        if not self._weights or self._weights[0] is not next(network.parameters()):
            self._find_tensors(network)
        decay = min(self.decay, (1 + num_updates) / (10 + num_updates))
        get_ema_multi_avg_fn(decay)(self._averages, self._weights, None)
        for averaged_module, trained_module in self._buffer_owners:
            for name, buffer in trained_module.named_buffers(recurse=False):
                averaged_module.get_buffer(name).copy_(buffer)

    def _find_tensors(self, network: nn.Module) -> None:
        self._averages = list(self.module.parameters())
        self._weights = list(network.parameters())
        pairs = zip(self.module.modules(), network.modules(), strict=True)
        self._buffer_owners = [pair for pair in pairs if list(pair[1].buffers(recurse=False))]


def ema_decay(config: Mapping[str, Any]) -> float | None:
    """Return the decay of the averaged weights per optimiser step.

    It is `ema_decay`, or 2^(-images per step / half-life) with `ema_half_life` in images.

    Args:
        config: of the run, with `ema_decay`, `ema_half_life`, `batch_size` and `trainer`.

    Returns:
        The decay; None for no average, which a decay of 0 or null means.

    Raises:
        UserError: a half-life that is not positive.

    References: this project; checked in tests/training/test_optimization.py.
    """
    half_life = config["ema_half_life"]
    if half_life is None:
        return float(config["ema_decay"]) if config["ema_decay"] else None
    is_number = isinstance(half_life, int | float) and not isinstance(half_life, bool)
    if not is_number or not half_life > 0:
        raise UserError(
            f"ema_half_life must be a positive number of images, or null, not {half_life!r}"
        )
    micro_batches = config["trainer"].get("accumulate_grad_batches") or 1
    images_per_step = config["batch_size"] * micro_batches
    return float(0.5 ** (images_per_step / half_life))


@dataclass(frozen=True)
class Optimization:
    """Optimiser with a linear warm-up and a decay of the learning rate.

    Args:
        lr: peak learning rate.
        factory: called as `factory(parameters, lr=...)`; returns an optimiser. The paper's is
            plain Adam; `adamw` decouples weight decay from the gradient.
        warmup_steps: length of the linear warm-up; 0 for none.
        decay_steps: step at which a cosine decay reaches zero; None keeps the rate constant.
        noam: whether the rate falls with the square root of the step after the warm-up.

    Raises:
        ValueError: a rate that is not positive, negative steps, both decays, or a factory with its
            own parameters or rate.

    Example:
        >>> optimization = Optimization(lr=1e-3, warmup_steps=4, decay_steps=100)
        >>> [round(optimization.lr_factor(step), 4) for step in (0, 1, 100)]
        [0.25, 0.4999, 0.0]

    References: Kingma and Ba 2015, Algorithm 1; Loshchilov 2017, eq. 5 (cosine decay);
    Loshchilov 2019, Algorithm 2 (AdamW); Vaswani et al. 2017, eq. 3 (noam).
    """

    lr: float = 2e-4
    factory: Callable[..., Optimizer] = Adam
    warmup_steps: int = 0
    decay_steps: int | None = None
    noam: bool = False

    def __post_init__(self) -> None:
        ensure(0 < self.lr < math.inf, f"lr must be positive and finite, not {self.lr}")
        ensure(self.warmup_steps >= 0, f"warmup_steps must be at least 0, not {self.warmup_steps}")
        if self.decay_steps is not None and self.decay_steps < 1:
            raise ValueError(f"decay_steps must be positive or null, not {self.decay_steps}")
        if self.noam and (self.decay_steps is not None or not self.warmup_steps):
            raise ValueError("noam=true needs warmup_steps, and decay_steps=null")
        reserved = self._factory_settings().keys() & {"params", "lr"}
        if reserved:
            raise ValueError(
                f"factory.{min(reserved)} cannot be given: the parameters are the model's, "
                "and the rate is optimizer.lr"
            )

    def lr_factor(self, step: int) -> float:
        """Return the learning rate at an optimiser step (0-based), relative to `lr`."""
        warmup = min(1.0, (step + 1) / self.warmup_steps) if self.warmup_steps else 1.0
        if self.noam:
            return min(warmup, math.sqrt(self.warmup_steps / (step + 1)))
        if self.decay_steps is None:
            return warmup
        progress = min(1.0, step / self.decay_steps)
        return warmup * (1 + math.cos(math.pi * progress)) / 2

    def configure(self, parameters: Any, fused: bool = False) -> dict[str, Any]:
        """Return what Lightning's `configure_optimizers` returns.

        Args:
            parameters: of the model, or groups of them.
            fused: whether to use PyTorch's compiled step, for Adam and AdamW.

        Raises:
            ValueError: `betas` that are no list of numbers.
        """
        settings = self._factory_settings()
        overrides: dict[str, Any] = {}

        # 1. torch accepts no whole numbers as betas, as in [0, 0.99].
        betas = settings.get("betas") or ()
        is_list = isinstance(betas, list | tuple)
        has_numbers = is_list and all(isinstance(beta, int | float) for beta in betas)
        ensure(has_numbers, f"betas must be a list of numbers, such as [0.9, 0.999], not {betas}")
        if betas:
            overrides["betas"] = tuple(map(float, betas))

        # 2. The fused step, unless the user set `fused` or `foreach`.
        if fused and getattr(self.factory, "func", self.factory) in (Adam, AdamW):
            overrides = {"fused": not settings.get("foreach"), **settings, **overrides}

        optimizer = self.factory(parameters, lr=self.lr, **overrides)
        scheduler = {"scheduler": LambdaLR(optimizer, self.lr_factor), "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    def _factory_settings(self) -> dict[str, Any]:
        """Return the arguments that are bound in a factory made by `functools.partial`."""
        return getattr(self.factory, "keywords", {})


def sgd(
    parameters: Any,
    lr: float,
    momentum: float = 0.9,
    nesterov: bool = True,
    weight_decay: float = 0.0,
    betas: Sequence[float] = (),
) -> SGD:
    """Make stochastic gradient descent; `betas`, which recipes set for Adam, are ignored."""
    return SGD(parameters, lr=lr, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay)
