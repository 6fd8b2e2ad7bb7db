"""Callbacks that act between optimiser steps: their base class, and the guard of finite steps."""

from __future__ import annotations

import math
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from torch import Tensor

from blackout.errors import UserError, check_at_least_one, ensure
from blackout.files import write_json
from blackout.preemption import signals
from blackout.training.data_module import SourceDataModule, TrainLoader
from blackout.training.lightning_module import TrainingModule


class StepCallback(Callback, ABC):
    """Base class of callbacks that act between optimiser steps, every so many steps or seconds.

    Between steps the metrics of the last step are logged and a validation that was due is over; in
    Lightning's terms, the next batch is about to start. A step after which nothing is due costs
    nothing.

    Attributes:
        every: optimiser steps between two acts.
        seconds: seconds between two acts.
        acts_next: whether to act after the next step in any case.
        reacts_to_signals: whether to act when a signal asks the run to stop.
        signal_interval: optimiser steps between two agreements of several processes on signals.
        stops_on_signals: whether a signal can interrupt what it does, so that several processes
            must agree on signals right after it.
        boundary: number of steps at the last check.
        last_time: time of the last act, in seconds of a monotonic clock.
    """

    every = sys.maxsize
    seconds = math.inf
    acts_next = False
    reacts_to_signals = False
    signal_interval = 1
    stops_on_signals = False
    boundary = 0
    last_time = 0.0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start counting steps and seconds."""
        super().on_train_start(trainer, pl_module)
        self.boundary = trainer.global_step
        self.last_time = time.monotonic()

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any
    ) -> None:
        """Act, if a step has just ended and something is due."""
        if trainer.global_step == self.boundary:  # a later micro-batch of an accumulated step
            return
        self.boundary = trainer.global_step
        now = time.monotonic()
        has_signal = self.reacts_to_signals and self._may_have_signal(trainer)
        is_due = self.boundary % self.every == 0 or now - self.last_time >= self.seconds
        if self.acts_next or has_signal or is_due:
            self.acts_next = False
            self.last_time = now
            self.on_step_boundary(trainer, pl_module)

    def _may_have_signal(self, trainer: pl.Trainer) -> bool:
        """Return whether a signal has arrived here, or all processes agree on signals at this step.

        Agreeing costs an exchange between the processes, so it is left out after most steps.
        """
        if trainer.world_size == 1:
            return signals.received is not None
        if self.boundary % self.signal_interval == 0:
            return True
        return any(
            callback.stops_on_signals and self.boundary % callback.every == 0
            for callback in trainer.callbacks  # type: ignore[attr-defined]
            if isinstance(callback, StepCallback)
        )

    @abstractmethod
    def on_step_boundary(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Do what is due after step number `boundary`."""


class NonFiniteGuard(Callback):
    """Callback that checks whether loss and gradient norm of every step are finite.

    The norm is the one that clipping and logging use. A norm that overflows although all gradients
    are finite counts as not finite, since clipping by it would set the step to zero.

    One flag per step is kept on the device and read every `every_n_steps` steps and before every
    save, so that no checkpoint has weights updated by a non-finite step. With `action="skip"` the
    host waits for the device at every step. With `16-mixed` precision, infinite gradients are left
    to the loss scaler, and only the loss is checked.

    Args:
        directory: of the report `nonfinite_step_<n>.json`.
        action: "stop" to stop the run, "skip" to skip the step: weights and moments of the
            optimiser stay the same.
        every_n_steps: optimiser steps between two readings of the flags; 1 stops before the step
            is taken.

    Raises:
        ValueError: another action, or `every_n_steps` below 1.
    """

    def __init__(
        self, directory: str | Path, action: str = "stop", every_n_steps: int = 50
    ) -> None:
        ensure(action in ("stop", "skip"), f"on_nonfinite must be stop or skip, not {action}")
        check_at_least_one(every_n_steps=every_n_steps)
        self._directory = Path(directory)
        self._skips = action == "skip"
        self._every = every_n_steps
        self._flag: Tensor | None = None  # bool [], whether the current step is not finite
        self._batches: list[int] = []  # numbers of the current step's global batches
        self._unread: list[tuple[int, list[int], Tensor]] = []  # (step, its batches, its flag)
        self.skipped = 0  # number of skipped steps

    def state_dict(self) -> dict[str, Any]:
        """Return the number of skipped steps."""
        return {"skipped": self.skipped}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue counting skipped steps."""
        self.skipped = state_dict["skipped"]

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, *_: Any
    ) -> None:
        """Store the number of the batch."""
        self._batches.append(batch["batch_number"])

    def on_before_backward(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Tensor
    ) -> None:
        """Check the loss of a micro-batch."""
        flag = ~torch.isfinite(loss.detach()).all()
        self._flag = flag if self._flag is None else self._flag | flag

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any
    ) -> None:
        """Check the gradients; then store the flag of the step, or skip the step."""
        # 1. Flag of the step.
        assert isinstance(pl_module, TrainingModule)
        flag = self._flag
        if flag is None:
            flag = torch.zeros((), dtype=torch.bool, device=pl_module.device)
        if trainer.precision != "16-mixed" and pl_module.gradients():
            flag = flag | ~torch.isfinite(pl_module.gradient_norm())
        batches = self._batches
        self._flag = None
        self._batches = []

        # 2. Store it, or skip the step in all processes.
        if not self._skips:
            self._unread.append((trainer.global_step, batches, flag))
            if len(self._unread) >= self._every:
                self.check(trainer)
        elif trainer.strategy.reduce_boolean_decision(bool(flag), all=False):
            for parameter in pl_module.parameters():
                parameter.grad = None  # optimisers skip parameters without a gradient
            self.skipped += 1
            pl_module.log("train/skipped_steps", float(self.skipped))

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Read the last flags."""
        self.check(trainer)

    def check(self, trainer: pl.Trainer) -> None:
        """Read the flags, in all processes together.

        Raises:
            UserError: a step since the last reading was not finite.
        """
        # 1. Read the flags of all processes.
        if not self._unread:
            return
        flags = torch.stack([flag for _, _, flag in self._unread]).int()
        flags = trainer.strategy.reduce(flags, reduce_op="sum").cpu()
        steps = self._unread
        self._unread = []
        if not flags.any():
            return
        if not trainer.is_global_zero:
            raise SystemExit(0)

        # 2. Write the batches of the first step that was not finite.
        step, batches, _ = steps[int(flags.nonzero()[0])]
        path = self._directory / f"nonfinite_step_{step:07d}.json"
        module = trainer.lightning_module
        data = trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(module, TrainingModule)
        assert isinstance(data, SourceDataModule)
        loader = TrainLoader(data.source, data.batch_size, data.seed, period=data.period)
        reports = []
        for batch in map(loader.batch, batches):
            report = {"batch": batch["batch_number"], "index": batch["index"].tolist()}
            reports.append({**report, **module.model.replay(batch)})
        write_json({"step": step, "seed": module.model.seed, "batches": reports}, path)

        # 3. Stop.
        raise UserError(
            f"loss or gradient is not finite at step {step}; its samples and times are in {path}; "
            "the same command repeats it from the last checkpoint "
            "(callbacks.nonfinite.every_n_steps=1 stops before the step is taken, "
            "on_nonfinite=skip leaves such steps out)"
        )


def check_finite(trainer: pl.Trainer) -> None:
    """Check that all steps since the last check were finite, before weights are saved or used.

    The flags of the run's `NonFiniteGuard` are read; without one, nothing is checked.

    Raises:
        UserError: a step since the last reading was not finite.
    """
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, NonFiniteGuard):
            callback.check(trainer)
