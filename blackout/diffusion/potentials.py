"""Weights of particles: what a step of the sampler lacks for its paths to follow another law than the kernel's.

A potential sees every step as it was made, stage by stage, and returns the logarithm of a weight for every particle.
`GuidanceWeight` turns walks at guided rates into p(x) p(c | x)^g, `KnownWeight` walks beside known elements into the
law given these. Both are ratios of densities of whole paths, so they may be added; others (a likelihood of X_0 as the
prediction has it, for posterior sampling) fit in the same place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from blackout.diffusion.guidance import GuidedCount, GuidedPair
from blackout.diffusion.kernels.jumps import reverse_rates, step_law
from blackout.diffusion.predictions import CountPrediction, Prediction
from blackout.diffusion.processes import FiniteProcess, JumpProcess, Process, PureDeath
from blackout.diffusion.schedules import reverse_clock, step_fraction

_TINY = 1e-300
_FLOOR = 0.1
"""Least extrapolated count, as a share of the predicted one: a known birth must not come out impossible."""


@dataclass(frozen=True)
class Stage:
    """A part of a step, at the rates of one evaluation.

    Attributes:
        prediction: given X_t = before.
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
        """Of the missing units, how many come back on average."""
        return step_fraction(self.s, self.t)

    def ahead(self, rate: Callable[[Prediction], Tensor]) -> Tensor:
        """A count of the prediction, for pure death, extrapolated over the stages as by the trapezoidal kernel.

        Frozen over each stage it would integrate to first order only.
        """
        now = rate(self.prediction)
        if self.last is None or float(self.s) == 0:
            return now
        first, middle, end = (reverse_clock(time) for time in (self.last.t, self.t, self.s))
        theta = (middle - first) / (end - first)
        weight = 1 / (2 * theta * (1 - theta))
        return weight * now - (weight - 1) * (1 - self.last.fraction) * rate(self.last.prediction)


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
    """Log weights of particles, a step at a time."""

    def __call__(self, step: Step) -> Tensor:
        """What the step adds to the logarithm of every particle's weight, float64 [rows]; -inf is a weight of 0."""
        ...


@dataclass(frozen=True)
class GuidanceWeight:
    """The density of paths of p(x) p(c | x)^g relative to that of walks at guided rates.

    A stage of counts weighs prod_i Poisson(n_i; y_i r)^(1 - g) Poisson(n_i; y_c,i r)^g / Poisson(n_i; a_i r), n_i its
    births and a_i the guided count: where a = y^(1 - g) y_c^g, not clipped to what can be missing, that is exp(V r),
    and r adds up to the clock tau = -log(1 - e^-t). Of finitely many states it is the sum of p^(1 - g) p_c^g over the
    states an element can go to, before it is normalised; of other processes exp(V (t - s)). Nothing where nothing is
    guided.

    Args:
        process: being reversed.
    """

    process: Process

    def __call__(self, step: Step) -> Tensor:
        total = torch.zeros(len(step.after), dtype=torch.float64, device=step.after.device)
        for stage in step.stages():
            if isinstance(stage.prediction, GuidedCount):
                total = total + _per_row(_tilt_of_births(stage.prediction, stage))
            elif isinstance(stage.prediction, GuidedPair):
                total = total + _per_row(self._tilt(stage.prediction, stage))
        return total

    def _tilt(self, pair: GuidedPair, stage: Stage) -> Tensor:
        if isinstance(self.process, FiniteProcess):
            mass = step_law(self.process, pair, stage.before, stage.s, stage.t).sum(-1)
            return torch.where(mass > 0, mass.clamp(min=_TINY).log(), 0.0)
        if not isinstance(self.process, JumpProcess):
            raise ValueError(f"guidance_particles: {type(self.process).__name__} has neither rates nor finite steps")
        conditional, unconditional = (
            self.process.rates(one.expected, stage.before, stage.t).sum(1) for one in pair.both
        )
        tilted = reverse_rates(self.process, pair, stage.before, stage.t).sum(1)
        return (tilted - (1 - pair.scale) * unconditional - pair.scale * conditional) * (stage.t - stage.s)


