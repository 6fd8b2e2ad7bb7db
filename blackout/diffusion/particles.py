"""Particles: several walks for every sample, weighed as they go, resampled, and one drawn by its weight at the end.

A sequential Monte Carlo sampler [Doucet 2001] on top of the one sampling loop (`blackout.diffusion.sampling.sample`),
for any laws whose paths differ from the kernel's by weights. As the number P of particles grows the sample's law tends
to the weighted one, with an error of O(1 / P); P times as many network evaluations are made.

A potential sees every step as it was made, stage by stage, and returns the logarithm of a weight for every particle.
`KnownWeight` turns walks with known elements on a path of their own into the distribution given these elements, by the
ratio of densities of whole paths; see tests/laws/test_particle_laws.py.

The particles of a sample are a group of their own: they are weighed against each other alone, and resampled by the
sample's own random numbers, which are a function of (seed, k) for sample k, whatever else is in the batch.

`Steering` leads walks of a prior to what a likelihood asks for, in three ways to p(x) L(x) / Z, which differ in what a
step is drawn from and in what a state on the way is worth:

    classifier guidance         rates times p(y | x') / p(y | x) [Nisonoff 2024, eq. 2]; one walk, no weights
    twisted diffusion (TDS)     the same steps, weighed by what they leave out [Wu 2023, algorithm 1]
    Feynman-Kac (FK) steering   the prior's own steps, weighed by L at the predicted data [Singhal 2025, section 3]

A classifier knows p(y | x_t) of states on the way; without one the worth of a state is the mean of L over draws of X_0
from the prediction that the step makes anyway. Whatever is guessed on the way, the weights of a whole path make up L of
its end, so that with many particles the law is right. Ours (tests/laws/test_steering_laws.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from blackout.counts import Shape, per_sample, time_on
from blackout.diffusion.correctors import Correction
from blackout.diffusion.guidance import GuidedPair
from blackout.diffusion.inpainting import KnownElements, KnownPath
from blackout.diffusion.kernels import (
    BinomialBridge,
    Kernel,
    LevelBridge,
    PoissonLeap,
    ReverseStep,
    StatefulKernel,
)
from blackout.diffusion.kernels.base import add_births
from blackout.diffusion.kernels.finite_states import step_distribution
from blackout.diffusion.predictions import TINY, CountPrediction, Denoiser, Prediction
from blackout.diffusion.processes import FiniteProcess, JumpProcess, Process
from blackout.diffusion.processes.pure_death import PureDeath
from blackout.diffusion.sampler import Sampler
from blackout.diffusion.sampling import Callback, sample, source_at
from blackout.diffusion.schedules import reverse_clock, step_fraction
from blackout.random import SampleStreams, categorical, poisson, systematic, uniform

Likelihood: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""(data, float64 [m, *shape], which particles they are of, int64 [m]) -> log L, float64 [m]."""
Classifier: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(states [m, *shape], time, which particles they are of, int64 [m]) -> log p(y | x_t), float64 [m]."""

_AHEAD, _LEAST = 0.5, 1e-3
"""Power of a guess of the known elements' data, which takes elements for independent; what it is at least."""
_FLOOR = 0.1
"""Least extrapolated count, as a share of the predicted one: a known birth must not come out impossible."""

_LARGEST = 20.0
"""Of the logarithm of a ratio of likelihoods of neighbours."""
_FASTEST = 3.0
"""The same, of what births are proposed by: a proposal may be rough, since it is weighed."""
_GUARD = 0.1
"""Of the mean guess of a group's likelihood: what a guess of 0 is raised to."""
_AT_ONCE = 4096
"""Neighbours of states that are valued together."""
_VALUES = 1
"""Key of the random numbers by which states are valued, apart from those of the walk."""

INPAINTING_PARTICLES = 16
"""Of every sample with known elements, unless the sampler says otherwise."""


def number_of_particles(sampler: Sampler, process: Process, inpainted: bool) -> int:
    """How many particles a sample is drawn from: those of its known elements, if there are any."""
    if not inpainted:
        return 1
    return sampler.inpainting_particles or (INPAINTING_PARTICLES if weighs(process) else 1)


