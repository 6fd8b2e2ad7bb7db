"""Measurements that are the forward process itself: the posterior is one reverse run from y, without a Markov chain.

Ours; tests/laws/posterior_claims.py checks that L(x) is proportional to K_t(x, z).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from blackout.diffusion.processes import Absorbing, JumpProcess, Process, PureDeath, Uniform
from blackout.errors import ensure
from blackout.posterior.method import Method, Run, check_levels
from blackout.posterior.noise import Binomial, Exact, Flips, as_map
from blackout.posterior.operators import Identity, Separable
from blackout.posterior.problem import Blind, Measured, Prior, Problem, repeated


def conjugate(process: Process, problem: Problem, shape: tuple[int, ...]) -> tuple[Tensor, float] | None:
    """The state and level from which a reverse run draws from the posterior; None where there is none. Ours.

    Binomial thinning of all elements with one survival p is pure death after -log p; symmetric flips are the uniform
    process; known and hidden elements are absorption into a state of its own, whatever the mask, since p(x_0 | x_t)
    does not depend on t there: the level is that whose share of masks is the measurement's.

    Returns:
        (states int64 [n or 1, *shape], level).
    """
    if not isinstance(problem, Measured) or isinstance(problem, Blind) or not isinstance(process, JumpProcess):
        return None
    operator, noise = problem.operator, problem.noise
    if isinstance(operator, Identity) and isinstance(process, PureDeath) and isinstance(noise, Binomial):
        p = as_map(noise.survival, "survival")
        return None if p.ndim or float(p) == 1 else (problem.y(shape).long(), -math.log(p))
    if isinstance(operator, Identity) and type(process) is Uniform and isinstance(noise, Flips):
        odds = math.exp(-noise.penalty)  # (1 - s) / (N s + 1 - s) at survival s
        return problem.y(shape).long(), -math.log((1 - odds) / (1 + process.max_count * odds))
    seen = operator.seen(shape) if isinstance(operator, Separable) and type(noise) is Exact else None
    if isinstance(process, Absorbing) and process.mask > process.max_count and seen is not None and not seen.all():
        masked = torch.where(seen, problem.y(shape), float(process.mask))
        return masked.long(), -math.log(float(seen.double().mean()))
    return None


@dataclass(frozen=True)
class Direct(Method):
    """One reverse run from the measurement.

    Args:
        steps: of it, evenly spaced in the logit of survival.
    """

    steps: int = 25

    def check(self, prior: Prior, problem: Problem) -> None:
        ensure(self.steps >= 1, f"steps must be at least 1, not {self.steps}")
        check_levels((self._found(prior, problem)[1],), prior)

    def draw(self, run: Run) -> Tensor:
        """Samples, counts [n, *shape]: see `Method.draw`."""
        z, level = self._found(run.prior, run.problem)
        z = repeated(z, run.number).expand(run.number, *run.prior.shape).to(run.prior.device)
        x = run.prior.reverse(z, level, run.streams, self.steps)
        run.record(level, x, z)
        return x

    @staticmethod
    def _found(prior: Prior, problem: Problem) -> tuple[Tensor, float]:
        found = conjugate(prior.process, problem, prior.shape)
        if found is None:
            raise ValueError(
                f"posterior=direct: this measurement is not the forward process of {type(prior.process).__name__}: "
                "use posterior=sgdd"
            )
        return found
