"""Moves that leave the posterior itself invariant, whatever the level: noise, denoise, accept by the likelihood."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from blackout.diffusion.correctors import Churned
from blackout.diffusion.inpainting import KnownElements
from blackout.diffusion.kernels import StatefulKernel
from blackout.diffusion.particles import sample_particles, weighs
from blackout.posterior.chains import Coupling, Method, Run, accepted, check_levels, where_rows
from blackout.posterior.prior import Prior
from blackout.posterior.problem import Measured, Problem
from blackout.random import SampleStreams, uniform


@dataclass(frozen=True)
class NoiseDenoise(Method):
    """z ~ K_t(x, .), x' ~ p(. | z), accepted with probability min(1, L(x') / L(x)).

    The proposal is reversible for p(x) when the reverse run is exact, so p(x) L(x) is stationary. Ours; checked by
    `python -m blackout.laws --posteriors`.

    Of elements that are known exactly hardly a proposal would agree with all. There z is drawn as ever, but several
    particles run back from it beside the known elements' own path, x's path among them, and one is taken by its weight
    (`sample_particles`, `held`): the law given the known elements is as invariant.

    Args:
        levels: taken in turn.
        moves: how many in all.
        start: "data" or "prior", see `chains.Run.begin`.
        candidates: particles of every move beside known elements, the present state among them.
    """

    mixes: ClassVar[bool] = True
    levels: tuple[float, ...] = (1.0, 0.4, 0.1)
    moves: int = 24
    start: str = "data"
    candidates: int = 4

    def sweeps(self, prior: Prior) -> int:
        return self.moves

    def check(self, prior: Prior, problem: Problem) -> None:
        if self.moves < 1:
            raise ValueError(f"moves must be at least 1, not {self.moves}")
        check_levels(self.levels, prior)

    def draw(self, run: Run) -> Tensor:
        return self.walk(run, run.begin(self.start), run.streams)

    def walk(self, run: Run, x: Tensor, streams: SampleStreams) -> Tensor:
        """All moves from x, counts [n, *shape]."""
        coupling, now = Coupling(run.prior.process), run.problem.log_likelihood(x.double())
        mask = known_mask(run.prior, run.problem)
        for number in range(self.moves):
            t, turn = self.levels[number % len(self.levels)], streams.fold(number)
            if mask is not None:
                before, x = x, self._beside(run.prior, x, mask, t, turn)
                moved = (before != x).flatten(1).any(1).double()
                run.record(t, x, before, acceptance=moved, evaluations=self.candidates * run.spent)
                continue
            source = turn.at(0)
            z = coupling.draw(x, t, source)
            proposed = run.prior.reverse(z, t, turn.fold(0))
            then = run.problem.log_likelihood(proposed.double())
            yes = accepted(then - now, now, uniform((len(x), 1), source, x.device))
            x, now = where_rows(yes, proposed, x), where_rows(yes, then, now)
            run.record(t, x, z, now, yes)
        return x

    def _beside(self, prior: Prior, x: Tensor, mask: Tensor, t: float, streams: SampleStreams) -> Tensor:
        """A move of particles beside the known elements of x, from a level."""
        known = KnownElements(x, mask.to(x.device).expand(x.shape))
        assert prior.kernel is not None
        return sample_particles(
            prior.denoiser, prior.process, prior.walk(t), tuple(x.shape), streams, number=self.candidates,
            kernel=prior.kernel, known=known, threshold=0.0, held=True, device=x.device,
        ).samples  # fmt: skip


def known_mask(prior: Prior, problem: Problem) -> Tensor | None:
    """Which elements are known exactly, bool [*shape], where particles can be weighed beside them; else None."""
    possible = weighs(prior.process) and not isinstance(prior.kernel, StatefulKernel | Churned)
    known = problem.known(prior.shape) if possible and isinstance(problem, Measured) else None
    return None if known is None else known[1]
