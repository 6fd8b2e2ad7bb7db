"""LightningModule for the model of any family.

`TrainingModule` connects a model with Lightning: seeds, clipping, averaged weights and logging. It
contains no formula. `Standalone` also has the data, for `trainer.fit(module)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, cast

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_value_, clip_grads_with_norm_, get_total_norm
from torch.utils.data import DataLoader

from blackout.component import thaw
from blackout.networks.dropout import BatchShard, Dropout
from blackout.random import fold_seed
from blackout.training.checkpoint_files import FORMAT
from blackout.training.data_module import EvalLoader, SourceDataModule, TrainLoader
from blackout.training.held_out_mean import HeldOutMean
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
