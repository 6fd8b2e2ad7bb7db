"""The sampler that suits an inverse problem (`Auto`), and the direct one for some (`Direct`).

If the measurement is a state of the forward process, one reverse run from it is a draw of the
posterior, as far as the network and the steps of the run are right.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from blackout.diffusion.kernels import StatefulKernel
from blackout.diffusion.processes import Absorbing, JumpProcess, Process, PureDeath, Uniform
from blackout.distributed import rank
from blackout.errors import UserError, ensure
from blackout.posterior.blind import BlindProblem
from blackout.posterior.likelihood_steps import HeatBath
from blackout.posterior.method import Method, Run, check_levels
from blackout.posterior.noise import Binomial, Exact, Flips
from blackout.posterior.noise_denoise import known_mask
from blackout.posterior.operators import Identity, Separable
from blackout.posterior.parameter_maps import to_tensor
from blackout.posterior.particle_baselines import SMC, Overwrite
from blackout.posterior.prior import Prior
from blackout.posterior.problem import InverseProblem, Problem, repeat_rows
from blackout.posterior.split_gibbs import SplitGibbs

# What follows is measured by `python -m benchmarks.posterior_accuracy` on exact posteriors, unless
# a line has other evidence. Each takes about 800 network evaluations with the default grid of the
# digits, of 49 evaluations a run.
#
# With 13 steps p(known) of rough counts is off by up to 15 %, with 100 by up to 2 %
# (benchmarks/results/known_probability.json); up to 16 elements networks are small enough for more.
MAX_SMALL_ELEMENTS = 16
INPAINTING_SMALL = Overwrite(particles=64, steps=80)
INPAINTING = Overwrite(particles=32, steps=12)
# Few numbers leave weights even, so that particles alone find the posterior. Moves would add the
# error of their short reverse runs.
UNDERDETERMINED = SMC(particles=16)
# Narrow likelihoods leave particles with a bias, which moves reduce.
BLACK_BOX = SMC(particles=12, polish=16)
# Counts for each measured number above which particles are better than sweeps. It was compared on
# digits only.
MAX_COUNTS_PER_MEASUREMENT = 4


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
    """Return the state and level from which an exact reverse run is a draw from the posterior.

    - Binomial thinning of all elements with one survival p is pure death until -log p.
    - Symmetric flips are the uniform process.
    - Known and hidden elements are absorption. Since p(x_0 | x_t) does not depend on t there, any
      mask will do; the level is the one at which the expected share of masked elements is that of
      the mask.

    Returns:
        The state, or None where there is none.

    References: this project; checked in tests/verification/posterior_claims.py, which shows that
        L(x) is proportional to K_t(x, z).

    Example:
        >>> from blackout.posterior import Binomial, Identity, InverseProblem
        >>> problem = InverseProblem(Identity(), Binomial(0.5), torch.tensor([2.0, 7.0]))
        >>> state, level = conjugate_state(PureDeath(255), problem, (2,))
        >>> state.tolist(), round(level, 3)  # log 2
        ([[2, 7]], 0.693)
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
        if survival_of_level == 1:  # a penalty above 37 nats, whose level rounds to 0
            return None
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
        steps: above the first positive time, evenly spaced in the logit of survival; a run takes
            one more, to time 0.

    References: this project; checked in tests/verification/posterior_claims.py.
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
    """Automatic choice of the posterior sampler; `_choose` lists the criteria in order.

    Where sweeps of split Gibbs sampling are chosen, they come near the posterior. Noise-denoise
    moves then reduce the bias of the last level, and can move between distant modes. Only the last
    state of a chain is used, so that R-hat does not apply.

    The arguments are those of `SplitGibbs`.

    References: this project; measured by `python -m benchmarks.posterior_accuracy`.
    """

    is_markov_chain: ClassVar[bool] = False
    # other shares of sweeps and moves: docs/reference/posteriors.md
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
        # 1. The measurement is a state of the forward process: one reverse run from it.
        start = conjugate_state(prior.process, problem, prior.shape)
        if start is not None and start.level <= prior.final_time:
            return Direct(), "direct"

        # 2. Some elements are known exactly: weighted particles.
        num_elements = math.prod(prior.shape)
        if known_mask(prior, problem) is not None:
            inpainting = INPAINTING_SMALL if num_elements <= MAX_SMALL_ELEMENTS else INPAINTING
            return inpainting, f"{inpainting.particles} particles"

        # 3. Settings of split Gibbs, or kernels that particles cannot share.
        if has_settings or isinstance(prior.kernel, StatefulKernel):
            return SplitGibbs.resolve(self, prior, problem), "sgdd, then noise_denoise"

        # 4. Many counts for each number measured: particles alone.
        has_few = is_underdetermined(prior, problem)
        if has_few and has_explicit_likelihood(prior, problem):
            return UNDERDETERMINED, f"smc of {UNDERDETERMINED.particles} particles"

        # 5. Local likelihoods: sweeps draw elements from their exact conditional distributions.
        if not has_few and isinstance(self.make_likelihood_step(prior, problem), HeatBath):
            return SplitGibbs.resolve(self, prior, problem), "sgdd, then noise_denoise"

        # 6. Black boxes: particles, then moves.
        return BLACK_BOX, f"smc of {BLACK_BOX.particles} particles, then noise_denoise"


def is_underdetermined(prior: Prior, problem: Problem) -> bool:
    """Return whether the counts are more than four times as many as the measured numbers."""
    if not isinstance(prior.process, PureDeath) or not isinstance(problem, InverseProblem):
        return False
    num_measured = math.prod(problem.operator.measurement_shape(prior.shape))
    return math.prod(prior.shape) > MAX_COUNTS_PER_MEASUREMENT * num_measured


def has_explicit_likelihood(prior: Prior, problem: Problem) -> bool:
    """Return whether the likelihood is neither a black box nor has an unknown parameter."""
    if not isinstance(problem, InverseProblem) or isinstance(problem, BlindProblem):
        return False
    return problem.incidence(prior.shape) is not None
