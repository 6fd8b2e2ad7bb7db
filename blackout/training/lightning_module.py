"""The LightningModule around any family's model: clipping, average, seeds, logging, steps that are not finite."""

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
from blackout.networks.layers import BatchShard, DistributedDropout
from blackout.preemption import signals
from blackout.random import fold_seed
from blackout.training.checkpoint_files import FORMAT
from blackout.training.data_module import EvalLoader, SourceDataModule, TrainLoader
from blackout.training.model import DROPOUT, Model
from blackout.training.optimization import Optimization


class TrainingModule(pl.LightningModule):
    """Trains a model. Its state is the model's: weights have the same names in checkpoints and in the model.

    Args:
        model: to be trained.
        optimization: optimiser and learning rate.
    """

    def __init__(self, model: Model, optimization: Optimization | None = None) -> None:
        super().__init__()
        self.model, self.optimization = model, optimization
        # exact means over all processes: Lightning's own divide by a rounded number of samples
        self.means = nn.ModuleDict(
            {_key(name): HeldOutMean().set_dtype(torch.float64) for name in model.means}
        )
        model.log, model.record = self.log_scalar, self.add_to_mean
        self._gradient_norm: Tensor | None = None
        self._step_metrics: dict[str, float] = {}  # of the step that is being taken, for the loggers
        self._index: Tensor | None = None

    def __repr__(self) -> str:
        """The model in one line."""
        return f"{type(self).__name__}({self.model!r})"

    def on_fit_start(self) -> None:
        """Begin with new means: those of a `Trainer.validate` before are tensors of inference mode."""
        for mean in self.means.values():
            mean.reset()  # type: ignore[operator]  # nn.ModuleDict does not know its values

    def on_train_batch_start(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Seed dropout by the number of the batch, and tell it which share of the batch this is.

        A `torch.nn.Dropout` in a network of the user's is left as it is: its masks are those of the batch's seed, but
        which sample gets which depends on the number of processes. `blackout.networks.layers.Dropout` does not.
        """
        if self.trainer.world_size > 1:
            for layer in self.model.network.modules():
                if isinstance(layer, DistributedDropout):
                    layer.shard = BatchShard(
                        self.global_rank, self.trainer.world_size, len(batch["position"])
                    )
        seed = fold_seed(self.model.seed, DROPOUT, batch["batch"], 0)
        if self.device.type == "cpu":  # the same as torch.manual_seed, which asks every kind of device each time
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """The model's loss of a batch."""
        return self.model.training_step(batch)

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Add a batch of validation data to the metrics `val/...`, or one of test data to the metrics `test/...`."""
        self._index = batch["index"]
        self.model.validation_step({**batch, "split": "test" if self.trainer.testing else "val"})
        for name in self.model.means:
            shown = test_name(name) if self.trainer.testing else name
            self.log(shown, self.mean(name), batch_size=len(batch["index"]), on_epoch=True, prog_bar=True)

    test_step = validation_step

    def predict_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        """Samples by the model's own sampler.

        Args:
            batch: numbers of the samples, int64 [b]; sample k's random numbers are a function of the
                model's seed and k.
        """
        return torch.cat([samples["samples"] for _, samples in self.model.batches(batch.cpu(), self.model.seed)])

    def on_after_backward(self) -> None:
        """Forget the norm of earlier gradients."""
        self._gradient_norm = None

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """Log the learning rate and the norm of the gradients before clipping, at the steps that are logged."""
        if not _logs_this_step(self.trainer):
            return
        self._log_in_this_step("train/learning_rate", float(optimizer.param_groups[0]["lr"]))
        if self.gradients():  # a step that is skipped has none
            self._log_in_this_step("train/gradient_norm", float(self.gradient_norm()))

    def gradients(self) -> list[Tensor]:
        """Those of the network, of the step that is being taken."""
        return [p.grad for p in self._trained if p.grad is not None]

    @cached_property
    def _trained(self) -> list[nn.Parameter]:
        return list(self.model.network.parameters())

    def gradient_norm(self) -> Tensor:
        """The 2-norm of all gradients before clipping, a scalar, computed once a step for all who ask."""
        if self._gradient_norm is None:
            self._gradient_norm = get_total_norm(self.gradients())
        return self._gradient_norm

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        """Take the step, write its metrics to the loggers, and move the average."""
        number = self.global_step
        super().optimizer_step(epoch, batch_idx, optimizer, *args, **kwargs)
        if self._step_metrics:
            for logger in self.loggers:
                logger.log_metrics(self._step_metrics, number)
                logger.save()
            self._step_metrics = {}
        if self.model.ema is not None:
            self.model.ema.update(self.model.network, number)

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Clip the network's gradients or their norm; beside a scaler as Lightning does."""
        scaled = getattr(self.trainer.precision_plugin, "scaler", None) is not None
        if scaled:
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)
        elif gradient_clip_val and gradient_clip_algorithm == "value":
            # Lightning refuses fused optimisers under autocast, for the sake of float16's scaler; bfloat16 has none
            clip_grad_value_(self._trained, gradient_clip_val)
        elif gradient_clip_val:
            clip_grads_with_norm_(self._trained, gradient_clip_val, self.gradient_norm())

    def configure_optimizers(self) -> Any:
        """Optimiser and learning rate, by the optimization given."""
        if self.optimization is None:
            raise ValueError("this model was loaded for use; give it an `optimization` to train it")
        # a CPU takes Adam's fused step in half the time; Lightning refuses it beside float16's scaler, which GPUs have
        groups = self.model.parameter_groups(self.optimization.lr)
        return self.optimization.configure(groups, fused=self.device.type == "cpu")

    load_from_checkpoint = Model.load_from_checkpoint  # which says what to do instead

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Let the checkpoint describe its model."""
        checkpoint["blackout"] = {"format": FORMAT, **thaw(self.model.config)}

    def mean(self, name: str) -> HeldOutMean:
        """The mean of a validation metric over all held-out samples."""
        return cast(HeldOutMean, self.means[_key(name)])

    def add_to_mean(self, name: str, values: Tensor) -> None:
        """Add a value of each sample of the batch, [b], to the mean over all held-out samples."""
        assert self._index is not None
        self.mean(name).update(values, self._index)

    def log_scalar(self, name: str, value: Tensor) -> None:
        """Log a scalar of this training step; processes exchange it when it reaches the loggers, not at every step."""
        trainer: Any = self.trainer  # Lightning's annotations lack what is asked here
        if _logs_this_step(trainer):  # the host reads the value at once: costly, and an accelerator waits
            mean = trainer.strategy.reduce(value.detach(), reduce_op="mean")
            self._log_in_this_step(name, float(mean), prog_bar=True)

    def _log_in_this_step(self, name: str, value: float, prog_bar: bool = False) -> None:
        """Log a value in this step alone; of micro-batches that are accumulated, that of the last.

        Lightning shows it in the progress bar. It would also write it to the loggers again at later steps, those that
        have no value of this name, so `optimizer_step` writes it.
        """
        self.log(name, value, prog_bar=prog_bar, logger=False)
        self._step_metrics[name] = value

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The model's state."""
        return self.model.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        """Load the model's state."""
        return self.model.load_state_dict(state_dict, strict, assign)


