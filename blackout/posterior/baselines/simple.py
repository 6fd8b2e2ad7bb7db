"""What a posterior is compared with: the prior, the likelihood, and overwriting of known elements."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blackout.counts import count_dtype
from blackout.diffusion.inpainting import KnownElements
from blackout.diffusion.particles import sample_particles
from blackout.diffusion.samplers import sample
from blackout.posterior.chains import Method, Posterior, Recorder, Seen, begin_chains
from blackout.posterior.couplings import Coupling, Relaxed
from blackout.posterior.noise import Exact
from blackout.posterior.operators import Separable
from blackout.posterior.prior import Prior, Streams, folded
from blackout.posterior.problem import Measured, Problem
from blackout.posterior.steps import make_step
from blackout.random import RandomSource, uniform


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
