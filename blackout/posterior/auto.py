"""The sampler that suits an inverse problem (`Auto`), and the exact one for some (`Direct`).

If the measurement is a state of the forward process, one reverse run from it is an exact draw.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from blackout.diffusion.kernels import StatefulKernel
from blackout.diffusion.processes import Absorbing, JumpProcess, Process, PureDeath, Uniform
from blackout.distributed import rank
from blackout.errors import UserError, ensure
from blackout.posterior.blind import BlindProblem
from blackout.posterior.method import Method, Run, check_levels
from blackout.posterior.noise import Binomial, Exact, Flips, to_tensor
from blackout.posterior.noise_denoise import known_mask
from blackout.posterior.operators import Identity, Separable
from blackout.posterior.particle_baselines import SMC, Overwrite
from blackout.posterior.problem import InverseProblem, Prior, Problem, repeat_rows
from blackout.posterior.split_gibbs import HeatBath, SplitGibbs

# The numbers below were tuned on digits and toys, see docs/results/posterior.md. Other choices of
# `posterior=` have them as settings.
SMALL = 16  # elements up to which evaluations are cheap and posteriors may be spiky
LARGE = 256  # elements from which half of the sweeps and moves suffice
MAX_COUNTS_PER_MEASUREMENT = 4  # above this, particles find the counts better than sweeps
INPAINTING = Overwrite(particles=32, steps=12)  # fewer than 800 network evaluations
INPAINTING_SMALL = Overwrite(particles=64, steps=80)
BLACK_BOX = SMC(particles=12, polish=16)


class ConjugateState(NamedTuple):
    """A measurement as a state of the forward process.

    Attributes:
        state: int64 [n or 1, *shape].
        level: its time.
    """

    state: Tensor
    level: float


def conjugate_state(
    process: Process, problem: Problem, shape: tuple[int, ...]
) -> ConjugateState | None:
    """Return the state and level from which a reverse run is a draw from the posterior.

    - Binomial thinning of all elements with one survival p is pure death until -log p.
    - Symmetric flips are the uniform process.
    - Known and hidden elements are absorption. Since p(x_0 | x_t) does not depend on t there, any
      mask will do; the level is the one at which the expected share of masked elements is that of
      the mask.

    Returns:
        The state, or None where there is none.

    References: this project; checked in tests/verification/posterior_claims.py, which shows that
        L(x) is proportional to K_t(x, z).
    """
    if not isinstance(problem, InverseProblem) or isinstance(problem, BlindProblem):
        return None
    if not isinstance(process, JumpProcess):
        return None
    operator = problem.operator
    noise = problem.noise

    # 1. Thinning and pure death.
    is_identity = isinstance(operator, Identity)
    if is_identity and isinstance(process, PureDeath) and isinstance(noise, Binomial):
        survival = to_tensor(noise.survival, "survival")
        if survival.ndim or float(survival) == 1:
            return None
        return ConjugateState(problem.measurements(shape).long(), -math.log(float(survival)))

    # 2. Flips and the uniform process; odds is (1 - s) / (N s + 1 - s) at survival s.
    if is_identity and type(process) is Uniform and isinstance(noise, Flips):
        odds = math.exp(-noise.penalty)
        survival_of_level = (1 - odds) / (1 + process.max_count * odds)
        return ConjugateState(problem.measurements(shape).long(), -math.log(survival_of_level))

    # 3. Known elements and absorption.
    if isinstance(process, Absorbing) and isinstance(operator, Separable) and type(noise) is Exact:
        mask = operator.observed_mask(shape)
        if mask is None or bool(mask.all()):
            return None
        masked = torch.where(mask, problem.measurements(shape), float(process.mask))
        return ConjugateState(masked.long(), -math.log(float(mask.double().mean())))
    return None


@dataclass(frozen=True)
class Direct(Method):
    """A reverse run that starts at the measurement; see `conjugate_state`.

    Args:
        steps: of the run, evenly spaced in the logit of survival.
    """

    steps: int = 25

    def check(self, prior: Prior, problem: Problem) -> None:
        """Raise ValueError for a measurement that is no state of the forward process."""
        ensure(self.steps >= 1, f"steps must be at least 1, not {self.steps}")
        check_levels((self._start(prior, problem).level,), prior)

    def draw(self, run: Run) -> Tensor:
        """Draw samples, counts [n, *shape]; see `Method.draw`."""
        prior = run.prior
        state, level = self._start(prior, run.problem)
        z = repeat_rows(state, run.num_samples).expand(run.num_samples, *prior.shape)
        z = z.to(prior.device)
        x = prior.reverse(z, level, run.streams, self.steps)
        run.record(level, x, z)
        return x

    @staticmethod
    def _start(prior: Prior, problem: Problem) -> ConjugateState:
        start = conjugate_state(prior.process, problem, prior.shape)
        if start is None:
            name = type(prior.process).__name__
            raise ValueError(
                f"posterior=direct: the measurement is not a state of the process {name}; "
                "use posterior=sgdd"
            )
        return start


@dataclass(frozen=True)
class Auto(SplitGibbs):
    """The sampler that suits the problem; `_choose` has the questions in their order.

    Sweeps of split Gibbs sampling find the posterior. Noise-denoise moves then remove most of the
    bias of the last level and correct the weights of distant modes, for any likelihood. Only the
    last state of a chain is used, so that R-hat does not apply.

    The arguments are those of `SplitGibbs`.
    """

    is_markov_chain: ClassVar[bool] = False
    sweeps: int = 42
    polish: int = 20

    def resolve(self, prior: Prior, problem: Problem) -> Method:
        """Return the sampler for a problem, and print its name.

        Raises:
            UserError: settings of split Gibbs sampling where another sampler is chosen.
        """
        settings = self._changed_settings()
        method, name = self._choose(prior, problem, has_settings=bool(settings))
        if settings and not isinstance(method, SplitGibbs):
            raise UserError(
                f"posterior.{settings[0]}: posterior=auto chose {name}, which has no such setting; "
                "use posterior=sgdd, or leave it out"
            )
        if rank() == 0:
            print(f"posterior=auto: {name}")
        return method

    def _changed_settings(self) -> list[str]:
        """Return the names of settings that differ from their defaults."""
        names = []
        for setting in fields(self):
            value = getattr(self, setting.name)
            if setting.name == "levels":
                value = tuple(value)
            if value != setting.default:
                names.append(setting.name)
        return names

    def _choose(self, prior: Prior, problem: Problem, has_settings: bool) -> tuple[Method, str]:
        """Return the sampler and its name for the user."""
        # 1. The measurement is a state of the forward process: one reverse run is exact.
        start = conjugate_state(prior.process, problem, prior.shape)
        if start is not None and start.level <= prior.final_time:
            return Direct(), "direct"

        # 2. Some elements are known exactly: weighted particles.
        num_elements = math.prod(prior.shape)
        if known_mask(prior, problem) is not None:
            inpainting = INPAINTING_SMALL if num_elements <= SMALL else INPAINTING
            return inpainting, f"{inpainting.particles} particles"

        # 3. Local likelihoods, settings of split Gibbs, kernels that particles cannot share.
        is_stateful = isinstance(prior.kernel, StatefulKernel)
        if has_settings or is_stateful or self._is_local(prior, problem):
            annealing = self
            if num_elements >= LARGE and not has_settings:
                annealing = replace(self, sweeps=20, polish=10)
            return SplitGibbs.resolve(annealing, prior, problem), "sgdd, then noise_denoise"

        # 4. Black boxes, and counts with few measurements: particles, then moves.
        return BLACK_BOX, f"smc of {BLACK_BOX.particles} particles, then noise_denoise"

    def _is_local(self, prior: Prior, problem: Problem) -> bool:
        """Return whether sweeps draw elements from their exact conditional distributions."""
        if isinstance(prior.process, PureDeath) and isinstance(problem, InverseProblem):
            num_measured = math.prod(problem.operator.measurement_shape(prior.shape))
            if math.prod(prior.shape) > MAX_COUNTS_PER_MEASUREMENT * num_measured:
                return False
        return isinstance(self.make_likelihood_step(prior, problem), HeatBath)