@dataclass(frozen=True)
class Stage:
    """A part of a step, at the rates of one evaluation.

    Attributes:
        prediction: given X_t = before, as the kernel had it.
        before, after: states [rows, ...] at t and s.
        s, t: float64 scalars.
        last: the stage before it in the same step, if any.
    """

    prediction: Prediction
    before: Tensor
    after: Tensor
    s: Tensor
    t: Tensor
    last: Stage | None = None

    @property
    def fraction(self) -> Tensor:
        """Of the missing units, how many come back on average, a scalar."""
        return step_fraction(self.s, self.t)

    def ahead(self, rate: Callable[[Stage], Tensor]) -> Tensor:
        """A count [rows, ...] predicted for pure death, extrapolated over the stages as by `Trapezoidal`.

        Frozen over each stage it would integrate to first order only.
        """
        now = rate(self)
        if self.last is None or float(self.s) == 0:
            return now
        first, middle, end = (reverse_clock(time) for time in (self.last.t, self.t, self.s))
        theta = (middle - first) / (end - first)
        weight = 1 / (2 * theta * (1 - theta))
        return weight * now - (weight - 1) * (1 - self.last.fraction) * rate(self.last)


@dataclass
class Step:
    """What one step of a kernel did.

    Attributes:
        number: k of the time times[k] it led to.
        s, t: from t to s, float64 scalars.
        seen: (X, time, prediction) of every evaluation, in order, the first at t.
        after: X_s, states [rows, ...].
    """

    number: int
    s: Tensor
    t: Tensor
    after: Tensor
    seen: list[tuple[Tensor, Tensor, Prediction]] = field(default_factory=list)

    def stages(self) -> Iterator[Stage]:
        """From one evaluation to the next, and from the last to X_s."""
        ends = [(x, time) for x, time, _ in self.seen[1:]] + [(self.after, self.s)]
        last: Stage | None = None
        for (before, t, prediction), (after, s) in zip(self.seen, ends, strict=True):
            if s < t:
                last = Stage(prediction, before, after, s, t, last)
                yield last


class Potential(Protocol):
    """Log weights of particles, a step at a time.

    One that remembers something of every particle has a method `follow(rows)`, called when these rows go on.
    """

    def __call__(self, step: Step) -> Tensor:
        """What the step adds to the logarithm of every particle's weight, float64 [rows]; -inf is a weight of 0."""


@dataclass
class KnownWeight:
    """The model's probability of what the known elements do, over that of the path they were drawn from.

    Births of a stage are Poisson(y r), those of finitely many states follow `step_distribution`.
    The path's own probability, of
    a bridge to X_0, is the same for all particles of a sample: it makes the mean weight an estimate of p(known).

    On the way particles also weigh what the last prediction says of the known elements' data, to the power `_AHEAD`, so
    that those which lead elsewhere go early [Pitt 1999]. Every step takes the guess of the one before back, and none is
    left at s = 0: limits and the estimate are as without (tests/laws/test_particle_laws.py). Ours.

    Args:
        process: being reversed; see `weighs`.
        x0, mask: counts and observed elements [rows, ...].
    """

    process: Process
    x0: Tensor
    mask: Tensor
    _guess: Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.float64))

    def __call__(self, step: Step) -> Tensor:
        """Log weights of a step, float64 [rows]: see `Potential`."""
        total = -self._guess.to(step.after.device)
        for stage in step.stages():
            log_ratio = self._of_births(stage) if isinstance(self.process, PureDeath) else self._of_levels(stage)
            total = total + per_sample(torch.where(self.mask, log_ratio, 0.0))
        ahead = _AHEAD if float(step.s) > 0 else 0.0
        self._guess = ahead * per_sample(torch.where(self.mask, self._of_data(stage), 0.0))
        return total + self._guess

    def follow(self, rows: Tensor) -> None:
        """Particles were exchanged for copies."""
        self._guess = self._guess[rows]

    def _of_data(self, stage: Stage) -> Tensor:
        """log p(X_0) of every element as the stage's prediction has it, float64 [rows, ...], up to what all particles
        share.

        Of births Poisson with the mean that is left, of levels `step_distribution` to s = 0. Ours, see the class.
        """
        if isinstance(self.process, FiniteProcess):
            law = step_distribution(self.process, stage.prediction, stage.before, torch.zeros_like(stage.s), stage.t)
            return law.gather(-1, self.x0.long()[..., None]).squeeze(-1).clamp(min=_LEAST).log()
        left = (stage.prediction.expected * (1 - stage.fraction)).clamp(min=_LEAST)
        return (self.x0.double() - stage.after) * left.log() - left

    def _of_births(self, stage: Stage) -> Tensor:
        """log of Poisson(births; y r) / Binomial(births; missing, r) in every element, float64 [rows, ...]; ours, see
        the class.
        """
        assert isinstance(stage.prediction, CountPrediction)
        r, births = stage.fraction, (stage.after.long() - stage.before.long()).double()
        missing = (self.x0.long() - stage.before.long()).clamp(min=0).double()
        now = stage.prediction.expected
        rate = torch.maximum(stage.ahead(lambda at: at.prediction.expected), _FLOOR * now)
        # the logarithm of the mean itself where it is not extrapolated: finite where the mean underflows
        log_rate = torch.where(rate == now, stage.prediction.log_mean.double(), rate.clamp(min=TINY).log())
        # log of Poisson(births; y r) / Binomial(births; missing, r), in which births! cancels
        stayed = missing - births
        bridge = torch.lgamma(missing + 1) - torch.lgamma(stayed.clamp(min=0) + 1) + births * r.log()
        bridge = bridge + torch.special.xlogy(stayed, torch.expm1(-stage.s) / torch.expm1(-stage.t))
        return births * (log_rate + r.log()) - rate * r - bridge

    def _of_levels(self, stage: Stage) -> Tensor:
        """log of `step_distribution` over `bridge_pmf` at the state reached, in every element,
        float64 [rows, ...]; ours, see
        the class.
        """
        assert isinstance(self.process, FiniteProcess)
        law = step_distribution(self.process, stage.prediction, stage.before, stage.s, stage.t)
        if isinstance(stage.prediction, GuidedPair):
            law = law / law.sum(-1, keepdim=True).clamp(min=TINY)
        bridge = self.process.bridge_pmf(self.x0, stage.before, stage.s, stage.t)
        reached = stage.after.long()[..., None]
        log_model, log_bridge = (
            p.gather(-1, reached).squeeze(-1).clamp(min=TINY).log() for p in (law, bridge.view(law.shape))
        )
        return log_model - log_bridge


