"""The LightningModule that every family's model extends: averaged weights, optimiser, seeds, self-description."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from blackout.errors import UserError
from blackout.family import Draw, Source
from blackout.random import fold_seed
from blackout.training.checkpoint_files import FORMAT
from blackout.training.ema import EMA
from blackout.training.optimization import Optimization

DROPOUT = 2
"""The key of a step's dropout among the uses of a run's seed; a family numbers its own uses apart from it."""


class Model(pl.LightningModule, ABC):
    """What a family gives besides: `training_step`, `validation_step`, and the methods that are abstract here.

    Args:
        network: what is trained.
        optimization: None for a model that is only used.
        ema_decay: decay of the averaged weights per optimiser step; None for no average (a loaded model).
        seed: with the step's number it decides everything a training step draws.
    """

    def __init__(
        self,
        network: nn.Module,
        optimization: Optimization | None = None,
        ema_decay: float | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.network = network
        self.ema = None if ema_decay is None else EMA(network, ema_decay)
        self.optimization, self.seed = optimization, seed
        self.config: dict[str, Any] = {}
        """The plain description this model was made from; saved with every checkpoint and exported."""

    # --- what a family gives

    @abstractmethod
    def draw(self, request: Mapping[str, Any]) -> Draw:
        """The way of drawing samples that a request asks for; an empty one gets the model's own.

        Args:
            request: settings of `sample.py` that are not shared by all families, and `num_samples`.

        Raises:
            UserError: something the model cannot do, or an option its family does not have.
        """

    @abstractmethod
    def example(self) -> tuple[Tensor, ...]:
        """Arguments of one network evaluation for one sample, to measure its work and memory."""

    # --- what a family may give

    def preview(self, num_samples: int, num_steps: int | None = None) -> Draw:
        """How pictures are drawn during and after training: varied samples, in `num_steps` steps if that is given."""
        return self.draw({})

    @property
    def validation_cost(self) -> int:
        """Network evaluations that validation takes per sample."""
        return 1

    def rehearse(self) -> None:
        """Try each component once, on as little as possible, before anything long starts.

        Raises:
            UserError: components that do not fit together.
        """

    def tensors(self) -> dict[str, Tensor]:
        """What is exported besides the weights: the model's own buffers."""
        return dict(self.named_buffers(recurse=False))

    def replay(self, batch: Mapping[str, Any]) -> dict[str, list[float]]:
        """What a non-finite step is reported with, besides the numbers of its samples."""
        return {}

    def before_export(self, evaluations: int) -> None:
        """Measure what the exported model needs, with at most so many network evaluations of one sample."""

    def report(self, source: Source, settings: Mapping[str, Any]) -> dict[str, Any]:
        """What `evaluate=true` says besides the scores of samples: `values` by name, and whatever explains them."""
        return {"values": {}}

    # --- what every model does

    @property
    def averaged(self) -> nn.Module:
        """The network with the averaged weights, or the trained one where there is no average."""
        return self.network if self.ema is None else self.ema.module

    def compile_networks(self) -> None:
        """Compile the networks in place with torch.compile, at their first use; names of weights stay as they are."""
        self.network.compile()
        if self.ema is not None:
            self.ema.module.compile()

    def on_train_batch_start(self, batch: dict[str, Any], batch_idx: int) -> None:
        torch.manual_seed(fold_seed(self.seed, DROPOUT, batch["batch"], self.global_rank))

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        super().optimizer_step(*args, **kwargs)
        if self.ema is not None:
            self.ema.update(self.network, self.global_step)

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        scaled = getattr(self.trainer.precision_plugin, "scaler", None) is not None
        if scaled or gradient_clip_algorithm == "value":
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)
        elif gradient_clip_val:
            # Lightning refuses fused optimisers under autocast, for the sake of float16's scaler; bfloat16 has none
            nn.utils.clip_grad_norm_(self.network.parameters(), gradient_clip_val)

    def configure_optimizers(self) -> Any:
        if self.optimization is None:
            raise ValueError("this model was loaded for use; give it an `optimization` to train it")
        return self.optimization.configure(self.network.parameters())

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["blackout"] = {"format": FORMAT, **self.config}


def refuse_unknown(request: Mapping[str, Any], *options: str) -> None:
    """Refuse settings of `sample.py` that a family does not have.

    Args:
        request: as `Model.draw` receives it.
        options: names of those it has.

    Raises:
        UserError: another option.
    """
    for name in request:
        if name not in (*options, "num_samples"):
            raise UserError(f"{name}: no such option")
