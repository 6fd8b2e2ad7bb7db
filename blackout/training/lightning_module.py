"""LightningModule for the model of any family, and callbacks that act between optimiser steps.

`TrainingModule` connects a model with Lightning: seeds, clipping, averaged weights and logging. It
contains no formula. `NonFiniteGuard` stops or skips steps that are not finite.
"""

from __future__ import annotations

import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from torch import Tensor, nn
from torch.nn.utils import clip_grad_value_, clip_grads_with_norm_, get_total_norm
from torch.utils.data import DataLoader
from torchmetrics import Metric

from blackout.component import thaw
from blackout.errors import UserError, check_at_least_one, ensure
from blackout.files import write_json
from blackout.networks.dropout import BatchShard, Dropout
from blackout.preemption import signals
from blackout.random import fold_seed
from blackout.training.checkpoint_files import FORMAT
from blackout.training.data_module import EvalLoader, SourceDataModule, TrainLoader
from blackout.training.model import DROPOUT, Model
from blackout.training.optimization import Optimization


class TrainingModule(pl.LightningModule):
    """LightningModule that trains a model.

    Its state is the model's, so weights have the same names in checkpoints and in the model.

    Args:
        model: the model to train.
        optimization: optimiser and learning rate; None for a model that is only used.
    """

    def __init__(self, model: Model, optimization: Optimization | None = None) -> None:
        super().__init__()
        self.model = model
        self.optimization = optimization
        self.is_restoring = False  # whether Lightning restores a checkpoint before training
        # Exact means over all processes; Lightning's divide by a rounded number of samples.
        self.validation_means = nn.ModuleDict(
            {
                _key(name): HeldOutMean().set_dtype(torch.float64)
                for name in model.validation_metrics
            }
        )
        model.log = self.log_scalar
        model.record = self.add_to_mean
        self._gradient_norm: Tensor | None = None  # of the current step
        self._step_metrics: dict[str, float] = {}  # of the current step, for the loggers
        self._index: Tensor | None = None  # numbers of the samples of the current batch

    def __repr__(self) -> str:
        """Describe the model in one line."""
        return f"{type(self).__name__}({self.model!r})"

    def on_fit_start(self) -> None:
        """Reset the means; those of an earlier `Trainer.validate` are tensors of inference mode."""
        for mean in self.validation_means.values():
            mean.reset()  # type: ignore[operator]  # nn.ModuleDict does not know its values

    def on_train_batch_start(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Seed dropout by the number of the batch, and set this process's share of the batch.

        The masks of a user's `torch.nn.Dropout` also follow from the seed, but the samples they are
        applied to depend on the number of processes, unlike those of
        `blackout.networks.dropout.Dropout`.
        """
        if self.trainer.world_size > 1:
            for layer in self.model.network.modules():
                if isinstance(layer, Dropout):
                    layer.shard = BatchShard(
                        self.global_rank, self.trainer.world_size, len(batch["position"])
                    )
        seed = fold_seed(self.model.seed, DROPOUT, batch["batch_number"], 0)
        if self.device.type == "cpu":
            # Equals torch.manual_seed, which queries every kind of device each time
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """Return the model's loss of a batch."""
        return self.model.training_step(batch)

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Add a batch to the metrics `val/...` or, of test data, to the metrics `test/...`."""
        self._index = batch["index"]
        self.model.validation_step({**batch, "split": "test" if self.trainer.testing else "val"})
        for name in self.model.validation_metrics:
            metric = test_name(name) if self.trainer.testing else name
            batch_size = len(batch["index"])
            self.log(metric, self.mean(name), batch_size=batch_size, on_epoch=True, prog_bar=True)

    test_step = validation_step

    def predict_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        """Draw samples with the model's sampler.

        Args:
            batch: numbers of the samples, int64 [b]. The random numbers of sample k are a function
                of the model's seed and k.
            batch_idx: number of the batch; not used.

        Returns:
            [b, *shape].
        """
        batches = self.model.batches(batch.cpu(), self.model.seed)
        return torch.cat([samples["samples"] for _, samples in batches])

    def on_after_backward(self) -> None:
        """Reset the norm of earlier gradients."""
        self._gradient_norm = None

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """Log learning rate and gradient norm before clipping, at the steps that are logged."""
        if not _logs_this_step(self.trainer):
            return
        self._log_in_this_step("train/learning_rate", float(optimizer.param_groups[0]["lr"]))
        if self.gradients():  # a skipped step has none
            self._log_in_this_step("train/gradient_norm", float(self.gradient_norm()))

    def gradients(self) -> list[Tensor]:
        """Return the gradients of the network in the current step."""
        return [p.grad for p in self._network_parameters if p.grad is not None]

    @cached_property
    def _network_parameters(self) -> list[nn.Parameter]:
        return list(self.model.network.parameters())

    def gradient_norm(self) -> Tensor:
        """Return the 2-norm of all gradients before clipping, a scalar, computed once per step."""
        if self._gradient_norm is None:
            self._gradient_norm = get_total_norm(self.gradients())
        return self._gradient_norm

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Take the step, write its metrics to the loggers, and update the averaged weights."""
        step = self.global_step
        super().optimizer_step(epoch, batch_idx, optimizer, *args, **kwargs)
        if self._step_metrics:
            for logger in self.loggers:
                logger.log_metrics(self._step_metrics, step)
                logger.save()
            self._step_metrics = {}
        if self.model.ema is not None:
            self.model.ema.update(self.model.network, step)

    def configure_gradient_clipping(
        self,
        optimizer: Any,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the network's gradients or their norm; with a loss scaler as Lightning does.

        Without one, Lightning would refuse to clip with a fused optimiser under autocast. That is
        needed for the scaler of float16 only, which bfloat16 does not have.
        """
        has_scaler = getattr(self.trainer.precision_plugin, "scaler", None) is not None
        if has_scaler:
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)
        elif gradient_clip_val and gradient_clip_algorithm == "value":
            clip_grad_value_(self._network_parameters, gradient_clip_val)
        elif gradient_clip_val:
            clip_grads_with_norm_(self._network_parameters, gradient_clip_val, self.gradient_norm())

    def configure_optimizers(self) -> Any:
        """Return optimiser and learning-rate schedule.

        Raises:
            ValueError: the module has no `optimization`.
        """
        if self.optimization is None:
            raise ValueError("this model has no optimizer: pass `optimization=` to train it")
        # A CPU takes half the time for Adam's fused step. Lightning refuses it with a loss scaler,
        # which GPUs may have.
        groups = self.model.parameter_groups(self.optimization.lr)
        return self.optimization.configure(groups, fused=self.device.type == "cpu")

    load_from_checkpoint = Model.load_from_checkpoint  # raises, with what to do instead

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Record that Lightning restores a checkpoint, until training starts."""
        self.is_restoring = True

    def on_train_start(self) -> None:
        """Record that everything is restored."""
        self.is_restoring = False

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the description of the model to the checkpoint."""
        checkpoint["blackout"] = {"format": FORMAT, **thaw(self.model.config)}

    def mean(self, name: str) -> HeldOutMean:
        """Return the mean of a validation metric over all held-out samples."""
        return cast(HeldOutMean, self.validation_means[_key(name)])

    def add_to_mean(self, name: str, values: Tensor) -> None:
        """Add a value of each sample of the batch, [b], to the mean over all held-out samples."""
        assert self._index is not None
        self.mean(name).update(values, self._index)

    def log_scalar(self, name: str, value: Tensor) -> None:
        """Log a scalar of this training step, averaged over processes at logged steps."""
        trainer: Any = self.trainer  # Lightning's annotations lack `strategy`
        if _logs_this_step(trainer):  # otherwise the host would wait for the device at every step
            mean = trainer.strategy.reduce(value.detach(), reduce_op="mean")
            self._log_in_this_step(name, float(mean), prog_bar=True)

    def _log_in_this_step(self, name: str, value: float, prog_bar: bool = False) -> None:
        """Log a value in this step only; with accumulated micro-batches, that of the last.

        Lightning shows it in the progress bar. Lightning would also write it to the loggers at
        later steps without a value of this name, so `optimizer_step` writes it instead.
        """
        self.log(name, value, prog_bar=prog_bar, logger=False)
        self._step_metrics[name] = value

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's state."""
        return self.model.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        """Load the model's state."""
        return self.model.load_state_dict(state_dict, strict, assign)


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
        """Whether to ask for signals: if one has arrived here, or all processes agree on them now.

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
        ensure(action in ("stop", "skip"), f"on_nonfinite must be stop or skip, got {action}")
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
    """Read the flags of every guard, before weights are saved or samples drawn with them.

    Raises:
        UserError: a step since the last reading was not finite.
    """
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, NonFiniteGuard):
            callback.check(trainer)


class HeldOutMean(Metric):
    """Mean over held-out samples with its standard error, and the values themselves, in float64.

    Attributes:
        error: standard error of the last mean, of independent samples; NaN for fewer than two.
        samples: numbers of the samples of that mean, int64 [N], increasing, and their values,
            float64 [N], on the CPU.

    References: this project; checked in tests/training/test_python.py.
    """

    full_state_update = False
    value: list[Tensor]
    index: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.add_state("value", default=[], dist_reduce_fx="cat")
        self.add_state("index", default=[], dist_reduce_fx="cat")
        self.error = math.nan
        self.samples = (torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.float64))

    def update(self, values: Tensor, index: Tensor) -> None:
        """Add the values of samples.

        Args:
            values: one value per sample, [b].
            index: numbers of the samples in the split, int64 [b].

        Raises:
            ValueError: `values` and `index` have different lengths.
        """
        message = f"values of shape {list(values.shape)}, but samples {list(index.shape)}"
        ensure(values.shape == index.shape, message)
        self.value.append(values.detach().to(self.device, self.dtype))
        self.index.append(index.to(self.device))

    def compute(self) -> Tensor:
        """Return the mean of all values, a scalar; NaN for none. Sets `error` and `samples`."""
        values = _concatenate(self.value, self.dtype)
        index = _concatenate(self.index, torch.int64)
        order = index.argsort()
        self.samples = (index[order].cpu(), values[order].cpu())
        self.error = math.nan
        if len(values) > 1:
            self.error = float(values.std(correction=0)) / math.sqrt(len(values) - 1)
        return values.mean()


def _concatenate(state: Tensor | list[Tensor], dtype: torch.dtype) -> Tensor:
    """Return the state of a metric as a tensor, which it is after several processes were joined."""
    if isinstance(state, Tensor):
        return state
    return torch.cat(state) if state else torch.zeros(0, dtype=dtype)


def _logs_this_step(trainer: Any) -> bool:
    every: int = trainer.log_every_n_steps
    return every > 0 and (trainer.global_step + 1) % every == 0


def test_name(name: str) -> str:
    """Return the name `test/...` of a metric that is `val/...` on validation data."""
    return f"test/{name.removeprefix('val/')}"


def _key(name: str) -> str:
    """Return the name of a metric as that of a submodule."""
    return name.replace("/", "_").replace(".", "_")


class Standalone(TrainingModule):
    """LightningModule for `trainer.fit(module)`, which also has the methods of its model.

    An epoch is one pass over the data, whose order does not depend on interruptions.
    `trainer.fit(module, loader)` uses a DataLoader of the user's instead of the data.
    `trainer.validate` uses the validation data, `trainer.test` the test data, and
    `trainer.predict` draws samples.

    Args:
        model: the model to train.
        optimization: optimiser and learning rate.
        data_module: the data.
    """

    def __init__(
        self, model: Model, optimization: Optimization, data_module: SourceDataModule
    ) -> None:
        super().__init__(model, optimization)
        self._data_module = data_module
        settings = {
            "lr": optimization.lr,
            "batch_size": data_module.batch_size,
            "seed": model.seed,
        }
        self.save_hyperparameters({**settings, **thaw(model.config.get("model", {}))})
        self._num_validated = 0  # samples of a user's DataLoader in this validation

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Number the samples of a user's DataLoader, as a `SourceDataModule` numbers its own."""
        if self.trainer.predicting or (isinstance(batch, Mapping) and "index" in batch):
            return batch
        batch = self.model.to_batch(batch)
        num_processes = self.trainer.world_size
        size = len(next(iter(batch.values())))
        total_size = num_processes * size
        position = self.global_rank + num_processes * torch.arange(size)
        if not self.trainer.training:
            index = self._num_validated + position
            self._num_validated += total_size
            return {**batch, "index": index}
        progress = self.trainer.fit_loop.epoch_loop.batch_progress
        number = progress.total.processed  # type: ignore[attr-defined]
        return {
            **batch,
            "index": number * total_size + position,
            "position": position,
            "batch_number": number,
            "batch_size": total_size,
        }

    def on_validation_epoch_start(self) -> None:
        """Count the samples of a user's DataLoader from 0."""
        self._num_validated = 0

    on_test_epoch_start = on_validation_epoch_start

    def train_dataloader(self) -> TrainLoader:
        """Return the batches of the training data."""
        self._data_module.trainer = self._trainer
        return self._data_module.train_dataloader()

    def val_dataloader(self) -> EvalLoader:
        """Return the batches of the validation data."""
        self._data_module.trainer = self._trainer
        return self._data_module.val_dataloader()

    def test_dataloader(self) -> EvalLoader:
        """Return the batches of the test data."""
        self._data_module.trainer = self._trainer
        return self._data_module.test_dataloader()

    def predict_dataloader(self) -> DataLoader[int]:
        """Return the numbers of the samples to draw."""
        return self._data_module.predict_dataloader()

    def __getattr__(self, name: str) -> Any:
        """Look up what the module does not have in its model: `sample`, `save_pretrained`, ..."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "model":  # not assigned yet
                raise
            return getattr(self.model, name)
