"""The model: it wires process, network, head, loss and sampler together and contains no formula."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from blackout.data import CountData
from blackout.diffusion.assembly import make_network
from blackout.diffusion.batches import draw_batches, number_of_particles
from blackout.diffusion.conditions import all_labels
from blackout.diffusion.draw import CountDraw, requested
from blackout.diffusion.dry_run import rehearse, rehearse_sampler
from blackout.diffusion.grids import pilot_ends, pilot_run
from blackout.diffusion.guidance import Guidance, drop_labels, start_mean
from blackout.diffusion.heads import Head
from blackout.diffusion.inpainting import KnownElements
from blackout.diffusion.likelihood import bits_per_dim, likelihood_bound
from blackout.diffusion.losses import CountLoss, Loss
from blackout.diffusion.missing import at_expectation, of_seen
from blackout.diffusion.predictions import Denoiser, Prediction
from blackout.diffusion.processes import Process, PureDeath
from blackout.diffusion.report import check_settings, likelihood_report
from blackout.diffusion.sampling import Callback, Sampler, count_evaluations
from blackout.diffusion.schedules import Schedule, stratified
from blackout.diffusion.scripting import Scripting
from blackout.errors import UserError
from blackout.family import Draw, Source
from blackout.networks.inputs import Elements
from blackout.random import SampleStreams, fold_seed
from blackout.training.model import Model

# keys that keep the uses of one seed apart; 2 is dropout's
_TIMES, _NOISE, _VALIDATION, _LABELS, _PILOT = 0, 1, 3, 4, 5
_MOST_DRAWS = 1_000
"""Of one image in a validation."""
_GOLDEN_RATIO = 0.6180339887498949
_PILOT_SAMPLES, _PILOT_STEPS = 64, (20, 200)
"""Of the pilot run at the end of training; fewest and most steps."""


class BlackoutDiffusion(Scripting, Model):
    """A diffusion model on counts.

    Args:
        network: (xt [B, ...], t [B]) -> raw output [B, outputs, ...]; it scales its own input.
        head: raw output -> prediction.
        process: the forward process.
        mean: E[X_0], float, of the data's shape; where sampling starts from.
        class_mean: E[X_0 | class], float [num_classes, *shape]; None to start all classes from the average.
        concentration, gain: of `Elements`, for networks and heads that measure counts by them; kept with the model.
        schedule: training times, and the sampler's grid unless it has its own.
        loss: weights and kind.
        sampler: how samples are drawn by default.
        ema_decay: None for a model without an average (a loaded one).
        seed: with the step's number it decides everything a training step draws.
        label_dropout: share of training samples whose label a conditional network does not see.
        validation_draws: times, evenly spaced, at which validation observes each image.

    Raises:
        ValueError: label_dropout outside [0, 1], or validation_draws outside 1..1,000.
    """

    means = ("val/bits_per_dim",)

    def __init__(
        self,
        network: nn.Module,
        head: Head,
        process: Process,
        mean: Tensor,
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
        if not 1 <= validation_draws <= _MOST_DRAWS:
            raise ValueError(f"validation_draws must be in 1..{_MOST_DRAWS:,}, not {validation_draws}")
        if not 0 <= label_dropout <= 1:
            raise ValueError(f"label_dropout must be in [0, 1], not {label_dropout}")
        self.head, self.process, self.schedule, self.loss = head, process, schedule, loss
        self.sampler, self.label_dropout, self.validation_draws = sampler, label_dropout, validation_draws
        self.mean: Tensor
        self.class_mean: Tensor | None
        self.concentration: Tensor | None
        self.gain: Tensor | None
        kept = {"mean": mean, "class_mean": class_mean, "concentration": concentration, "gain": gain}
        for name, value in kept.items():
            self.register_buffer(name, None if value is None else value.float())

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.mean.shape)

    @property
    def num_classes(self) -> int | None:
        """Number of classes of a conditional network; None for an unconditional one."""
        return getattr(self.network, "num_classes", None)

    def traits(self) -> dict[str, Any]:
        data = self.config.get("data", {}).get("name")
        parts = {"process": self.process, "head": self.head, "kernel": self.sampler.kernel}
        kinds = {name: type(part).__name__ for name, part in parts.items()}
        counts = {"data": data, "shape": self.shape, "max_count": self.process.max_count, "classes": self.num_classes}
        return {**counts, **super().traits(), **kinds, "num_steps": self.sampler.num_steps}

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

    def _classes(self, batch: Mapping[str, Any]) -> Tensor | None:
        """The batch's labels, if the network has a use for them."""
        return None if self.num_classes is None else batch.get("label")

    # --- training

    def training_step(self, batch: Mapping[str, Any]) -> Tensor:
        x0, position, number = batch["x0"], batch["position"], batch["batch"]
        s, t, importance = self.training_times(position, number, batch["batch_size"])
        noise = SampleStreams(fold_seed(self.seed, _NOISE), position).at(number)
        xt, target = self.process.observe(x0, t, noise)
        classes = self._classes(batch)
        if classes is not None and self.num_classes is not None:
            coins = SampleStreams(fold_seed(self.seed, _LABELS), position).at(number)
            classes = drop_labels(classes, self.num_classes, self.label_dropout, coins)
        seen = batch.get("seen")
        state = xt if seen is None else at_expectation(xt, t, seen, self.mean)
        losses = self.loss(self(state, t, classes), target, s, t)
        losses = losses if seen is None else losses * seen
        loss = (losses.flatten(1).mean(1) * importance).mean().float()
        self.log("train/loss", loss)
        return loss

    def training_times(self, position: Tensor, number: int, batch_size: int) -> tuple[Tensor, Tensor, Tensor]:
        """Intervals (s, t) and weights, float64 [b], of the samples at `position` of global batch `number`."""
        offset = SampleStreams(fold_seed(self.seed, _TIMES), position.new_zeros(1)).at(number).next_draw().uniform((1,))
        return self.schedule.draw(stratified(position, batch_size, offset))

    def replay(self, batch: Mapping[str, Any]) -> dict[str, list[float]]:
        """The intervals (s, t) at which a batch was observed."""
        s, t, _ = self.training_times(batch["position"], batch["batch"], batch["batch_size"])
        return {"s": s.tolist(), "t": t.tolist()}

    # --- validation: the likelihood bound, whatever weights the training loss has

    @property
    def validation_cost(self) -> int:
        return self.validation_draws

    def validation_step(self, batch: Mapping[str, Any]) -> None:
        x0, index = batch["x0"], batch["index"]
        # a Weyl sequence spreads any images evenly over the times; the same at every validation make its curve smooth
        first = (index.double() + 0.5) * _GOLDEN_RATIO
        noise = SampleStreams(fold_seed(self.seed, _VALIDATION), index)
        denoiser, final_time = self.denoiser(classes := self._classes(batch)), self.schedule.times[-1]
        mean = start_mean(self.mean, self.class_mean, classes)
        denoiser, mean, measured = of_seen(batch.get("seen"), denoiser, mean, self.mean)
        for draw in range(self.validation_draws):
            v = torch.frac(first + draw / self.validation_draws)
            nats = likelihood_bound(denoiser, self.process, x0, v, noise.at(draw), final_time=final_time, mean=mean)
            self.record("val/bits_per_dim", bits_per_dim(nats / measured, self.shape))

    # --- what the programs ask for

    def draw(self, request: Mapping[str, Any]) -> Draw:
        """Counts by the model's own sampler, or as `sampler`, `classes`, `inpaint` and `posterior` ask for."""
        draw: Any = requested(self, request)
        if draw.sampler is not self.sampler:
            rehearse_sampler(self, draw.sampler)
        return draw

    def preview(self, num_samples: int, num_steps: int | None = None) -> CountDraw:
        """Counts of all classes in turn, where there are classes."""
        sampler = self.sampler if num_steps is None else replace(self.sampler, num_steps=num_steps)
        return CountDraw(self, sampler, {}, all_labels(self))

    def rehearse(self) -> None:
        rehearse(self)

    def example(self) -> tuple[Tensor, Tensor]:
        return torch.zeros((1, *self.shape), dtype=torch.uint8), torch.ones(1, dtype=torch.float64)

    def before_export(self, evaluations: int) -> None:
        """A pilot run for the optimal grid, as long as the evaluations allow."""
        steps = min(evaluations // _PILOT_SAMPLES, _PILOT_STEPS[1])
        if isinstance(self.process, PureDeath) and steps >= _PILOT_STEPS[0]:
            with suppress(UserError):  # of a network that gives no numbers
                self.config["pilot"] = self.pilot(_PILOT_SAMPLES, steps)

    def check_report(self, settings: Mapping[str, Any]) -> None:
        """Raises UserError for settings under `likelihood` that are out of range."""
        check_settings(settings["likelihood"])

    def report(self, source: Source, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Bits per dimension on both splits, and of simple baselines if wanted."""
        assert isinstance(source, CountData)
        wanted, untrained = settings["likelihood"], None
        if wanted["images"] and wanted["baselines"]:
            torch.manual_seed(0)
            parts = (self.head, self.process, self.mean.cpu(), self.schedule, self.loss, self.sampler)
            kept = (self.mean, self.concentration, self.gain)
            elements = Elements(*(one.cpu() for one in kept if one is not None)) if self.gain is not None else None
            network = make_network(self.config["model"]["network"], elements)
            fresh = BlackoutDiffusion(network, *parts)
            untrained = fresh.eval().to(self.device)
        return likelihood_report(self, untrained, source, wanted)

    # --- sampling

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
            seed, sampler, callback: None for the model's own sampler; see `blackout.diffusion.sampling`.
            classes: int64 [N], the class of each; None draws from all.
            known: observed elements, for inpainting.
            batch_size: of every batch; None for the sampler's, or all samples if they are fewer.

        Returns:
            An iterator of (indices [b], counts [b, *shape] on the model's device).

        Raises:
            ValueError: classes that the model does not know, or guidance without classes.
        """
        drawn = draw_batches(self, indices, seed, sampler or self.sampler, callback, classes, known, batch_size)
        return ((numbers, samples["samples"]) for numbers, samples in drawn)

    def times(self, sampler: Sampler) -> Tensor:
        """The grid a sampler walks, float64 [T + 1]: its own, or one of the training schedule's family."""
        return (sampler.grid or self.schedule.grid)(sampler.num_steps)

    def evaluations(self, sampler: Sampler, with_classes: bool = False, with_known: bool = False) -> int:
        """The number of network function evaluations (NFE) of a sample.

        Guidance doubles them where it acts, P particles make P times as many.
        """
        guidance = sampler.guidance if with_classes else Guidance()
        times = self.times(sampler)
        shape = (1,) if self.gain is None else self.shape
        of_one = count_evaluations(times, self.process, self.head, sampler.kernel, sampler.correction, guidance, shape)
        return of_one * number_of_particles(sampler, self.process, with_classes, with_known)

    def pilot(self, num_samples: int = 64, num_steps: int = 200) -> dict[str, list[float]]:
        """What `OptimalGrid` needs of a model of pure death: a run of num_samples samples of num_steps evaluations."""
        streams = SampleStreams(fold_seed(self.seed, _PILOT), torch.arange(num_samples, device=self.device))
        with self.sampler.evaluation.of(self.averaged):
            return pilot_run(
                self.denoiser(), self.process, (num_samples, *self.shape), streams, mean=self.mean,
                num_steps=num_steps, device=self.device, **pilot_ends(self.config.get("data", {})),
            )  # fmt: skip
