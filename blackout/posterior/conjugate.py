"""Measurements that are the forward process itself: the posterior is one reverse run from y, without a Markov chain."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from blackout.diffusion.processes import Absorbing, JumpProcess, Process, PureDeath, Uniform
from blackout.posterior.chains import Method, Posterior, Recorder, Seen, check_levels
from blackout.posterior.noise import Binomial, Exact, Flips, as_map
from blackout.posterior.operators import Identity, Separable
from blackout.posterior.prior import Prior, Streams
from blackout.posterior.problem import Measured, Problem


def conjugate(process: Process, problem: Problem, shape: tuple[int, ...]) -> tuple[Tensor, float] | None:
    """The state and level from which a reverse run draws from the posterior; None where there is none.

    Binomial thinning of all elements with one survival p is pure death after -log p; symmetric flips are the uniform
    process; known and hidden elements are absorption into a state of its own, whatever the mask, since p(x_0 | x_t)
    does not depend on t there: the level is that whose share of masks is the measurement's.

    Returns:
        (states [n or 1, *shape], level).
    """
    if not isinstance(problem, Measured) or not isinstance(process, JumpProcess):
        return None
    if isinstance(problem.operator, Identity) and isinstance(process, PureDeath):
        return _thinning(process, problem, shape)
    if isinstance(problem.operator, Identity) and type(process) is Uniform:
        return _flips(process, problem, shape)
    if isinstance(problem.operator, Separable) and isinstance(process, Absorbing):
        return _erasures(process, problem, shape)
    return None


def _thinning(process: PureDeath, problem: Measured, shape: tuple[int, ...]) -> tuple[Tensor, float] | None:
    if not isinstance(problem.noise, Binomial):
        return None
    survival = as_map(problem.noise.survival, "survival")
    if survival.ndim or float(survival) == 1:
        return None
    return _at(process, problem.y(shape), -math.log(float(survival)))


def _flips(process: Uniform, problem: Measured, shape: tuple[int, ...]) -> tuple[Tensor, float] | None:
    if not isinstance(problem.noise, Flips):
        return None
    odds = math.exp(-problem.noise.penalty)  # (1 - s) / (N s + 1 - s) at survival s
    return _at(process, problem.y(shape), -math.log((1 - odds) / (1 + process.max_count * odds)))


def _erasures(process: Absorbing, problem: Measured, shape: tuple[int, ...]) -> tuple[Tensor, float] | None:
    seen = problem.operator.seen(shape)
    own = process.mask > process.max_count
    if not own or type(problem.noise) is not Exact or seen is None or bool(seen.all()):
        return None
    masked = torch.where(seen, problem.y(shape), float(process.mask))
    return _at(process, masked, -math.log(float(seen.double().mean())))


def _at(process: Process, z: Tensor, elapsed: float) -> tuple[Tensor, float]:
    """The level at which so much of the process's own time has passed, by bisection of its clock."""
    assert isinstance(process, JumpProcess)
    low, high = 0.0, 1e3
    for _ in range(200):
        middle = (low + high) / 2
        below = float(process.elapsed(torch.tensor(middle, dtype=torch.float64))) < elapsed
        low, high = (middle, high) if below else (low, middle)
    return z.long(), (low + high) / 2


@dataclass(frozen=True)
class Direct(Method):
    """One reverse run from the measurement.

    Args:
        steps: of it, evenly spaced in the logit of survival.
    """

    steps: int = 25

    def sweeps(self, prior: Prior) -> int:
        return 1

    def run(
        self, prior: Prior, problem: Problem, number: int, streams: Streams, start: Tensor | None = None,
        seen: Seen | None = None,
    ) -> Posterior:  # fmt: skip
        """See `Method.run`; raises ValueError where there is no such run."""
        z, level = self._found(prior, problem)
        check_levels((level,), prior)
        recorder = Recorder(prior, 1, seen)
        z = z.repeat(number // len(z), *[1] * (z.ndim - 1)).to(prior.device)
        x = prior.reverse(z, level, streams, self.steps)
        log_likelihood = problem.log_likelihood(x.double())
        recorder.add(level, x, z, log_likelihood, torch.ones_like(log_likelihood), 1)
        return recorder.result(x, log_likelihood)

    def check(self, prior: Prior, problem: Problem) -> None:
        check_levels((self._found(prior, problem)[1],), prior)

    def _found(self, prior: Prior, problem: Problem) -> tuple[Tensor, float]:
        found = conjugate(prior.process, problem, prior.shape)
        if found is None:
            raise ValueError(
                f"posterior=direct: this measurement is not the forward process of {type(prior.process).__name__}: "
                "use posterior=sgdd"
            )
        return found
