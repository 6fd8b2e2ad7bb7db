"""The model: it wires process, network, head, loss and sampler together, and draws batches of samples. No formula."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from rich.progress import Progress
from torch import Tensor, nn

from blackout.diffusion.conditions import labels_asked, total_asked
from blackout.diffusion.guidance import Guidance, GuidedDenoiser, check_classes, drop_labels, start_mean
from blackout.diffusion.heads import Head
from blackout.diffusion.inpainting import KnownElements
from blackout.diffusion.likelihood import GOLDEN_RATIO, at_expectation, bits_per_dim, likelihood_bound, of_seen
from blackout.diffusion.losses import CountLoss, Loss
from blackout.diffusion.particles import number_of_particles, sample_particles
from blackout.diffusion.predictions import Denoiser, Prediction, misfit
from blackout.diffusion.processes import Process, PureDeath
from blackout.diffusion.sampler import Sampler, chosen_sampler
from blackout.diffusion.sampling import Callback, count_evaluations, sample
from blackout.diffusion.schedules import DataEnds, Schedule, stratified
from blackout.diffusion.totals import TotalDenoiser
from blackout.errors import UserError, ensure, error_context
from blackout.networks import ResidualMLP
from blackout.protocols import Drawn, Samples
from blackout.random import SampleStreams, fold_seed
from blackout.training.model import Model, check_asked

# keys that keep the uses of one seed apart; 2 is dropout's
_TIMES, NOISE, VALIDATION, _LABELS = 0, 1, 3, 4
_MOST_DRAWS = 1_000
"""Of one image in a validation."""
_TRIED = 9
"""Times of a grid at which a sampler is tried."""


class BlackoutDiffusion(Model):
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
        ensure(0 <= label_dropout <= 1, f"label_dropout must be in [0, 1], not {label_dropout}")
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

    def extra_repr(self) -> str:
        data = self.config.get("data", {}).get("name")
        own = f"data={data}, shape={self.shape}, max_count={self.process.max_count}, classes={self.num_classes}"
        parts = {"process": self.process, "head": self.head, "kernel": self.sampler.kernel}
        kinds = ", ".join(f"{name}={type(part).__name__}" for name, part in parts.items())
        return f"{own}, {super().extra_repr()}, {kinds}, num_steps={self.sampler.num_steps}"

    def batch_of(self, given: Any) -> dict[str, Any]:
        """Counts, (counts, labels), or a mapping with `x0` and perhaps `label`, from a DataLoader of the user's own.

        Raises:
            UserError: something else, or counts that are not whole numbers in 0..max_count of the model's shape.
        """
        named = _named(given)
        x0, form = named.get("x0"), ", ".join(map(str, self.shape))
        if not isinstance(x0, Tensor) or tuple(x0.shape[1:]) != self.shape or x0.is_floating_point():
            raise UserError(f"a DataLoader must give counts, integers [b, {form}], or a mapping with them as x0")
        if x0.min() < 0 or x0.max() > self.process.max_count:
            raise UserError(f"a DataLoader must give counts in 0..{self.process.max_count}")
        return named

    def forward(self, xt: Tensor, t: Tensor, classes: Tensor | None = None) -> Prediction:
        """Predict with the trained (not the averaged) network, given classes [B] or None."""
        condition = () if classes is None else (classes,)
        return self.head(self.network(xt, t, *condition), xt, t)

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
        """The loss of a batch, a scalar [Santos 2023, Algorithm 1]: the mean over elements and samples [B, *shape]."""
        x0, position, number = batch["x0"], batch["position"], batch["batch"]
        s, t = self.training_times(position, number, batch["batch_size"])
        noise = SampleStreams(fold_seed(self.seed, NOISE), position).at(number)
        xt, target = self.process.observe(x0, t, noise)
        classes = self._classes(batch)
        if classes is not None and self.num_classes is not None:
            coins = SampleStreams(fold_seed(self.seed, _LABELS), position).at(number)
            classes = drop_labels(classes, self.num_classes, self.label_dropout, coins)
        seen = batch.get("seen")
        state = xt if seen is None else at_expectation(xt, t, seen, self.mean)
        losses = self.loss(self(state, t, classes), target, s, t)
        losses = losses if seen is None else losses * seen
        loss = losses.flatten(1).mean(1).double().mean().float()
        self.log("train/loss", loss)
        return loss

    def training_times(self, position: Tensor, number: int, batch_size: int) -> tuple[Tensor, Tensor]:
        """Intervals (s, t), float64 [b], of the samples at `position` of global batch `number`."""
        offset = SampleStreams(fold_seed(self.seed, _TIMES), position.new_zeros(1)).at(number).next_draw().uniform((1,))
        return self.schedule.intervals(stratified(position, batch_size, offset))

    def replay(self, batch: Mapping[str, Any]) -> dict[str, list[float]]:
        """The intervals (s, t) at which a batch was observed."""
        s, t = self.training_times(batch["position"], batch["batch"], batch["batch_size"])
        return {"s": s.tolist(), "t": t.tolist()}

    # --- validation: the likelihood bound, whatever weights the training loss has

    @property
    def validation_cost(self) -> int:
        return self.validation_draws

    def validation_step(self, batch: Mapping[str, Any]) -> None:
        """Bits per dimension of a batch [b, *shape], one number per sample, by `likelihood_bound`."""
        x0, index = batch["x0"], batch["index"]
        # the same times at every validation make its curve smooth
        first = (index.double() + 0.5) * GOLDEN_RATIO
        noise = SampleStreams(fold_seed(self.seed, VALIDATION), index)
        denoiser, final_time = self.denoiser(classes := self._classes(batch)), self.schedule.times[-1]
        mean = start_mean(self.mean, self.class_mean, classes)
        denoiser, mean, measured = of_seen(batch.get("seen"), denoiser, mean, self.mean)
        nats = torch.zeros(len(index), dtype=torch.float64, device=index.device)
        for draw in range(self.validation_draws):
            v = torch.frac(first + draw / self.validation_draws)
            nats += likelihood_bound(denoiser, self.process, x0, v, noise.at(draw), final_time=final_time, mean=mean)
        self.record("val/bits_per_dim", bits_per_dim(nats / self.validation_draws / measured, self.shape))

    def example(self) -> tuple[Tensor, Tensor]:
        return torch.zeros((1, *self.shape), dtype=torch.uint8), torch.ones(1, dtype=torch.float64)

    # --- sampling

    @torch.no_grad()
    def batches(
        self,
        indices: Tensor,
        seed: int = 0,
        batch_size: int | None = None,
        sampler: Sampler | None = None,
        callback: Callback | None = None,
        classes: Tensor | None = None,
        known: KnownElements | None = None,
        total: float | None = None,
    ) -> Drawn:
        """Draw the samples named by `indices`, a batch at a time.

        Sample k's random numbers are a function of (seed, k, step), whatever the batch. All batches have one shape (the
        last is padded), so that the network's kernels round alike too.

        Args:
            indices: int64 [N].
            seed: any integer.
            batch_size: of every batch; None for the sampler's, or all samples if they are fewer.
            sampler, callback: None for the model's own sampler; see `blackout.diffusion.sampling`.
            classes: int64 [N], the class of each; None draws from all.
            known: observed elements, for inpainting.
            total: count of every sample, of a model that was told totals.

        Yields:
            (indices [b], `samples`: counts [b, *shape] on the model's device, beside them `indices` and, where given,
            `classes`); from particles also `log_normaliser`.

        Raises:
            ValueError: classes that the model does not know, or guidance without classes.
        """
        how = sampler or self.sampler
        if classes is not None:
            check_classes(classes, len(indices), self.num_classes)
        elif how.guidance.scale != 1:
            raise ValueError("guidance needs classes to guide towards")
        number = number_of_particles(how, self.process, known is not None)
        how = how.memoryless if number > 1 else how
        size = batch_size or min(max(1, how.batch_size // number), len(indices))
        for rows in torch.arange(len(indices)).split(size) if len(indices) else ():
            padded = torch.cat([rows, rows[-1:].expand(size - len(rows))])
            of_batch = None if classes is None else classes[padded].to(self.device)
            observed = None if known is None else known.select(padded)
            streams, shape = SampleStreams(seed, indices[padded].to(self.device)), (size, *self.shape)
            with how.evaluating(self.averaged):
                drawn = draw_batch(self, how, streams, shape, callback, of_batch, observed, number, total)
            told = {"indices": indices[rows]} | ({} if classes is None else {"classes": classes[rows]})
            yield indices[rows], {name: values[: len(rows)] for name, values in drawn.items()} | told

    def sample(
        self,
        num_samples: int,
        seed: int = 0,
        sampler: Sampler | str | None = None,
        callback: Callback | None = None,
        classes: Tensor | Sequence[int | str] | None = None,
        known: KnownElements | None = None,
        num_steps: int | None = None,
        progress: bool = False,
        given: Mapping[str, Any] | None = None,
    ) -> Tensor:
        """Samples 0..num_samples - 1 of a seed, as integer counts [num_samples, *shape] on the CPU.

        Args:
            num_samples, seed, callback, known: as for `batches`.
            sampler: a `Sampler` or a name from the command line such as "poisson"; None for the model's own.
            classes: by name or number, taken in turn.
            num_steps: in place of the sampler's.
            progress: show a bar, in a terminal or a notebook.
            given: columns of classes and covariates by name; see `conditions.labels_asked`.

        Raises:
            UserError: no such sampler, one that does not fit the model, no samples, or conditions that it does not
                know.
        """
        check_asked(num_samples, seed)
        how = chosen_sampler(self.sampler, sampler, num_steps)
        if how.kernel is not self.sampler.kernel:
            try_sampler(self, how)
        labels = labels_asked(self, None if classes is None else np.asarray(classes).tolist(), given)
        of_samples = None if labels is None else labels[torch.arange(num_samples) % len(labels)]
        total = total_asked(self, given)
        with Progress(transient=True, disable=not progress) as bar:
            task = bar.add_task("sampling", total=math.ceil(num_samples / how.batch_size) * how.num_steps)

            def watch(k: int, xt: Tensor, prediction: Prediction | None) -> None:
                if k < how.num_steps:
                    bar.advance(task)
                if callback is not None:
                    callback(k, xt, prediction)

            drawn = self.batches(torch.arange(num_samples), seed, None, how, watch, of_samples, known, total)
            return torch.cat([samples["samples"].cpu() for _, samples in drawn])

    @torch.no_grad()
    def latent(self, counts: Tensor) -> Tensor:
        """What a perceptron makes of counts before its last layer, by which samples of a kind are near each other.

        At the time at which half of the units are left, as many as are expected. Ours (tests/cli/test_configs.py).

        Args:
            counts: integers [n, *shape].

        Returns:
            float32 [n, width] on the CPU.

        Raises:
            ValueError: the network is no perceptron, or counts of another shape.
        """
        found: list[Tensor] = []
        last = [part.norm for part in self.averaged.modules() if isinstance(part, ResidualMLP)]
        ensure(last, "a latent representation is that of a perceptron, the network of vectors of counts")
        given = torch.as_tensor(counts, device=self.device)
        ensure(given.shape[1:] == self.shape, f"counts must be [n, *{list(self.shape)}], not {list(given.shape)}")
        kept = last[0].register_forward_hook(lambda module, given, made: found.append(made.float().cpu()))
        with kept, self.sampler.evaluating(self.averaged):
            self.denoiser()(given / 2, torch.tensor(math.log(2)).double())
        return found[0]

    def times(self, sampler: Sampler) -> Tensor:
        """The grid a sampler walks, float64 [T + 1]: its own, or one of the training schedule's family."""
        return (sampler.grid or self.schedule.grid)(sampler.num_steps)

    def evaluations(self, sampler: Sampler, with_classes: bool = False, with_known: bool = False) -> int:
        """The number of network function evaluations (NFE) of a sample.

        Guidance doubles them where it acts, P particles make P times as many.
        """
        number = number_of_particles(sampler, self.process, with_known)
        sampler = sampler.memoryless if number > 1 else sampler
        times = self.times(sampler)
        shape = (1,) if self.gain is None else self.shape
        of_one = count_evaluations(times, self.process, self.head, sampler, with_classes, shape)
        return of_one * number