def weighs(process: Process) -> bool:
    """Whether `KnownWeight` knows the probability of a step: of pure death and of finitely many states."""
    return isinstance(process, PureDeath | FiniteProcess)


THRESHOLD = 0.5
"""Effective number of particles, as a share of all, below which they are resampled."""


class Weighed(NamedTuple):
    """Samples drawn by their weights.

    Attributes:
        samples: one of the particles of every sample, [B, ...].
        log_normaliser: float64 [B]: exp of it is an unbiased estimate of the mean weight of the kernel's paths. Of
            known elements that is p(known), as far as the final time has forgotten the data.
    """

    samples: Tensor
    log_normaliser: Tensor


@torch.no_grad()
def sample_particles(
    denoiser: Denoiser,
    process: Process,
    times: Tensor,
    shape: tuple[int, ...],
    generator: torch.Generator | SampleStreams | None = None,
    callback: Callback | None = None,
    *,
    number: int,
    potentials: Sequence[Potential] = (),
    kernel: Kernel = BinomialBridge(),
    correction: Correction = Correction(),
    mean: Tensor | None = None,
    known: KnownElements | None = None,
    threshold: float = THRESHOLD,
    held: bool = False,
    device: torch.device | str = "cpu",
) -> Weighed:
    """Walk `number` particles of every sample of a batch back from times[-1] to times[0].

    Args:
        denoiser: (xt, t) -> prediction for rows [B * number, ...], the particles of the first sample first.
        process, times, shape, generator, kernel, mean, device: as for `sample`; shape is that of the samples.
        callback: receives (k, X_{t_k}, None), one particle of every sample, k = T first; at k = 0 the samples.
        number: P, particles of every sample.
        potentials: what is added up to the logarithm of the weights; known elements bring their own.
        correction: corrector steps, which must leave the weighted law as it is: they are not weighed.
        known: elements of X_0 that are given; all particles of a sample share their path.
        threshold: see `THRESHOLD`; 0 never resamples before the end, 1 after every step.
        held: x0 of `known` is a whole sample, which decays to times[-1], where all particles begin; the first one then
            follows its path back. With no resampling in between this is a move of iterated importance sampling on
            paths, which leaves the law given the known elements as it is, for any number of particles
            [Andrieu 2010, section 4.2].

    Raises:
        ValueError: as for `sample`; a kernel that remembers steps, which resampling would mix up; known elements of a
            process whose steps have no likelihood; a held sample among particles that are resampled.
    """
    if held and (known is None or threshold > 0):
        raise ValueError("a held sample is known, and its particles are never resampled: threshold=0")
    times, device, start_mean, path = times.cpu(), torch.device(device), mean, None
    streams = generator.particles(number) if isinstance(generator, SampleStreams) else generator
    if mean is not None and mean.ndim == len(shape) and len(mean) > 1:
        start_mean = mean.repeat_interleave(number, 0)
    if known is not None and not weighs(process):
        raise ValueError(
            f"inpainting_particles: the steps of {type(process).__name__} have no likelihood that particles could be "
            "weighed by: 1 overwrites the known elements"
        )
    prior_source, last = source_at(streams, len(times)), time_on(times[-1], device)
    start = process.prior((shape[0] * number, *shape[1:]), last, prior_source, mean=start_mean)
    weights = list(potentials)
    if known is not None:
        path = KnownPath(known.of_batch(shape, device), process, generator, number)
        start = path.at(len(times) - 1, times[-1], start)
        weights.append(KnownWeight(process, path.x0, path.mask))
        start = path.hold() if held else start
    swarm = _Swarm(kernel, weights, number, shape[0], len(times) - 1, generator, path, threshold, device)

    def unweighed(swarm: Kernel, at: ReverseStep) -> Tensor:  # by the kernel itself, and known elements back in place
        xs = correction.corrector(kernel, at)
        return xs if path is None else path.put(xs)

    def first_of_each(k: int, x: Tensor, prediction: Prediction | None) -> None:
        if callback is not None and k > 0:
            callback(k, x[::number], None)

    x0 = sample(
        denoiser, process, times, tuple(start.shape), streams, first_of_each,
        kernel=swarm, correction=replace(correction, corrector=unweighed), start=start, device=device,
    )  # fmt: skip
    drawn = swarm.draw(x0)
    if callback is not None:
        callback(0, drawn.samples, None)
    return drawn


