"""The method that suits a measurement, and the best there is: where the measurement is the forward process itself the
posterior is one reverse run from y, without a Markov chain.

Ours; tests/verification/posterior_claims.py checks that L(x) is proportional to K_t(x, z).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import ClassVar

import torch
from torch import Tensor

from blackout.diffusion.kernels import StatefulKernel
from blackout.diffusion.processes import Absorbing, JumpProcess, Process, PureDeath, Uniform
from blackout.distributed import rank
from blackout.errors import ensure, refuse
from blackout.posterior.method import Method, Run, check_levels
from blackout.posterior.noise import Binomial, Exact, Flips, as_map
from blackout.posterior.noise_denoise import known_mask
from blackout.posterior.operators import Identity, Separable
from blackout.posterior.particle_baselines import SMC, Overwrite
from blackout.posterior.problem import Measured, Prior, Problem, repeated
from blackout.posterior.split_gibbs import HeatBath, SplitGibbs
from blackout.posterior.unknown_number import Blind


def conjugate(process: Process, problem: Problem, shape: tuple[int, ...]) -> tuple[Tensor, float] | None:
    """The state and level from which a reverse run draws from the posterior; None where there is none.

    Ours (tests/verification/posterior_claims.py).

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
    if isinstance(process, Absorbing) and seen is not None and not seen.all():
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
        found, name = conjugate(prior.process, problem, prior.shape), type(prior.process).__name__
        if found is None:
            raise ValueError(f"posterior=direct: {name} is not how this was measured: use posterior=sgdd")
        return found


_BESIDE, _BESIDE_FEW, _FEW = (32, 12), (64, 80), 16
"""Particles beside known elements, and steps of each: below 800 evaluations of the network; of at most 16 elements,
where evaluations are cheap and laws may be spiky, more.
"""
_OF_BLACK_BOXES, _MOVES = 12, 16
"""Particles of likelihoods of which only values are known, and moves that mend them, for as many evaluations."""
_FEWER = 4
"""Times as many counts as numbers that were measured, beyond which particles find them better than sweeps do."""
_LARGE = 256
"""Elements from which on half the sweeps and moves do."""


@dataclass(frozen=True)
class Auto(SplitGibbs):
    """Direct where the measurement is the forward process itself; where elements are known exactly and particles can be
    weighed beside them, these; where each term of the likelihood depends on few elements, split Gibbs sampling and
    moves that mend it, of images half as many as of the small; of black boxes, and of counts of which few numbers were
    measured, particles and such moves.

    The sweeps find the posterior, the moves take away what the last level leaves of a bias, and shift the weights of
    far modes, whatever the likelihood is. Nothing is asked of runs beyond their end, so that R-hat says nothing here.
    """

    mixes: ClassVar[bool] = False
    sweeps: int = 42
    polish: int = 20

    def method(self, prior: Prior, problem: Problem) -> Method:
        found = conjugate(prior.process, problem, prior.shape)
        direct = found is not None and found[1] <= prior.final_time
        known = not direct and known_mask(prior, problem) is not None
        particles, steps = _BESIDE_FEW if math.prod(prior.shape) <= _FEW else _BESIDE
        defaults = {field.name: field.default for field in fields(self)} | {"levels": self.levels[:0]}
        given = [name for name, default in defaults.items() if getattr(self, name) != default]
        large = not given and math.prod(prior.shape) >= _LARGE
        annealed = SplitGibbs.method(replace(self, sweeps=20, polish=10) if large else self, prior, problem)
        numbers = math.prod(problem.operator.measured(prior.shape)) if isinstance(problem, Measured) else math.inf
        few = isinstance(prior.process, PureDeath) and _FEWER * numbers < math.prod(prior.shape)
        local = known or bool(given) or (not few and isinstance(self.likelihood_step(prior, problem), HeatBath))
        name, chosen = (
            ("direct", Direct()) if direct
            else (f"{particles} particles", Overwrite(particles, steps)) if known
            else ("sgdd, then noise_denoise", annealed) if local or isinstance(prior.kernel, StatefulKernel)
            else (f"smc of {_OF_BLACK_BOXES} particles, then noise_denoise", SMC(_OF_BLACK_BOXES, polish=_MOVES))
        )  # fmt: skip
        if rank() == 0:
            print(f"posterior=auto: {name}")
        refuse(given and chosen is not annealed, f"posterior.{' '.join(given)}: auto takes {name}; only sgdd has it")
        return chosen
