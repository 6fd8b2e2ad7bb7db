"""Steering: runs of a prior that are led to a likelihood, so that samples follow p(x) L(x) / Z.

Three methods, which differ in what a step is drawn from and in the value of an intermediate state:

    classifier guidance          rates times p(y | x') / p(y | x); one run, no weights
    twisted diffusion (TDS)      the same steps, weighted by what they leave out
    Feynman-Kac (FK) steering    the prior's own steps, weighted by L at the predicted data

A classifier gives p(y | x_t) of intermediate states. Without one, the value of a state is the mean
of L over draws of X_0 from the prediction that the step makes anyway. Whatever the intermediate
values are, the weights of a whole path multiply to L of its end, so that the limit of many
particles is right.

References: Nisonoff et al. 2024, eq. 2; Wu et al. 2023, Algorithm 1; Singhal et al. 2025, section
    3; of discrete states this project, checked in tests/verification/test_steering.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from blackout.counts import per_sample
from blackout.diffusion.kernels import Kernel, LevelBridge, PoissonLeap, ReverseStep
from blackout.diffusion.kernels.base import add_births
from blackout.diffusion.kernels.finite_states import step_distribution
from blackout.diffusion.particles.potentials import Step
from blackout.diffusion.particles.resampling import (
    THRESHOLD,
    Particles,
    WeightedSamples,
    run_particles,
)
from blackout.diffusion.predictions import CountPrediction, Prediction
from blackout.diffusion.processes import FiniteProcess, JumpProcess, Process, PureDeath
from blackout.diffusion.sampling import SamplingPlan
from blackout.diffusion.survival import step_fraction
from blackout.random import SampleStreams, categorical, poisson

# (data, float64 [m, *shape], numbers of their particles, int64 [m]) -> log L, float64 [m]
Likelihood: TypeAlias = Callable[[Tensor, Tensor], Tensor]
# (states [m, *shape], time, numbers of their particles, int64 [m]) -> log p(y | x_t), float64 [m]
Classifier: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]

# Bounds of proposals and of values on the way. Weights correct proposals, and L itself replaces all
# values at the end, so that none of them changes the limit of many particles.
MAX_LOG_RATIO = 20.0  # of likelihoods of neighbouring states
MAX_LOG_BIRTH_RATIO = 3.0  # for proposed births; a proposal may be rough, since it is weighted
FLOOR_SHARE = 0.1  # of the mean value of a group: replaces values of 0
NEIGHBOURS_PER_CALL = 4096  # states whose values are computed together
VALUE_KEY = 1  # of the random numbers for values of states, apart from those of the runs


@dataclass
class Steering:
    """Kernel and potential of particles that sample p(x) L(x) / Z.

    Args:
        process: that is reversed: pure death or finite where steps are guided.
        likelihood: L of data.
        number: of particles of a sample; 1 with `guided` is classifier guidance alone, which is as
            right as classifier and steps are.
        classifier: p(y | x_t); None for the mean of L over draws.
        guided: whether steps are drawn at guided rates.
        draws: of X_0, where there is no classifier.
        every: the potential acts once in this many steps, counted from the end.
        kernel: of steps that are not guided, and of the draws of X_0 for values, of one evaluation;
            None is the Poisson leap for pure death, else the level bridge.

    Raises:
        ValueError: guided steps without a classifier, or of a process that they are not known for;
            no particle or draw.
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
        smallest = min(self.number, self.draws, self.every)
        if smallest < 1:
            raise ValueError(
                "number, draws and every must be at least 1, not "
                f"{self.number}, {self.draws} and {self.every}"
            )
        pure_death = isinstance(self.process, PureDeath)
        finite = isinstance(self.process, FiniteProcess) and isinstance(self.process, JumpProcess)
        if self.guided and (self.classifier is None or not (pure_death or finite)):
            raise ValueError(
                "guided steps need a classifier, and pure death or finitely many states in "
                "continuous time"
            )
        default_kernel: Kernel = PoissonLeap() if pure_death else LevelBridge()
        self._kernel = self.kernel or default_kernel
        self._state_value = torch.zeros(())  # by the classifier, of the last guided step
        self._correction = torch.zeros(())  # log weight of the last step, see `step`
        self._total_gain = torch.zeros(())  # log weight by values so far

    def run(
        self,
        plan: SamplingPlan,
        shape: tuple[int, ...],
        streams: SampleStreams,
        threshold: float = THRESHOLD,
    ) -> WeightedSamples:
        """Draw samples, once; exp of their `log_normaliser` estimates Z.

        Args:
            plan: of the prior; its kernel is replaced.
            shape: [B, ...] of the samples.
            streams: of the samples.
            threshold: see `Particles`.
        """
        self._streams = streams.particles(self.number).fold_in(VALUE_KEY)
        particles = Particles(self.number, threshold)
        plan = replace(plan, kernel=self.step)
        return run_particles(plan, shape, streams, particles, potentials=[self])

    def step(self, step: ReverseStep) -> Tensor:
        """Return X_s [rows, ...] given X_t: the particles' kernel.

        It keeps log p(x_s | x_t) minus the log probability of what was drawn from, [rows], as the
        correction of the weights. Guided steps are births at `neighbour_log_ratios` times the rate,
        or levels at that times `step_distribution`.

        References: Nisonoff et al. 2024, eq. 2; Wu et al. 2023, Algorithm 1.
        """
        x = step.x
        self._correction = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        if not self.guided:
            return self._kernel(step)

        # 1. Log ratios p(y | x') / p(y | x) of all neighbours.
        classifier = self.classifier
        process = step.process
        prediction = step.denoiser(x, step.t)
        assert classifier is not None
        assert isinstance(process, JumpProcess)
        self._state_value = classifier(x, step.t, torch.arange(len(x), device=x.device))
        log_ratios = neighbour_log_ratios(
            lambda states, rows: classifier(states, step.t, rows), process, x, self._state_value
        )

        # 2. Births at guided rates.
        if isinstance(prediction, CountPrediction):
            log_ratio = log_ratios[:, 0].clamp(max=MAX_LOG_BIRTH_RATIO)
            rate = prediction.expected * step_fraction(step.s, step.t)
            births = poisson(rate * log_ratio.exp(), step.generator)
            self._correction = per_sample(rate * torch.expm1(log_ratio) - births * log_ratio)
            return add_births(x, births, process)

        # 3. Levels at guided rates.
        assert isinstance(process, FiniteProcess)
        pmf = step_distribution(process, prediction, x, step.s, step.t)
        tilted = pmf * log_ratios.movedim(1, -1).exp()
        tilted = tilted / tilted.sum(-1, keepdim=True)
        xs = categorical(tilted, step.generator)
        log_prior = pmf.gather(-1, xs[..., None]).squeeze(-1).log()
        log_proposal = tilted.gather(-1, xs[..., None]).squeeze(-1).log()
        self._correction = per_sample(log_prior - log_proposal)
        return xs.to(x.dtype)

    def __call__(self, step: Step) -> Tensor:
        """Return what a step adds to the log weights, float64 [rows]: the particles' potential.

        That is what the value of the states has gained; the last step adds the rest up to log L.

        References: Singhal et al. 2025, section 3.2.
        """
        if self._total_gain.ndim == 0:
            self._total_gain = torch.zeros_like(self._correction)
        if step.number == 0:  # L of the end replaces all values
            return self._log_likelihood(step.after) - self._total_gain + self._correction
        if step.number % self.every:
            return self._correction
        x, t, prediction = step.evaluations[0]
        gain = self._value(x, t, prediction, step.number) - self._total_gain
        self._total_gain = self._total_gain + gain
        return gain + self._correction

    def select(self, rows: Tensor) -> None:
        """Keep the gain of the particles that survive resampling, int64 [rows]."""
        self._total_gain = self._total_gain[rows]

    def _log_likelihood(self, x: Tensor) -> Tensor:
        """Return log L of states x [rows, ...] as data, float64 [rows]."""
        data = x.double().clamp(max=self.process.max_count)
        return self.likelihood(data, torch.arange(len(x), device=x.device))

    def _value(self, x: Tensor, t: Tensor, prediction: Prediction, number: int) -> Tensor:
        """Return the log value of states [rows, ...], float64 [rows], raised by `floor_values`.

        It is the classifier's, or log of the mean of L over draws of X_0.

        References: Singhal et al. 2025, section 3.2.
        """
        if self.guided:
            value = self._state_value
        elif self.classifier is not None:
            value = self.classifier(x, t, torch.arange(len(x), device=x.device))
        else:
            source = self._streams.step(number)
            zero = torch.zeros_like(t)
            to_data = ReverseStep(lambda *_: prediction, self.process, x, zero, t, source)
            log_l = [self._log_likelihood(self._kernel(to_data)) for _ in range(self.draws)]
            value = torch.logsumexp(torch.stack(log_l), 0) - math.log(self.draws)
        return floor_values(value.view(-1, self.number)).flatten()