class _Swarm:
    """A kernel that weighs what another one does, and resamples: a sequential Monte Carlo sampler [Doucet 2001]."""

    def __init__(
        self, kernel: Kernel, potentials: Sequence[Potential], number: int, samples: int, steps: int,
        generator: torch.Generator | SampleStreams | None, path: KnownPath | None, threshold: float,
        device: torch.device,
    ) -> None:  # fmt: skip
        if isinstance(kernel, StatefulKernel):
            raise ValueError(f"{type(kernel).__name__} remembers earlier steps, which particles exchange: use another")
        self._kernel = kernel
        self._potentials, self._path, self._generator = potentials, path, generator
        self._number, self._threshold, self._k = number, threshold, steps
        self._log_weight = torch.zeros(samples, number, dtype=torch.float64, device=device)
        self._log_normaliser = torch.zeros(samples, dtype=torch.float64, device=device)

    def __call__(self, at: ReverseStep) -> Tensor:
        """X_s of the shape [rows, ...] and dtype of `at.x`: made, weighed by the potentials, and resampled."""
        self._k -= 1
        step = Step(self._k, at.s, at.t, at.x)

        def recorded(x: Tensor, time: Tensor) -> Prediction:
            if self._path is not None and step.seen and time < step.seen[-1][1]:
                x = self._path.at(self._k, time, x)
            prediction = at.denoiser(x, time)
            step.seen.append((x, time, prediction))
            return prediction

        xs = self._kernel(replace(at, denoiser=recorded))
        step.after = xs if self._path is None else self._path.at(self._k, at.s, xs)
        for potential in self._potentials:
            self._log_weight += potential(step).view_as(self._log_weight)
        return step.after if self._k == 0 else self._resampled(step.after)

    def _resampled(self, xs: Tensor) -> Tensor:
        """The particles [rows, ...], in groups of too small an effective number 1 / sum w^2 exchanged for copies.

        The mean weight of such a group goes into the normaliser [Doucet 2001]; copies are drawn by `systematic`.
        """
        weight = normalised(self._log_weight)
        few = 1 / (weight**2).sum(1) < self._threshold * self._number
        u = uniform((len(weight), 1), source_at(self._generator, self._k + 1), weight.device)
        self._log_normaliser += torch.where(few, self._log_mean(), 0.0)
        self._log_weight = torch.where(few[:, None], 0.0, self._log_weight)
        ancestors = torch.where(few[:, None], systematic(weight, u), torch.arange(self._number, device=weight.device))
        first = self._number * torch.arange(len(weight), device=weight.device)
        rows = (first[:, None] + ancestors).flatten()
        for potential in self._potentials:
            if (follow := getattr(potential, "follow", None)) is not None:
                follow(rows)
        return xs[rows]

    def draw(self, x0: Tensor) -> Weighed:
        """One particle of every sample of x0 [rows, ...], by weight: [B, ...]; see `Weighed`."""
        weight = normalised(self._log_weight)
        u = uniform((len(weight), 1), source_at(self._generator, 0), weight.device)
        chosen = (weight.cumsum(1) <= u * weight.sum(1, keepdim=True)).sum(1).clamp(max=self._number - 1)
        rows = self._number * torch.arange(len(weight), device=weight.device) + chosen
        return Weighed(x0[rows], self._log_normaliser + self._log_mean())

    def _log_mean(self) -> Tensor:
        """The logarithm of the mean weight of every group, float64 [B]: a factor of the normaliser [Doucet 2001]."""
        return torch.logsumexp(self._log_weight, 1) - math.log(self._number)


