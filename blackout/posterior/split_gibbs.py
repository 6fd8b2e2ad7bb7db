"""Split Gibbs sampling with a discrete diffusion prior (Chu et al., arXiv 2503.01161), corrected.

The pair (x, z) is sampled in turn: z given x under the likelihood, x given z by a reverse run of the diffusion, while
the level that ties them falls. The published method differs in two points that each change the limit: a potential that
is off by N - 1 for every mismatch, and a Metropolis chain restarted at z = x in every sweep.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from blackout.diffusion.processes import Uniform
from blackout.posterior.chains import Method, Posterior, Recorder, Seen, anneal, begin_chains, check_levels
from blackout.posterior.couplings import Coupling
from blackout.posterior.noise import Exact
from blackout.posterior.noise_denoise import NoiseDenoise
from blackout.posterior.prior import Prior, Streams, folded
from blackout.posterior.problem import Measured, Problem
from blackout.posterior.steps import HeatBath, Metropolis, make_step
from blackout.random import SampleStreams

_TRIES, _NEARER = 40, 0.85
"""How many levels a possible state is looked for at, each a share of the one before."""


@dataclass(frozen=True)
class SplitGibbs(Method):
    """Annealed split Gibbs sampling.

    Args:
        levels: one sweep at each, falling as a rule; see `anneal`.
        step: "auto" draws local likelihoods by heat bath and others by Metropolis; or one of the two by name.
        proposals: of Metropolis in every sweep; None for four per element.
        passes: of the heat bath in every sweep.
        polish: noise-denoise moves after the last sweep, which mend what its level leaves.
        start: "data" or "prior", see `chains.begin_chains`.
        published: as published, with both errors; Metropolis only.
    """

    levels: tuple[float, ...] = anneal()
    step: str = "auto"
    proposals: int | None = None
    passes: int = 2
    polish: int = 0
    start: str = "data"
    published: bool = False

    def sweeps(self, prior: Prior) -> int:
        return len(self.levels) + self.polish

    def run(
        self, prior: Prior, problem: Problem, number: int, streams: Streams, start: Tensor | None = None,
        seen: Seen | None = None,
    ) -> Posterior:  # fmt: skip
        self.check(prior, problem)
        coupling, step = self.coupling(prior), self.likelihood_step(prior, problem)
        recorder = Recorder(prior, self.sweeps(prior), seen)
        x = begin_chains(prior, problem, number, streams, start, self.start)
        z = _first(problem, coupling, x, self.levels[0], folded(streams, -2), isinstance(step, Metropolis))
        for k, t in enumerate(self.levels):
            moved = step(x, z, t, folded(streams, 3 * k))
            z = moved.z
            x = prior.reverse(z, t, folded(streams, 3 * k + 1))
            recorder.add(t, x, z, problem.log_likelihood(x.double()), moved.acceptance, moved.calls + 1)
        if self.polish:
            moves = NoiseDenoise(moves=self.polish)
            x = moves.walk(prior, problem, x, folded(streams, 3 * len(self.levels)), recorder)
        return recorder.result(x, problem.log_likelihood(x.double()))

    def check(self, prior: Prior, problem: Problem) -> None:
        check_levels(self.levels, prior)
        self.likelihood_step(prior, problem)
        if self.published and isinstance(problem, Measured) and type(problem.noise) is Exact:
            raise ValueError("as published, a chain needs a likelihood that is nowhere 0: noise=flips")

    def likelihood_step(self, prior: Prior, problem: Problem) -> HeatBath | Metropolis:
        """z given x; raises ValueError for one that the problem does not allow."""
        kind = "metropolis" if self.published else self.step
        step = make_step(problem, self.coupling(prior), prior.shape, kind, self.proposals, self.passes)
        return replace(step, restarted=self.published) if isinstance(step, Metropolis) else step

    def coupling(self, prior: Prior) -> Coupling:
        """K_t, or the published potential."""
        if not self.published:
            return Coupling(prior.process)
        uniform = isinstance(prior.process, Uniform)
        return Coupling(prior.process, float(prior.process.max_count) if uniform else 1.0, rescaled=False)


def _first(problem: Problem, coupling: Coupling, x: Tensor, t: float, streams: Streams, possible: bool) -> Tensor:
    """z ~ K_t(x, .); where the likelihood is 0 and it must be `possible`, one nearer to x or to the measurement.

    Raises:
        ValueError: no possible state was found in any row.
    """
    z = coupling.draw(x, t, streams.at(0) if isinstance(streams, SampleStreams) else streams)
    if not possible:
        return z
    relaxed = coupling.relaxed(problem, tuple(x.shape[1:]), t)
    bad = torch.isneginf(relaxed.log_likelihood(z))
    for other in _nearer(problem, coupling, x, t, streams):
        if not bool(bad.any()):
            return z
        z = torch.where(bad.view(-1, *[1] * (z.ndim - 1)), other.to(z.dtype), z)
        bad = torch.isneginf(relaxed.log_likelihood(z))
    if bool(bad.all()):
        raise ValueError("no state of positive likelihood was found near the start: give another one")
    return z


def _nearer(problem: Problem, coupling: Coupling, x: Tensor, t: float, streams: Streams) -> Iterator[Tensor]:
    """States of falling levels, x itself, and the measurement's own data, rounded up: [n, *shape] each."""
    for number in range(1, _TRIES + 1):
        source = streams.at(number) if isinstance(streams, SampleStreams) else streams
        yield coupling.draw(x, t * _NEARER**number, source)
    yield x
    estimate = getattr(problem, "estimate", None)
    near = None if estimate is None else estimate(len(x), tuple(x.shape[1:]))
    if near is not None:
        yield near.to(x.device).ceil().clamp(0, coupling.process.max_count)