@dataclass(frozen=True)
class KnownWeight:
    """The model's probability of what the known elements do, over that of the path they were drawn from.

    Births of a stage are Poisson(y r), those of finitely many states follow `step_law`. The path's own probability, of
    a bridge to X_0, is the same for all particles of a sample: it makes the mean weight an estimate of p(known).

    Args:
        process: being reversed; see `weighs`.
        x0, mask: counts and observed elements [rows, ...].
    """

    process: Process
    x0: Tensor
    mask: Tensor

    def __call__(self, step: Step) -> Tensor:
        total = torch.zeros(len(step.after), dtype=torch.float64, device=step.after.device)
        for stage in step.stages():
            log_ratio = self._of_births(stage) if isinstance(self.process, PureDeath) else self._of_levels(stage)
            total = total + _per_row(torch.where(self.mask, log_ratio, 0.0))
        return total

    def _of_births(self, stage: Stage) -> Tensor:
        assert isinstance(stage.prediction, CountPrediction)
        r, births = stage.fraction, _births(stage)
        missing = (self.x0.long() - stage.before.long()).clamp(min=0).double()
        now = stage.prediction.expected
        rate = torch.maximum(stage.ahead(lambda y: y.expected), _FLOOR * now)
        # the logarithm of the mean itself where it is not extrapolated: finite where the mean underflows
        log_rate = torch.where(rate == now, stage.prediction.log_mean.double(), rate.clamp(min=_TINY).log())
        # log of Poisson(births; y r) / Binomial(births; missing, r), in which births! cancels
        stayed = missing - births
        bridge = torch.lgamma(missing + 1) - torch.lgamma(stayed.clamp(min=0) + 1) + births * r.log()
        bridge = bridge + torch.special.xlogy(stayed, torch.expm1(-stage.s) / torch.expm1(-stage.t))
        return births * (log_rate + r.log()) - rate * r - bridge

    def _of_levels(self, stage: Stage) -> Tensor:
        assert isinstance(self.process, FiniteProcess)
        law = step_law(self.process, stage.prediction, stage.before, stage.s, stage.t)
        if isinstance(stage.prediction, GuidedPair):
            law = law / law.sum(-1, keepdim=True).clamp(min=_TINY)
        bridge = self.process.bridge_pmf(self.x0, stage.before, stage.s, stage.t)
        reached = stage.after.long()[..., None]
        log_model, log_bridge = (
            p.gather(-1, reached).squeeze(-1).clamp(min=_TINY).log() for p in (law, bridge.view(law.shape))
        )
        return log_model - log_bridge


def weighs(process: Process) -> bool:
    """Whether `KnownWeight` knows the probability of a step: of pure death and of finitely many states."""
    return isinstance(process, PureDeath | FiniteProcess)


def _births(stage: Stage) -> Tensor:
    return (stage.after.long() - stage.before.long()).double()


def _tilt_of_births(guided: GuidedCount, stage: Stage) -> Tensor:
    assert guided.log_guided is not None
    used = guided.mean.double()
    clipped = torch.where(used > 0, guided.log_guided - used.clamp(min=_TINY).log(), 0.0)
    clipped = torch.where(clipped.abs() > 1e-5, clipped, 0.0)  # the rest is rounding in single precision
    # of several births only the first: it changes the rates, and a power of the ratio frozen here would run away
    return stage.ahead(_excess) * stage.fraction + _births(stage).clamp(max=1) * clipped


def _excess(guided: Prediction) -> Tensor:
    """What is simulated more than (1 - g) y + g y_c."""
    assert isinstance(guided, GuidedCount) and guided.plain is not None
    return guided.mean.double() - guided.plain


def _per_row(values: Tensor) -> Tensor:
    return values.flatten(1).sum(1)