class AtBoundary(Callback, ABC):
    """Acts between optimiser steps: every so many steps or seconds, or at the next boundary, whichever it is.

    At a boundary the step's metrics are logged, and the validation that is due at it is over; in Lightning's terms the
    next batch is about to start. A step at whose boundary nothing is due costs nothing.
    """

    every = sys.maxsize
    """Steps from one act to the next."""
    seconds = math.inf
    """Likewise."""
    soon = False
    """Whether to act at the next boundary."""
    heeds_signals = False
    """Whether to act too when a signal asks the run to leave; several processes agree on that at every boundary."""
    boundary = 0
    """Step of the last boundary."""
    acted = 0.0
    """When it acted last, in seconds of a clock that never goes back."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Count from here."""
        super().on_train_start(trainer, pl_module)
        self.boundary, self.acted = trainer.global_step, time.monotonic()

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any) -> None:
        """Act, if this is a boundary and it is time to."""
        if trainer.global_step == self.boundary:  # a later micro-batch of an accumulated step
            return
        self.boundary, now = trainer.global_step, time.monotonic()
        asked = self.heeds_signals and (signals.received or trainer.world_size > 1)
        if self.soon or asked or self.boundary % self.every == 0 or now - self.acted >= self.seconds:
            self.soon, self.acted = False, now
            self.at_boundary(trainer, pl_module)

    @abstractmethod
    def at_boundary(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Do what is due at the step `boundary`."""


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


class HeldOutMean(Metric):
    """A mean over held-out samples with its standard error, and the values themselves, all in float64.

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
        """Standard error of the mean that was computed last, of independent samples; NaN of fewer than two."""
        self.samples = torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.float64)
        """Numbers of the samples of that mean, int64 [N], rising, and their values, [N], on the CPU."""

    def update(self, values: Tensor, index: Tensor) -> None:
        """Add the values of samples.

        Args:
            values: one of each, [b].
            index: their numbers in the split, int64 [b].

        Raises:
            ValueError: values and numbers that are not as many.
        """
        ensure(values.shape == index.shape, f"{list(values.shape)} values of samples {list(index.shape)}")
        self.value.append(values.detach().to(self.device, self.dtype))
        self.index.append(index.to(self.device))

    def compute(self) -> Tensor:
        """Return the mean of all values, a scalar; NaN of none. Sets `error` and `samples`."""
        values = _joined(self.value, self.dtype)
        order = _joined(self.index, torch.int64).argsort()
        self.samples = _joined(self.index, torch.int64)[order].cpu(), values[order].cpu()
        self.error = float(values.std(correction=0)) / math.sqrt(len(values) - 1) if len(values) > 1 else math.nan
        return values.mean()


