"""Steering: walks of a prior led to what a likelihood asks for, by classifier guidance, twisted particles, or weights.

Three ways to p(x) L(x) / Z with the particles of `blackout.diffusion.particles`, which differ in what a step is drawn
from and in what a state on the way is worth:

    classifier guidance         rates times p(y | x') / p(y | x) [Nisonoff 2024, eq. 2]; one walk, no weights
    twisted diffusion (TDS)     the same steps, weighed by what they leave out [Wu 2023, algorithm 1]
    Feynman-Kac (FK) steering   the prior's own steps, weighed by L at the predicted data [Singhal 2025, section 3]

A classifier knows p(y | x_t) of states on the way; without one the worth of a state is the mean of L over draws of X_0
from the prediction that the step makes anyway. Whatever is guessed on the way, the weights of a whole path make up L of
its end, so that with many particles the law is right. Ours (tests/laws/test_steering_laws.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from blackout.counts import Shape
from blackout.diffusion.kernels import Kernel, LevelBridge, PoissonLeap, ReverseStep, grown, step_law
from blackout.diffusion.particles import Step, Weighed, sample_particles
from blackout.diffusion.predictions import CountPrediction, Denoiser, Prediction
from blackout.diffusion.processes import FiniteProcess, JumpProcess, Process, PureDeath
from blackout.diffusion.processes.base import per_sample
from blackout.diffusion.schedules import step_fraction
from blackout.random import SampleStreams, categorical, poisson

Likelihood: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""(data, float64 [m, *shape], which particles they are of, int64 [m]) -> log L, float64 [m]."""
Classifier: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(states [m, *shape], time, which particles they are of, int64 [m]) -> log p(y | x_t), float64 [m]."""

LARGEST = 20.0
"""Of the logarithm of a ratio of likelihoods of neighbours."""
_FASTEST = 3.0
"""The same, of what births are proposed by: a proposal may be rough, since it is weighed."""
_GUARD = 0.1
"""Of the mean guess of a group's likelihood: what a guess of 0 is raised to."""
_AT_ONCE = 4096
_VALUES = 1


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
    return torch.nan_to_num(torch.cat(log_ratios), nan=0.0).clamp(-LARGEST, LARGEST).view(jumps.shape)


def guarded(value: Tensor) -> Tensor:
    """Logarithms of guessed likelihoods in groups, float64 [n, M, ...]: log 0, which is not the last word, becomes that
    of a tenth of the group's mean, and of groups of nothing else 0.
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
        """X_s [B, ...] given X_t, a `Kernel`: `left_out` is then log p(x_s | x_t) less that of what was drawn from."""
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
            return grown(at.x, births, process)
        assert isinstance(process, FiniteProcess)
        law = step_law(process, prediction, at.x, at.s, at.t)
        tilted = law * ratios.movedim(1, -1).exp()
        tilted = tilted / tilted.sum(-1, keepdim=True)
        xs = categorical(tilted, at.generator)
        plain, drawn = (p.gather(-1, xs[..., None]).squeeze(-1) for p in (law, tilted))
        self._left_out = per_sample(plain.log() - drawn.log())
        return xs.to(at.x.dtype)

    def __call__(self, step: Step) -> Tensor:
        """What a step adds to the logarithm of every weight, a `Potential`: what the worth of states has gained
        [Singhal 2025, section 3.2]; the last step makes up the rest to log L."""
        if self._paid.ndim == 0:
            self._paid = torch.zeros_like(self._left_out)
        if step.number == 0:  # L of the end takes the place of all guesses
            return self._of_data(step.after) - self._paid + self._left_out
        if step.number % self.every:
            return self._left_out
        gain = self._value(*step.seen[0][:3], step.number) - self._paid
        self._paid = self._paid + gain
        return gain + self._left_out

    def follow(self, rows: Tensor) -> None:
        """Go on as these particles: what is remembered of each is resampled with it."""
        self._paid = self._paid[rows]

    def _of_data(self, x: Tensor) -> Tensor:
        data = x.double().clamp(max=self.process.max_count)
        return self.likelihood(data, torch.arange(len(x), device=x.device))

    def _value(self, x: Tensor, t: Tensor, prediction: Prediction, step: int) -> Tensor:
        """V(x_t), float64 [rows]; see `guarded`."""
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
