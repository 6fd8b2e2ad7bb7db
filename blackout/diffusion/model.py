"""The model: loss, validation and sampling of a network with its head, process and schedule.

It contains no formula. A training step is `BlackoutDiffusion.training_step`. Samples are drawn by
`sample` in `batches`: for each, `plan_batch` collects what determines it, and `run_sampler` walks
it from noise to data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from blackout.counts import time_on
from blackout.diffusion.batch_plan import plan_batch
from blackout.diffusion.checks import try_sampler
from blackout.diffusion.conditions import (
    NO_CONDITIONS,
    Conditions,
    check_conditions,
    parse_conditions,
)
from blackout.diffusion.guidance import drop_labels, start_mean
from blackout.diffusion.heads import Head
from blackout.diffusion.inpainting import KnownElements
from blackout.diffusion.likelihood import bits_per_dim, likelihood_bound
from blackout.diffusion.losses import CountLoss, Loss
from blackout.diffusion.missing_entries import fill_missing_with_mean, mask_missing_entries
from blackout.diffusion.particles import Particles, particles_per_sample, run_particles
from blackout.diffusion.predictions import Denoiser, Prediction
from blackout.diffusion.processes import Process
from blackout.diffusion.progress import progress_bar
from blackout.diffusion.sampler import Sampler, choose_sampler
from blackout.diffusion.sampling import Callback, run_sampler
from blackout.diffusion.schedule import Schedule, stratified
from blackout.diffusion.user_batches import read_batch
from blackout.errors import ensure
from blackout.protocols import Drawn
from blackout.random import SampleStreams, fold_seed, low_discrepancy
from blackout.training.model import Model, check_sampling_arguments

# keys that keep the uses of one seed apart; 2 is dropout's
TIMES_KEY = 0
NOISE_KEY = 1
VALIDATION_KEY = 3
LABELS_KEY = 4
MAX_VALIDATION_DRAWS = 1_000  # times at which a validation observes each sample


class BlackoutDiffusion(Model):
    """A diffusion model on counts.

    References: Santos et al. 2023.

    Args:
        network: (xt [B, ...], t [B]) -> raw output [B, outputs, ...]; it scales its own input.
        head: raw output -> prediction.
        process: the forward process.
        data_mean: E[X_0], float, of the data's shape; where sampling starts from.
        schedule: training times, and the sampler's grid unless it has its own.
        loss: weights and kind.
        sampler: draws samples unless another one is requested.
        ema_decay: of the averaged weights; None for a model without an average (a loaded one).
        seed: with the step's number it decides everything a training step draws.
        label_dropout: share of training samples whose label a conditional network does not get.
        validation_draws: times, evenly spaced, at which validation observes each image.
        class_mean: E[X_0 | class], float [num_classes, *shape]; None to start all classes from
            `data_mean`.
        concentration: of `Elements`, for networks and heads that measure counts by it; saved with
            the model.
        gain: likewise.

    Raises:
        ValueError: label_dropout outside [0, 1], or validation_draws outside 1..1,000.
    """

    validation_metrics = ("val/bits_per_dim",)
    sampler_class: ClassVar[type[Sampler]] = Sampler  # class of the samplers that fit the model

    def __init__(  # noqa: PLR0913 - the parts of a model, as in its description
        self,
        network: nn.Module,
        head: Head,
        process: Process,
        data_mean: Tensor,
        schedule: Schedule = Schedule(),
        loss: Loss = CountLoss(),
        sampler: Sampler = Sampler(),
        ema_decay: float | None = None,
        seed: int = 0,
        label_dropout: float = 0.1,
        validation_draws: int = 1,
        class_mean: Tensor | None = None,
        concentration: Tensor | None = None,
        gain: Tensor | None = None,
    ) -> None:
        super().__init__(network, ema_decay, seed)
        ensure(
            1 <= validation_draws <= MAX_VALIDATION_DRAWS,
            f"validation_draws must be in 1..{MAX_VALIDATION_DRAWS:,}, not {validation_draws}",
        )
        ensure(0 <= label_dropout <= 1, f"label_dropout must be in [0, 1], not {label_dropout}")
        self.head = head
        self.process = process
        self.schedule = schedule
        self.loss = loss
        self.sampler = sampler
        self.label_dropout = label_dropout
        self.validation_draws = validation_draws
        self.data_mean: Tensor
        self.class_mean: Tensor | None
        self.concentration: Tensor | None
        self.gain: Tensor | None
        buffers = {
            "data_mean": data_mean,
            "class_mean": class_mean,
            "concentration": concentration,
            "gain": gain,
        }
        for name, value in buffers.items():
            self.register_buffer(name, None if value is None else value.float())

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.data_mean.shape)

    @property
    def num_classes(self) -> int | None:
        """Number of classes of a conditional network; None for an unconditional one."""
        return getattr(self.network, "num_classes", None)

    def extra_repr(self) -> str:
        """Return what `repr` shows of the model."""
        data = self.config.get("data", {}).get("name")
        facts = (
            f"data={data}, shape={self.shape}, max_count={self.process.max_count}, "
            f"classes={self.num_classes}"
        )
        parts = {"process": self.process, "head": self.head, "kernel": self.sampler.kernel}
        kinds = ", ".join(f"{name}={type(part).__name__}" for name, part in parts.items())
        return f"{facts}, {super().extra_repr()}, {kinds}, num_steps={self.sampler.num_steps}"

    def to_batch(self, batch: Any) -> dict[str, Any]:
        """Return a batch of a user's DataLoader by name; see `read_batch`."""
        return read_batch(batch, self.shape, self.process.max_count, self.num_classes)

    def forward(self, xt: Tensor, t: Tensor, classes: Tensor | None = None) -> Prediction:
        """Predict with the trained (not the averaged) network, given classes [B] or None."""
        condition = () if classes is None else (classes,)
        return self.apply_head(self.network(xt, t, *condition), xt, t)

    def apply_head(self, raw: Tensor, xt: Tensor, t: Tensor) -> Prediction:
        """Return the prediction that follows from raw outputs of the network; see `Head`."""
        return self.head(raw, xt, t)

    def _classes(self, batch: Mapping[str, Any]) -> Tensor | None:
        """Return the labels of a batch if the network is conditional."""
        return None if self.num_classes is None else batch.get("label")

    # --- training

    def training_step(self, batch: Mapping[str, Any]) -> Tensor:
        """Return the loss of a batch, a scalar: the mean over elements and samples [B, *shape].

        References: Santos et al. 2023, Algorithm 1.
        """
        # 1. Observation times, and states X_t of the forward process.
        x0 = batch["x0"]
        position = batch["position"]
        number = batch["batch_number"]
        s, t = self.training_times(position, number, batch["batch_size"])
        noise = SampleStreams(fold_seed(self.seed, NOISE_KEY), position).step(number)
        xt, target = self.process.observe(x0, t, noise)

        # 2. Classes, a share of them replaced by the null class.
        classes = self._classes(batch)
        if classes is not None and self.num_classes is not None:
            coins = SampleStreams(fold_seed(self.seed, LABELS_KEY), position).step(number)
            classes = drop_labels(classes, self.num_classes, self.label_dropout, coins)

        # 3. Prediction; missing entries read as their mean.
        observed = batch.get("observed")
        state = xt if observed is None else fill_missing_with_mean(xt, t, observed, self.data_mean)
        prediction = self(state, t, classes)

        # 4. Loss of the observed entries.
        losses = self.loss(prediction, target, s, t)
        if observed is not None:
            losses = losses * observed
        loss = losses.flatten(1).mean(1).double().mean().float()
        self.log("train/loss", loss)
        return loss

    def training_times(
        self, position: Tensor, number: int, batch_size: int
    ) -> tuple[Tensor, Tensor]:
        """Return the intervals (s, t), float64 [b], of the samples at `position` of a global batch.

        All samples of a batch share one random offset, so that their times are spread evenly.

        Args:
            position: int64 [b], in the global batch.
            number: of the global batch.
            batch_size: of the global batch.
        """
        streams = SampleStreams(fold_seed(self.seed, TIMES_KEY), position.new_zeros(1))
        offset = streams.step(number).next_draw().uniform((1,))
        return self.schedule.intervals(stratified(position, batch_size, offset))

    def replay(self, batch: Mapping[str, Any]) -> dict[str, list[float]]:
        """Return the intervals (s, t) at which a batch was observed."""
        s, t = self.training_times(batch["position"], batch["batch_number"], batch["batch_size"])
        return {"s": s.tolist(), "t": t.tolist()}

    # --- validation: the likelihood bound, whatever weights the training loss has

    @property
    def validation_cost(self) -> int:
        """Network evaluations of each sample in a validation."""
        return self.validation_draws

    def validation_step(self, batch: Mapping[str, Any]) -> None:
        """Record bits per dimension of a batch [b, *shape], one number per sample."""
        # 1. Denoiser, and mean of the start, of the observed entries.
        x0 = batch["x0"]
        index = batch["index"]
        classes = self._classes(batch)
        denoiser, prior_mean, observed_share = mask_missing_entries(
            batch.get("observed"),
            self.denoiser(classes),
            start_mean(self.data_mean, self.class_mean, classes),
            self.data_mean,
        )

        # 2. Bound of every sample; the same times at every validation make its curve smooth.
        noise = SampleStreams(fold_seed(self.seed, VALIDATION_KEY), index)
        final_time = self.schedule.times[-1]
        nats = torch.zeros(len(index), dtype=torch.float64, device=index.device)
        for draw in range(self.validation_draws):
            v = low_discrepancy(index, draw / self.validation_draws)
            nats += likelihood_bound(
                denoiser,
                self.process,
                x0,
                v,
                noise.step(draw),
                final_time=final_time,
                data_mean=prior_mean,
            )
        nats = nats / self.validation_draws / observed_share
        self.record("val/bits_per_dim", bits_per_dim(nats, self.shape))

    def example_inputs(self) -> tuple[Tensor, Tensor]:
        """Return arguments of a network evaluation for one sample."""
        return torch.zeros((1, *self.shape), dtype=torch.uint8), torch.ones(1, dtype=torch.float64)

    # --- sampling

    def denoiser(self, classes: Tensor | None = None) -> Denoiser:
        """Return (xt, t) -> prediction with the averaged weights, where there are any.

        The network always gets one time per sample on the device, so that a compiled one has a
        single graph for sampling and validation.

        Args:
            classes: of the samples, int64 [B]; None for all classes.
        """
        condition = () if classes is None else (classes,)

        def denoise(xt: Tensor, t: Tensor) -> Prediction:
            times = time_on(t, xt.device).expand(len(xt)).contiguous()
            return self.apply_head(self.averaged(xt, times, *condition), xt, t)

        return denoise

    def sample(  # noqa: PLR0913 - keyword-only options
        self,
        num_samples: int,
        seed: int = 0,
        *,
        sampler: Sampler | str | None = None,
        num_steps: int | None = None,
        classes: Tensor | Sequence[int | str] | None = None,
        condition: Mapping[str, Any] | None = None,
        known_elements: KnownElements | None = None,
        callback: Callback | None = None,
        progress: bool = False,
    ) -> Tensor:
        """Draw samples 0, ..., num_samples - 1 of a seed: counts [num_samples, *shape] on the CPU.

        Args:
            num_samples: at least 1.
            seed: any integer.
            sampler: a `Sampler` or its name, such as "poisson"; None for the model's.
            num_steps: replaces that of the sampler.
            classes: names or numbers, assigned to the samples in turn.
            condition: values of classes and covariates by column, such as {"total": 1000}.
            known_elements: observed elements, for inpainting.
            callback: called after every step.
            progress: whether to show a bar, in a terminal or a notebook.

        Returns:
            Integers of the smallest type that holds the process's largest count.

        Raises:
            UserError: an unknown sampler, class or covariate, or a sampler that does not fit.

        Example:
            >>> from blackout import load_model
            >>> model = load_model("runs/digits/model")  # doctest: +SKIP
            >>> counts = model.sample(16, seed=0)  # doctest: +SKIP
        """
        check_sampling_arguments(num_samples, seed)
        sampler = choose_sampler(self.sampler, sampler, num_steps)
        # the model's own sampler was checked when the model was built
        checked_sampler = replace(
            self.sampler, num_steps=sampler.num_steps, batch_size=sampler.batch_size
        )
        if sampler != checked_sampler:
            try_sampler(self, sampler)
        indices = torch.arange(num_samples)
        conditions = parse_conditions(self, num_samples, classes, condition, known_elements)
        _, _, batch_size = self._batch_layout(sampler, num_samples, conditions)
        num_batches = math.ceil(num_samples / batch_size)
        with progress_bar(num_batches, sampler.num_steps, callback, enabled=progress) as watch:
            batches = self.batches(
                indices, seed, sampler=sampler, conditions=conditions, callback=watch
            )
            return torch.cat([samples["samples"].cpu() for _, samples in batches])

    @torch.no_grad()
    def batches(
        self,
        indices: Tensor,
        seed: int = 0,
        batch_size: int | None = None,
        *,
        sampler: Sampler | None = None,
        conditions: Conditions = NO_CONDITIONS,
        callback: Callback | None = None,
    ) -> Drawn:
        """Draw the samples with these indices, int64 [N], in batches of one shape.

        Sample k's random numbers are a function of (seed, k, step), whatever the batch. The last
        batch is padded to the size of the others, for which the network rounds in the same way.

        Args:
            indices: int64 [N].
            seed: any integer.
            batch_size: of every batch; None for the sampler's, or N if that is smaller.
            sampler: None for the model's.
            conditions: row k belongs to the sample indices[k].
            callback: called after every step.

        Yields:
            (indices [b], samples): `samples`, counts [b, *shape] on the model's device, and
            `indices`; with labels also `classes` [b], with weighted particles also
            `log_normaliser`, float64 [b].

        Raises:
            ValueError: classes that the model does not know, or guidance without classes.
        """
        sampler = sampler or self.sampler
        check_conditions(conditions, len(indices), self.num_classes, sampler.guidance)
        sampler, num_particles, default_size = self._batch_layout(sampler, len(indices), conditions)
        batch_size = batch_size or default_size
        shape = (batch_size, *self.shape)

        for first in range(0, len(indices), batch_size):
            # 1. Rows of this batch; the last batch repeats its last row up to the common size.
            padded_rows = torch.arange(first, first + batch_size).clamp(max=len(indices) - 1)
            rows = padded_rows[: len(indices) - first]

            # 2. Random numbers and conditions of these samples.
            streams = SampleStreams(seed, indices[padded_rows].to(self.device))
            batch_conditions = conditions.select(padded_rows, self.device)
            plan = plan_batch(self, sampler, batch_conditions, num_particles)

            # 3. The reverse process, with the averaged weights.
            with sampler.evaluating(self.averaged):
                samples: dict[str, Tensor]
                if num_particles == 1:
                    samples = {"samples": run_sampler(plan, shape, streams, callback=callback)}
                else:
                    particles = Particles(num_particles)
                    weighted = run_particles(plan, shape, streams, particles, callback=callback)
                    samples = weighted._asdict()

            # 4. Drop the padding, and add what identifies the samples.
            batch = {name: values[: len(rows)] for name, values in samples.items()}
            batch["indices"] = indices[rows]
            if conditions.labels is not None:
                batch["classes"] = conditions.labels[rows]
            yield indices[rows], batch

    def validation_batches(
        self, indices: Tensor, seed: int = 0, num_steps: int | None = None
    ) -> Drawn:
        """Draw as `batches`, in another number of steps where that is given."""
        sampler = self.sampler
        if num_steps is not None:
            sampler = replace(sampler, num_steps=num_steps)
        return self.batches(indices, seed, sampler=sampler)

    def _batch_layout(
        self, sampler: Sampler, num_samples: int, conditions: Conditions
    ) -> tuple[Sampler, int, int]:
        """Return the sampler, the particles per sample and the batch size for so many samples.

        Known elements may need particles, which share a batch and need a kernel without memory.
        """
        has_known_elements = conditions.known_elements is not None
        num_particles = particles_per_sample(sampler, self.process, has_known_elements)
        if num_particles > 1:
            sampler = sampler.memoryless
        batch_size = min(max(1, sampler.batch_size // num_particles), num_samples)
        return sampler, num_particles, batch_size
