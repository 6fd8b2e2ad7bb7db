"""The average of the weights, by which models are validated, exported and sampled."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from blackout.errors import UserError, ensure


class EMA(nn.Module):
    """A copy of a network whose weights trail the original; always in eval mode.

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