def neighbour_log_ratios(
    value: Callable[[Tensor, Tensor], Tensor],
    process: JumpProcess,
    x: Tensor,
    current: Tensor,
) -> Tensor:
    """Return log p(y | x') - log p(y | x) for every state x' that one reverse jump leads to.

    References: Nisonoff et al. 2024, eq. 2.

    Args:
        value: (states [m, *shape], rows int64 [m]) -> log p(y | state), float64 [m].
        process: whose reverse jumps lead to the neighbours.
        x: states [n, *shape].
        current: their own values, float64 [n].

    Returns:
        float64 [n, R, *shape].
    """
    jumps = process.reverse_jumps(x)
    jumps = jumps.expand(len(x), jumps.shape[-x.ndim], *x.shape[1:])
    flat = x.flatten(1).long()
    steps = jumps.flatten(2)
    num_types, num_elements = steps.shape[1:]
    log_ratios = []
    for part in torch.arange(steps.numel(), device=x.device).split(NEIGHBOURS_PER_CALL):
        row = part // (num_types * num_elements)
        kind = part // num_elements % num_types
        element = part % num_elements
        jump = steps[row, kind, element][:, None].long()
        neighbour = flat[row].scatter_add(1, element[:, None], jump)
        neighbour = neighbour.clamp_(0, process.num_states - 1).to(x.dtype)
        log_ratios.append(value(neighbour.view(-1, *x.shape[1:]), row) - current[row])
    all_ratios = torch.nan_to_num(torch.cat(log_ratios), nan=0.0)
    return all_ratios.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).view(jumps.shape)


def floor_values(log_value: Tensor) -> Tensor:
    """Raise estimated likelihoods of 0 to a small value, since later steps may still correct them.

    A value of 0 becomes a tenth of its group's mean; groups of nothing else become 1.

    References: this project; checked in tests/verification/test_steering.py.

    Args:
        log_value: logarithms in groups, float64 [n, M, ...].

    Returns:
        The same shape, without -inf.
    """
    group_size = log_value.shape[1]
    floor = torch.logsumexp(log_value, 1, keepdim=True) - math.log(group_size / FLOOR_SHARE)
    floor = torch.where(torch.isneginf(floor), 0.0, floor)
    return torch.where(torch.isneginf(log_value), floor, log_value)
