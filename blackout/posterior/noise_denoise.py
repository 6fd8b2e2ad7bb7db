"""Moves that leave the posterior itself invariant, whatever the level: noise, denoise, accept by the likelihood."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from blackout.posterior.chains import Coupling, Method, Run, accepted, check_levels, where_rows
from blackout.posterior.prior import Prior
from blackout.posterior.problem import Problem
from blackout.random import SampleStreams, uniform


@dataclass(frozen=True)
class NoiseDenoise(Method):
    """z ~ K_t(x, .), x' ~ p(. | z), accepted with probability min(1, L(x') / L(x)).

    The proposal is reversible for p(x) when the reverse run is exact, so p(x) L(x) is stationary. Ours; checked by
    `python -m blackout.laws --posteriors`.

    Args:
        levels: taken in turn.
        moves: how many in all.
        start: "data" or "prior", see `chains.Run.begin`.
    """

    mixes: ClassVar[bool] = True
    levels: tuple[float, ...] = (1.0, 0.4, 0.1)
    moves: int = 24
    start: str = "data"

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
        for number in range(self.moves):
            t, turn = self.levels[number % len(self.levels)], streams.fold(number)
            source = turn.at(0)
            z = coupling.draw(x, t, source)
            proposed = run.prior.reverse(z, t, turn.fold(0))
            then = run.problem.log_likelihood(proposed.double())
            yes = accepted(then - now, now, uniform((len(x), 1), source, x.device))
            x, now = where_rows(yes, proposed, x), where_rows(yes, then, now)
            run.record(t, x, z, now, yes)
        return x
