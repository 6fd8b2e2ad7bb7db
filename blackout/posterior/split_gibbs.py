"""Split Gibbs sampling with a discrete diffusion prior, corrected.

The pair (x, z) is sampled in turn: z given x under the likelihood, and x given z by a reverse run
of the diffusion, while the level t that couples them decreases. The published method has two
errors, each of which changes the limit: its potential is off by N - 1 for every mismatch, and it
restarts a Metropolis chain at z = x in every sweep.

The split target is p(x) L_t(z) K_t(x, z), with the forward transition K_t of the process in place
of the potential (`coupling.py`). Then x given z is exactly X_0 given X_t = z. The x-marginal is
p(x) (K_t L_t)(x), which tends to p(x) L(x) as t -> 0 for any L_t that tends to L.

z given x and y is drawn by the steps of `likelihood_steps.py`. Those that are Markov chains
continue from the previous z; restarted at x, they would not leave the target invariant.

References: Chu et al. 2025, algorithm 1 and eq. 7 and 8; the corrections: this project, checked in
tests/verification/posterior_claims.py.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from blackout.diffusion.kernels import Kernel
from blackout.diffusion.processes import PureDeath, Uniform
from blackout.errors import UserError, check_at_least_one, ensure, refuse
from blackout.posterior.blind import BlindProblem
from blackout.posterior.coupling import Coupling
from blackout.posterior.likelihood_steps import (
    PROPOSALS_PER_ELEMENT,
    HeatBath,
    Metropolis,
    make_step,
)
from blackout.posterior.method import (
    Method,
    Run,
    check_levels,
    initial_estimate,
    select_rows,
)
from blackout.posterior.noise import Exact
from blackout.posterior.noise_denoise import polish
from blackout.posterior.prior import Prior
from blackout.posterior.problem import InverseProblem, Problem
from blackout.random import SampleStreams

# levels are times of the forward process
FIRST_LEVEL = 3.0
LAST_LEVEL = 0.01
# pure death of counts: below, chains rarely gain a unit (measured in
# docs/reference/posteriors.md)
LAST_LEVEL_COUNTS = 0.2
LAST_LEVEL_BITS = 0.02  # pure death of bits
PUBLISHED_FIRST_LEVEL = 20.0  # Chu et al. 2025, appendix C.3
PUBLISHED_LAST_LEVEL = 1e-4

PUBLISHED_PROPOSALS_PER_ELEMENT = 2  # of Metropolis in every sweep of the published method

# search for a possible initial state
NUM_SEARCH_LEVELS = 40
SEARCH_LEVEL_RATIO = 0.85  # of each level to the one before
SEARCH_KEY = -2  # random numbers of the initial state


def anneal(sweeps: int = 60, first: float = 3.0, last: float = 0.01) -> tuple[float, ...]:
    """Return as many levels as sweeps, from `first` to `last`, evenly spaced in their logarithm.

    The published schedule ends one step before `last`.

    Raises:
        ValueError: no sweep, or levels that are not first >= last > 0.

    References: Chu et al. 2025, appendix C.3.

    Example:
        >>> [round(level, 3) for level in anneal(3, 1.0, 0.01)]
        [1.0, 0.1, 0.01]
    """
    ensure(sweeps >= 1, f"sweeps must be at least 1, not {sweeps}")
    if not (math.inf > first >= last > 0):
        raise ValueError(
            f"levels must decrease from first_level={first} to last_level={last}, "
            "which must be above 0"
        )
    if sweeps == 1:
        return (float(first),)
    return tuple(first * (last / first) ** (k / (sweeps - 1)) for k in range(sweeps))


@dataclass(frozen=True)
class SplitGibbs(Method):
    """Annealed split Gibbs sampling, corrected.

    Args:
        levels: one sweep at each, usually decreasing; none for `anneal` with the last three
            settings.
        likelihood_step: "auto" for the heat bath if the likelihood is local, else Metropolis;
            or "heat_bath" or "metropolis".
        proposals: of Metropolis in every sweep; None for four per element (published: two).
        passes: of the heat bath in every sweep; None for two on bits, else one.
        polish: noise-denoise moves after the last sweep, which reduce the bias of its level.
        start: "data" or "prior"; see `Run.initial_samples`.
        published: the method as published with its two errors, for comparison. Its levels are the
            published ones, as far as the model's final time allows.
        steps: of each reverse run; None for fewer at lower levels, see `Prior.reverse_times`.
        sweeps: number of levels.
        first_level: None for the one that suits the process.
        last_level: None for the one that suits the process.
        kernel: step of the reverse runs; None for that of the prior.

    References: Chu et al. 2025, algorithm 1 and section 3.4; see the module.
    """

    is_markov_chain: ClassVar[bool] = True
    levels: Sequence[float] = ()
    likelihood_step: str = "auto"
    proposals: int | None = None
    passes: int | None = None
    polish: int = 0
    start: str = "data"
    published: bool = False
    steps: int | None = None
    sweeps: int = 60
    first_level: float | None = None
    last_level: float | None = None
    kernel: Kernel | None = None

    def resolve(self, prior: Prior, problem: Problem) -> Method:
        """Return the method with its levels.

        Raises:
            UserError: settings out of range or that contradict each other.
        """
        check_at_least_one(passes=self.passes, proposals=self.proposals, steps=self.steps)
        refuse(self.polish < 0, f"posterior.polish must be at least 0, not {self.polish}")
        if self.published and (self.likelihood_step == "heat_bath" or self.passes is not None):
            raise UserError(
                "posterior=sgdd_published always takes Metropolis steps: leave out "
                "posterior.passes and posterior.likelihood_step=heat_bath"
            )
        unused = {"metropolis": "passes", "heat_bath": "proposals"}.get(self.likelihood_step)
        if unused is not None and getattr(self, unused) is not None:
            raise UserError(
                f"posterior.{unused} has no effect with "
                f"posterior.likelihood_step={self.likelihood_step}: leave out one of the two"
            )
        if self.levels:
            self._check_ends()
            return self
        default_first, default_last = self._default_levels(prior)
        first = self.first_level
        if first is None:
            first = min(default_first, prior.final_time)
        last = self.last_level
        if last is None:
            last = min(default_last, first)
        return replace(self, levels=anneal(self.sweeps, first, last))

    def _check_ends(self) -> None:
        """Refuse levels that do not start at `first_level` and end at `last_level`, if given."""
        ends = {"first_level": self.levels[0]}
        if len(self.levels) > 1:
            ends["last_level"] = self.levels[-1]
        for name, level in ends.items():
            setting = getattr(self, name)
            if setting is not None and not math.isclose(setting, level):
                raise UserError(
                    f"posterior.{name}={setting:g} contradicts posterior.levels, where it is "
                    f"{level:g}: leave out one of the two"
                )

    def _default_levels(self, prior: Prior) -> tuple[float, float]:
        """Return the first and the last level."""
        if self.published:
            return PUBLISHED_FIRST_LEVEL, PUBLISHED_LAST_LEVEL
        if not isinstance(prior.process, PureDeath):
            return FIRST_LEVEL, LAST_LEVEL
        if prior.process.max_count > 1:
            return FIRST_LEVEL, LAST_LEVEL_COUNTS
        return FIRST_LEVEL, LAST_LEVEL_BITS

    def num_sweeps(self, prior: Prior) -> int:
        """Return the number of levels and moves."""
        return len(self.levels) + self.polish

    def draw(self, run: Run) -> Tensor:
        """Draw samples, counts [n, *shape]; see `Method.draw`."""
        prior = run.prior
        reverse_prior = prior if self.kernel is None else prior.with_kernel(self.kernel)
        problem = run.problem
        streams = run.streams

        # 1. The initial pair (x, z).
        coupling = self.coupling(prior)
        step = self.make_likelihood_step(prior, problem)
        x = run.initial_samples(self.start)
        search_streams = streams.fold_in(SEARCH_KEY)
        if isinstance(step, Metropolis):
            z = find_possible_state(problem, coupling, x, self.levels[0], search_streams)
        else:
            z = coupling.draw(x, self.levels[0], search_streams.step(0))

        for k, t in enumerate(self.levels):
            # 2. An unknown parameter of the noise given x.
            if isinstance(problem, BlindProblem):
                step = replace(
                    step, problem=problem.with_posterior_draw(x, streams.fold_in(3 * k + 2).step(0))
                )

            # 3. The likelihood step, z given x.
            z, info = step(x, z, t, streams.fold_in(3 * k))

            # 4. The prior step, x given z.
            x = reverse_prior.reverse(z, t, streams.fold_in(3 * k + 1), self.steps)
            run.record(
                t,
                x,
                z,
                acceptance=info.acceptance,
                likelihood_evaluations=info.likelihood_evaluations + 1,
            )

        # 5. Moves that reduce the bias of the last level.
        if self.polish:
            x = polish(run, x, self.polish, streams.fold_in(3 * len(self.levels)))
        return x

    def check(self, prior: Prior, problem: Problem) -> None:
        """Raise ValueError for settings out of range, or steps that the problem does not allow."""
        ensure(self.start in ("data", "prior"), f"start must be data or prior, not {self.start}")
        check_levels(self.levels, prior)
        self.make_likelihood_step(prior, problem)
        if self.published and isinstance(problem, InverseProblem):
            is_exact = type(problem.noise) is Exact
            ensure(
                not is_exact,
                "posterior=sgdd_published needs a likelihood that is never 0: use noise=flips",
            )

    def make_likelihood_step(self, prior: Prior, problem: Problem) -> HeatBath | Metropolis:
        """Return the step that draws z given x.

        Raises:
            ValueError: a step that the problem does not allow.
        """
        kind = "metropolis" if self.published else self.likelihood_step
        if isinstance(problem, BlindProblem):
            problem = problem.with_prior_median()
        proposals_per_element = PROPOSALS_PER_ELEMENT
        if self.published:
            proposals_per_element = PUBLISHED_PROPOSALS_PER_ELEMENT
        proposals = self.proposals or proposals_per_element * math.prod(prior.shape)
        passes = self.passes or (2 if prior.process.max_count == 1 else 1)
        coupling = self.coupling(prior)
        return make_step(problem, coupling, prior.shape, kind, proposals, passes, self.published)

    def coupling(self, prior: Prior) -> Coupling:
        """Return K_t, or the published potential.

        References: Chu et al. 2025, eq. 10.
        """
        mismatch_factor = 1.0
        if self.published and isinstance(prior.process, Uniform):
            mismatch_factor = float(prior.process.max_count)
        return Coupling(prior.process, mismatch_factor, rescaled=not self.published)


def find_possible_state(
    problem: Problem, coupling: Coupling, x: Tensor, t: float, streams: SampleStreams
) -> Tensor:
    """Draw z ~ K_t(x, .), and replace states of likelihood 0.

    They are replaced by draws at lower and lower levels, then by x, then by an estimate from the
    measurement.

    Returns:
        States [n, *shape].

    Raises:
        ValueError: no possible state was found for any row.

    References: this project; checked in tests/posterior/test_likelihood_steps.py.
    """
    shape = tuple(x.shape[1:])
    relaxed = coupling.relax(problem, shape, t)
    lower_levels = (t * SEARCH_LEVEL_RATIO**k for k in range(1, NUM_SEARCH_LEVELS + 1))
    lower_states = (
        coupling.draw(x, level, streams.step(k)) for k, level in enumerate(lower_levels, start=1)
    )
    alternatives = [x]
    estimate = initial_estimate(problem, len(x), shape)
    if estimate is not None:
        alternatives.append(estimate.to(x.device).ceil().clamp(0, coupling.process.max_count))
    z = coupling.draw(x, t, streams.step(0))
    for candidate in itertools.chain(lower_states, alternatives):
        impossible = torch.isneginf(relaxed.log_likelihood(z))
        if not bool(impossible.any()):
            return z
        z = select_rows(impossible, candidate.to(z.dtype), z)
    impossible = torch.isneginf(relaxed.log_likelihood(z))
    ensure(
        not bool(impossible.all()),
        "no state of positive likelihood was found near the start; check the operator, the noise "
        "and the units of y, or change posterior.start (data or prior)",
    )
    return z
