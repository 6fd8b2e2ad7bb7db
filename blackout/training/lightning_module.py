"""The LightningModule around any family's model: optimiser, clipping, average, seeds, logging."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.utils.data import DataLoader
from torchmetrics import CatMetric

from blackout.networks.layers import DropoutOfShare
from blackout.random import fold_seed
from blackout.training.checkpoint_files import FORMAT
from blackout.training.data_module import EvalLoader, SourceDataModule, TrainLoader
from blackout.training.model import DROPOUT, Model
from blackout.training.optimization import OnePassAdam, Optimization


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
            {_key(name): HeldOutMean(nan_strategy="disable").set_dtype(torch.float64) for name in model.means}
        )
        recorder = LightningRecorder(self)
        model.log, model.record = recorder.log, recorder.mean
        self._gradient_norm: Tensor | None = None

    def __repr__(self) -> str:
        """The model in one line."""
        return f"{type(self).__name__}({self.model!r})"

    def on_fit_start(self) -> None:
        """Begin with new means: those of a `Trainer.validate` before are tensors of inference mode."""
        for mean in self.means.values():
            mean.reset()  # type: ignore[operator]  # nn.ModuleDict does not know its values

    def on_train_batch_start(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Seed dropout by the number of the batch, and tell it which share of the batch this is."""
        if self.trainer._results is not None:  # or Lightning logs what an earlier step reported once more
            self.trainer._results.reset(fx="training_step")
        for part in self.model.network.modules() if self.trainer.world_size > 1 else ():
            if type(part) is nn.Dropout:  # of a network of the user's
                part.__class__ = DropoutOfShare
            if isinstance(part, DropoutOfShare):
                part.share = self.global_rank, self.trainer.world_size, len(batch["position"])
        seed = fold_seed(self.model.seed, DROPOUT, batch["batch"], 0)
        if self.device.type == "cpu":  # the same as torch.manual_seed, which asks every kind of device each time
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """The model's loss of a batch."""
        return self.model.training_step(batch)

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Add a batch to the validation metrics; of the test data under names that begin with `test/`."""
        self.model.validation_step(batch)
        for name in self.model.means:
            shown = f"test/{name.removeprefix('val/')}" if self.trainer.testing else name
            self.log(shown, self.mean(name), batch_size=len(batch["index"]), on_epoch=True, prog_bar=True)

    test_step = validation_step

    def predict_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        """Samples by the model's own sampler.

        Args:
            batch: numbers of the samples, int64 [b]: sample k is a function of the model's seed and k.
        """
        return torch.cat([samples["samples"] for _, samples in self.model.batches(batch.cpu(), self.model.seed)])

    def on_after_backward(self) -> None:
        """Forget the norm of earlier gradients."""
        self._gradient_norm = None

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """Log the learning rate and the norm of the gradients before clipping, at the steps that are logged."""
        if not _logs_this_step(self.trainer):
            return
        self.log("train/learning_rate", float(optimizer.param_groups[0]["lr"]))
        if self.gradients():  # a step that is skipped has none
            self.log("train/gradient_norm", self.gradient_norm())

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
        """Take the step and move the average."""
        ema, network, number = self.model.ema, self.model.network, self.global_step
        one_pass = getattr(optimizer, "optimizer", optimizer)
        if ema is not None:
            one_pass.average = ema.pairs(network), ema.towards(number)
        super().optimizer_step(epoch, batch_idx, optimizer, *args, **kwargs)
        if ema is not None:
            ema.update(network, number, moved=one_pass.average is None)

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Clip the norm of the network's gradients, or as Lightning does."""
        scaled = getattr(self.trainer.precision_plugin, "scaler", None) is not None
        if scaled or gradient_clip_algorithm == "value":
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)
        elif gradient_clip_val and isinstance(optimizer, OnePassAdam) and self.gradient_norm().is_cpu:
            optimizer.scale = min(gradient_clip_val / (float(self.gradient_norm()) + 1e-6), 1.0)  # NaN stays NaN
        elif gradient_clip_val:
            # Lightning refuses fused optimisers under autocast, for the sake of float16's scaler; bfloat16 has none
            clip_grads_with_norm_(self._trained, gradient_clip_val, self.gradient_norm())

    def configure_optimizers(self) -> Any:
        """Optimiser and learning rate, by the optimization given."""
        if self.optimization is None:
            raise ValueError("this model was loaded for use; give it an `optimization` to train it")
        return self.optimization.configure(self.model.parameter_groups(self.optimization.lr))

    load_from_checkpoint = Model.load_from_checkpoint  # which says what to do instead

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Let the checkpoint describe its model."""
        checkpoint["blackout"] = {"format": FORMAT, **self.model.config}

    def mean(self, name: str) -> HeldOutMean:
        """The mean of a validation metric over all held-out samples."""
        metric = self.means[_key(name)]
        assert isinstance(metric, HeldOutMean)
        return metric

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The model's state."""
        return self.model.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        """Load the model's state."""
        return self.model.load_state_dict(state_dict, strict, assign)


class HeldOutMean(CatMetric):
    """A mean over held-out samples with its standard error, of all values in float64; ours, checked in
    `tests.training.test_python`.
    """

    error = math.nan
    """Of the mean that was computed last, where samples are independent; NaN of fewer than two."""

    def compute(self) -> Tensor:
        """The mean; NaN of none, of which `CatMetric` has an empty list."""
        values = torch.as_tensor(super().compute())
        self.error = float(values.std(correction=0)) / math.sqrt(len(values) - 1) if len(values) > 1 else math.nan
        return values.mean()


class LightningRecorder:
    """Passes a model's numbers on to Lightning."""

    def __init__(self, module: TrainingModule) -> None:
        self._module = module

    def log(self, name: str, value: Tensor) -> None:
        """Log a scalar of this training step; processes exchange it when it reaches the loggers, not at every step."""
        trainer: Any = self._module.trainer  # Lightning's annotations lack what is asked here
        if _logs_this_step(trainer):  # what Lightning is given it reads at once: costly, and an accelerator waits
            self._module.log(name, trainer.strategy.reduce(value.detach(), reduce_op="mean"), prog_bar=True)

    def mean(self, name: str, values: Tensor) -> None:
        """Add values [b] to the mean over all held-out samples."""
        self._module.mean(name).update(values)


def _logs_this_step(trainer: Any) -> bool:
    every: int = trainer.log_every_n_steps
    return every > 0 and (trainer.global_step + 1) % every == 0


def _key(name: str) -> str:
    """A metric's name as that of a submodule."""
    return name.replace("/", "_").replace(".", "_")


class Standalone(TrainingModule):
    """What `trainer.fit(module)` needs, and what answers as its model does: `module.sample(16)`, `save_pretrained`, ...

    An epoch is as many batches as the data have; the order of the data is the same however often training is
    interrupted. `trainer.fit(module, loader)` takes a DataLoader of your own in place of the data, `trainer.test`
    bounds the held-out samples, `trainer.predict` draws samples.

    Args:
        model: to be trained.
        optimization: optimiser and learning rate.
        data_module: the data.
    """

    def __init__(self, model: Model, optimization: Optimization, data_module: SourceDataModule) -> None:
        super().__init__(model, optimization)
        self._data_module = data_module
        shown = {"lr": optimization.lr, "batch_size": data_module.batch_size, "seed": model.seed}
        self.save_hyperparameters({**shown, **model.config.get("model", {})})  # for Lightning's loggers
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
        """The held-out data."""
        self._data_module.trainer = self._trainer
        return self._data_module.val_dataloader()

    test_dataloader = val_dataloader

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
