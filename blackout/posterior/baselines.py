"""Rivals and reference points."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from blackout.counts import count_dtype
from blackout.diffusion.inpainting import KnownElements
from blackout.diffusion.kernels.jumps import leap, reverse_rates
from blackout.diffusion.particles import normalised, sample_particles, systematic
from blackout.diffusion.predictions import CategoricalPrediction, CountPrediction, Prediction
from blackout.diffusion.processes import JumpProcess, PureDeath
from blackout.diffusion.sampling import begin, sample
from blackout.diffusion.schedules import step_fraction
from blackout.posterior.chains import Coupling, Method, Posterior, Recorder, Relaxed, Seen, begin_chains
from blackout.posterior.noise import Exact
from blackout.posterior.operators import Separable
from blackout.posterior.prior import Prior, Streams, folded
from blackout.posterior.problem import Measured, Problem
from blackout.posterior.split_gibbs import make_step
from blackout.random import RandomSource, SampleStreams, poisson, uniform

# --- DPS on discrete states (Chu et al. 2025, appendix C.2): reverse rates weighed by what every jump is worth.

_LARGEST = 20.0
"""Of the logarithm of a ratio of likelihoods."""
_AT_ONCE = 4096
_MOST = 20_000
"""Neighbours of one state: their number is that of network evaluations of each step."""


@dataclass(frozen=True)
class DPS(Method):
    """Rates times p(y | x') / p(y | x) for every neighbour x', where p(y | x_t) is L at the expected data.

    Each step evaluates the network once for every neighbour.
    """

    def sweeps(self, prior: Prior) -> int:
        return len(prior.times) - 1

    def check(self, prior: Prior, problem: Problem) -> None:
        if self._neighbours(prior) > _MOST:
            raise ValueError(f"posterior=dps would evaluate {self._neighbours(prior)} neighbours in every step")

    @staticmethod
    def _neighbours(prior: Prior) -> int:
        types = 1 if isinstance(prior.process, PureDeath) else prior.process.num_states
        return types * math.prod(prior.shape)

    def run(
        self, prior: Prior, problem: Problem, number: int, streams: Streams, start: Tensor | None = None,
        seen: Seen | None = None,
    ) -> Posterior:  # fmt: skip
        self.check(prior, problem)
        assert prior.kernel is not None
        recorder, times = Recorder(prior, self.sweeps(prior), seen), prior.times.to(prior.device)
        shape = (number, *prior.shape)
        x = begin(prior.process, times, shape, streams, prior.mean, None, torch.device(prior.device))
        for k in range(len(times) - 2, -1, -1):
            s, t = times[k], times[k + 1]
            source = streams.at(k + 1) if isinstance(streams, SampleStreams) else streams
            x = self._step(prior, problem, x, s, t, source)
            spent = self._neighbours(prior) + 1
            log_l = problem.log_likelihood(x.double().clamp(max=prior.process.max_count))
            recorder.add(float(t), x, x, log_l, torch.ones_like(log_l), spent)
        x = x.clamp(max=prior.process.max_count)
        found = recorder.result(x, problem.log_likelihood(x.double()))
        for sweep in found.trace:
            sweep["evaluations"] = sweep["calls"]  # of each sample; several neighbours make up a batch
        return found

    def _step(self, prior: Prior, problem: Problem, x: Tensor, s: Tensor, t: Tensor, source: RandomSource) -> Tensor:
        process = prior.process
        assert isinstance(process, JumpProcess)
        prediction = prior.denoiser(x, t)
        now = problem.log_likelihood(_expected(prediction, x, process.max_count))
        jumps = process.reverse_jumps(x)
        rates = reverse_rates(process, prediction, x, t)
        jumps = jumps.expand(rates.shape)
        ratio = self._ratios(prior, problem, x, jumps, now, t)
        if isinstance(process, PureDeath):
            assert isinstance(prediction, CountPrediction)
            births = poisson(prediction.mean.double() * step_fraction(s, t) * ratio[:, 0], source)
            return (x + births).clamp(max=process.max_count).to(x.dtype)
        return leap(process, x, [(rates * ratio, jumps)], float(t - s), source)

    @staticmethod
    def _ratios(prior: Prior, problem: Problem, x: Tensor, jumps: Tensor, now: Tensor, t: Tensor) -> Tensor:
        """L at the expected data after every jump over that before it, float64 of jumps' shape."""
        n, types, elements = len(x), jumps.shape[1], math.prod(prior.shape)
        flat, steps = x.flatten(1).long(), jumps.flatten(2)
        row = torch.arange(n).repeat_interleave(types * elements).to(x.device)
        kind = torch.arange(types).repeat_interleave(elements).repeat(n).to(x.device)
        element = torch.arange(elements).repeat(n * types).to(x.device)
        found = []
        for part in torch.arange(len(row), device=x.device).split(_AT_ONCE):
            moved = flat[row[part]].clone()
            here = torch.arange(len(part), device=x.device)
            moved[here, element[part]] += steps[row[part], kind[part], element[part]]
            moved = moved.clamp_(0, prior.process.num_states - 1).to(x.dtype).view(-1, *prior.shape)
            of_part = problem.select(row[part], prior.shape) if isinstance(problem, Measured) else problem
            expected = _expected(prior.denoiser(moved, t), moved, prior.process.max_count)
            found.append(of_part.log_likelihood(expected) - now[row[part]])
        log_ratio = torch.nan_to_num(torch.cat(found), nan=0.0).clamp(-_LARGEST, _LARGEST)
        return log_ratio.exp().view(jumps.shape)


def _expected(prediction: Prediction, x: Tensor, max_count: int) -> Tensor:
    """The data expected given X_t, float64: a mean of counts, the likeliest level of names."""
    if isinstance(prediction, CategoricalPrediction):
        return prediction.log_probs.argmax(1).double()
    if isinstance(prediction, CountPrediction):
        return (x.double() + prediction.expected).clamp(max=max_count)
    missing, immigrants = prediction.expected.unbind(1)
    return (x.double() + missing - immigrants).clamp(0, max_count)


# --- Particles guided by a guess of the likelihood: SMC and SVDD-PM (Chu et al. 2025, appendix C.2).


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


# --- What a posterior is compared with: the prior, the likelihood, and overwriting of known elements.


@dataclass(frozen=True)
class PriorAlone(Method):
    """Unconditional samples, as if nothing had been measured."""

    def sweeps(self, prior: Prior) -> int:
        return 1

    def run(
        self, prior: Prior, problem: Problem, number: int, streams: Streams, start: Tensor | None = None,
        seen: Seen | None = None,
    ) -> Posterior:  # fmt: skip
        recorder = Recorder(prior, 1, seen)
        return _once(recorder, problem, prior.draw(number, streams), prior.final_time)


@dataclass(frozen=True)
class Overwrite(Method):
    """Known elements put back after every step of an unconditional run: what `inpaint=` does with one particle.

    The others never look ahead, and however many steps are taken the law is wrong.

    Args:
        particles: more than one weighs the known elements' paths, see `blackout.diffusion.particles`.
    """

    particles: int = 1

    def sweeps(self, prior: Prior) -> int:
        return 1

    def check(self, prior: Prior, problem: Problem) -> None:
        if self.particles < 1:
            raise ValueError(f"particles must be at least 1, not {self.particles}")
        self._known(problem, prior, 1)

    def run(
        self, prior: Prior, problem: Problem, number: int, streams: Streams, start: Tensor | None = None,
        seen: Seen | None = None,
    ) -> Posterior:  # fmt: skip
        recorder, known = Recorder(prior, 1, seen), self._known(problem, prior, number)
        assert prior.kernel is not None
        shape, times = (number, *prior.shape), prior.times.to(prior.device)
        if self.particles == 1:
            x = sample(
                prior.denoiser, prior.process, times, shape, streams, kernel=prior.kernel, mean=prior.mean, known=known,
                device=prior.device,
            )  # fmt: skip
        else:
            x = sample_particles(
                prior.denoiser, prior.process, times, shape, streams, number=self.particles, kernel=prior.kernel,
                mean=prior.mean, known=known, device=prior.device,
            ).samples  # fmt: skip
        return _once(recorder, problem, x, prior.final_time, self.particles)

    @staticmethod
    def _known(problem: Problem, prior: Prior, number: int) -> KnownElements:
        fits = isinstance(problem, Measured) and isinstance(problem.operator, Separable)
        if not fits or type(problem.noise) is not Exact:  # type: ignore[attr-defined]
            raise ValueError("posterior=overwrite needs elements that are known exactly: operator=inpaint_box, ...")
        assert isinstance(problem, Measured)
        y, seen = problem.y(prior.shape), problem.operator.seen(prior.shape)
        mask = torch.ones(prior.shape, dtype=torch.bool) if seen is None else seen
        y = y.repeat(max(1, number // len(y)), *[1] * len(prior.shape))[:number]
        counts = y.to(prior.device, count_dtype(prior.process.max_count))
        return KnownElements(counts, mask.to(prior.device).expand(y.shape))


@dataclass(frozen=True)
class NoPrior(Method):
    """The likelihood alone, over all data alike: heat bath or Metropolis.

    Args:
        passes: over all elements.
        proposals: of Metropolis in every pass; None for four per element.
    """

    passes: int = 50
    proposals: int | None = None

    def sweeps(self, prior: Prior) -> int:
        return self.passes

    def check(self, prior: Prior, problem: Problem) -> None:
        if self.passes < 1:
            raise ValueError(f"passes must be at least 1, not {self.passes}")

    def run(
        self, prior: Prior, problem: Problem, number: int, streams: Streams, start: Tensor | None = None,
        seen: Seen | None = None,
    ) -> Posterior:  # fmt: skip
        self.check(prior, problem)
        recorder = Recorder(prior, self.passes, seen)
        step = make_step(problem, Flat(prior.process), prior.shape, proposals=self.proposals, passes=1)
        x = begin_chains(prior, problem, number, streams, start, "data")
        for turn in range(self.passes):
            moved = step(x, x, prior.final_time, folded(streams, turn))
            x = moved.z
            recorder.add(prior.final_time, x, x, problem.log_likelihood(x.double()), moved.acceptance, moved.calls + 1)
        return recorder.result(x, problem.log_likelihood(x.double()))


class Flat(Coupling):
    """No tie at all: every level alike, whatever x is."""

    def draw(self, x: Tensor, t: float, source: RandomSource = None) -> Tensor:
        """Uniform levels."""
        levels = self.process.max_count + 1
        return (uniform(tuple(x.shape), source, x.device) * levels).clamp(max=levels - 1).to(x.dtype)

    def log_table(self, t: float, device: torch.device | str = "cpu") -> Tensor:
        """0 for all data levels."""
        levels = self.process.max_count + 1
        return torch.zeros(levels, levels, dtype=torch.float64, device=device)

    def relaxed(self, problem: Problem, shape: tuple[int, ...], t: float) -> Relaxed:
        """L itself."""
        return Relaxed(problem, self.process.max_count)

    @property
    def symmetric(self) -> bool:
        """All values are proposed alike."""
        return True


def _once(recorder: Recorder, problem: Problem, x: Tensor, level: float, calls: int = 1) -> Posterior:
    log_likelihood = problem.log_likelihood(x.double())
    recorder.add(level, x, x, log_likelihood, torch.ones_like(log_likelihood), calls)
    return recorder.result(x, log_likelihood)