def _joined(state: Tensor | list[Tensor], dtype: torch.dtype) -> Tensor:
    """Return the state of a metric, which is a list in one process and a tensor after several were joined."""
    if isinstance(state, Tensor):
        return state
    return torch.cat(state) if state else torch.zeros(0, dtype=dtype)


def _logs_this_step(trainer: Any) -> bool:
    every: int = trainer.log_every_n_steps
    return every > 0 and (trainer.global_step + 1) % every == 0


def test_name(name: str) -> str:
    """The name on test data, `test/...`, of the metric that is called `val/...` on validation data."""
    return f"test/{name.removeprefix('val/')}"


def _key(name: str) -> str:
    """A metric's name as that of a submodule."""
    return name.replace("/", "_").replace(".", "_")


class Standalone(TrainingModule):
    """What `trainer.fit(module)` needs, and what answers as its model does: `module.sample(16)`, `save_pretrained`, ...

    An epoch is as many batches as the data have; the order of the data is the same however often training is
    interrupted. `trainer.fit(module, loader)` takes a DataLoader of your own in place of the data. `trainer.validate`
    uses the validation data, `trainer.test` the test data, and `trainer.predict` draws samples.

    Args:
        model: to be trained.
        optimization: optimiser and learning rate.
        data_module: the data.
    """

    def __init__(self, model: Model, optimization: Optimization, data_module: SourceDataModule) -> None:
        super().__init__(model, optimization)
        self._data_module = data_module
        shown = {"lr": optimization.lr, "batch_size": data_module.batch_size, "seed": model.seed}
        self.save_hyperparameters({**shown, **thaw(model.config.get("model", {}))})  # for Lightning's loggers
        self._validated = 0  # samples of a DataLoader of the user's own, in this validation

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Number a batch of a DataLoader of the user's own, as a `SourceDataModule` numbers its batches."""
        if self.trainer.predicting or (isinstance(batch, Mapping) and "index" in batch):
            return batch
        named, world = self.model.batch_of(batch), self.trainer.world_size
        size = len(next(iter(named.values())))
        position = self.global_rank + world * torch.arange(size)
        if not self.trainer.training:
            index, self._validated = self._validated + position, self._validated + world * size
            return {**named, "index": index}
        number = self.trainer.fit_loop.epoch_loop.batch_progress.total.processed  # type: ignore[attr-defined]
        index = number * world * size + position
        return {**named, "index": index, "position": position, "batch": number, "batch_size": world * size}

    def on_validation_epoch_start(self) -> None:
        """Count the samples of a DataLoader of the user's own from the first."""
        self._validated = 0

    on_test_epoch_start = on_validation_epoch_start

    def train_dataloader(self) -> TrainLoader:
        """Batches of the training data."""
        self._data_module.trainer = self._trainer
        return self._data_module.train_dataloader()

    def val_dataloader(self) -> EvalLoader:
        """The validation data."""
        self._data_module.trainer = self._trainer
        return self._data_module.val_dataloader()

    def test_dataloader(self) -> EvalLoader:
        """The test data."""
        self._data_module.trainer = self._trainer
        return self._data_module.test_dataloader()

    def predict_dataloader(self) -> DataLoader[int]:
        """Numbers of samples to be drawn."""
        return self._data_module.predict_dataloader()

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "model":  # not made yet
                raise
            return getattr(self.model, name)
