"""The LightningModule: it wires process, network, head, loss and sampler together and contains no formula."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torchmetrics import MeanMetric

from blackout.diffusion.grids import pilot_run
from blackout.diffusion.guidance import Guidance, GuidedDenoiser, check_classes, drop_labels
from blackout.diffusion.heads import Head
from blackout.diffusion.inpainting import KnownElements
from blackout.diffusion.likelihood import bits_per_dim, likelihood_bound
from blackout.diffusion.losses import CountLoss, Loss
from blackout.diffusion.predictions import Denoiser, Prediction
from blackout.diffusion.processes import Process
from blackout.diffusion.samplers import Callback, Sampler, count_evaluations, sample
from blackout.diffusion.schedules import Schedule, stratified
from blackout.random import SampleStreams, fold_seed
from blackout.training.checkpoint_files import FORMAT
from blackout.training.ema import EMA
from blackout.training.optimization import Optimization

# what a random number is for: keys that keep the uses of one seed apart
_TIMES, _NOISE, _DROPOUT, _VALIDATION, _LABELS, _PILOT = range(6)
_GOLDEN_RATIO = 0.6180339887498949


class BlackoutDiffusion(pl.LightningModule):
    """A diffusion model on counts.

    Args:
        network: (xt [B, ...], t [B]) -> raw output [B, outputs, ...]; it scales its own input.
        head: raw output -> prediction.
        process: the forward process.
        mean: E[X_0], float, of the data's shape; where sampling starts from.
        schedule: training times, and the sampler's grid unless it has its own.
        loss: weights and kind.
        sampler: how samples are drawn by default.
        optimization: None for a model that is only used.
        ema_decay: None for a model without an average (a loaded one).
        seed: with the step's number it decides everything a training step draws.
        label_dropout: share of training samples whose label a conditional network does not see.
        validation_draws: times, evenly spaced, at which validation observes each image.

    Raises:
        ValueError: label_dropout outside [0, 1], or validation_draws below 1.
    """

    def __init__(
        self,
        network: nn.Module,
        head: Head,
        process: Process,
        mean: Tensor,
        schedule: Schedule = Schedule(),
        loss: Loss = CountLoss(),
        sampler: Sampler = Sampler(),
        optimization: Optimization | None = None,
        ema_decay: float | None = None,
        seed: int = 0,
        label_dropout: float = 0.1,
        validation_draws: int = 1,
    ) -> None:
        super().__init__()
        if validation_draws < 1:
            raise ValueError(f"validation_draws must be at least 1, not {validation_draws}")
        if not 0 <= label_dropout <= 1:
            raise ValueError(f"label_dropout must be in [0, 1], not {label_dropout}")
        self.network = network
        self.ema = None if ema_decay is None else EMA(network, ema_decay)
        self.head, self.process, self.schedule, self.loss = head, process, schedule, loss
        self.sampler, self.optimization, self.seed, self.label_dropout = sampler, optimization, seed, label_dropout
        self.validation_draws = validation_draws
        self.mean: Tensor
        self.register_buffer("mean", mean.float())
        # an exact mean over all processes: Lightning's own divides by a rounded number of samples
        self.bits_per_dim = MeanMetric(nan_strategy="disable").set_dtype(torch.float64)
        self.config: dict[str, Any] = {}
        """Plain description from which `blackout.training.build` made this module; saved with every checkpoint."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.mean.shape)

    @property
    def num_classes(self) -> int | None:
        """Number of classes of a conditional network; None for an unconditional one."""
        return getattr(self.network, "num_classes", None)

    def classes_in_turn(self, num_samples: int) -> Tensor | None:
        """0, 1, 2, ... and again, int64 [num_samples], for pictures of every class; None without classes."""
        return None if self.num_classes is None else torch.arange(num_samples) % self.num_classes

    def forward(self, xt: Tensor, t: Tensor, classes: Tensor | None = None) -> Prediction:
        """Predict with the trained (not the averaged) network, given classes [B] or None."""
        condition = () if classes is None else (classes,)
        prediction: Prediction = self.head(self.network(xt, t, *condition), xt, t)
        return prediction

    def denoiser(self, classes: Tensor | None = None) -> Denoiser:
        """(xt, t) -> prediction with the averaged weights, where there are any, given classes [B] or None."""
        network = self.network if self.ema is None else self.ema
        condition = () if classes is None else (classes,)
        return lambda xt, t: self.head(network(xt, t, *condition), xt, t)

    def _classes(self, batch: dict[str, Any]) -> Tensor | None:
        """The batch's labels, if the network has a use for them."""
        return None if self.num_classes is None else batch.get("label")

    def compile_networks(self) -> None:
        """Compile the networks in place with torch.compile, at their first use; names of weights stay as they are."""
        self.network.compile()
        if self.ema is not None:
            self.ema.module.compile()

    # --- training

    def on_train_batch_start(self, batch: dict[str, Any], batch_idx: int) -> None:
        torch.manual_seed(fold_seed(self.seed, _DROPOUT, batch["batch"], self.global_rank))

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        x0, position, number = batch["x0"], batch["position"], batch["batch"]
        s, t, importance = self.training_times(position, number, batch["batch_size"])
        noise = SampleStreams(fold_seed(self.seed, _NOISE), position).at(number)
        xt, target = self.process.observe(x0, t, noise)
        classes = self._classes(batch)
        if classes is not None and self.num_classes is not None:
            coins = SampleStreams(fold_seed(self.seed, _LABELS), position).at(number)
            classes = drop_labels(classes, self.num_classes, self.label_dropout, coins)
        losses = self.loss(self(xt, t, classes), target, s, t)
        loss = (losses.flatten(1).mean(1) * importance).mean().float()
        self.log("train/loss", loss, prog_bar=True, sync_dist=True)
        return loss

    def training_times(self, position: Tensor, number: int, batch_size: int) -> tuple[Tensor, Tensor, Tensor]:
        """Intervals (s, t) and weights, float64 [b], of the samples at `position` of global batch `number`."""
        offset = SampleStreams(fold_seed(self.seed, _TIMES), position.new_zeros(1)).at(number).next_draw().uniform((1,))
        return self.schedule.draw(stratified(position, batch_size, offset))

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

    # --- validation: the likelihood bound, whatever weights the training loss has

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        x0, index = batch["x0"], batch["index"]
        # a Weyl sequence spreads the images over the times, evenly for any subset and in any order;
        # the same times and noise at every validation make its curve smooth
        first = (index.double() + 0.5) * _GOLDEN_RATIO
        noise = SampleStreams(fold_seed(self.seed, _VALIDATION), index)
        denoiser, final_time = self.denoiser(self._classes(batch)), self.schedule.times[-1]
        for draw in range(self.validation_draws):
            v = torch.frac(first + draw / self.validation_draws)
            nats = likelihood_bound(denoiser, self.process, x0, v, noise.at(draw), final_time=final_time)
            self.bits_per_dim.update(bits_per_dim(nats, self.shape))
        self.log("val/bits_per_dim", self.bits_per_dim, batch_size=len(x0), on_epoch=True, prog_bar=True)

    # --- sampling

    @torch.no_grad()
    def sample(
        self,
        num_samples: int,
        seed: int = 0,
        sampler: Sampler | None = None,
        callback: Callback | None = None,
        classes: Tensor | None = None,
        known: KnownElements | None = None,
    ) -> Tensor:
        """Samples 0..num_samples - 1 of a seed, as integer counts [num_samples, *shape] on the CPU.

        See `sample_batches`.
        """
        batches = self.sample_batches(torch.arange(num_samples), seed, sampler, callback, classes, known)
        return torch.cat([counts.cpu() for _, counts in batches])

    @torch.no_grad()
    def sample_batches(
        self,
        indices: Tensor,
        seed: int = 0,
        sampler: Sampler | None = None,
        callback: Callback | None = None,
        classes: Tensor | None = None,
        known: KnownElements | None = None,
        batch_size: int | None = None,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Draw the samples named by `indices`, a batch at a time.

        Sample k's random numbers are a function of (seed, k, step). All batches have one shape (the last is padded),
        so that the network's kernels round alike too.

        Args:
            indices: int64 [N].
            seed, sampler, callback: None for the model's own sampler; see `blackout.diffusion.samplers`.
            classes: int64 [N], the class of each; None draws from all.
            known: observed elements, for inpainting.
            batch_size: of every batch; None for the sampler's, or all samples if they are fewer.

        Yields:
            (indices [b], counts [b, *shape] on the model's device).

        Raises:
            ValueError: classes that the model does not know, or guidance without classes.
        """
        sampler = sampler or self.sampler
        size = batch_size or min(sampler.evaluation.batch_size, len(indices))
        if classes is not None:
            check_classes(classes, len(indices), self.num_classes)
        elif sampler.guidance.scale != 1:
            raise ValueError("guidance needs classes to guide towards")
        for rows in torch.arange(len(indices)).split(size) if len(indices) else ():
            padded = torch.cat([rows, rows[-1:].expand(size - len(rows))])
            of_batch = None if classes is None else classes[padded].to(self.device)
            observed = None if known is None else known.select(padded)
            streams = SampleStreams(seed, indices[padded].to(self.device))
            counts = self._sample(sampler, streams, size, callback, of_batch, observed)
            yield indices[rows], counts[: len(rows)]

    def _sample(
        self, sampler: Sampler, streams: SampleStreams, size: int, callback: Callback | None, classes: Tensor | None,
        known: KnownElements | None,
    ) -> Tensor:  # fmt: skip
        """One batch, counts [size, *shape]."""
        with self._sampling_mode(sampler):
            return sample(
                self._guided(sampler, classes), self.process, self.times(sampler).to(self.device),
                (size, *self.shape), streams, callback, kernel=sampler.kernel, correction=sampler.correction,
                mean=self.mean if sampler.poisson_start else None, known=known, device=self.device,
            )  # fmt: skip

    def times(self, sampler: Sampler) -> Tensor:
        """The grid a sampler walks, float64 [T + 1]: its own, or one of the training schedule's family."""
        return (sampler.grid or self.schedule.grid)(sampler.num_steps)

    def evaluations(self, sampler: Sampler, with_classes: bool = False) -> int:
        """The number of network function evaluations (NFE) of a sample; guidance doubles them where it acts."""
        guidance = sampler.guidance if with_classes else Guidance()
        times = self.times(sampler)
        return count_evaluations(times, self.process, self.head, sampler.kernel, sampler.correction, guidance)

    def _guided(self, sampler: Sampler, classes: Tensor | None) -> Denoiser:
        if classes is None:
            return self.denoiser()
        guidance, largest = sampler.guidance, self.process.max_count
        return GuidedDenoiser(self.denoiser(classes), self.denoiser(), guidance.scale, largest, guidance.between)

    def pilot(self, num_samples: int = 64, num_steps: int = 200) -> dict[str, list[float]]:
        """What `OptimalGrid` needs of a model of pure death: a run of num_samples samples of num_steps evaluations."""
        streams = SampleStreams(fold_seed(self.seed, _PILOT), torch.arange(num_samples, device=self.device))
        with self._sampling_mode(self.sampler):
            return pilot_run(
                self.denoiser(), self.process, (num_samples, *self.shape), streams,
                mean=self.mean, num_steps=num_steps, device=self.device,
            )  # fmt: skip

    @contextmanager
    def _sampling_mode(self, sampler: Sampler) -> Iterator[None]:
        """The sampler's precision, and eval mode (or train mode, where dropout is to be kept).

        Afterwards every submodule is as it was.
        """
        network = self.network if self.ema is None else self.ema.module
        modes = {module: module.training for module in network.modules()}
        network.train(sampler.evaluation.keep_dropout)
        try:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=sampler.evaluation.bfloat16):
                yield
        finally:
            for module, mode in modes.items():
                module.training = mode

    # --- checkpoints describe themselves

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["blackout"] = {"format": FORMAT, **self.config}
