"""Particles guided by a guess of the likelihood: SMC and SVDD-PM (Chu et al. 2025, appendix C.2)."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from blackout.diffusion.particles import normalised, systematic
from blackout.diffusion.samplers import begin
from blackout.posterior.chains import Method, Posterior, Recorder, Seen
from blackout.posterior.prior import Prior, Streams, folded
from blackout.posterior.problem import Measured, Problem
from blackout.random import SampleStreams, uniform


@dataclass(frozen=True)
class Particles(Method):
    """Walks of several particles for every sample.

    What a state is worth is log p(y | x_s), guessed as the mean of L over a few reverse runs of few steps.

    Args:
        particles: M, of every sample.
        rollouts: reverse runs of each guess.
        rollout_steps: of each run.
    """

    particles: int = 20
    rollouts: int = 1
    rollout_steps: int = 1

    def sweeps(self, prior: Prior) -> int:
        return len(prior.times) - 1

    def check(self, prior: Prior, problem: Problem) -> None:
        for name in ("particles", "rollouts", "rollout_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")

    def run(
        self, prior: Prior, problem: Problem, number: int, streams: Streams, start: Tensor | None = None,
        seen: Seen | None = None,
    ) -> Posterior:  # fmt: skip
        self.check(prior, problem)
        assert prior.kernel is not None
        recorder, times = Recorder(prior, self.sweeps(prior), seen), prior.times.to(prior.device)
        copies = self.particles
        split = streams.particles(copies) if isinstance(streams, SampleStreams) else streams
        shape = (number * copies, *prior.shape)
        x = begin(prior.process, times, shape, split, prior.mean, None, torch.device(prior.device))
        each = _of_particles(problem, number, copies, prior.shape)
        value = torch.zeros(number, copies, dtype=torch.float64, device=x.device)
        for k in range(len(times) - 2, -1, -1):
            s, t = times[k], times[k + 1]
            source = split.at(k + 1) if isinstance(split, SampleStreams) else split
            x = prior.kernel(prior.denoiser, prior.process, x, s, t, source)
            then = self._value(prior, each, x, float(s), folded(split, k)).view(number, copies)
            own = streams.at(k + 1) if isinstance(streams, SampleStreams) else streams
            chosen = self._choose(value, then, uniform((number, 1), own, x.device))
            rows = (torch.arange(number, device=x.device)[:, None] * copies + chosen).flatten()
            x, value = x[rows], then.gather(1, chosen)
            shown = x[::copies]
            log_l = problem.log_likelihood(shown.double())
            calls = copies * (self.rollouts if float(s) > 0 else 1)
            recorder.add(float(t), shown, shown, log_l, torch.ones_like(log_l), calls)
        x = x[::copies].clamp(max=prior.process.max_count)
        found = recorder.result(x, problem.log_likelihood(x.double()))
        for sweep in found.trace:
            sweep["evaluations"] *= copies
        return found

    def _value(self, prior: Prior, problem: Problem, x: Tensor, s: float, streams: Streams) -> Tensor:
        """log of the guessed likelihood, float64 [rows]."""
        if s == 0:
            return problem.log_likelihood(x.double())
        assert prior.kernel is not None
        found, at = [], torch.tensor(s, dtype=torch.float64, device=x.device)
        for turn in range(self.rollouts):
            source = folded(streams, turn)
            if self.rollout_steps == 1:
                draw = source.at(0) if isinstance(source, SampleStreams) else source
                x0 = prior.kernel(prior.denoiser, prior.process, x, torch.zeros_like(at), at, draw)
            else:
                x0 = prior.reverse(x, s, source, self.rollout_steps - 1)
            found.append(problem.log_likelihood(x0.double().clamp(max=prior.process.max_count)))
        return torch.logsumexp(torch.stack(found), 0) - math.log(self.rollouts)

    @abstractmethod
    def _choose(self, before: Tensor, now: Tensor, u: Tensor) -> Tensor:
        """Which particles go on, int64 [n, M], from their values before and after a step and a uniform [n, 1]."""


class SVDD(Particles):
    """SVDD-PM: all go on from the best (its temperature 0)."""

    def _choose(self, before: Tensor, now: Tensor, u: Tensor) -> Tensor:
        return now.argmax(1, keepdim=True).expand(-1, now.shape[1])


@dataclass(frozen=True)
class SMC(Particles):
    """Sequential Monte Carlo: resampled by (p(y | x_s) / p(y | x_t))^power.

    Args:
        power: tempers the weights.
    """

    power: float = 1.0

    def _choose(self, before: Tensor, now: Tensor, u: Tensor) -> Tensor:
        gain = torch.where(torch.isneginf(now), -math.inf, now - torch.where(torch.isneginf(before), 0.0, before))
        order = systematic(normalised(self.power * gain), u)
        # the first one is shown, and is the sample in the end: any of them, not the first of an ordered list
        turn = (u * 1e6).long() % order.shape[1]
        return order.gather(1, (torch.arange(order.shape[1], device=u.device) + turn) % order.shape[1])


def _of_particles(problem: Problem, number: int, copies: int, shape: tuple[int, ...]) -> Problem:
    """The problem of particles, those of the first sample first."""
    if not isinstance(problem, Measured):
        return problem
    rows = torch.arange(number).repeat_interleave(copies)
    return problem.select(rows, shape)
