"""`posterior=` of `sample.py`: each way of sampling with the settings it has, and the draw it makes of a model."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blackout.diffusion.processes import PureDeath
from blackout.diffusion.sampling import Sampler
from blackout.distributed import rank
from blackout.errors import UserError, error_context
from blackout.posterior.baselines import DPS, SMC, SVDD, NoPrior, Overwrite, PriorAlone
from blackout.posterior.chains import Method, anneal
from blackout.posterior.conjugate import Direct, conjugate
from blackout.posterior.draw import PosteriorDraw
from blackout.posterior.measurements import read
from blackout.posterior.noise_denoise import NoiseDenoise
from blackout.posterior.prior import Prior
from blackout.posterior.problem import Measured, Problem
from blackout.posterior.split_gibbs import SplitGibbs
from blackout.training.components import make

_FIRST, _PUBLISHED = 3.0, (20.0, 1e-4)
_NEAR, _FAR = (1.0, 0.4, 0.1), (3.0, 1.0, 0.4)
"""Levels of moves that begin near the posterior, and of those that must find it."""
_LAST_OF_COUNTS, _LAST_OF_BITS, _LAST = 0.2, 0.02, 0.01
"""Below t = 1 / max_count nothing moves; on counts the chains need births to become brighter."""


class Command(ABC):
    """One way of sampling, as the command line chooses it."""

    def draw(self, model: Any, sampler: Sampler, request: Mapping[str, Any]) -> PosteriorDraw:
        """What `sample.py` draws.

        Args:
            model: a trained model of counts.
            sampler: kernel, grid and batches.
            request: `operator` and `noise` as descriptions, `measurement`, `num_samples`.

        Raises:
            UserError: parts that do not go together, or not with the model.
        """
        if not request.get("operator"):
            raise UserError("operator must be given: operator=identity, inpaint_box, pool, ...")
        with error_context("operator"):
            operator = make(request["operator"], "operator")
            operator.prepare(model)
        with error_context("noise"):
            noise = make(request["noise"], "noise") if request.get("noise") else operator.noise
        with error_context("posterior"):
            measurements = read(model, sampler, operator, noise, request.get("measurement"))
            folder = re.sub(r"(?<!^)(?=[A-Z])", "_", type(operator).__name__).lower()
            draw = PosteriorDraw(model, sampler, Direct(), measurements, request["num_samples"], folder)
            prior, problem = draw.prior(), measurements.example()
            problem.terms(model.mean[None].cpu().double())  # maps and matrices of another size are refused here
            draw.method = self.method(prior, problem)
            draw.method.check(prior, problem)
        return draw

    @abstractmethod
    def method(self, prior: Prior, problem: Problem) -> Method:
        """The sampler for such a problem."""


def _ladder(prior: Prior, sweeps: int, first: float | None, last: float | None) -> tuple[float, ...]:
    """Levels, where they are not given what suits the process."""
    counts = isinstance(prior.process, PureDeath)
    default = (_LAST_OF_COUNTS if prior.process.max_count > 1 else _LAST_OF_BITS) if counts else _LAST
    first = min(_FIRST, prior.final_time) if first is None else first
    return anneal(sweeps, first, min(default, first) if last is None else last)


@dataclass(frozen=True)
class Sgdd(Command):
    """Split Gibbs sampling, corrected; see `SplitGibbs`.

    Args:
        sweeps: how many.
        first_level, last_level: ends of the ladder; None for what suits the process.
        polish: noise-denoise moves at the end.
        start: data or prior.
        step: auto, heat_bath or metropolis.
        proposals: of Metropolis; None for four per element.
        passes: of the heat bath; None for two on bits, else one.
    """

    sweeps: int = 60
    first_level: float | None = None
    last_level: float | None = None
    polish: int = 0
    start: str = "data"
    step: str = "auto"
    proposals: int | None = None
    passes: int | None = None

    def method(self, prior: Prior, problem: Problem) -> Method:
        for name in ("passes", "proposals"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise UserError(f"posterior.{name} must be at least 1, not {getattr(self, name)}")
        if self.polish < 0:
            raise UserError(f"posterior.polish must not be negative, not {self.polish}")
        if self.start not in ("data", "prior"):
            raise UserError(f"posterior.start must be data or prior, not {self.start}")
        levels = _ladder(prior, self.sweeps, self.first_level, self.last_level)
        passes = self.passes or (2 if prior.process.max_count == 1 else 1)
        return SplitGibbs(levels, self.step, self.proposals, passes, self.polish, self.start)


@dataclass(frozen=True)
class Auto(Sgdd):
    """Direct where the measurement is the forward process itself, else split Gibbs sampling."""

    def method(self, prior: Prior, problem: Problem) -> Method:
        found = conjugate(prior.process, problem, prior.shape)
        direct = found is not None and found[1] <= prior.final_time
        if rank() == 0:
            print(f"posterior=auto: {'direct' if direct else 'sgdd'}")
        return Direct() if direct else super().method(prior, problem)


@dataclass(frozen=True)
class SgddPublished(Command):
    """As published, with its two errors: the wrong potential and the restarted Metropolis chain. For comparison.

    Args:
        sweeps: how many.
        first_level, last_level: ends of the ladder; None for the paper's, as far as the model goes.
        proposals: of Metropolis in every sweep; None for two per element.
    """

    sweeps: int = 50
    first_level: float | None = None
    last_level: float | None = None
    proposals: int | None = None

    def method(self, prior: Prior, problem: Problem) -> Method:
        first = min(_PUBLISHED[0], prior.final_time) if self.first_level is None else self.first_level
        levels = anneal(self.sweeps, first, _PUBLISHED[1] if self.last_level is None else self.last_level)
        proposals = self.proposals or 2 * math.prod(prior.shape)
        return SplitGibbs(levels, proposals=proposals, start="prior", published=True)


@dataclass(frozen=True)
class NoiseDenoiseCommand(Command):
    """Moves that leave the posterior itself invariant; see `NoiseDenoise`.

    Args:
        moves: how many.
        levels: taken in turn; None for 1, 0.4, 0.1 near a measurement, or 3, 1, 0.4 where chains begin far off.
        start: data or prior.
    """

    moves: int = 60
    levels: Sequence[float] | None = None
    start: str = "data"

    def method(self, prior: Prior, problem: Problem) -> Method:
        if self.start not in ("data", "prior"):
            raise UserError(f"posterior.start must be data or prior, not {self.start}")
        if self.levels is not None:
            return NoiseDenoise(tuple(self.levels), self.moves, self.start)
        near = self.start == "data" and isinstance(problem, Measured) and problem.estimate(1, prior.shape) is not None
        return NoiseDenoise(tuple(min(t, prior.final_time) for t in (_NEAR if near else _FAR)), self.moves, self.start)


@dataclass(frozen=True)
class DirectCommand(Command):
    """One reverse run from the measurement; see `Direct`.

    Args:
        steps: of it.
    """

    steps: int = 25

    def method(self, prior: Prior, problem: Problem) -> Method:
        if self.steps < 1:
            raise UserError(f"posterior.steps must be at least 1, not {self.steps}")
        return Direct(self.steps)


@dataclass(frozen=True)
class Baseline(Command):
    """A method without settings that depend on the model.

    Args:
        how: the method itself.
    """

    how: Method

    def method(self, prior: Prior, problem: Problem) -> Method:
        return self.how


def overwrite(particles: int = 1) -> Baseline:
    """See `baselines.Overwrite`."""
    return Baseline(Overwrite(particles))


def prior_alone() -> Baseline:
    """See `baselines.PriorAlone`."""
    return Baseline(PriorAlone())


def no_prior(passes: int = 50, proposals: int | None = None) -> Baseline:
    """See `baselines.NoPrior`."""
    return Baseline(NoPrior(passes, proposals))


def dps() -> Baseline:
    """See `baselines.DPS`."""
    return Baseline(DPS())


def svdd(particles: int = 20, rollouts: int = 1, rollout_steps: int = 1) -> Baseline:
    """See `baselines.SVDD`."""
    return Baseline(SVDD(particles, rollouts, rollout_steps))


def smc(particles: int = 20, rollouts: int = 1, rollout_steps: int = 1, power: float = 1.0) -> Baseline:
    """See `baselines.SMC`."""
    return Baseline(SMC(particles, rollouts, rollout_steps, power))
