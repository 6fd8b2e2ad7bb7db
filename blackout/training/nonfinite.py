"""Non-finite losses and gradients: detected without making every step wait, and reported for replay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from torch import Tensor

from blackout.errors import UserError, check_at_least_one, ensure
from blackout.files import write_json
from blackout.training.data_module import SourceDataModule, TrainLoader
from blackout.training.lightning_module import TrainingModule


class NonFiniteGuard(Callback):
    """Checks the loss and the norm of the gradients of every step.

    It is the norm that clipping and logging use; one that overflows, where all gradients are finite, counts too, since
    clipping by it would leave nothing of the step.

    One flag per step is kept on the device and read every `every_n_steps` steps and before every save, so that no
    checkpoint holds weights updated by a non-finite step. With `action="skip"` the host must wait for the device at
    every step. With `16-mixed` precision infinite gradients are left to the loss scaler; only the loss is checked.

    Args:
        directory: where `nonfinite_step_<n>.json` goes.
        action: "stop" the run, or "skip" the step: no weight and no moment of the optimiser changes.
        every_n_steps: optimiser steps between two readings of the flags; 1 stops before the step is taken.

    Raises:
        ValueError: another action, or every_n_steps below 1.
    """

    def __init__(self, directory: str | Path, action: str = "stop", every_n_steps: int = 50) -> None:
        ensure(action in ("stop", "skip"), f"on_nonfinite must be stop or skip, not {action}")
        check_at_least_one(every_n_steps=every_n_steps)
        self._directory, self._skip, self._every = Path(directory), action == "skip", every_n_steps
        self._now: Tensor | None = None  # bool scalar on the device: something in the current step is not finite
        self._batches: list[int] = []  # numbers of the current step's global batches
        self._unread: list[tuple[int, list[int], Tensor]] = []  # (step, its batches, flag)
        self.skipped = 0

    def state_dict(self) -> dict[str, Any]:
        """How many steps were skipped."""
        return {"skipped": self.skipped}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on counting from there."""
        self.skipped = state_dict["skipped"]

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, *_: Any) -> None:
        """Remember which batches the step has."""
        self._batches.append(batch["batch"])

    def on_before_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Tensor) -> None:
        """Look at the loss of a micro-batch."""
        bad = ~torch.isfinite(loss.detach()).all()
        self._now = bad if self._now is None else self._now | bad

    def on_before_optimizer_step(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Look at the gradients; keep the step's flag, or skip the step."""
        assert isinstance(pl_module, TrainingModule)
        bad = torch.zeros((), dtype=torch.bool, device=pl_module.device) if self._now is None else self._now
        if trainer.precision != "16-mixed" and pl_module.gradients():
            bad = bad | ~torch.isfinite(pl_module.gradient_norm())
        step, batches = trainer.global_step, self._batches
        self._now, self._batches = None, []
        if not self._skip:
            self._unread.append((step, batches, bad))
            if len(self._unread) >= self._every:
                self.check(trainer)
        elif trainer.strategy.reduce_boolean_decision(bool(bad), all=False):
            for parameter in pl_module.parameters():
                parameter.grad = None  # optimisers pass over parameters without one
            self.skipped += 1
            pl_module.log("train/skipped_steps", float(self.skipped))

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Read the last flags."""
        self.check(trainer)

    def check(self, trainer: pl.Trainer) -> None:
        """Read the flags; all processes together.

        Raises:
            UserError: a step since the last reading was not finite.
        """
        if not self._unread:
            return
        flags = torch.stack([flag for _, _, flag in self._unread]).int()
        flags = trainer.strategy.reduce(flags, reduce_op="sum").cpu()
        unread, self._unread = self._unread, []
        if not flags.any():
            return
        if not trainer.is_global_zero:
            raise SystemExit(0)
        step, batches, _ = unread[int(flags.nonzero()[0])]
        path = self._directory / f"nonfinite_step_{step:07d}.json"
        module, data = trainer.lightning_module, trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(module, TrainingModule) and isinstance(data, SourceDataModule)
        loader = TrainLoader(data.source, data.batch_size, data.seed, period=data.period)
        described = [
            {"batch": batch["batch"], "index": batch["index"].tolist(), **module.model.replay(batch)}
            for batch in map(loader.batch, batches)
        ]
        write_json({"step": step, "seed": module.model.seed, "batches": described}, path)
        found = f"loss or gradient is not finite at step {step}; its samples and times are in {path}"
        ways = "every_n_steps=1 stops before the step is taken, on_nonfinite=skip leaves such steps out"
        again = "the same command repeats it from the last checkpoint"
        raise UserError(f"{found}; {again} (callbacks.nonfinite.{ways})")


def check_finite(trainer: pl.Trainer) -> None:
    """Read the flags of every guard now, before weights are saved or samples drawn with them.

    Raises:
        UserError: a step since the last reading was not finite.
    """
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, NonFiniteGuard):
            callback.check(trainer)
