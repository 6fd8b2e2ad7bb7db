"""Moves that leave the posterior itself invariant, whatever the level: noise, denoise, accept by the likelihood."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from blackout.posterior.chains import Coupling, Method, Posterior, Recorder, Seen, begin_chains, check_levels
from blackout.posterior.prior import Prior, Streams, folded
from blackout.posterior.problem import Problem
from blackout.random import SampleStreams, uniform


@dataclass(frozen=True)
class NoiseDenoise(Method):
    """z ~ K_t(x, .), x' ~ p(. | z), accepted with probability min(1, L(x') / L(x)).

    The proposal is reversible for p(x) when the reverse run is exact, so p(x) L(x) is stationary.

    Args:
        levels: taken in turn.
        moves: how many in all.
        start: "data" or "prior", see `chains.begin_chains`.
    """

    levels: tuple[float, ...] = (1.0, 0.4, 0.1)
    moves: int = 24
    start: str = "data"

    def sweeps(self, prior: Prior) -> int:
        return self.moves

    def check(self, prior: Prior, problem: Problem) -> None:
        if self.moves < 1:
            raise ValueError(f"moves must be at least 1, not {self.moves}")
        check_levels(self.levels, prior)

    def run(
        self, prior: Prior, problem: Problem, number: int, streams: Streams, start: Tensor | None = None,
        seen: Seen | None = None,
    ) -> Posterior:  # fmt: skip
        self.check(prior, problem)
        recorder = Recorder(prior, self.moves, seen)
        x = begin_chains(prior, problem, number, streams, start, self.start)
        x = self.walk(prior, problem, x, streams, recorder)
        return recorder.result(x, problem.log_likelihood(x.double()))

    def walk(self, prior: Prior, problem: Problem, x: Tensor, streams: Streams, recorder: Recorder) -> Tensor:
        """All moves from x."""
        check_levels(self.levels, prior)
        coupling = Coupling(prior.process)
        now = problem.log_likelihood(x.double())
        for number in range(self.moves):
            t, turn = self.levels[number % len(self.levels)], folded(streams, number)
            source = turn.at(0) if isinstance(turn, SampleStreams) else turn
            z = coupling.draw(x, t, source)
            proposed = prior.reverse(z, t, folded(turn, 0))
            then = problem.log_likelihood(proposed.double())
            change = torch.where(torch.isneginf(now), math.inf, then - now)
            yes = uniform((len(x), 1), source, x.device)[:, 0].log() < change
            x = torch.where(yes.view(-1, *[1] * (x.ndim - 1)), proposed, x)
            now = torch.where(yes, then, now)
            recorder.add(t, x, z, now, yes, 1)
        return x