def normalised(log_weight: Tensor) -> Tensor:
    """Weights [B, P] that sum to 1 in every group, from logarithms [B, P]; equal ones where all are 0 [Doucet 2001]."""
    impossible = torch.isneginf(log_weight).all(1, keepdim=True)
    return torch.softmax(torch.where(impossible, 0.0, log_weight), 1)


# --- steering


def neighbour_ratios(value: Callable[[Tensor, Tensor], Tensor], process: JumpProcess, x: Tensor, now: Tensor) -> Tensor:
    """log of p(y | x') over p(y | x) for every state x' that one reverse jump leads to, float64 [n, R, *shape].

    What rates are multiplied by [Nisonoff 2024, eq. 2].

    Args:
        value: (states [m, *shape], rows int64 [m]) -> log p(y | state), float64 [m].
        process: says which jumps there are.
        x: states [n, *shape].
        now: their own values, float64 [n].
    """
    jumps = process.reverse_jumps(x)
    jumps = jumps.expand(len(x), jumps.shape[-x.ndim], *x.shape[1:])
    flat, steps, log_ratios = x.flatten(1).long(), jumps.flatten(2), []
    types, elements = steps.shape[1:]
    for part in torch.arange(steps.numel(), device=x.device).split(_AT_ONCE):
        row, kind, element = part // (types * elements), part // elements % types, part % elements
        moved = flat[row].scatter_add(1, element[:, None], steps[row, kind, element][:, None].long())
        moved = moved.clamp_(0, process.num_states - 1).to(x.dtype).view(-1, *x.shape[1:])
        log_ratios.append(value(moved, row) - now[row])
    return torch.nan_to_num(torch.cat(log_ratios), nan=0.0).clamp(-_LARGEST, _LARGEST).view(jumps.shape)


def guarded(value: Tensor) -> Tensor:
    """Logarithms of guessed likelihoods in groups, float64 [n, M, ...], of the same shape without log 0.

    log 0, which is not the last word, becomes that of a tenth of the group's mean, and of groups of nothing else 0.
    Ours (tests/laws/test_steering_laws.py).
    """
    floor = torch.logsumexp(value, 1, keepdim=True) - math.log(value.shape[1] / _GUARD)
    return torch.where(torch.isneginf(value), torch.where(torch.isneginf(floor), 0.0, floor), value)