def _named(given: Any) -> dict[str, Any]:
    """Counts, or counts and labels, by name; nothing if it is neither."""
    if isinstance(given, Mapping):
        return dict(given)
    parts = [given] if isinstance(given, Tensor) else given
    return dict(zip(("x0", "label"), parts, strict=False)) if isinstance(parts, Sequence) else {}


def draw_batch(
    model: BlackoutDiffusion,
    sampler: Sampler,
    streams: SampleStreams,
    shape: tuple[int, ...],
    callback: Callback | None,
    classes: Tensor | None,
    known: KnownElements | None,
    number: int,
    total: float | None,
) -> Samples:
    """One batch of `shape`; see `BlackoutDiffusion.batches`.

    Args:
        number: of particles that every sample is drawn from.

    Returns:
        "samples", counts of `shape`; from particles also "log_normaliser", float64 [B], see `particles.Weighed`.
    """
    times = model.times(sampler)
    mean = None
    if sampler.poisson_start:
        scale = sampler.guidance.scale_at(float(times[-1]))
        mean = start_mean(model.mean, model.class_mean, classes, scale, model.process.max_count)
    denoiser = model.denoiser()
    if classes is not None:
        conditional = model.denoiser(classes.repeat_interleave(number))
        denoiser = GuidedDenoiser(conditional, denoiser, sampler.guidance, model.process.max_count)
    denoiser = denoiser if total is None else TotalDenoiser(denoiser, total)
    walk = denoiser, model.process, times, shape, streams, callback
    how = dict[str, Any](kernel=sampler.kernel, correction=sampler.correction, known=known, device=model.device)
    how["mean"] = mean
    if number == 1:
        return {"samples": sample(*walk, **how)}
    weighed = sample_particles(*walk, number=number, **how)
    return {"samples": weighed.samples, "log_normaliser": weighed.log_normaliser}


