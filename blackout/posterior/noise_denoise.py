"""Moves that leave a posterior invariant whatever their level: noise, denoise, accept by the ratio of likelihoods.

By themselves a method; after others they mend what these leave of a bias.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from blackout.diffusion.inpainting import KnownElements
from blackout.diffusion.kernels import StatefulKernel
from blackout.diffusion.particles import Particles, has_step_probability, run_particles
from blackout.diffusion.sampling import SamplingPlan
from blackout.errors import ensure
from blackout.posterior.method import Method, Run, accepted, check_levels, where_rows
from blackout.posterior.problem import Measured, Prior, Problem
from blackout.random import SampleStreams, uniform

_POLISH = (3.0, 1.0, 0.4, 0.1)
"""Levels of the moves after the last sweep, in turn: the first go from one mode to another, the last mend details."""
_NEAR, _FAR = (1.0, 0.4, 0.1), (3.0, 1.0, 0.4)
"""Levels of moves that begin near the posterior, and of those that must find it."""


@dataclass(frozen=True)
class NoiseDenoise(Method):
    """z ~ K_t(x, .), x' ~ p(. | z), accepted with probability min(1, L(x') / L(x)).

    The proposal is reversible for p(x) when the reverse run is exact, so p(x) L(x) is stationary. Ours; checked by
    tests/verification/posterior_claims.py.

    Of elements that are known exactly hardly a proposal would agree with all. There z is drawn as ever, but several
    particles run back from it beside the known elements' own path, x's path among them, and one is taken by its weight
    (`run_particles`, `retain_first`): the law given the known elements is as invariant.

    Args:
        levels: taken in turn; as a command none for 1, .4, .1 near a measurement, or 3, 1, .4 where chains begin far
            off.
        moves: how many in all.
        start: "data" or "prior", see `method.Run.begin`.
        candidates: particles of every move beside known elements, the present state among them.
    """

    mixes: ClassVar[bool] = True
    levels: Sequence[float] = (1.0, 0.4, 0.1)
    moves: int = 24
    start: str = "data"
    candidates: int = 4

    def method(self, prior: Prior, problem: Problem) -> Method:
        if self.levels:
            return self
        near = self.start == "data" and isinstance(problem, Measured) and problem.estimate(1, prior.shape) is not None
        return replace(self, levels=tuple(min(t, prior.final_time) for t in (_NEAR if near else _FAR)))

    def length(self, prior: Prior) -> int:
        return self.moves

    def check(self, prior: Prior, problem: Problem) -> None:
        ensure(self.moves >= 1, f"moves must be at least 1, not {self.moves}")
        ensure(self.start in ("data", "prior"), f"start must be data or prior, not {self.start}")
        check_levels(self.levels, prior)

    def draw(self, run: Run) -> Tensor:
        """Samples, counts [n, *shape]: see `Method.draw`."""
        return self.walk(run, run.begin(self.start), run.streams)

    def walk(self, run: Run, x: Tensor, streams: SampleStreams) -> Tensor:
        """All moves of the class from x, counts [n, *shape]: counts of that shape."""
        prior, now = run.prior, run.problem.log_likelihood(x.double())
        mask = known_mask(prior, run.problem)
        for number in range(self.moves):
            t, turn = self.levels[number % len(self.levels)], streams.fold_in(number)
            if mask is not None:
                before = x
                known = KnownElements(x, mask.to(x.device).expand(x.shape))
                plan = SamplingPlan(
                    prior.denoiser, prior.process, prior.walk(t), prior.kernel, known=known, device=x.device
                )
                particles = Particles(self.candidates, threshold=0.0, retain_first=True)
                x = run_particles(plan, tuple(x.shape), turn, particles).samples
                moved = (before != x).flatten(1).any(1).double()
                run.record(t, x, before, acceptance=moved, evaluations=self.candidates * run.spent)
                continue
            source = turn.step(0)
            z = prior.process.sample(x, torch.tensor(t, dtype=torch.float64, device=x.device), source)
            proposed = prior.reverse(z, t, turn.fold_in(0))
            then = run.problem.log_likelihood(proposed.double())
            yes = accepted(then - now, now, uniform((len(x), 1), source, x.device))
            x, now = where_rows(yes, proposed, x), where_rows(yes, then, now)
            run.record(t, x, z, now, yes)
        return x


def polished(run: Run, x: Tensor, moves: int, streams: SampleStreams) -> Tensor:
    """x [n, *shape] after so many moves of `NoiseDenoise` at all levels in turn."""
    return NoiseDenoise(tuple(min(t, run.prior.final_time) for t in _POLISH), moves).walk(run, x, streams)


def known_mask(prior: Prior, problem: Problem) -> Tensor | None:
    """Which elements are known exactly, bool [*shape], where particles can be weighed beside them; else None."""
    possible = has_step_probability(prior.process) and not isinstance(prior.kernel, StatefulKernel)
    known = problem.known(prior.shape) if possible and isinstance(problem, Measured) else None
    return None if known is None else known[1]