@dataclass
class Steering:
    """Samples of p(x) L(x) / Z by steered walks: kernel and potential of their particles, which draws and weighs steps.

    Args:
        process: being reversed: pure death or finite where steps are guided.
        likelihood: L of data.
        number: of walks, particles of a sample; 1 with `guided` is classifier guidance alone, whose law is right as far
            as classifier and steps are.
        classifier: p(y | x_t); None for the mean of L over draws.
        guided: whether steps are drawn at guided rates.
        draws: of X_0, where there is no classifier.
        every: so many steps the potential acts once, counted from the end.
        kernel: of steps that are not guided, and of the draws of X_0 by which states are valued, of one evaluation;
            None takes the Poisson leap for pure death, else the level bridge.

    Raises:
        ValueError: guided steps without a classifier, or of a process that they are not known for; no walk or draw.
    """

    process: Process
    likelihood: Likelihood
    number: int
    classifier: Classifier | None = None
    guided: bool = False
    draws: int = 1
    every: int = 1
    kernel: Kernel | None = None

    def __post_init__(self) -> None:
        if (least := min(self.number, self.draws, self.every)) < 1:
            raise ValueError(f"particles, draws and every must be at least 1, not {least}")
        death, finite = (isinstance(self.process, kind) for kind in (PureDeath, FiniteProcess))
        if self.guided and (
            self.classifier is None or not (death or (finite and isinstance(self.process, JumpProcess)))
        ):
            raise ValueError(
                "guided steps need a classifier, and pure death or finitely many states in continuous time"
            )
        self._kernel: Kernel = self.kernel or (PoissonLeap() if death else LevelBridge())
        self._now = self._left_out = self._paid = torch.zeros(())

    def walk(self, denoiser: Denoiser, times: Tensor, shape: Shape, streams: SampleStreams, **how: Any) -> Weighed:
        """Samples, once; exp of their `log_normaliser` estimates Z. Arguments as for `sample_particles`."""
        self._streams, walk = streams.particles(self.number).fold(_VALUES), (denoiser, self.process, times, shape)
        return sample_particles(*walk, streams, number=self.number, potentials=[self], kernel=self.draw, **how)

    def draw(self, at: ReverseStep) -> Tensor:
        """X_s [rows, ...] given X_t, a `Kernel`: `left_out` is then log p(x_s | x_t) less that of what was drawn from,
        [rows].

        Guided steps are twisted ones [Nisonoff 2024, eq. 2; Wu 2023, algorithm 1]: births at `neighbour_ratios` times
        the rate, or levels at that times `step_distribution`.
        """
        self._left_out = torch.zeros(len(at.x), dtype=torch.float64, device=at.x.device)
        if not self.guided:
            return self._kernel(at)
        classifier, prediction, process = self.classifier, at.denoiser(at.x, at.t), at.process
        assert classifier is not None and isinstance(process, JumpProcess)
        self._now = classifier(at.x, at.t, torch.arange(len(at.x), device=at.x.device))
        ratios = neighbour_ratios(lambda x, rows: classifier(x, at.t, rows), process, at.x, self._now)
        if isinstance(prediction, CountPrediction):
            log_ratio = ratios[:, 0].clamp(max=_FASTEST)
            rate = prediction.expected * step_fraction(at.s, at.t)
            births = poisson(rate * log_ratio.exp(), at.generator)
            self._left_out = per_sample(rate * torch.expm1(log_ratio) - births * log_ratio)
            return add_births(at.x, births, process)
        assert isinstance(process, FiniteProcess)
        law = step_distribution(process, prediction, at.x, at.s, at.t)
        tilted = law * ratios.movedim(1, -1).exp()
        tilted = tilted / tilted.sum(-1, keepdim=True)
        xs = categorical(tilted, at.generator)
        plain, drawn = (p.gather(-1, xs[..., None]).squeeze(-1) for p in (law, tilted))
        self._left_out = per_sample(plain.log() - drawn.log())
        return xs.to(at.x.dtype)

    def __call__(self, step: Step) -> Tensor:
        """What a step adds to the logarithm of every weight, float64 [rows], a `Potential`.

        That is what the worth of states has gained [Singhal 2025, section 3.2]; the last step makes up the rest to log
        L.
        """
        if self._paid.ndim == 0:
            self._paid = torch.zeros_like(self._left_out)
        if step.number == 0:  # L of the end takes the place of all guesses
            return self._of_data(step.after) - self._paid + self._left_out
        if step.number % self.every:
            return self._left_out
        gain = self._value(*step.seen[0], step.number) - self._paid
        self._paid = self._paid + gain
        return gain + self._left_out

    def follow(self, rows: Tensor) -> None:
        """Go on as these particles: what is remembered of each is resampled with it."""
        self._paid = self._paid[rows]

    def _of_data(self, x: Tensor) -> Tensor:
        """log L of states x [rows, ...] as data, float64 [rows]: the likelihood that was given."""
        data = x.double().clamp(max=self.process.max_count)
        return self.likelihood(data, torch.arange(len(x), device=x.device))

    def _value(self, x: Tensor, t: Tensor, prediction: Prediction, step: int) -> Tensor:
        """The worth V(x_t) of states [rows, ...], float64 [rows]: the classifier's, or log of the mean of L over draws
        of X_0.

        [Singhal 2025, section 3.2]; `guarded` within each group.
        """
        if self.guided:
            value = self._now
        elif self.classifier is not None:
            value = self.classifier(x, t, torch.arange(len(x), device=x.device))
        else:
            source, zero = self._streams.at(step), torch.zeros_like(t)
            drawn = [
                self._of_data(self._kernel(ReverseStep(lambda *_: prediction, self.process, x, zero, t, source)))
                for _ in range(self.draws)
            ]
            value = torch.logsumexp(torch.stack(drawn), 0) - math.log(self.draws)
        return guarded(value.view(-1, self.number)).flatten()
