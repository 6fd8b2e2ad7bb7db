"""Noise-denoise moves: Metropolis moves that leave the posterior invariant at any noise level.

That holds for exact reverse runs; those of few steps leave the error of their steps. A move noises
the sample, denoises it by a reverse run, and accepts the result by the ratio of likelihoods. Moves
are a method of their own, or remove the bias that another method leaves.
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
from blackout.posterior.method import (
    Method,
    Run,
    check_levels,
    initial_estimate,
    metropolis_accept,
    select_rows,
)
from blackout.posterior.prior import Prior
from blackout.posterior.problem import InverseProblem, Problem
from blackout.random import SampleStreams, uniform

# times of the moves, in turn: high ones move between modes, low ones change details
POLISHING_LEVELS = (3.0, 1.0, 0.4, 0.1)  # after another method
LOW_LEVELS = (1.0, 0.4, 0.1)  # from a start near the posterior
HIGH_LEVELS = (3.0, 1.0, 0.4)  # from a start far from it


@dataclass(frozen=True)
class NoiseDenoise(Method):
    """Noise-denoise moves: z ~ K_t(x, .), x' ~ p(. | z), accepted with min(1, L(x') / L(x)).

    With exact reverse runs the proposal is reversible for p(x), so that p(x) L(x) is stationary.

    If elements are known exactly, almost no proposal agrees with all of them. Then z is drawn as
    before, but several particles return from it along the path of the known elements; one is the
    path of x, and one is drawn by weight (`run_particles` with `retain_first`). This leaves the
    distribution given the known elements invariant.

    Args:
        levels: times of the moves, in turn; none for 1, 0.4, 0.1 if the chain starts near the
            measurement, else 3, 1, 0.4.
        moves: number of moves.
        start: "data" or "prior"; see `Run.initial_samples`.
        candidates: particles of a move with known elements, the current sample among them.

    References: this project; checked in tests/verification/posterior_claims.py.
    """

    is_markov_chain: ClassVar[bool] = True
    levels: Sequence[float] = (1.0, 0.4, 0.1)
    moves: int = 24
    start: str = "data"
    candidates: int = 4

    def resolve(self, prior: Prior, problem: Problem) -> Method:
        """Return the method with levels that suit its start."""
        if self.levels:
            return self
        starts_near = self.start == "data" and isinstance(problem, InverseProblem)
        if starts_near:
            starts_near = initial_estimate(problem, 1, prior.shape) is not None
        levels = LOW_LEVELS if starts_near else HIGH_LEVELS
        return replace(self, levels=tuple(min(t, prior.final_time) for t in levels))

    def num_sweeps(self, prior: Prior) -> int:
        """Return the number of moves."""
        return self.moves

    def check(self, prior: Prior, problem: Problem) -> None:
        """Raise ValueError for settings out of range."""
        ensure(self.moves >= 1, f"moves must be at least 1, not {self.moves}")
        ensure(self.candidates >= 2, f"candidates must be at least 2, not {self.candidates}")
        ensure(self.start in ("data", "prior"), f"start must be data or prior, not {self.start}")
        check_levels(self.levels, prior)

    def draw(self, run: Run) -> Tensor:
        """Draw samples, counts [n, *shape]; see `Method.draw`."""
        return self.apply_moves(run, run.initial_samples(self.start), run.streams)

    def apply_moves(self, run: Run, x: Tensor, streams: SampleStreams) -> Tensor:
        """Return samples [n, *shape] after all moves from x, counts [n, *shape]; see the class."""
        mask = known_mask(run.prior, run.problem)
        log_likelihood = run.problem.log_likelihood(x.double())
        for move in range(self.moves):
            t = self.levels[move % len(self.levels)]
            move_streams = streams.fold_in(move)
            if mask is None:
                x, log_likelihood = self._move(run, x, log_likelihood, t, move_streams)
            else:
                x = self._move_with_known_elements(run, x, mask, t, move_streams)
        return x

    def _move(
        self, run: Run, x: Tensor, log_likelihood: Tensor, t: float, streams: SampleStreams
    ) -> tuple[Tensor, Tensor]:
        """Return samples and their log-likelihood after one move, and record it; see the class."""
        prior = run.prior
        source = streams.step(0)
        time = torch.tensor(t, dtype=torch.float64, device=x.device)
        z = prior.process.sample(x, time, source)
        proposal = prior.reverse(z, t, streams.fold_in(0))
        proposal_log_likelihood = run.problem.log_likelihood(proposal.double())
        log_ratio = proposal_log_likelihood - log_likelihood
        u = uniform((len(x), 1), source, x.device)
        accepted = metropolis_accept(log_ratio, log_likelihood, u)
        x = select_rows(accepted, proposal, x)
        log_likelihood = select_rows(accepted, proposal_log_likelihood, log_likelihood)
        run.record(t, x, z, log_likelihood, accepted)
        return x, log_likelihood

    def _move_with_known_elements(
        self, run: Run, x: Tensor, mask: Tensor, t: float, streams: SampleStreams
    ) -> Tensor:
        """Return samples after one move by particles, and record it; see the class."""
        prior = run.prior
        plan = SamplingPlan(
            prior.denoiser,
            prior.process,
            prior.reverse_times(t),
            prior.kernel,
            known_elements=KnownElements(x, mask.to(x.device).expand(x.shape)),
            device=x.device,
        )
        particles = Particles(self.candidates, threshold=0.0, retain_first=True)
        next_x = run_particles(plan, tuple(x.shape), streams, particles).samples
        has_changed = (x != next_x).flatten(1).any(1).double()
        evaluations = self.candidates * run.sweep_evaluations
        run.record(t, next_x, x, acceptance=has_changed, network_evaluations=evaluations)
        return next_x


def polish(run: Run, x: Tensor, moves: int, streams: SampleStreams) -> Tensor:
    """Return x [n, *shape] after noise-denoise moves at `POLISHING_LEVELS` in turn."""
    levels = tuple(min(t, run.prior.final_time) for t in POLISHING_LEVELS)
    return NoiseDenoise(levels, moves).apply_moves(run, x, streams)


def known_mask(prior: Prior, problem: Problem) -> Tensor | None:
    """Return which elements are known exactly, bool [*shape].

    None if there are none, or if particles cannot be weighted with this process and kernel.
    """
    can_weight = has_step_probability(prior.process)
    if not can_weight or isinstance(prior.kernel, StatefulKernel):
        return None
    elements = problem.known_elements(prior.shape) if isinstance(problem, InverseProblem) else None
    return None if elements is None else elements[1]
