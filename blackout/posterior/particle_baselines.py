"""Rivals by particles, from one on: SMC, SVDD-PM, FK, TDS and DPS [Chu 2025, appendix C.2], and overwriting."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor

from blackout.counts import count_dtype
from blackout.diffusion.inpainting import KnownElements
from blackout.diffusion.particles import (
    THRESHOLD,
    Particles,
    Steering,
    floor_values,
    normalise_weights,
    run_particles,
)
from blackout.diffusion.processes import PureDeath
from blackout.diffusion.sampling import CountingDenoiser, SamplingPlan, run_sampler
from blackout.errors import check_at_least_one, ensure
from blackout.posterior.method import Method, Run
from blackout.posterior.noise_denoise import polished
from blackout.posterior.problem import Measured, Prior, Problem, repeated
from blackout.random import SampleStreams, systematic_resampling, uniform

_OF_EXPECTED, _ROLLOUTS = 0.5, 4
"""Share of log L at expected data that a state is worth; reverse runs where it is not these that are asked."""
_MOST = 20_000
"""Neighbours of one state: their number is that of network evaluations of each step."""


def of_rows(problem: Problem, rows: Tensor, shape: tuple[int, ...]) -> Problem:
    """The same for these samples, int64 [m], where each has a measurement of its own."""
    return problem.select(rows, shape) if isinstance(problem, Measured) else problem


@dataclass(frozen=True)
class SMC(Method):
    """Sequential Monte Carlo: walks of several particles for every sample, weighed by (p(y | x_s) / p(y | x_t))^power
    [Chu 2025, appendix C.2.3], and resampled where the weights are worth fewer than half of the particles.

    What a state is worth is log p(y | x_s), by what the network says of it, which the next step takes over. Of births
    it is half of log L at the expected data, which has no noise of its own; half, since elements are not independent
    (ours). Else it is the mean of L over a few reverse runs of one step [Chu 2025, eq. 55].

    A guess of 0 is not the last word: a state whose few rollouts all contradict y may still lead to data that do not,
    and to drop it would leave another limit (total variation .2 to .3, growing with M, for binomial thinning). It is
    therefore raised (`floor_values`), every number of y by itself, since of many nearly all guesses contradict one.
    Only L itself, at the end, is 0 where y is impossible. As M grows the law tends to p(x) L(x)^power / Z, and for any
    M the product of the mean weights is Z on average: the evidence p(y) where power is 1 [Del Moral 2006, section 3.2].
    Ours; tests/posterior/test_laws.py.

    Args:
        particles: M, of every sample.
        rollouts: reverse runs of each guess; None for expected data, or four runs where data are not counted by births,
            L has no value between them, or all go on from the best.
        power: tempers the weights, and with them the limit.
        threshold: effective share of the particles below which they are resampled; 1 after every step, as published.
        polish: noise-denoise moves of the sample that was drawn, which take away what so few particles leave of a bias.
        greedy: SVDD-PM: all go on from the best, the limit beta -> infinity of [Chu 2025, eq. 56; Li 2024]. With many
            particles it goes to the best of them, not to the posterior.
    """

    walks: ClassVar[bool] = True
    particles: int = 20
    rollouts: int | None = None
    power: float = 1.0
    threshold: float = THRESHOLD
    polish: int = 0
    greedy: bool = False

    def length(self, prior: Prior) -> int:
        return len(prior.times) - 1 + self.polish

    def check(self, prior: Prior, problem: Problem) -> None:
        check_at_least_one(particles=self.particles, rollouts=self.rollouts)
        plain = self.power == 1 and not self.greedy
        ensure(plain or not self.polish, "polish is for power=1: moves leave p(x) L(x) as it is")

    def draw(self, run: Run) -> Tensor:
        """Samples, counts [n, *shape]: see `Method.draw`."""
        prior, number, copies, streams = run.prior, run.number, self.particles, run.streams
        split = streams.particles(copies)
        x = prior.begin(number * copies, split)
        of_each = of_rows(run.problem, torch.arange(number).repeat_interleave(copies), prior.shape)
        value = torch.zeros(number, copies, dtype=torch.float64, device=x.device)
        log_weight, log_mean = value, value[:, 0]
        times = prior.times.to(prior.device)
        for k in range(len(times) - 2, -1, -1):
            s, t = times[k], times[k + 1]
            x = prior.step(x, s, t, split.step(k + 1))
            ahead, share = self._ahead(prior, of_each, x, s, split.fold_in(k))
            then = share * self._mean_of(of_each, ahead, guess=float(s) > 0)
            u = uniform((number, 1), streams.step(k + 1), x.device)
            chosen, log_weight, gained = self._choose(log_weight, value, then, u, last=float(s) == 0)
            log_mean = log_mean + gained
            rows = (torch.arange(number, device=x.device)[:, None] * copies + chosen).flatten()
            x, value = x[rows], then.gather(1, chosen)
            cast(CountingDenoiser, prior.denoiser).reuse(rows, s)
            run.record(float(t), x[::copies], calls=copies * len(ahead), evaluations=copies * run.spent)
        run.log_evidence = torch.empty(0) if self.greedy else log_mean
        x = x[::copies].clamp(max=prior.process.max_count)
        return polished(run, x, self.polish, streams.fold_in(-3)) if self.polish else x

    def _ahead(
        self, prior: Prior, problem: Problem, x: Tensor, s: Tensor, streams: SampleStreams
    ) -> tuple[list[Tensor], float]:
        """Data that states lead to, float64 [rows, *shape] each, and the share of the mean L's logarithm they weigh."""
        if s == 0:
            return [x.double()], 1.0
        births = isinstance(prior.process, PureDeath) and getattr(problem, "real", True)
        if births and self.rollouts is None and not self.greedy:
            return [prior.expected(x, s)], _OF_EXPECTED
        return [x0.double() for x0 in prior.guess(x, s, streams, self.rollouts or _ROLLOUTS)], 1.0

    def _mean_of(self, problem: Problem, ahead: list[Tensor], guess: bool) -> Tensor:
        """log of the mean L of data, float64 [n, M]; in guesses every impossible number of y is raised by itself.

        [Chu 2025, eq. 55] over groups of M particles, raised by `floor_values` as the class says; ahead is data
        [n M, *shape] each.
        """
        terms = problem.terms if isinstance(problem, Measured) else lambda x: problem.log_likelihood(x)[:, None]
        groups = torch.cat([terms(x).unflatten(0, (-1, self.particles)) for x in ahead], 1)
        log_l = (floor_values(groups) if guess else groups).sum(2).view(len(groups), -1, self.particles)
        return torch.logsumexp(log_l, 1) - math.log(len(ahead))

    def _choose(
        self, log_weight: Tensor, before: Tensor, now: Tensor, u: Tensor, last: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Which particles go on, int64 [n, M], from the logarithms of weights and values before and after a step, and a
        uniform [n, 1]; what they weigh then [n, M]; the logarithm of the mean weight [n], 0 where all stay. As in the
        class [Chu 2025, appendix C.2.3; Del Moral 2006, section 3.2].
        """
        gain = torch.where(torch.isneginf(now), -math.inf, now - before)
        log_weight, stay = log_weight + self.power * gain, torch.arange(now.shape[1], device=u.device)
        if self.greedy:
            return now.argmax(1, keepdim=True).expand(-1, len(stay)), torch.zeros_like(now), torch.zeros_like(now[:, 0])
        weight = normalise_weights(log_weight)
        few = (1 / (weight**2).sum(1, keepdim=True) < self.threshold * len(stay)) | last
        gained = torch.where(few[:, 0], torch.logsumexp(log_weight, 1) - math.log(len(stay)), 0.0)
        # the first one is shown, and is the sample in the end: any of them, not the first of an ordered list
        turn = (u * 1e6).long() % len(stay)
        chosen = torch.where(few, systematic_resampling(weight, u).gather(1, (stay + turn) % len(stay)), stay)
        return chosen, torch.where(few, 0.0, log_weight), gained


@dataclass(frozen=True)
class Steered(Method):
    """Walks steered to the posterior, see `blackout.diffusion.particles`: FK steering, or TDS where they are guided.

    Args:
        particles: of every sample; 1 with `guided` is DPS [Chu 2025, eq. 52 and 53].
        guided: at rates times p(y | x') / p(y | x) for every neighbour x', where p(y | x_t) is L at the expected data:
            each step evaluates the network once for every neighbour.
        every, draws: as for `Steering`.
    """

    walks: ClassVar[bool] = True
    particles: int = 20
    guided: bool = False
    every: int = 4
    draws: int = 4

    def check(self, prior: Prior, problem: Problem) -> None:
        if self.guided and self.neighbours(prior) > _MOST:
            raise ValueError(f"guided=true would evaluate {self.neighbours(prior)} neighbours in every step")

    @staticmethod
    def neighbours(prior: Prior) -> int:
        """States that one jump leads to, a number: what guided steps evaluate [Chu 2025, eq. 52]."""
        return math.prod(prior.shape) * (1 if isinstance(prior.process, PureDeath) else prior.process.num_states)

    def draw(self, run: Run) -> Tensor:
        """Samples, counts [n, *shape]: see `Method.draw`."""
        prior, problem = run.prior, run.problem
        of = torch.arange(run.number, device=prior.device).repeat_interleave(self.particles)

        def likelihood(x: Tensor, rows: Tensor) -> Tensor:
            return of_rows(problem, of[rows], prior.shape).log_likelihood(x)

        def classifier(x: Tensor, t: Tensor, rows: Tensor) -> Tensor:
            return likelihood(prior.expected(x, t), rows)

        asked, kernel = (classifier, None) if self.guided else (None, prior.kernel)
        how = self.particles, asked, self.guided, self.draws, self.every, kernel
        steering = Steering(prior.process, likelihood, *how)
        plan = SamplingPlan(prior.denoiser, prior.process, prior.times, mean=prior.mean, device=prior.device)
        drawn = steering.run(plan, (run.number, *prior.shape), run.streams)
        spent = self.particles * (len(prior.times) - 1) * (self.neighbours(prior) + 2 if self.guided else 1)
        run.record(prior.final_time, drawn.samples, calls=max(spent, self.particles * self.draws), evaluations=spent)
        run.log_evidence = drawn.log_normaliser
        return drawn.samples


@dataclass(frozen=True)
class Overwrite(Method):
    """Known elements put back after every step of an unconditional run: what `inpaint=` does with one particle.

    The others never look ahead, and however many steps are taken the law is wrong.

    Args:
        particles: more than one weighs the known elements' paths, see `blackout.diffusion.particles`.
        steps: equal ones of the logit of survival between the ends of the sampler's grid; None for that grid.
    """

    walks: ClassVar[bool] = True
    particles: int = 1
    steps: int | None = None

    def check(self, prior: Prior, problem: Problem) -> None:
        ensure(self.particles >= 1, f"particles must be at least 1, not {self.particles}")
        ensure(self.steps is None or self.steps >= 2, f"steps must be at least 2, not {self.steps}")
        self._known(problem, prior)

    def draw(self, run: Run) -> Tensor:
        """Samples, counts [n, *shape]: see `Method.draw`."""
        prior, shape = run.prior, (run.number, *run.prior.shape)
        times = prior.times if self.steps is None else prior.walk(prior.final_time, self.steps - 1)
        y, mask = self._known(run.problem, prior)
        known = KnownElements(repeated(y, run.number).expand(shape), mask.expand(shape))
        plan = SamplingPlan(
            prior.denoiser, prior.process, times, prior.kernel, mean=prior.mean, known=known, device=prior.device
        )
        if self.particles == 1:
            x = run_sampler(plan, shape, run.streams)
        else:
            x, run.log_evidence = run_particles(plan, shape, run.streams, Particles(self.particles))
        run.record(prior.final_time, x, calls=self.particles, evaluations=self.particles * run.spent)
        return x

    @staticmethod
    def _known(problem: Problem, prior: Prior) -> tuple[Tensor, Tensor]:
        """The known counts [n or 1, *shape], and where they are known, bool [*shape]."""
        known = problem.known(prior.shape) if isinstance(problem, Measured) else None
        if known is None:
            raise ValueError("posterior=overwrite needs elements that are known exactly: operator=inpaint_box, ...")
        return known[0].to(prior.device, count_dtype(prior.process.max_count)), known[1].to(prior.device)