def try_sampler(model: BlackoutDiffusion, sampler: Sampler) -> None:
    """Look at the grid of a sampler, and take a few of its steps on an empty sample, with predictions of nothing.

    Raises:
        UserError: kernel or correctors need what the head does not predict or belong to another process, or the grid is
            not one of the process, or ends too early for the data.
    """
    if getattr(sampler.kernel, "planes", 0) != getattr(getattr(model, "network", None), "noise", 0):
        raise UserError("sampler: students are drawn by joint_bridge, and nothing else is: see experiment=distill")
    with error_context("sampler"):
        times = model.times(sampler)
        model.process.check_final_time(times[-1])
        check_end(model, times[-1], sampler)
    few = times[torch.linspace(0, len(times) - 1, min(len(times), _TRIED)).round().long()]
    raw = torch.zeros(1, model.head.outputs, *model.shape)

    def check(k: int, xt: Tensor, prediction: Prediction | None) -> None:
        if xt.shape != (1, *model.shape):  # at once: with every further step it would be larger
            raise misfit(sampler.kernel, model.process, f"states of {[1, *model.shape]}, and made {list(xt.shape)}")

    def blank(xt: Tensor, t: Tensor) -> Prediction:
        return model.head(raw.expand(len(xt), *raw.shape[1:]), xt, t)

    # guided as the sampler would guide a model that has classes, wherever it would
    guidance = Guidance(1.0 if model.num_classes is None else sampler.guidance.scale)
    denoiser = GuidedDenoiser(blank, blank, guidance, model.process.max_count)
    how: dict[str, Any] = {"kernel": sampler.kernel, "correction": sampler.correction}
    walk = denoiser, model.process, few, (1, *model.shape), torch.Generator().manual_seed(0), check
    with error_context("sampler"):
        if (sampler.inpainting_particles or 1) == 1:
            sample(*walk, **how)
            return
        how["known"] = KnownElements(*(torch.zeros(1, *model.shape, dtype=d) for d in (torch.uint8, torch.bool)))
        how["kernel"] = sampler.memoryless.kernel
        sample_particles(*walk, number=2, **how)


def check_end(model: BlackoutDiffusion, t: Tensor, sampler: Sampler | None = None) -> None:
    """Refuse a grid of pure death that ends, at t, too early for the model's data, where these are known.

    Args:
        model: of any process.
        t: the final time.
        sampler: which starts there; None for any.

    Raises:
        ValueError: see `DataEnds.check`.
    """
    ends = DataEnds.of(model.config.get("data", {}))
    if ends is not None and isinstance(model.process, PureDeath):
        ends.check(t, None if sampler is None else sampler.earliest_time(ends))
